"""Per-user bounds: how far one user may move a sum.

A bound decides from an update's norm what the update is multiplied by, and nothing else. Training,
preconditioning, rounding and adding are elsewhere (`fedpriv.training.bounded_sum`). It carries the
l2 norm that no contribution exceeds. It is public; the update it is applied to is not. Everything
that follows (the standard deviation of the noise, the event that is accounted) is derived from
`l2_bound`, which is never typed a second time.

With C' = C(1 - 2^-22), which leaves room for float32's rounding:

===================  ========================================  ===================================
norm ‖Δ‖ of update   contribution under `Clip`                 contribution under `Normalise`
===================  ========================================  ===================================
0                    zeros (never a division by zero)          zeros
at most C'           unchanged                                 same direction, C'‖Δ‖/(r + ‖Δ‖)
above C'             same direction, norm C'                   same direction, C'‖Δ‖/(r + ‖Δ‖)
NaN, infinity        zeros: the user failed
===================  =============================================================================

`Rounded` puts contributions on a public grid, `granularity = l2_bound / 2**24`, so that the sum is
one of integers and exact. Rounding each of d coordinates to the nearest multiple moves an update by
at most `granularity · √d / 2`, and the bound is tightened by that much *before* rounding, so that
what is summed still never exceeds it. At five million parameters the bound loses a part in 15,000.

Requests carry a bound to nodes as its kind and its fields (`fedpriv.parts`).

>>> Rounded(bound=Clip(l2_clip_norm=0.5)).to_json()
{'kind': 'Rounded', 'bound': {'kind': 'Clip', 'l2_clip_norm': 0.5}}

`OutputSensitivity` and `Checked` belong to trainings that are released once, without noise on the
way: how far one user moves the *result* follows from the length of its updates, which are checked
and never shortened. A clipped step is no step of a convex loss, and need not bring two runs closer.
"""

# pyright: reportIncompatibleVariableOverride=false
# (what a bound says is a field of one, an attribute of another and a property of a third)

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from fedpriv import tree
from fedpriv.parts import Between, NonNegativeFloat, Part, PositiveInt
from fedpriv.ranges import Range, positive_float
from fedpriv.sums import BITS, most_each
from fedpriv.tree import Params

# float32 values round by at most a part in 2^24 each; scaling to just below C keeps ‖·‖ <= C.
_ROUNDING = 1.0 - 2.0**-22


class Bound(Part, ABC):
    """Base of bounds: by default without a grid.

    A class states `l2_bound` and computes `factors`, neither of which has a default: what is
    certified is what is applied.

    Nodes find a class where the experiment's own file defines it.

    Attributes:
        l2_bound: The l2 norm, over all tensors concatenated, that no contribution exceeds.
        granularity: Spacing of the grid that contributions are rounded to; None for none.
        multiple_of: Where sums are of floats, what coordinates are rounded to multiples of; None
            for nothing.
        limits: Lowest and highest value of each coordinate, before the norm is taken; None for
            none.
        start: The first round's clip norm of a bound that adapts; None of others.
        elementwise: Whether several users may be asked for at once, since each gets what it would
            get alone; else each is. A class that computes its own `factors` or `besides` says so
            itself, or it does not hold.
        batched: Whether contributions of many users (or examples) are computed in one batch, so
            that one may turn the rounding of another; a mechanism of it is not exact.
    """

    __slots__ = ()
    l2_bound: float
    granularity: float | None = None
    multiple_of: float | None = None
    limits: tuple[float, float] | None = None
    start: float | None = None
    elementwise: bool = False
    batched: bool = False

    def __init_subclass__(cls) -> None:
        """Ask a class that computes its own factors user by user, unless it says `elementwise`."""
        super().__init_subclass__()
        if not {"factors", "besides"}.isdisjoint(vars(cls)) and "elementwise" not in vars(cls):
            cls.elementwise = False

    @abstractmethod
    def factors(self, norms: np.ndarray, clip_norm: float | None = None) -> np.ndarray:
        """Return what each update is multiplied by, so that its norm is at most `l2_bound`.

        A user's factor depends on its own norm alone. One who is made longer than `l2_bound`
        contributes zero.

        Args:
            norms: l2 norms of updates, float64 (users,); finite.
            clip_norm: The round's, of a bound that adapts.

        Returns:
            float64 (users,). NaN refuses a user, who then contributes zero.
        """

    def besides(self, norms: np.ndarray, clip_norm: float | None = None) -> dict[str, np.ndarray]:
        """Return what each user adds besides its update, float64 (users, ...) by name.

        With the update's its norm is at most `l2_bound`.

        Args:
            norms: As of `factors`.
            clip_norm: Likewise.
        """
        return {}

    def released(self, mean: Params, clip_norm: float | None) -> tuple[Params, float | None]:
        """Return the mean update of a released answer, and the next round's clip norm.

        Args:
            mean: What was released, with the mean of what users added besides. It is given up.
            clip_norm: Of the round.
        """
        return mean, None

    def longest(self, num_elements: int) -> float:
        """Return the norm that a contribution of so many coordinates may have before rounding.

        Raises:
            ValueError: If there are so many coordinates that rounding alone would fill the bound.
        """
        return math.inf

    def sum_limit(self, num_users: int) -> float:
        """Return the l2 norm that a sum over so many users cannot exceed.

        A server holds to it what a node answers. It is more than `num_users * l2_bound` only where
        something else than bounded updates is in the sum, such as shares of noise.
        """
        return num_users * self.l2_bound


def bounded_factors(
    bound: Bound, norms: np.ndarray, longest: float, clip_norm: float | None = None
) -> np.ndarray:
    """Return what updates are multiplied by: a bound's factors, with room for rounding.

    NaN refuses an update that the bound would make longer than it states.

    The one place where norms become factors: of users' updates, and of per-example gradients of
    which nothing but the norm is ever formed.

    Args:
        bound: Of each.
        norms: float64 (users,), finite.
        longest: Norm that a contribution may have before it is rounded.
        clip_norm: The round's, of a bound that adapts.
    """
    factors = bound.factors(norms, clip_norm)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        within = np.abs(factors) * norms <= bound.l2_bound * (1.0 + EXCESS)
        factors = np.where(within, factors, np.nan)
        if not math.isinf(longest):  # a norm of zero is within any
            factors = np.minimum(factors, longest / norms)
    # Float64 does not hold such a factor to full precision: it is rounded down.
    return np.where(np.abs(factors) < _TINIEST, np.nextafter(factors, 0.0), factors)


EXCESS = 2.0**-15
"""Part of a bound by which a contribution may be longer: room for rounding (`CHECKED_EXCESS`)."""

_TINIEST = np.finfo(np.float64).tiny
# Below it float64 does not hold norms, or their inverses, to full precision: such updates count as
# the zero update, which stays as it is.
_SHORTEST = 1e-290


def _norm(name: str, value: Any) -> float:
    """Return a norm of which float64 holds the grid, the squares and the sums.

    Raises:
        ValueError: If it is none, or below 1e-100 or above 1e100.
    """
    found = positive_float(name, value)
    if not 1e-100 <= found <= 1e100:
        raise ValueError(f"{name} {found!r} must be at least 1e-100 and at most 1e100")
    return found


Norm = Annotated[float, _norm, Range.ABOVE_ZERO]


def _scaled_to(lengths: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Return what gives norms these lengths; 1 for the zero update."""
    return np.divide(lengths, norms, out=np.ones_like(norms), where=norms > _SHORTEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip(Bound):
    """Scale updates longer than C down to C: Δ · min(1, C/‖Δ‖).

    Guarantees:
        * ‖output‖₂ <= C, over all tensors concatenated (the Frobenius norm of matrices, never the
          spectral norm).
        * Adding or removing one user moves the sum by at most C; replacing one by at most 2C.

    Reference: McMahan et al., "Learning Differentially Private Recurrent Language Models" (2018),
    Algorithm 1, flat clipping.

    Attributes:
        l2_clip_norm: C, the longest a bounded update may be.
    """

    kind: ClassVar[str] = "clip"
    l2_clip_norm: Norm = 1.0

    elementwise = True

    @property
    def l2_bound(self) -> float:
        """C."""
        return self.l2_clip_norm

    def factors(self, norms: np.ndarray, clip_norm: float | None = None) -> np.ndarray:
        """Return min(1, C/‖Δ‖), or just below it."""
        return _scaled_to(np.minimum(norms, self.l2_clip_norm * _ROUNDING), norms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalise(Bound):
    """Replace the length of an update by (almost) C: C · Δ/(r + ‖Δ‖).

    Guarantees:
        * ‖output‖₂ <= C (strictly below when r > 0).
        * Adding or removing one user moves the sum by at most C; replacing one by at most 2C.

    With r = 0 this is the normalised update of DP-NormFedAvg (Das et al. 2021); r > 0 is the
    regulariser of DP-NSGD (Yang et al. 2022, Algorithm 1), scaled by C.

    Attributes:
        l2_clip_norm: C, the length of a bounded update.
        regulariser: r of C Δ/(r + ‖Δ‖).
    """

    kind: ClassVar[str] = "normalise"
    l2_clip_norm: Norm = 1.0
    regulariser: NonNegativeFloat = 0.0

    elementwise = True

    @property
    def l2_bound(self) -> float:
        """C."""
        return self.l2_clip_norm

    def factors(self, norms: np.ndarray, clip_norm: float | None = None) -> np.ndarray:
        """Return C/(r + ‖Δ‖), or just below it; 1 for the zero update."""
        divisors = self.regulariser + norms
        share = np.divide(norms, divisors, out=np.zeros_like(norms), where=divisors > 0.0)
        return _scaled_to(self.l2_clip_norm * share * _ROUNDING, norms)


class _Unchanged(Bound):
    """Base of bounds that neither shorten nor lengthen a contribution."""

    __slots__ = ()
    elementwise = True

    def factors(self, norms: np.ndarray, clip_norm: float | None = None) -> np.ndarray:
        """Return ones."""
        return np.ones_like(norms)


@dataclass(frozen=True, slots=True)
class Unbounded(_Unchanged):
    """Let every finite update through. Only a plan without noise, and without an ε, accepts it."""

    kind: ClassVar[str] = "none"
    l2_bound = math.inf


# Absorb float64's own rounding of products, and of a norm summed over so many coordinates.
_SLACK, _SLACK_EACH = 2.0**-40, 2.0**-53


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounded(Bound):
    """Another bound on the public grid of its sums: whole multiples of `granularity`.

    Guarantees:
        * Sums are of whole numbers, the same in any order.
        * Adding or removing one user moves the sum by at most l2_bound, rounding included: what is
          rounded leaves room for it (`longest`).

    Attributes:
        bound: Of each contribution; finite and on no grid.
    """

    bound: Bound

    def check(self) -> None:
        """Refuse a bound that is infinite, or has a grid."""
        if not math.isfinite(self.bound.l2_bound) or self.bound.granularity is not None:
            raise ValueError(
                f"{self.bound!r} has no finite bound to make a grid of, or has a grid already; "
                "sum its updates as floats (exact-sum false)"
            )

    @property
    def elementwise(self) -> bool:
        """Whether the inner bound is."""
        return self.bound.elementwise

    @property
    def batched(self) -> bool:
        """Whether the inner bound is of a whole batch."""
        return self.bound.batched

    @property
    def l2_bound(self) -> float:
        """The inner bound's."""
        return self.bound.l2_bound

    @property
    def limits(self) -> tuple[float, float] | None:
        """The inner bound's."""
        return self.bound.limits

    @property
    def start(self) -> float | None:
        """The inner bound's."""
        return self.bound.start

    @property
    def granularity(self) -> float:
        """The grid's spacing, l2_bound / 2^24."""
        return self.l2_bound * 2.0**-BITS

    def factors(self, norms: np.ndarray, clip_norm: float | None = None) -> np.ndarray:
        """Return the inner bound's."""
        return self.bound.factors(norms, clip_norm)

    def besides(self, norms: np.ndarray, clip_norm: float | None = None) -> dict[str, np.ndarray]:
        """Return the inner bound's."""
        return self.bound.besides(norms, clip_norm)

    def released(self, mean: Params, clip_norm: float | None) -> tuple[Params, float | None]:
        """Return the inner bound's."""
        return self.bound.released(mean, clip_norm)

    def sum_limit(self, num_users: int) -> float:
        """Return the inner bound's."""
        return self.bound.sum_limit(num_users)

    def longest(self, num_elements: int) -> float:
        """Return the norm to which rounding each of so many coordinates adds up to the bound.

        Raises:
            ValueError: If there are so many coordinates that rounding alone would fill the bound.
        """
        share = 1.0 - _SLACK - num_elements * _SLACK_EACH
        share -= math.sqrt(num_elements) * 2.0 ** -(BITS + 1)
        if share < 0.5:
            raise ValueError(
                f"{num_elements} coordinates are too many for a grid of 2^{BITS} steps; sum them "
                "as floats (exact-sum false)"
            )
        return self.l2_bound * share


@dataclass(frozen=True, slots=True, kw_only=True)
class Capped(_Unchanged):
    """Cap each coordinate of a vector of losses at C, and what is below 0 at 0.

    Capped values are rounded to a grid of 2^24 steps to the l2 bound C√n, and never above C.

    Attributes:
        cap: C.
        num_coordinates: n, of the vector.

    Guarantees:
        * Each coordinate of an output lies in [0, C]: one user more raises every sum by at most C,
          and lowers none.
        * ‖output‖₂ <= C√n.

    A vector that is not finite is refused whole, so that its user contributes zero: a single
    infinite loss, taken for C, would say more of the user than the others do.
    """

    cap: Norm
    num_coordinates: PositiveInt

    @property
    def l2_bound(self) -> float:
        """C√n."""
        return self.cap * math.sqrt(self.num_coordinates)

    @property
    def granularity(self) -> float:
        """The grid's spacing, l2_bound / 2^24."""
        return self.l2_bound * 2.0**-BITS

    @property
    def most(self) -> float:
        """The largest multiple of the granularity within the cap."""
        return self.granularity * most_each(self.num_coordinates)

    @property
    def limits(self) -> tuple[float, float]:
        """0 and the largest multiple of the granularity within the cap."""
        return 0.0, self.most

    def longest(self, num_elements: int) -> float:
        """Refuse a vector of another length: a noisy minimum is priced by how many losses it has.

        Raises:
            ValueError: If it has not `num_coordinates` coordinates.
        """
        if num_elements != self.num_coordinates:
            raise ValueError(
                f"{num_elements} losses under a cap of num_coordinates {self.num_coordinates}; "
                "give the bound as many"
            )
        return math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class CappedTogether(Capped):
    """`Capped` for losses of many users (or examples) that are computed in one batch.

    Guarantees:
        * Those of `Capped`, of real arithmetic: which examples share a product or a reduction may
          move the last bits of a loss, and so its rounding. So a mechanism of it is not exact
          (`fedpriv.privacy.mechanism.Mechanism.is_exact`).
    """

    batched = True


CHECKED_EXCESS = 2.0**-16
"""Part of its bound by which `Checked` lets an update be longer: float32's rounding of one that is
exactly as long as it may be, among params that are up to 256 times as long."""
# Float64 holds sums of 2^13 such multiples without rounding.
_FINE_BITS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSensitivity(_Unchanged):
    """State that one user moves the result of a training by at most `l2_bound`; bound nothing.

    A result is as long as it is: here `l2_bound` is how far apart two of them are, not the norm of
    one, and `sum_limit` is refused.

    Attributes:
        l2_bound: Δ, of a user who is there or not, from `fedpriv.training.permutation_sgd`.
    """

    l2_bound: Norm

    def sum_limit(self, num_users: int) -> float:
        """Refuse: nothing is known of how long a result is.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "OutputSensitivity says how far a user moves a result, and not how long that is; "
            "no sum can be held to it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked(Bound):
    """Refuse an update that is longer than a loss's Lipschitz constant allows; shorten none.

    Attributes:
        l2_bound: K η L₀ of K local steps.

    Guarantees:
        * ‖output‖₂ <= (1 + 2^-16) l2_bound, and every output is its input: what is longer raises,
          and its user contributes zero. The sensitivity of who uses it has to cover that factor,
          as `fedpriv.training.bolt_on.BoltOnUsers.sensitivity` does.
        * But that coordinates are rounded to whole multiples of a power of two, at most 2^-39 of
          the bound, so that float64 sums of up to 8,192 users are the same to the last bit in
          whatever order, on every backend. Two runs drift apart by at most 2^-39 √d l2_bound more
          an update; `BoltOnUsers.sensitivity` has room for it.
    """

    l2_bound: Norm

    elementwise = True

    def sum_limit(self, num_users: int) -> float:
        """Return `num_users * l2_bound`, with float32's rounding."""
        return num_users * self.l2_bound * (1.0 + CHECKED_EXCESS)

    @property
    def multiple_of(self) -> float:
        """A power of two, at most 2^-39 of the bound."""
        return math.ldexp(1.0, math.frexp(self.l2_bound)[1] - _FINE_BITS)

    def factors(self, norms: np.ndarray, clip_norm: float | None = None) -> np.ndarray:
        """Return ones, and NaN to refuse what is longer than the bound."""
        return np.where(norms <= self.l2_bound * (1.0 + CHECKED_EXCESS), 1.0, np.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveClip(Bound):
    """Clips at a norm C that follows a quantile of the users' norms, at one and the same noise.

    A user sends a · Δ / max(‖Δ‖, C) and ±h, by whether ‖Δ‖ <= C, with a² + h² = 1: together at most
    1 long. So one Gaussian answer of σ pays for both, whatever C is, and the released mean update
    has noise σ C / a.

    Attributes:
        l2_clip_norm: C of the first round.
        least: The clip norm never falls below; none for a thousandth of the first.
        most: It never rises above; none for a thousand times the first.
        quantile: Share of users whose updates are to be shorter than C.
        rate: Of the geometric step of C.
        count_weight: h, what the count takes of a user's vector; the update has √(1 - its square).

    Raises:
        ValueError: If the limits do not hold the initial norm.

    Reference: Andrew et al., "Differentially Private Learning with Adaptive Clipping" (2021),
    Algorithm 1.
    """

    kind: ClassVar[str] = "adaptive"
    l2_clip_norm: Norm = 1.0
    least: Norm | None = None
    most: Norm | None = None
    quantile: Between = 0.5
    rate: Norm = 0.2
    count_weight: Between = 0.2

    def check(self) -> None:
        """Refuse limits that do not hold the first norm."""
        least, most = self.limits_of_norm
        if not least <= self.l2_clip_norm <= most:
            raise ValueError(
                f"clip norm {self.l2_clip_norm!r} must lie within its limits {least!r} and "
                f"{most!r}; set bound.least and bound.most"
            )

    elementwise = True
    l2_bound = 1.0

    @property
    def start(self) -> float:
        """C of the first round."""
        return self.l2_clip_norm

    @property
    def limits_of_norm(self) -> tuple[float, float]:
        """Least and most that the clip norm may be."""
        first = self.l2_clip_norm
        return (
            first / 1e3 if self.least is None else self.least,
            first * 1e3 if self.most is None else self.most,
        )

    @property
    def update_weight(self) -> float:
        """a, the share of the vector's length that the update gets."""
        return math.sqrt(1.0 - self.count_weight**2)

    def factors(self, norms: np.ndarray, clip_norm: float | None = None) -> np.ndarray:
        """Return a / max(‖Δ‖, C), or just below it.

        Raises:
            ValueError: If there is no clip norm.
        """
        return self.update_weight * _ROUNDING / np.maximum(norms, self._known(clip_norm))

    def besides(self, norms: np.ndarray, clip_norm: float | None = None) -> dict[str, np.ndarray]:
        """Return ±h, or just below it: on which side of C an update is."""
        weight = self.count_weight * _ROUNDING
        within = np.where(norms <= self._known(clip_norm), weight, -weight)
        return {WITHIN: within[:, None]}

    def released(self, mean: Params, clip_norm: float | None) -> tuple[Params, float | None]:
        """Return the mean update in its own units, and C moved by the noisy share within it."""
        known, update = self._known(clip_norm), dict(mean)
        share = 0.5 + float(update.pop(WITHIN)[0]) / (2.0 * self.count_weight)
        moved = known * math.exp(min(max(-self.rate * (share - self.quantile), -50.0), 50.0))
        update = tree.to_dense(tree.scale(update, known / self.update_weight))
        least, most = self.limits_of_norm
        return update, min(max(moved, least), most)

    def _known(self, clip_norm: float | None) -> float:
        if clip_norm is None:
            raise ValueError("the clip norm adapts, and the request's context brings none")
        return clip_norm


WITHIN = "within clip norm"
"""The name under which an `AdaptiveClip` sums which updates are within C."""
