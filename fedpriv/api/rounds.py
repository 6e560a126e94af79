"""Rounds of a custom training loop: their plan, their cost without a run, and their bounded sums.

>>> rounds = Rounds(users=400, cohort=20, rounds=100, delta=1 / 400)
>>> print(rounds.account(noise_multiplier=1.0))
ε = 1.9059 at δ = 0.0025 (add-remove, per user, by PLD; RDP 2.3891)
noise multiplier 1, 100 rounds, cohort 20 of 400 users
note: δ = 0.0025 is not below 1/n = 0.0025: it allows publishing one user outright
>>> Rounds(users=400, cohort=20, rounds=100).calibrate(target_epsilon=2.0).epsilon.value <= 2.0
True
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fedpriv import tree
from fedpriv.mechanisms import Bound, Clip, Rounded
from fedpriv.mechanisms.event import Event, Relation
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.parts import Between, PositiveFloat, PositiveInt, convert_fields
from fedpriv.privacy.epsilon import Epsilon, delta_caution
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.noise_grid import NoiseGrid, NoisePoint, noise_grid
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import DevicesSampler, sampler_of
from fedpriv.privacy.statement.statement import NO_MEANINGFUL_PROTECTION_ABOVE
from fedpriv.privacy.trials import Trials
from fedpriv.rng import Key
from fedpriv.sums import PartialSum, RunningSum
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.bounded_sum import RowStack, sum_bounded, template_with
from fedpriv.training.failures import contributing_zero_on_failure, users_not_logged
from fedpriv.tree import Params

#: Noise is a multiple of the bound, so whatever the bound, the price is the same.
_ANY_BOUND = 1.0


def _by_trials(name: str, value: Any) -> Any:
    """Leave a value to `Trials`, which takes inf."""
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Cost of a number of rounds.

    Attributes:
        epsilon: The ε, with its δ, relation, unit and accountant; `.value` is the bare number.
        noise_multiplier: σ = stddev of the noise on the sum / bound of one user.
        users: Users on the roster.
        cohort: Expected cohort, or its exact size.
        rounds: Rounds, each charged once.
        event: What one round does.
        notes: What is to be read with the ε, in words.
        devices: How many of the users one person has, each drawn and bounded alone.
        trials: The law of how many such runs were made of which the best is kept; None for one.
    """

    epsilon: Epsilon
    noise_multiplier: float
    users: int
    cohort: float
    rounds: int
    event: Event
    notes: tuple[str, ...]
    devices: int = 1
    trials: Trials | None = None

    @property
    def noise_on_mean(self) -> float:
        """Stddev of the noise on a coordinate of the released mean over C, the clip norm."""
        return self.noise_multiplier / self.cohort

    @property
    def point(self) -> NoisePoint:
        """The same as a cell of `noise_grid`."""
        return NoisePoint(
            cohort=self.cohort,
            rounds=self.rounds,
            noise_multiplier=self.noise_multiplier,
            noise_on_mean=self.noise_on_mean,
        )

    def __repr__(self) -> str:
        noise = f"noise multiplier {self.noise_multiplier:.6g}"
        plan = f"{noise}, {self.rounds:,} rounds, cohort {self.cohort:,g} of {self.users:,} users"
        return "\n".join([str(self.epsilon), plan, *(f"note: {note}" for note in self.notes)])

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, as `fedpriv account --json` prints them."""
        return {
            **self.epsilon.to_json(),
            "noise_multiplier": self.noise_multiplier,
            "noise_on_mean": self.noise_on_mean,
            "users": self.users,
            "cohort": self.cohort,
            "rounds": self.rounds,
            "event": self.event.to_json(),
            "notes": list(self.notes),
            "devices": self.devices,
            "trials": None if self.trials is None else self.trials.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Rounds that clip, sum, and add Gaussian noise; how much noise is said to its methods.

    Attributes:
        users: Users on the roster.
        cohort: Expected cohort (poisson) or its size (fixed); what sums are divided by.
        rounds: Rounds that are paid for, each charged once.
        delta: δ; None for users^-1.1.
        sampling: "poisson" (independent draws) or "fixed" (exact size).
        relation: "add-remove" or "replace-one"; None for add-remove with poisson, replace-one
            with fixed.
        cap: Largest poisson cohort, at least twice the mean; a uniform subset takes part above.
        devices: How many of the users are devices of one person, each drawn and bounded alone; ε is
            per person then. A person whose devices are bounded together is one user.
        trials: Mean of the random number of such runs that a study makes, keeping the best one and
            without publishing how many there were; ε is of the whole study then. None for one run.
        shape: Of the law of that number, a truncated negative binomial: 1 for geometric, inf for
            Poisson; None for 1.

    Raises:
        ValueError: If a number is out of range; of numbers that do not fit together by each method.
    """

    users: PositiveInt
    cohort: PositiveFloat
    rounds: PositiveInt
    delta: Between | None = None
    sampling: str = "poisson"
    relation: str | Relation | None = None
    cap: PositiveInt | None = None
    devices: PositiveInt = 1
    trials: Annotated[float, _by_trials] | None = None
    shape: Annotated[float, _by_trials] | None = None

    def __post_init__(self) -> None:
        """Check every number."""
        convert_fields(self)

    def plan(
        self,
        *,
        l2_clip_norm: float,
        noise_multiplier: float | None = None,
        target_epsilon: float | None = None,
    ) -> Plan:
        """Return the plan of these rounds.

        Args:
            l2_clip_norm: C, the l2 norm that no user's update exceeds, over all tensors
                concatenated.
            noise_multiplier: Stddev of the noise on the sum over C.
            target_epsilon: Instead of it: the least noise that keeps ε within this target.

        Returns:
            A plan whose `live_mechanism` draws cohorts (`sampler`), bounds updates (`bound`, which
            also rounds them to a grid, so that sums are exact in any order), draws the noise
            (`draw`) and divides (`release`).

        Raises:
            ValueError: If the numbers do not fit, or not exactly one of noise multiplier and target
                is given.
        """
        if (noise_multiplier is None) == (target_epsilon is None):
            raise ValueError(
                f"noise_multiplier {noise_multiplier!r} and target_epsilon {target_epsilon!r}: "
                "give exactly one of the two"
            )
        default = "replace-one" if self.sampling == "fixed" else "add-remove"
        law = self._law()
        sampler = sampler_of(self.sampling, self.users, self.cohort, self.cap)
        if self.devices != 1:
            sampler = DevicesSampler(draws=sampler, devices=self.devices)
        draft = Plan(
            mechanism=Mechanism(
                sampler=sampler,
                bound=Rounded(bound=Clip(l2_clip_norm=l2_clip_norm)),
                privatizer=Gaussian(
                    noise_multiplier=1.0 if noise_multiplier is None else noise_multiplier
                ),
            ),
            num_rounds=self.rounds,
            relation=Relation.of(default if self.relation is None else self.relation),
            delta=self.delta,
            trials=law,
        )
        return draft if target_epsilon is None else draft.calibrated(target_epsilon)

    def account(self, noise_multiplier: float) -> Account:
        """Return what the rounds cost with so much noise: an upper bound on ε; `str` rounds it up.

        Args:
            noise_multiplier: Stddev of the noise on the sum over the bound of one user.
        """
        return _account(self.plan(l2_clip_norm=_ANY_BOUND, noise_multiplier=noise_multiplier))

    def calibrate(self, target_epsilon: float) -> Account:
        """Return the least noise that keeps ε within a target, with what it costs.

        Args:
            target_epsilon: The ε that is never exceeded.

        Raises:
            ValueError: Also if no noise reaches the target.
        """
        return _account(self.plan(l2_clip_norm=_ANY_BOUND, target_epsilon=target_epsilon))

    def noise_grid(
        self,
        target_epsilon: float,
        *,
        cohorts: Sequence[float] | None = None,
        rounds: Sequence[int] | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> NoiseGrid:
        """Return the noise on the mean by cohort and rounds at one ε; a cap grows with its cohort.

        Args:
            target_epsilon: The ε that no cell exceeds.
            cohorts: Expected cohorts (poisson) or their sizes (fixed); None for doublings from a
                twentieth of the roster, at most 250, to 4,000.
            rounds: Numbers of rounds; None for 25, 50, 100, 200 and 400.
            progress: Called with how many cells are done, of how many.

        Guarantees:
            * Each cell has the noise multiplier that `calibrate` finds for it alone.
        """
        plan = self.plan(l2_clip_norm=_ANY_BOUND, noise_multiplier=1.0)
        return noise_grid(plan, target_epsilon, cohorts=cohorts, rounds=rounds, progress=progress)

    def _law(self) -> Trials | None:
        """Return the law of a random number of trials, or None where there is one run."""
        if self.trials is None:
            if self.shape is not None:
                raise ValueError(
                    f"shape {self.shape!r} is of the number of trials; give trials, its mean"
                )
            return None
        if self.devices != 1:
            raise ValueError(
                f"trials {self.trials:g} are accounted by RDP, which does not account "
                f"{self.devices!r} devices of one person; bound a person's devices together, as "
                "one user"
            )
        return Trials(mean=self.trials, shape=1.0 if self.shape is None else self.shape)


def _account(plan: Plan) -> Account:
    spent, devices = plan.total(), plan.event.devices or 1
    if devices > 1:
        spent = replace(spent, unit="person")
    return Account(
        epsilon=spent,
        noise_multiplier=plan.event.sigma,
        users=plan.num_users,
        cohort=plan.mechanism.expected_cohort_size,
        rounds=plan.num_rounds,
        event=plan.event,
        notes=_notes(spent, plan.num_users, devices, plan.trials),
        devices=devices,
        trials=plan.trials,
    )


def _notes(spent: Epsilon, users: int, devices: int, trials: Trials | None) -> tuple[str, ...]:
    notes: list[str] = []
    if devices > 1:
        notes.append(
            f"the {users:,} users are devices, each drawn and bounded alone; it holds for a person "
            f"who has at most {devices} of them"
        )
    if trials is not None:
        notes.append(
            f"it covers keeping the best of a random number of such runs ({trials.name}), drawn "
            "once and never published, by a score that is public or charged"
        )
    if not spent.value <= NO_MEANINGFUL_PROTECTION_ABOVE:
        notes.append(f"no meaningful protection: ε is above {NO_MEANINGFUL_PROTECTION_ABOVE:g}")
    notes += filter(None, [delta_caution(spent.delta, users, "user")])
    return tuple(notes)


def bounded_sum(updates: Iterable[Any], bound: Bound, *, like: Params) -> PartialSum:
    """Return the unweighted sum of updates, each bounded: what `Mechanism.release` takes.

    Args:
        updates: One a user: floating arrays or torch tensors by name. Each is looked at once and
            not kept.
        bound: The plan's, `plan.live_mechanism.bound`.
        like: Names and shapes that every update must have, such as the params.

    Guarantees:
        * Each update moves the sum by at most `bound.l2_bound` (l2). One that is not finite, or has
          other names, shapes or dtypes, contributes zero, alone, and is counted in `num_failed`.
        * The sum is private: give it to `release` at once, and let go of it.

    Warns:
        RuntimeWarning: If there were updates, and all of them contributed zero: the loop that makes
            them is probably wrong.
    """
    template, count = template_with(like, bound, None), 0

    def stacks() -> Iterator[RowStack]:
        nonlocal count
        for update in updates:
            count += 1
            found: Any = None
            with contributing_zero_on_failure():  # whatever a user sends concerns no one else
                found = tree.check_like(like, _as_arrays(update))
            if found is not None:
                yield RowStack.of(found)

    # Whether the loop is a simulation is not known here.
    with users_not_logged(Key.secure()):
        total = RunningSum(template, bound.granularity)
        done = sum_bounded(total, [stacks()], bound, template, NO_CONTEXT)
    if count and done.num_failed == count:
        warnings.warn(
            "every update of this sum contributed zero; compare names, shapes and dtypes of one "
            "with those of `like`, by fedpriv.tree.check_like, and see that it is finite",
            RuntimeWarning,
            stacklevel=2,
        )
    return replace(done, num_users=count)


def _as_arrays(update: Any) -> Any:
    """Return an update with its torch tensors as NumPy arrays; bfloat16 as float32."""
    if not hasattr(update, "items"):
        return update
    return {name: _as_array(tensor) for name, tensor in update.items()}


def _as_array(tensor: Any) -> Any:
    if not hasattr(tensor, "detach"):
        return tensor
    own = tensor.detach().cpu()
    return (own.float() if own.is_floating_point() and own.element_size() < 4 else own).numpy()
