"""Bolt-on DP: train by permutation SGD without noise, and perturb the result once.

What is noised is where a permutation SGD ends, by how far one user can move that; nothing else of
the training leaves. So there is one charge, of pure ε where the noise is that of a sphere, and no
step has any noise. The price is that only the end is released: no checkpoint, no figure measured on
private data on the way, and that the whole of the training must be what the proof is of: convex,
unclipped, without momentum.

`BoltOn` releases a training of single examples, `BoltOnUsers` one over users, and `Tuned` chooses
privately among several: of m examples and l candidates, candidate i is trained on part i of l + 1
equal parts that are split without looking at them and perturbed, all are judged by their mistakes
on the last part, and one is released. It costs one ε, since each example is in one part only; a
candidate sees m/(l + 1) examples.

References: Wu et al., "Bolt-on Differential Privacy for Scalable Stochastic Gradient Descent-based
Analytics" (2017), Algorithms 1 and 2, for single examples, of which the slides of a talk were read;
Chaudhuri, Monteleoni and Sarwate (2011) for the choice, which Wu et al. have too, as remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedpriv import tree
from fedpriv.mechanisms.bounds import CHECKED_EXCESS, Checked, OutputSensitivity
from fedpriv.mechanisms.event import Event, Relation
from fedpriv.mechanisms.perturbation import OutputGaussian, Sphere
from fedpriv.mechanisms.privatizer import Privatizer
from fedpriv.mechanisms.selection import MISTAKES, PrivateChoice, candidates
from fedpriv.privacy.accounting import calibrate
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import AnyPlan, Plan
from fedpriv.privacy.sampling import Everybody
from fedpriv.ranges import Range, finite_float, positive_int
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.algorithm import Algorithm, ArrayState, Context, Door, RawSums, SumRequest
from fedpriv.training.convex_losses import Constants
from fedpriv.training.permutation_sgd import LONGEST_START, Passes, PermutationSgd
from fedpriv.training.work import Attempt, Users, Work
from fedpriv.tree import Params


@runtime_checkable
class KnowsConstants(Protocol):
    """A task whose users' mean loss is convex, and whose constants are known."""

    def constants(self, *, regulariser: float) -> Constants:
        """Return the constants of the loss with a regulariser λ/2 ‖w‖² that the server applies."""
        ...


def output_noise(
    target_epsilon: float, delta: float | None, relation: Relation
) -> Sphere | OutputGaussian:
    """Return noise whose one release costs a target ε.

    Args:
        target_epsilon: ε of the release under the relation.
        delta: δ, of Gaussian noise with the least standard deviation; None for pure ε, of noise of
            uniform direction and Gamma length.
        relation: Of neighbours.
    """
    if delta is None:
        return Sphere(epsilon=target_epsilon / relation.moved)
    sigma = calibrate(
        lambda found: Event(kind="gaussian", noise_multiplier=found),
        1,
        target_epsilon=target_epsilon,
        delta=delta,
        relation=relation,
    )
    return OutputGaussian(noise_multiplier=sigma)


def plan_of_release(num_users: int, sensitivity: float, noise: Privatizer, **rest: Any) -> Plan:
    """Return the plan of one release of a result of all users.

    Args:
        num_users: Users on the roster, or examples.
        sensitivity: Δ₂ of the result, for one who is there or not.
        noise: What is added.
        **rest: Every other field of a plan but the mechanism and the rounds.
    """
    mechanism = Mechanism(
        sampler=Everybody(num_users=num_users),
        bound=OutputSensitivity(l2_bound=sensitivity),
        privatizer=noise,
    )
    return Plan(mechanism=mechanism, num_rounds=1, **rest)


#: Twice the rounding of params to float32 in every update, on their way to the users.
_FLOAT32 = 2.0**-23


@dataclass(frozen=True, slots=True, kw_only=True)
class BoltOn(Algorithm):
    """Asks once for the perturbed result of a work that trains from beginning to end.

    Base of other algorithms of one answer, after which the run ends.

    Attributes:
        longest_start: ‖w₀‖₂ that Δ has room for: the rounding of long params moves runs apart.
    """

    longest_start: float = 0.0

    def check_params(self, params: Params) -> None:
        """Refuse a start that Δ has no room for.

        Raises:
            ValueError: If it is longer than `longest_start`, or not finite.
        """
        length = tree.l2_norm(params)
        if not length <= self.longest_start * (1.0 + 2.0**-40):
            raise ValueError(
                f"where training starts is {length:.6g} long, and Δ has no room for the rounding "
                f"of more than {self.longest_start:g}: start nearer to zero (start=fresh, or a "
                "lower start-factor), or, of users, raise longest-start, which costs noise"
            )

    def init(self, params: Params) -> ArrayState:
        """Return the state before training; errors are those of `check_params`."""
        self.check_params(params)
        return ArrayState(params=params)

    def fits(self, mechanism: Mechanism) -> bool:
        """Return whether a mechanism perturbs the result of the training."""
        return isinstance(mechanism.bound, OutputSensitivity) and isinstance(
            mechanism.privatizer, (Sphere, OutputGaussian)
        )

    def check_plan(self, plan: AnyPlan) -> None:
        """Refuse a plan whose mechanism is not one release of a perturbed result.

        Raises:
            ValueError: If that is so.
        """
        if not isinstance(plan, Plan) or plan.num_rounds != 1:
            raise ValueError("bolt-on releases once; give a Plan of one round")
        mechanism = plan.live_mechanism
        if plan.is_private and not self.fits(mechanism):
            raise ValueError(
                f"bolt-on perturbs a result once, and {type(self).__name__} is not of a plan that "
                f"bounds by {type(mechanism.bound).__name__} and adds "
                f"{type(mechanism.privatizer).__name__}"
            )

    def step(self, state: ArrayState, door: Door) -> ArrayState | None:
        """Return the state after the release; None after that."""
        return None if state.round_num else self.release(state, door)

    def release(self, state: ArrayState, door: Door) -> ArrayState:
        """Return the state after the release."""
        return state.after(door.ask(SumRequest(params=state.params)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BoltOnUsers(BoltOn):
    """Permutation SGD over users, each once a pass, whose end is perturbed and released.

    A user's mean loss is one example's: convex, L₀-Lipschitz and β-smooth where its examples'
    losses are. Its update is the sum of K full gradient steps of rate η <= 2/β, each of which
    brings two points no further apart; so does a mean over b users, divided by the fixed b.

    Attributes:
        passes: k passes over the users, b at a time, in an order drawn without looking at them.
        constants: Of the loss, with the regulariser that the server applies.
        local_steps: K full gradient steps of a user on the mean loss of its examples.
        server_rate: s in (0, 1]: params move by s times the batch's mean update.
        longest_start: ‖w₀‖₂ of the longest start that Δ has room for: params are rounded to float32
            in every update.

    Guarantees:
        * A user who is there or not moves the result by at most `sensitivity`, if every
          other user does the same work in both runs: their devices are trusted to do it.
        * A user who fails or is missing at the start's params, which depend on no user's data,
          counts as absent in every update. A user who fails or is missing later ends the run
          without a release, since who is missing may depend on the params; that it ended is not
          covered.

    It cannot count as a step of length zero instead. At two runs' params w and w' a step brings
    them no further apart because it is the *same* map of both. If user v takes it at w and fails
    at w', their distance may grow by v's whole ηL₀/b; what v does hangs on the params, which the
    differing user moves, so that this may happen to every other user in every pass: up to m times
    Δ (`tests/running/methods/test_failing_users.py` has a case). Nor does it help to leave v out
    from then on, or to repeat its last step: those are two maps, too.
    """

    passes: Passes
    constants: Constants
    local_steps: int = 1
    server_rate: float = 1.0

    def __post_init__(self) -> None:
        positive_int("local_steps", self.local_steps)
        finite_float("server_rate", self.server_rate, Range.ABOVE_ZERO)
        if self.server_rate > 1.0:
            raise ValueError(
                f"server_rate {self.server_rate:g} is above 1, where two runs may drift apart; "
                "lower it"
            )
        finite_float("longest_start", self.longest_start, Range.AT_LEAST_ZERO)
        if self.passes.average:
            raise ValueError("average true: iterates are averaged of single examples' training")
        if self.local_steps > 1 and self.passes.schedule.kind != "constant":
            raise ValueError(
                f"local_steps {self.local_steps} are of a constant rate; use step "
                "'constant', or one step"
            )

    def sensitivity(self, num_users: int) -> float:
        """Return Δ for a user who is there or not: s Σ_j K η_j L₀ / b; replaced, twice as much.

        There is room in it for twice the rounding of params to float32 (2^-24 of their length in
        every update of either run), for that of updates by `Checked` (2^-39 √d of their length, d
        up to 2^32), and for updates of the differing user that are longer by as much as `Checked`
        lets through, 2^-16 of their length.

        Raises:
            ValueError: As `Passes.sensitivity`.
        """
        with_rounding = partial(
            self.passes.sensitivity,
            self.constants,
            num_users,
            local_steps=self.local_steps,
            start=self.longest_start,
            share=self.server_rate if self.constants.convexity == 0.0 else 1.0,
        )
        rates = self.passes.rates(self.constants, num_users)
        path = float(rates.sum()) * self.local_steps * self.constants.lipschitz
        excess = CHECKED_EXCESS * with_rounding(relative_rounding=0.0)
        return with_rounding(relative_rounding=_FLOAT32) + _FLOAT32 * path + excess

    def release(self, state: ArrayState, door: Door) -> ArrayState:
        """Return the state after the release.

        Raises:
            ValueError: If a user failed who had not failed at the start: nothing is released, and
                what was charged stays spent.
        """
        params = state.params
        request = SumRequest(params=params)
        return state.after(door.run(request, lambda raw: self._trained(params, raw)))

    def _trained(self, params: Params, raw: RawSums) -> PartialSum:
        passes, number = self.passes, raw.num_users
        rates = passes.rates(self.constants, number)
        decay, share = self.constants.convexity, self.server_rate / passes.batch_size
        current = {name: np.asarray(array, np.float32) for name, array in params.items()}
        able = self._able(raw, current, float(rates[0]))
        for batch, rate in passes.updates(self.constants, number, raw.key("order")):
            kept, there = 1.0 - rate * decay, np.sort(batch[able[batch]])
            stepped = {n: kept * array.astype(np.float64) for n, array in current.items()}
            if len(there):
                total = self._sum(raw, current, rate, there)
                if total.num_failed:
                    raise ValueError(
                        "a user failed or was missing who had not at the start, and nothing is "
                        "released: who is missing may depend on the params, and with it the "
                        "result on others than the proof counts; let everybody come back and "
                        "resume the run, which releases once, for the charge there is"
                    )
                mean = tree.to_dense(total.real())
                stepped = {n: array + share * mean[n] for n, array in stepped.items()}
            current = _within(stepped, passes.radius)
        result = {name: array.astype(np.float64) for name, array in current.items()}
        return PartialSum(total=result, num_users=number)

    def _sum(self, raw: RawSums, params: Params, rate: float, among: np.ndarray) -> PartialSum:
        """Return users' updates of a step size, each at most K η L₀ long."""
        return raw.sum(
            SumRequest(params=params, context=Context(rate=rate)),  # users train at rate 1 times it
            bound=Checked(l2_bound=rate * self.local_steps * self.constants.lipschitz),
            among=among.tolist(),
        )

    def _able(self, raw: RawSums, params: Params, rate: float) -> np.ndarray:
        """Return who does the work at the start's params, bool (users,).

        It is decided here, before any update: the params depend on no user, so each user's own
        data alone decide, and a change of one user's data changes no other user's participation.
        """
        able, places = np.ones(raw.num_users, bool), np.arange(raw.num_users)
        size = self.passes.batch_size
        waiting = np.split(places, places[size::size])
        while waiting:
            among = waiting.pop()
            if self._sum(raw, params, rate, among).num_failed:
                if len(among) == 1:
                    able[among] = False
                else:
                    half = len(among) // 2
                    waiting += [among[:half], among[half:]]
        return able


def _within(params: dict[str, np.ndarray], radius: float | None) -> dict[str, np.ndarray]:
    if radius is not None and (norm := tree.l2_norm(params)) > radius:
        params = {name: array * (radius / norm) for name, array in params.items()}
    return {name: array.astype(np.float32) for name, array in params.items()}


CHOSEN = "chosen"
"""Name in a state of the number of the released candidate."""


def candidate(number: int) -> str:
    """Return the name of the work that trains a candidate, from 0."""
    return f"candidate-{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned(BoltOn):
    """Private tuning: trains candidates on disjoint parts and releases one of them.

    Attributes:
        choices: The trainings, of the same data set: the same model with other passes, steps or
            regularisers.
        choice: Perturbs and chooses.

    Raises:
        ValueError: If there are fewer than two, or fewer examples than they need.
    """

    choices: tuple[PermutationSgd, ...] = field(repr=False)
    choice: PrivateChoice
    longest_start: float = LONGEST_START

    def __post_init__(self) -> None:
        if len(self.choices) < 2:
            raise ValueError(f"{len(self.choices)} candidates are no choice; give two or more")
        first = self.choices[0]
        if any(other.rows is not first.rows or other.y is not first.y for other in self.choices):
            raise ValueError("candidates are of the same data set; give them the same rows and y")
        self.sensitivities()

    @property
    def num_examples(self) -> int:
        """m, the examples; those that do not fill an equal part are not used."""
        return len(self.choices[0].y)

    @property
    def part_size(self) -> int:
        """⌊m / (l + 1)⌋."""
        return self.num_examples // (len(self.choices) + 1)

    def sensitivities(self) -> tuple[float, ...]:
        """Return Δ of each candidate, for one of its part's examples that is there or not.

        Raises:
            ValueError: As `Passes.sensitivity`, of a part's size.
        """
        size = positive_int("examples of a part", self.part_size)
        return tuple(
            one.passes.sensitivity(one.constants, size, start=self.longest_start)
            for one in self.choices
        )

    def works(self) -> Mapping[str, Work]:
        """Return the client works that train a candidate and count its mistakes, by name."""
        each = [replace(one, part_size=self.part_size) for one in self.choices]
        trained = {candidate(number): one for number, one in enumerate(each)}
        return {**trained, MISTAKES: Mistakes(sgd=self.choices[0])}

    def plan(self, relation: Relation = Relation.REPLACE_ONE) -> Plan:
        """Return the plan of one choice: of a replaced example its ε is twice the choice's."""
        moved = max(self.sensitivities())
        return plan_of_release(
            self.num_examples, moved, self.choice, relation=relation, unit="example"
        )

    def fits(self, mechanism: Mechanism) -> bool:
        """Return whether a mechanism makes this very choice among candidates."""
        return mechanism.privatizer == self.choice

    def init(self, params: Params) -> ArrayState:
        """Return the state before training; errors are those of `check_params`."""
        return replace(BoltOn.init(self, params), numbers={CHOSEN: -1.0})

    def release(self, state: ArrayState, door: Door) -> ArrayState:
        """Return the state after the release."""
        params = state.params
        asked = SumRequest(params=params, work=candidate(0))
        index, chosen = door.run(asked, lambda raw: self._judged(params, raw))
        return state.after(chosen, numbers={CHOSEN: float(index)})

    def parts(self, key: Key) -> list[list[int]]:
        """Return the places of the examples of l + 1 equal, disjoint parts, split by a key."""
        order, size = key.generator().permutation(self.num_examples), self.part_size
        return [
            order[number * size : (number + 1) * size].tolist()
            for number in range(len(self.choices) + 1)
        ]

    def _judged(self, params: Params, raw: RawSums) -> PartialSum:
        *parts, judges = self.parts(raw.key("split"))
        perturbed, mistakes = [], []
        for number, (part, moved) in enumerate(zip(parts, self.sensitivities(), strict=True)):
            asked = SumRequest(params=params, work=candidate(number))
            total = raw.sum(asked, among=part)
            key = raw.key(candidate(number))
            perturbed.append(self.choice.perturbed(total, sensitivity=moved, key=key))
            asked = SumRequest(params=perturbed[-1], work=MISTAKES)
            counted = raw.sum(asked, among=judges)
            mistakes.append(int(np.asarray(counted.total[MISTAKES])[0]))
        return candidates(perturbed, mistakes, raw.num_users)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistakes(Work):
    """Number of examples that a linear model classifies wrongly.

    Attributes:
        sgd: Has the examples, and the name of the params.
    """

    sgd: PermutationSgd

    def template(self, request: SumRequest) -> Params:
        """Return one whole number."""
        return {MISTAKES: np.zeros(1, np.float32)}

    def answer(self, request: SumRequest, attempt: Attempt, users: Users) -> PartialSum:
        """Return the number of mistakes; one example more adds 0 or 1 to it."""
        part = self.sgd.on(users.ids)
        logits = np.asarray(part.rows @ part.weights(request.params))
        predicted = logits.argmax(axis=1) if logits.shape[1] > 1 else logits[:, 0] > 0.0
        present = np.asarray(abs(part.rows).sum(axis=1)).reshape(-1) > 0.0
        count = np.array([np.count_nonzero(present & (predicted != part.y))], np.int64)
        return PartialSum(total={MISTAKES: count}, num_users=len(users.ids), granularity=1.0)
