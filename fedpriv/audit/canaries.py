"""Canary users, and a mechanism run on them through the run's own door.

The roster keeps its size, and every place on it is a user whose records, if it has any, make one
update: far beyond the bound, along a coordinate that is no other user's. Whether it has records is
decided by a fair coin for each. So one run of the mechanism is as many trials as it has users: who
took part in which round, the bound, the sum over users, the noise and the denominator are those of
the plan, and what is released of a coordinate depends on its own user alone.

Under add-remove a user without its records contributes nothing; under replace-one it contributes
the opposite, which is as far apart as two users' records can be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedpriv.audit.bounds import Scores
from fedpriv.backends.serial import SerialBackend
from fedpriv.privacy.event import Relation
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plans.plan import Plan
from fedpriv.rng import Key
from fedpriv.running.door.door import RunDoor
from fedpriv.running.door.vault import Vault
from fedpriv.sums import Adder, RunningSum
from fedpriv.training.algorithm import Query
from fedpriv.training.work import TRAIN, UserByUser, Work
from fedpriv.tree import Params, RowSparse, Tree

_LENGTH = 100.0
"""How long a canary's update is, over the bound: a bound that is not kept shows."""
_CANARY, _SIGN = "canary", "sign"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Canaries of one run or several, and what was released of each.

    Attributes:
        inside: bool (n,), whether a canary had its records.
        seen: float64 (rounds, n), its coordinate of the noised sum, over the bound; its own update
            would be 1 of it.
    """

    inside: np.ndarray = field(repr=False)
    seen: np.ndarray = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryUsers:
    """A `fedpriv.training.work.UserData` whose users have one example: where they point.

    Attributes:
        pointed: By user id, (coordinate, direction): +1 with its records, 0 or -1 without.
    """

    pointed: dict[str, tuple[int, float]] = field(repr=False)

    def examples(self, user_id: str) -> tuple[int, float]:
        """Return coordinate and direction."""
        return self.pointed[user_id]

    def num_examples(self, user_id: str) -> int:
        """Return 1 for a user with records."""
        return int(self.pointed[user_id][1] != 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryTrainer:
    """What a canary user does: a `fedpriv.training.work.LocalTrainer`.

    Attributes:
        length: l2 norm of the update.
    """

    length: float

    def train(self, params: Params, examples: Any, key: Key) -> Tree:
        """Return the update, along the user's own coordinate; in odd rounds the other way."""
        coordinate, direction = examples
        rows = np.array([coordinate] if direction else [], np.int64)
        value = self.length * direction * float(params[_SIGN][0])
        values = np.full((len(rows), 1), value, np.float32)
        return {_CANARY: RowSparse(rows=rows, values=values, num_rows=len(params[_CANARY]))}


#: Makes the work that sums canaries, of their trainer and of names and shapes of the sum.
WorkMaker = Callable[[CanaryTrainer, Params], Work]


def user_by_user(trainer: CanaryTrainer, shapes: Params, adder: Adder = RunningSum) -> Work:
    """Return the work in which each user is trained and bounded behind its own guard."""
    return UserByUser(trainer=trainer, shapes=shapes, adder=adder)


def run_canaries(
    plan: Plan,
    root: Key,
    inside: Sequence[bool] | np.ndarray,
    *,
    num_rounds: int,
    make_work: WorkMaker = user_by_user,
    after_round: Callable[[], None] = lambda: None,
) -> Trials:
    """Run a plan's mechanism once on canary users, through a door with a ledger in memory.

    Args:
        plan: With the mechanism to audit; each round is charged to it, in memory.
        root: Root key of cohorts and noise.
        inside: For each canary, at most as many as the plan has users, whether it has records; the
            other users have none, and no coordinate.
        num_rounds: How many.
        make_work: Makes what sums the cohort's updates.
        after_round: Called after each round.

    Raises:
        ValueError: If there are more canaries than users, or the mechanism answers with anything
            but a noised mean.
    """
    inside = np.asarray(inside, bool)
    mechanism = plan.live_mechanism
    if len(inside) > plan.num_users:
        raise ValueError(f"{len(inside)} canaries do not fit among {plan.num_users} users")
    roster = tuple(f"canary-{number}" for number in range(plan.num_users))
    absent = -1.0 if plan.relation is Relation.REPLACE_ONE else 0.0
    pointed = {user: (0, 0.0) for user in roster[len(inside) :]}
    for number, present in enumerate(inside):
        pointed[roster[number]] = (number, 1.0 if present else absent)
    shapes = {_CANARY: np.zeros((len(inside), 1), np.float32)}
    trainer = CanaryTrainer(length=_LENGTH * mechanism.l2_bound)
    work = make_work(trainer, shapes)
    seen = np.empty((num_rounds, len(inside)))
    with ThreadPoolExecutor(1, thread_name_prefix="noise") as noise_thread:
        door = RunDoor(
            plan=plan,
            ledger=Ledger.in_memory(plan, mode=root.mode),
            backend=SerialBackend(trainer=work, data=CanaryUsers(pointed=pointed)),
            works={TRAIN: work},
            roster=roster,
            root=root,
            vault=Vault(None, root),
            noise_thread=noise_thread,
        )
        for number in range(num_rounds):
            sign = -1.0 if number % 2 else 1.0
            door.begin(number + 1)
            answer = door.ask(Query(params={**shapes, _SIGN: np.array([sign], np.float32)}))
            seen[number] = sign * _noised_sum(answer, mechanism)
            after_round()
    return Trials(inside=inside, seen=seen / mechanism.l2_bound)


def _noised_sum(answer: Any, mechanism: Mechanism) -> np.ndarray:
    update = getattr(answer, "update", None)
    if update is None:
        raise ValueError(
            f"{mechanism.privatizer.name} releases a {type(answer).__name__}, whose coordinates "
            "are unknown here; the audit is of noised means"
        )
    return update[_CANARY].reshape(-1).astype(np.float64) * mechanism.denominator


def scores_of(trials: Sequence[Trials], plan: Plan) -> tuple[Scores, Scores]:
    """Return scores of canaries by two rules, each good at what the other is blind to.

    The first is the likelihood ratio under the plan's own noise and sampling: no rule is better
    where they are what the plan says, and too little noise or too long an update show by it. The
    second is how far the round that stands out most is from the canary's median round: noise that
    is the same in every round cancels from it.

    Args:
        trials: Of one plan and number of rounds.
        plan: The audited one.
    """
    inside = np.concatenate([one.inside for one in trials])
    ratios = np.concatenate([_log_ratio(one.seen, plan) for one in trials])
    signed = np.concatenate([_standing_out(one.seen) for one in trials])
    first, second = (
        Scores(inside=values[inside], outside=values[~inside]) for values in (ratios, signed)
    )
    return first, second


def _log_ratio(seen: np.ndarray, plan: Plan) -> np.ndarray:
    """Return log of the densities' ratio with and without records, summed over rounds."""
    mechanism = plan.live_mechanism
    share = mechanism.expected_cohort_size / mechanism.num_users
    variance = (mechanism.stddev / mechanism.l2_bound) ** 2

    def with_records(values: np.ndarray) -> np.ndarray:
        taking_part = np.log(share) + (2 * values - 1) / (2 * variance)
        return taking_part if share >= 1 else np.logaddexp(np.log1p(-share), taking_part)

    ratio = with_records(seen)
    if plan.relation is Relation.REPLACE_ONE:
        ratio = ratio - with_records(-seen)
    return ratio.sum(axis=0)


def _standing_out(seen: np.ndarray) -> np.ndarray:
    """Return the largest distance of a round from the median round, signs of rounds undone."""
    signs = np.where(np.arange(len(seen)) % 2, -1.0, 1.0)[:, None]
    released = seen * signs
    return np.abs(released - np.median(released, axis=0)).max(axis=0)
