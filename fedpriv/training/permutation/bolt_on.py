"""Bolt-on: train without noise, and perturb the result once.

What is noised is where a permutation SGD ends, by how far one user can move that; nothing else of
the training leaves. So there is one charge, of pure ε where the noise is that of a sphere, and no
step has any noise. The price is that only the end is released: no checkpoint, no figure measured on
private data on the way, and that the whole of the training must be what the proof is of: convex,
unclipped, without momentum.

Reference: Wu et al., "Bolt-on Differential Privacy for Scalable Stochastic Gradient Descent-based
Analytics" (2017), Algorithms 1 and 2, for single examples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from fedpriv import tree
from fedpriv.mechanisms.bounds import Checked, Displaced
from fedpriv.mechanisms.perturbation import OutputGaussian, Sphere
from fedpriv.privacy.plans.adaptive import AnyPlan
from fedpriv.privacy.plans.plan import Plan
from fedpriv.ranges import Range, finite_float, positive_int
from fedpriv.sums import PartialSum
from fedpriv.training.algorithm import ArrayState, Door, Query, RawSums
from fedpriv.training.permutation.constants import Constants
from fedpriv.training.permutation.of_users import RATE
from fedpriv.training.permutation.sgd import Passes, refuse_long_start
from fedpriv.tree import Params

#: Of params that are rounded to float32 in every update, on their way to the users. That alone is
#: half of it, 2^-24 of their length; the other half is for `Checked`'s rounding of users' updates,
#: 2^-39 √d of one, which is less up to d = 2^32: params may be as long as all updates.
_FLOAT32 = 2.0**-23


class ReleasesOnce(ABC):
    """What bolt-on algorithms share: one answer, and the end."""

    __slots__ = ()

    @property
    @abstractmethod
    def room(self) -> float:
        """‖w₀‖₂ of the longest start that Δ has room for."""

    def check_params(self, params: Params) -> None:
        """Refuse a start that Δ has no room for: the rounding of long params moves runs apart.

        Raises:
            ValueError: If that is so.
        """
        refuse_long_start(params, self.room)

    def init(self, params: Params) -> ArrayState:
        """Return the state before training; errors are those of `check_params`."""
        self.check_params(params)
        return ArrayState(params=params)

    def result(self, state: ArrayState) -> Params:
        """Return the params: of a run that has released, the perturbed ones."""
        return state.params

    def check_plan(self, plan: AnyPlan) -> None:
        """Refuse a plan that pays for anything else than one perturbed result.

        Raises:
            ValueError: If that is so.
        """
        if not isinstance(plan, Plan) or plan.num_rounds != 1:
            raise ValueError("bolt-on releases once; give a Plan of one round")
        mechanism = plan.live_mechanism
        fits = isinstance(mechanism.bound, Displaced) and isinstance(
            mechanism.privatizer, (Sphere, OutputGaussian)
        )
        if plan.is_private and not fits:
            raise ValueError(
                f"bolt-on perturbs a result (Displaced) by Sphere or OutputGaussian; this plan "
                f"bounds by {type(mechanism.bound).__name__} and adds "
                f"{type(mechanism.privatizer).__name__}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BoltOn(ReleasesOnce):
    """Asks once for the perturbed result of a work that trains from beginning to end.

    Attributes:
        longest_start: ‖w₀‖₂ that the plan's Δ has room for; a longer start is refused.
    """

    longest_start: float = 0.0

    @property
    def room(self) -> float:
        """‖w₀‖₂ of the longest start that Δ has room for."""
        return self.longest_start

    def step(self, state: ArrayState, door: Door) -> ArrayState | None:
        """Return the state after the release; None after that."""
        if state.round_num:
            return None
        return state.after(door.ask(Query(params=state.params)))


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSchedule:
    """How long users train, all of it public and the same for every user.

    Attributes:
        passes: k passes over the users, b at a time, in an order drawn without looking at them.
        local_steps: K full gradient steps of a user on the mean loss of its examples.
        server_rate: s in (0, 1]: params move by s times the batch's mean update.
        longest_start: ‖w₀‖₂ of the longest start that Δ has room for: params are rounded to float32
            in every update.
    """

    passes: Passes
    local_steps: int = 1
    server_rate: float = 1.0
    longest_start: float = 0.0

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
        if self.local_steps > 1 and self.passes.schedule.name != "constant":
            raise ValueError(
                f"local_steps {self.local_steps} are of a constant rate; use step-schedule "
                "'constant', or one step"
            )

    def sensitivity(self, constants: Constants, num_users: int) -> float:
        """Return Δ for a user who is there or not: s Σ_j K η_j L₀ / b; replaced, twice as much.

        Raises:
            ValueError: As `Passes.sensitivity`.
        """
        found = self.passes.sensitivity(
            constants,
            num_users,
            local_steps=self.local_steps,
            relative_rounding=_FLOAT32,
            start=self.longest_start,
            share=self.server_rate if constants.convexity == 0.0 else 1.0,
        )
        if self.passes.radius is None:
            return found
        # In a small ball params are shorter than updates, which are rounded before they get there.
        rates = self.passes.rates(constants, num_users)
        path = float(rates.sum()) * self.local_steps * constants.lipschitz
        return found + _FLOAT32 * path

    def longest_update(self, constants: Constants, num_users: int) -> float:
        """Return how long one user's update is at most in any pass, K η L₀."""
        rates = self.passes.rates(constants, num_users)
        return float(rates.max()) * self.local_steps * constants.lipschitz


@dataclass(frozen=True, slots=True, kw_only=True)
class BoltOnUsers(ReleasesOnce):
    """Permutation SGD over users, each once a pass, whose end is perturbed and released.

    A user's mean loss is one example's: convex, L₀-Lipschitz and β-smooth where its examples'
    losses are. Its update is the sum of K full gradient steps of rate η <= 2/β, each of which
    brings two points no further apart; so does a mean over b users, divided by b whoever replied.

    Attributes:
        schedule: How long.
        constants: Of the loss, with the regulariser that the server applies.

    Guarantees:
        * A user who is there or not moves the result by at most `schedule.sensitivity`, if every
          other user does the same work in both runs: their devices are trusted to do it.
        * Whoever fails or is missing at the start's params, which nobody's data decide, counts as
          one who is not there, in every update. Whoever fails or is missing later ends the run
          without a release, since who is missing may depend on the params; that it ended is not
          covered.

    It cannot count as a step of length zero instead. At two runs' params w and w' a step brings
    them no further apart because it is the *same* map of both. If user v takes it at w and fails
    at w', their distance may grow by v's whole ηL₀/b; what v does hangs on the params, which the
    differing user moves, so that this may happen to every other user in every pass: up to m times
    Δ (`tests/running/methods/test_failing_users.py` has a case). Nor does it help to leave v out
    from then on, or to repeat its last step: those are two maps, too.
    """

    schedule: UserSchedule
    constants: Constants

    @property
    def room(self) -> float:
        """‖w₀‖₂ of the longest start that Δ has room for."""
        return self.schedule.longest_start

    def step(self, state: ArrayState, door: Door) -> ArrayState | None:
        """Return the state after the release; None after that.

        Raises:
            ValueError: If a user failed who had not failed at the start: nothing is released, and
                what was charged stays spent.
        """
        if state.round_num:
            return None

        def program(raw: RawSums) -> PartialSum:
            return self._trained(state.params, raw)

        return state.after(door.run(Query(params=state.params), program))

    def _trained(self, params: Params, raw: RawSums) -> PartialSum:
        passes, number = self.schedule.passes, raw.num_users
        rates = passes.rates(self.constants, number)
        bound = Checked(l2_bound=self.schedule.longest_update(self.constants, number))
        size, decay, update = passes.batch_size, self.constants.convexity, 0
        current = {name: np.asarray(array, np.float32) for name, array in params.items()}
        able = self._able(_at_rate(current, float(rates[0])), bound, raw)
        for order in passes.orders(number, raw.key("order")):
            for start in passes.starts(number):
                batch, rate = np.sort(order[start : start + size]), float(rates[update])
                kept, share = 1.0 - rate * decay, self.schedule.server_rate / size
                stepped = {n: kept * array.astype(np.float64) for n, array in current.items()}
                if len(there := batch[able[batch]]):
                    total = raw.sum(_at_rate(current, rate), bound=bound, among=there.tolist())
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
                update += 1
        result = {name: array.astype(np.float64) for name, array in current.items()}
        return PartialSum(total=result, num_users=number)

    def _able(self, brought: Params, bound: Checked, raw: RawSums) -> np.ndarray:
        """Return who does the work at the start's params, bool (users,).

        It is decided here, before any update: at params that hang on no user each one's own data
        alone say so, and what a neighbour has in his changes nobody else's part in the run.
        """
        able = np.ones(raw.num_users, bool)
        size = self.schedule.passes.batch_size
        waiting = [
            list(range(start, min(start + size, raw.num_users)))
            for start in range(0, raw.num_users, size)
        ]
        while waiting:
            among = waiting.pop()
            if not raw.sum(brought, bound=bound, among=among).num_failed:
                continue
            if len(among) == 1:
                able[among] = False
                continue
            half = len(among) // 2
            waiting += [among[:half], among[half:]]
        return able


def _at_rate(params: Params, rate: float) -> dict[str, np.ndarray]:
    return {**params, RATE: np.array([rate], np.float32)}


def _within(params: dict[str, np.ndarray], radius: float | None) -> dict[str, np.ndarray]:
    if radius is not None and (norm := tree.l2_norm(params)) > radius:
        params = {name: array * (radius / norm) for name, array in params.items()}
    return {name: array.astype(np.float32) for name, array in params.items()}
