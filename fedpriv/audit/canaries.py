"""A mechanism run on canary users, or examples, through the door that runs use.

The roster keeps its size, and every place on it is a user whose records, if it has any, make one
update: far beyond the bound, along a coordinate that is no other user's. Whether it has records is
decided for each with probability 1/2. So one run of the mechanism is as many trials as it has
users: who took part in which round, the bound, the sum over users, the noise and the denominator
are those of the plan, and what is released of a coordinate depends on its own user alone.

Under add-remove a user without its records contributes nothing; under replace-one it contributes
the opposite, which is as far apart as two users' records can be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from fedpriv.audit.bounds import Scores
from fedpriv.backends.backend import SerialBackend
from fedpriv.mechanisms.event import Relation
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan
from fedpriv.rng import Key
from fedpriv.runs.door import RunDoor
from fedpriv.runs.secret_state import SecretState
from fedpriv.training.algorithm import TRAIN, Context, SumRequest
from fedpriv.training.per_example.example_sum import CentralSum, example_ids
from fedpriv.training.per_example.linear import LogisticGradients
from fedpriv.training.work import UserData, UserTrainer, Work
from fedpriv.tree import Params, RowSparse, Tree

_LENGTH = 100.0
"""Length of a canary's update over the bound: a bound that is not kept shows."""
_CANARY, _SIGN = "canary", "sign"


@dataclass(frozen=True, slots=True, kw_only=True)
class Canaries:
    """Canaries that a mechanism is run on.

    Attributes:
        roster: As many ids as the plan has users; the first ones are canaries.
        work: What sums the drawn ones.
        data: The users' records; None where the work holds them.
        request: From the sign of a round, 1 or -1, to what is asked.
        coordinates: The tensor whose i-th element is canary i's.
        alternates: Whether updates change sign with the round.
    """

    roster: tuple[str, ...]
    work: Work
    data: UserData | None
    request: Callable[[float], SumRequest]
    coordinates: str
    alternates: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Records:
    """A `fedpriv.training.work.UserData` of users with one example: coordinate and direction."""

    pointed: Mapping[str, tuple[int, float]] = field(repr=False)

    def examples(self, user_id: str) -> tuple[int, float]:
        return self.pointed[user_id]

    def num_examples(self, user_id: str) -> int:
        return int(self.pointed[user_id][1] != 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trainer(UserTrainer):
    """An update along the user's own coordinate."""

    length: float

    def train(self, params: Params, context: Context, examples: Any, key: Key) -> Tree:
        coordinate, direction = examples
        rows = np.array([coordinate] if direction else [], np.int64)
        value = self.length * direction * float(context.extra[_SIGN][0])
        values = np.full((len(rows), 1), value, np.float32)
        return {_CANARY: RowSparse(rows=rows, values=values, num_rows=len(params[_CANARY]))}


def as_users(plan: Plan, directions: np.ndarray) -> Canaries:
    """Return canary users; in every second round their updates point the other way.

    Args:
        plan: The audited one.
        directions: float64 (n,), 1 or -1 of a user with records, 0 of one without.
    """
    number = len(directions)
    roster = tuple(f"canary-{place}" for place in range(plan.num_users))
    pointed = dict.fromkeys(roster[number:], (0, 0.0))
    pointed |= {roster[place]: (place, float(directions[place])) for place in range(number)}
    shapes = {_CANARY: np.zeros((number, 1), np.float32)}
    trainer = _Trainer(length=_LENGTH * plan.live_mechanism.l2_bound)
    return Canaries(
        roster=roster,
        work=trainer,
        data=_Records(pointed=pointed),
        request=lambda sign: SumRequest(
            params=shapes, context=Context(extra={_SIGN: np.array([sign], np.float32)})
        ),
        coordinates=_CANARY,
        alternates=True,
    )


def as_examples(plan: Plan, directions: np.ndarray) -> Canaries:
    """Return canary examples of a logistic regression whose weights are zero.

    An example's gradient lies along its own input, and a hundred-thousandth along the bias, which
    is not looked at.

    Args:
        plan: The audited one.
        directions: As `as_users`; -1 is an example of the other class.
    """
    number, num_examples = len(directions), plan.num_users
    scale = 2 * _LENGTH * max(plan.live_mechanism.l2_bound, 1000.0)
    present = np.flatnonzero(directions)
    x = sparse.csr_matrix(
        (np.full(len(present), scale, np.float32), (present, present)), (num_examples, number)
    )
    labels = np.zeros(num_examples, np.int64)
    labels[:number] = directions > 0
    shapes = {"weight": np.zeros(number, np.float32), "bias": np.zeros(1, np.float32)}
    return Canaries(
        roster=example_ids(num_examples),
        work=CentralSum(gradients=LogisticGradients(x, labels), num_examples=num_examples),
        data=None,
        request=lambda sign: SumRequest(params=shapes),
        coordinates="weight",
        alternates=False,
    )


#: Makes canaries of a plan and of a direction for each: 1, 0 or -1.
CanaryMaker = Callable[[Plan, np.ndarray], Canaries]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Canaries of one run, and what was released of each.

    A canary's coordinate of the noised sum is *seen* over the bound, in the direction of its own
    update, which would be 1 of it.

    Attributes:
        inside: bool (n,), whether a canary had its records.
        log_ratio: float64 (n,), of the densities with and without records, summed over rounds.
        standing_out: float64 (n,), how far the most outstanding round is from the mean one.
    """

    inside: np.ndarray = field(repr=False)
    log_ratio: np.ndarray = field(repr=False)
    standing_out: np.ndarray = field(repr=False)


def run_canaries(
    plan: Plan,
    root: Key,
    inside: Sequence[bool] | np.ndarray,
    *,
    num_rounds: int,
    make: CanaryMaker | None = None,
    after_round: Callable[[], None] = lambda: None,
) -> Trials:
    """Run a plan's mechanism once on canaries, through a door with a ledger in memory.

    Args:
        plan: With the mechanism to audit; each round is charged to it, in memory.
        root: Root key of cohorts and noise.
        inside: For each canary, at most as many as the plan has users, whether it has records; the
            other users have none, and no coordinate.
        num_rounds: How many.
        make: Makes canaries and what sums them; None for those of the plan's unit.
        after_round: Called after each round.

    Raises:
        ValueError: If there are more canaries than users, or the mechanism answers with anything
            but a noised mean.
    """
    inside = np.asarray(inside, bool)
    mechanism = plan.live_mechanism
    if len(inside) > plan.num_users:
        raise ValueError(f"{len(inside)} canaries do not fit among {plan.num_users} {plan.unit}s")
    absent = -1.0 if plan.relation is Relation.REPLACE_ONE else 0.0
    make = make or (as_users if plan.unit == "user" else as_examples)
    canaries = make(plan, np.where(inside, 1.0, absent))
    ratio, total = np.zeros(len(inside)), np.zeros(len(inside))
    highest, lowest = np.full(len(inside), -np.inf), np.full(len(inside), np.inf)
    with ThreadPoolExecutor(1, thread_name_prefix="noise") as noise_thread:
        door = RunDoor(
            plan=plan,
            ledger=Ledger.in_memory(plan, mode=root.mode),
            backend=SerialBackend(trainer=canaries.work, data=canaries.data),
            works={TRAIN: canaries.work},
            roster=canaries.roster,
            root=root,
            noise=root,  # canaries are synthetic
            secret_state=SecretState(None, root),
            noise_thread=noise_thread,
        )
        for number in range(num_rounds):
            sign = -1.0 if canaries.alternates and number % 2 else 1.0
            door.begin(number + 1)
            answer = door.ask(canaries.request(sign))
            released = _noised_sum(answer, canaries.coordinates, mechanism)
            ratio += _log_ratio(sign * released, plan)
            total += released
            np.maximum(highest, released, out=highest)
            np.minimum(lowest, released, out=lowest)
            after_round()
    mean = total / num_rounds
    return Trials(
        inside=inside,
        log_ratio=ratio,
        standing_out=np.maximum(highest - mean, mean - lowest),
    )


def _noised_sum(answer: Any, name: str, mechanism: Mechanism) -> np.ndarray:
    """Return what was released of each canary, over the bound."""
    if not isinstance(answer, Mapping):
        raise ValueError(
            f"{mechanism.privatizer.name} releases a {type(answer).__name__}, whose coordinates "
            "are unknown here; the audit is of noised means"
        )
    scale = mechanism.denominator / mechanism.l2_bound
    return answer[name].reshape(-1).astype(np.float64) * scale


def scores_of(trials: Sequence[Trials]) -> tuple[Scores, Scores]:
    """Return scores of canaries by two rules, each good at what the other is blind to.

    The first is the likelihood ratio under the plan's own noise and sampling: no rule is better
    where they are what the plan says, and too little noise or too long an update show by it. The
    second is how far a canary's rounds are apart: noise that is the same in every round cancels.

    Args:
        trials: Of one plan and number of rounds.
    """
    inside = np.concatenate([one.inside for one in trials])
    ratios = np.concatenate([one.log_ratio for one in trials])
    apart = np.concatenate([one.standing_out for one in trials])
    first, second = (
        Scores(inside=values[inside], outside=values[~inside]) for values in (ratios, apart)
    )
    return first, second


def _log_ratio(seen: np.ndarray, plan: Plan) -> np.ndarray:
    """Return log of the ratio of densities with and without records, of one round."""
    mechanism = plan.live_mechanism
    share = mechanism.expected_cohort_size / mechanism.num_users
    variance = (mechanism.stddev / mechanism.l2_bound) ** 2

    def with_records(values: np.ndarray) -> np.ndarray:
        taking_part = np.log(share) + (2 * values - 1) / (2 * variance)
        return taking_part if share >= 1 else np.logaddexp(np.log1p(-share), taking_part)

    if plan.relation is Relation.REPLACE_ONE:
        return with_records(seen) - with_records(-seen)
    return with_records(seen)
