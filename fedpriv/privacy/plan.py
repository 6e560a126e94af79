"""The promise of a run: sampler, bound, noise, relation and number of rounds in one frozen value.

The ε of a run comes out of its plan and out of nothing else. Parts that do not fit together
cannot be put together: the constructor refuses them, names the value, and says the way out.

>>> plan = Plan(num_users=400, expected_cohort_size=20, num_rounds=100, bound="clip", l2_bound=0.5,
...             noise="gaussian", noise_multiplier=1.0, delta=1 / 400)
>>> print(plan.epsilon(100))
ε = 1.9059 at δ = 0.0025 (add-remove, per user, by PLD; RDP 2.3891)
>>> plan.sampling_prob, plan.stddev
(0.05, 0.5)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from fedpriv.privacy.accounting import Epsilon, epsilon
from fedpriv.privacy.calibration import calibrate
from fedpriv.privacy.event import Event, Relation, cohort_event, default_delta
from fedpriv.privacy.numbers import finite_float, positive_float, positive_int, probability
from fedpriv.privacy.sampling import FixedSizeSampler, PoissonSampler, Sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is promised before the first cohort is drawn; every field is public.

    Attributes:
        num_users: Users on the frozen roster, n.
        expected_cohort_size: Mean cohort (Poisson) or exact cohort (fixed); the denominator of
            every round, whoever replies.
        num_rounds: Charges the plan pays for, T; a lost attempt uses one up.
        sampling: "poisson" (each user's own coin) or "fixed" (without replacement).
        cohort_cap: Largest Poisson cohort, at least twice the mean (or everybody), or None.
        bound: What bounds a user's update: "clip", "normalise" or "none".
        l2_bound: The certified l2 bound of one user's vector; None (or infinity, kept as None)
            exactly when bound is "none".
        noise: "gaussian" on the sum, or "none".
        noise_multiplier: σ = stddev / sensitivity; 0 exactly when noise is "none".
        relation: Neighbouring relation, by name or `Relation`.
        delta: δ; None takes n^-1.1.
        target_epsilon: Budget: no charge may take ε above it. None leaves num_rounds alone.
        max_examples_per_user: Cap on the examples a user trains on, or None.
        roster_sha256: Hash of the roster the plan was made for, 64 hex digits, or None.
        unit: What one neighbour is: "user", or "example" in centralised training, where every
            field that counts users counts examples.
        micro_batch: Expected number of examples whose mean is bounded as one vector; 1 bounds
            each alone. Above 1 an example moves its micro-batch's vector from one place within
            the bound to another, so the sensitivity is twice the bound.

    Guarantees:
        * With noise, `num_rounds` rounds of the plan are (ε, δ)-DP at ε = `epsilon(num_rounds)`
          for one user under `relation`, if rounds are drawn by `sampler`, every user's vector has
          l2 norm at most `l2_bound`, Gaussian noise of `stddev` is added to their unweighted sum
          and nothing else leaves (McMahan et al. 2018, arXiv:1710.06963, with the fixed
          denominator; PLD accounting, Koskela et al. 2020).
        * Without noise nothing is promised: ε is infinite.

    Raises:
        ValueError: If a value is out of range or two parts do not fit.
    """

    num_users: int
    expected_cohort_size: float
    num_rounds: int
    sampling: Literal["poisson", "fixed"] = "poisson"
    cohort_cap: int | None = None
    bound: Literal["clip", "normalise", "none"] = "none"
    l2_bound: float | None = None
    noise: Literal["gaussian", "none"] = "none"
    noise_multiplier: float = 0.0
    relation: Relation = Relation.ADD_REMOVE
    delta: float | None = None
    target_epsilon: float | None = None
    max_examples_per_user: int | None = None
    roster_sha256: str | None = None
    unit: Literal["user", "example"] = "user"
    micro_batch: int = 1

    def __post_init__(self) -> None:
        self._put("num_users", positive_int("num_users", self.num_users))
        self._put("num_rounds", positive_int("num_rounds", self.num_rounds))
        self._put(
            "expected_cohort_size",
            positive_float("expected_cohort_size", self.expected_cohort_size),
        )
        self._put("relation", Relation.of(self.relation))
        if self.delta is None:
            self._put("delta", default_delta(self.num_users))
        self._put("delta", probability("delta", self.delta))
        for name, check in (
            ("cohort_cap", positive_int),
            ("max_examples_per_user", positive_int),
            ("target_epsilon", positive_float),
        ):
            if getattr(self, name) is not None:
                self._put(name, check(name, getattr(self, name)))
        if self.unit not in ("user", "example"):
            raise ValueError(
                f"unit {self.unit!r} is unknown; a plan protects a 'user' or 'example'"
            )
        self._check_micro_batch()
        hexes = self.roster_sha256
        if hexes is not None and not (
            isinstance(hexes, str) and len(hexes) == 64 and set(hexes) <= set("0123456789abcdef")
        ):
            raise ValueError(
                f"roster_sha256 {hexes!r} is not 64 hex digits; give the hash of the "
                "corpus's roster"
            )
        self._check_cohorts()
        self._check_bound_and_noise()

    def _put(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_micro_batch(self) -> None:
        size = positive_int("micro_batch", self.micro_batch)
        self._put("micro_batch", size)
        if size == 1:
            return
        if self.unit != "example" or self.relation is not Relation.ADD_REMOVE:
            raise ValueError(
                f"micro_batch {size} is for examples under relation 'add-remove'; use 1"
            )
        if size > self.expected_cohort_size:
            raise ValueError(
                f"micro_batch {size} is above the expected batch of "
                f"{self.expected_cohort_size:g}; lower it"
            )

    def _check_cohorts(self) -> None:
        # Building the event of σ = 1 runs every check on users, cohort, sampling and cap.
        cohort_event(
            num_users=self.num_users,
            expected_cohort_size=self.expected_cohort_size,
            sampling=self.sampling,
            cohort_cap=self.cohort_cap,
            noise_multiplier=1.0,
        )
        least = min(math.ceil(2.0 * self.expected_cohort_size), self.num_users)
        if self.cohort_cap is not None and self.cohort_cap < least:
            raise ValueError(
                f"cohort_cap {self.cohort_cap} is below {least}, twice the expected cohort of "
                f"{self.expected_cohort_size:g}: a cap near the mean multiplies ε (fourfold at the "
                "mean); raise it, or leave it out"
            )

    def _check_bound_and_noise(self) -> None:
        if self.bound not in ("clip", "normalise", "none"):
            raise ValueError(f"bound {self.bound!r} is unknown; give 'clip', 'normalise' or 'none'")
        if self.noise not in ("gaussian", "none"):
            raise ValueError(f"noise {self.noise!r} is unknown; give 'gaussian' or 'none'")
        if self.bound == "none" and self.l2_bound == math.inf:
            self._put("l2_bound", None)
        if self.bound == "none" and self.l2_bound is not None:
            raise ValueError(
                f"l2_bound {self.l2_bound!r} is given but bound is 'none'; leave it "
                "out, or bound by 'clip' or 'normalise'"
            )
        if self.bound != "none":
            if self.l2_bound is None:
                raise ValueError(f"bound {self.bound!r} needs an l2_bound; give one such as 0.5")
            self._put("l2_bound", positive_float("l2_bound", self.l2_bound))
        if self.noise == "none":
            sigma = finite_float("noise_multiplier", self.noise_multiplier)
            if sigma != 0.0:
                raise ValueError(
                    f"noise_multiplier {sigma} is given but noise is 'none'; leave it "
                    "out, or ask for noise 'gaussian'"
                )
            if self.target_epsilon is not None:
                raise ValueError(
                    f"target_epsilon {self.target_epsilon} cannot be kept with noise "
                    "'none'; leave it out, or ask for noise 'gaussian'"
                )
            self._put("noise_multiplier", 0.0)
            return
        if self.bound == "none":
            raise ValueError(
                "noise 'gaussian' without a bound protects no one: one user could "
                "move the sum without limit; bound by 'clip' or 'normalise'"
            )
        if self.sampling == "fixed" and self.relation is Relation.ADD_REMOVE:
            raise ValueError(
                "sampling 'fixed' cannot be accounted under relation 'add-remove'; "
                "use relation 'replace-one', or sampling 'poisson'"
            )
        event = self.event
        assert event is not None
        self._put("noise_multiplier", event.noise_multiplier)
        positive_float("stddev (noise_multiplier times sensitivity)", self.stddev)

    @classmethod
    def calibrated(cls, *, target_epsilon: float, **parts: Any) -> Plan:
        """Return the plan with the least noise that keeps ε within a target after all rounds.

        Args:
            target_epsilon: The ε that must not be exceeded; it becomes the plan's budget.
            **parts: Every other field of a plan but the noise.

        Returns:
            A plan whose `epsilon(num_rounds)` is at most the target, and short of it by 0.01 %.

        Raises:
            ValueError: If the parts do not fit, or no noise reaches the target.
        """
        for name in ("noise_multiplier", "noise"):
            if parts.get(name) not in (None, "gaussian"):
                raise ValueError(
                    f"{name} {parts[name]!r} and target_epsilon {target_epsilon!r} "
                    "are two answers to one question; give one"
                )
            parts.pop(name, None)
        draft = cls(noise="gaussian", noise_multiplier=1.0, target_epsilon=target_epsilon, **parts)
        assert draft.delta is not None and draft.target_epsilon is not None
        sigma = calibrate(
            draft._event,
            draft.num_rounds,
            target_epsilon=draft.target_epsilon,
            delta=draft.delta,
            relation=draft.relation,
        )
        return replace(draft, noise_multiplier=sigma)

    def _event(self, noise_multiplier: float) -> Event:
        return cohort_event(
            num_users=self.num_users,
            sampling=self.sampling,
            expected_cohort_size=self.expected_cohort_size,
            cohort_cap=self.cohort_cap,
            noise_multiplier=noise_multiplier,
        )

    @property
    def is_private(self) -> bool:
        """Whether the plan promises anything: noise on a bounded sum."""
        return self.noise != "none"

    @property
    def sampling_prob(self) -> float:
        """Probability that a given user is drawn in a given round, in (0, 1]."""
        return self.expected_cohort_size / self.num_users

    @property
    def sensitivity(self) -> float:
        """How far one neighbour with or without its records moves the sum, in l2; 0 unbounded."""
        return (self.l2_bound or 0.0) * (1.0 if self.micro_batch == 1 else 2.0)

    @property
    def stddev(self) -> float:
        """Standard deviation of the noise on the sum, in the units of an update; 0 without."""
        return self.noise_multiplier * self.sensitivity

    @property
    def denominator(self) -> float:
        """What the noised sum is divided by: the expected number of bounded vectors."""
        return self.expected_cohort_size / self.micro_batch

    @property
    def sampler(self) -> Sampler:
        """The only sampler that earns what the plan claims."""
        if self.sampling == "fixed":
            return FixedSizeSampler(size=int(self.expected_cohort_size))
        return PoissonSampler(sampling_prob=self.sampling_prob, cap=self.cohort_cap)

    @property
    def event(self) -> Event | None:
        """What one charge does; None for a plan without noise."""
        return self._event(self.noise_multiplier) if self.is_private else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed but should be read aloud beside the ε."""
        assert self.delta is not None
        if not self.is_private:
            return ("no noise is added: nothing is promised",)
        if self.delta * self.num_users >= 1.0 - 1e-9:
            return (
                f"δ = {self.delta:g} is not below 1/n = {1.0 / self.num_users:g}: it allows "
                f"publishing one {self.unit} outright",
            )
        return ()

    def epsilon(self, num_charges: int) -> Epsilon:
        """Return ε after a number of charges, 0 to num_rounds; infinite, with a reason, unnoised.

        Every value along a run uses the grid chosen for `num_rounds`, so calls after the first
        take a few hundredths of a second and a progress bar may ask every round.

        Raises:
            ValueError: If the number is not a count the plan pays for.
        """
        charges = 0 if num_charges == 0 else positive_int("num_charges", num_charges)
        if charges > self.num_rounds:
            raise ValueError(
                f"{charges} charges are more than the {self.num_rounds} rounds of "
                "the plan; make a new plan"
            )
        assert self.delta is not None
        event = self.event
        if event is None:
            return Epsilon(
                value=math.inf,
                delta=self.delta,
                relation=self.relation,
                accountant="none",
                unit=self.unit,
                reason="no noise is added",
            )
        spent = epsilon(
            event, charges, delta=self.delta, relation=self.relation, num_rounds=self.num_rounds
        )
        return replace(spent, unit=self.unit)

    def affords(self, charges_so_far: int) -> bool:
        """Return whether one more charge stays within num_rounds and the target; ask first."""
        return charges_so_far < self.affordable_rounds

    @property
    def affordable_rounds(self) -> int:
        """Charges the budget pays for: num_rounds, or fewer where the target stops earlier."""
        return _affordable_rounds(self)

    def check_roster(self, roster: Sequence[str]) -> None:
        """Refuse a roster of another size than the plan's.

        Raises:
            ValueError: If its length is not num_users.
        """
        if len(roster) != self.num_users:
            raise ValueError(
                f"the roster has {len(roster)} {self.unit}s, the plan was made for "
                f"{self.num_users}; make a new plan for the new roster"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a dict of plain JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "relation": self.relation.value}

    @classmethod
    def from_json(cls, value: Any) -> Plan:
        """Return the plan that `to_json` wrote.

        Raises:
            ValueError: If fields are missing or unknown, or the plan would be refused.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(value, Mapping):
            raise ValueError(f"{value!r} is not a plan; expected a JSON object")
        if set(value) != names:
            odd = ", ".join(sorted(map(str, set(value) ^ names)))
            raise ValueError(
                f"the plan's fields do not match ({odd}); it was edited, or written "
                "by another version"
            )
        return cls(**dict(value))


@functools.lru_cache(maxsize=64)
def _affordable_rounds(plan: Plan) -> int:
    """Search for the last affordable charge once: every ε on the way costs more than a round."""
    target = plan.target_epsilon
    if target is None or plan.epsilon(plan.num_rounds).value <= target:
        return plan.num_rounds
    low, high = 0, plan.num_rounds - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if plan.epsilon(middle).value <= target else (low, middle - 1)
    return low
