"""Per-user bounds: clipping, normalising, preconditioning and rounding to a grid.

A bound carries the l2 norm that no output of it exceeds. It is public; the update it is applied to
is not. Everything that follows (the standard deviation of the noise, the event that is accounted)
is derived from `l2_bound`, which is never typed a second time.

With C' = C(1 - 2^-22), which leaves room for float32's rounding:

===================  ========================================  ===================================
norm ‖Δ‖ of input    output of `Clip`                          output of `Normalise`
===================  ========================================  ===================================
0                    zeros (never a division by zero)          zeros
at most C'           unchanged                                 same direction, C'‖Δ‖/(r + ‖Δ‖)
above C'             same direction, norm C'                   same direction, C'‖Δ‖/(r + ‖Δ‖)
NaN, infinity        `ValueError`: the caller counts the user as contributing zero
===================  =============================================================================

Of the largest floats, too: the norm is taken in float64 with rescaling.

`Rounded` and `RoundedSum` put updates, or their sum, on a public grid, `granularity = l2_bound /
2**24`, so that the sum is one of integers and exact. Rounding each of d coordinates to the nearest
multiple moves an update by at most `granularity · √d / 2`, and the bound is tightened by that much
*before* rounding, so that what is summed still never exceeds it. At five million parameters the
bound loses a part in 15,000.

`OutputSensitivity` and `Checked` belong to trainings that are released once, without noise on the
way: how far one user moves the *result* follows from the length of its updates, which are checked
and never shortened. A clipped step is no step of a convex loss, and need not bring two runs closer.
"""

# pyright: reportIncompatibleVariableOverride=false
# (what a bound says is a field of one, an attribute of another and a property of a third)

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from fedpriv import tree
from fedpriv.ranges import Range, finite_float, positive_float, positive_int, set_checked
from fedpriv.sums import BITS, most_each
from fedpriv.tree import RowSparse, Tensor, Tree

# float32 values round by at most a part in 2^24 each; scaling to just below C keeps ‖·‖ <= C.
_ROUNDING = 1.0 - 2.0**-22


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """A public update with which every user's update Δ is averaged: own · Δ + offset.

    Attributes:
        own: Weight of the user's update, in (0, 1].
        offset: The public part with its weight in it, float32 arrays by name.
    """

    own: float
    offset: Mapping[str, np.ndarray] = field(repr=False)

    def __post_init__(self) -> None:
        if not 0.0 < self.own <= 1.0:
            raise ValueError(f"weight {self.own!r} of the update must lie in (0, 1]")

    def of(self, update: Tree) -> Tree:
        """Return the mixture: dense tensors of the update's names."""
        mixed: dict[str, np.ndarray] = {}
        for name, tensor in update.items():
            if isinstance(tensor, RowSparse):
                total = self.offset[name].copy()
                total[tensor.rows] += np.float32(self.own) * tensor.values
            else:
                total = np.float32(self.own) * tensor + self.offset[name]
            mixed[name] = total
        return mixed


class Bound(ABC):
    """Base of maps of any update to one of certified l2 norm: by default without a grid.

    A class states `l2_bound` and computes `bounded_norm`, neither of which has a default: what is
    certified is what is applied.

    Attributes:
        name: Name in options and plans; None for a bound that has none there.
        l2_bound: The l2 norm, over all tensors concatenated, that no output exceeds.
        granularity: Spacing of the grid that outputs are rounded to; None for none.
        multiplier: Factors of an update before its norm is taken, by tensor name; may be empty.
        mixture: Public update that is mixed in before the multiplication; None for nothing.
        batched: Whether outputs of many users (or examples) are computed in one batch, so that one
            may turn the rounding of another; a mechanism of it is not exact.
    """

    __slots__ = ()
    name: str | None
    l2_bound: float
    granularity: float | None = None
    multiplier: Mapping[str, np.ndarray] = MappingProxyType({})
    mixture: Mixture | None = None
    batched: bool = False

    @abstractmethod
    def bounded_norm(self, norm: float, num_elements: int) -> float:
        """Return the norm with which an update leaves, before it is rounded to a grid.

        Args:
            norm: The norm it comes with, after the multiplier; finite. Of many examples it is
                an array: one that raises a TypeError or ValueError is given them one by one.
            num_elements: Coordinates of the params.

        Returns:
            At most `l2_bound`.
        """

    def scaled(self, update: Tree) -> tuple[Tree, float]:
        """Return a tree and a number whose product is the bounded update, before any rounding.

        A running sum takes the two as they are, so that scaling, rounding and adding are one pass.

        Raises:
            ValueError: If the update is not finite.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # infinities are refused, not warned of
            if self.mixture is not None:
                update = self.mixture.of(update)
            if self.multiplier:
                update = tree.multiply(update, self.multiplier)
        norm = tree.l2_norm(update)
        if norm == 0.0:
            return update, 1.0
        factor = scaling_factor(self, norm, tree.num_elements(update))
        if factor == 1.0 or 1e-30 < factor < 1e30:
            return update, factor
        # float32 cannot hold such a factor, or not to full precision, nor float64 the norm of the
        # smallest numbers: bring the norm near 1 first, exactly, by two powers of two.
        exponent = math.frexp(norm)[1]
        for half in (exponent // 2, exponent - exponent // 2):
            update = tree.scale(update, math.ldexp(1.0, -half))
        return update, self.bounded_norm(norm, tree.num_elements(update)) / tree.l2_norm(update)

    def sum_limit(self, num_users: int) -> float:
        """Return the l2 norm that a sum over so many users cannot exceed.

        A server holds to it what a node answers. It is more than `num_users * l2_bound` only where
        something else than bounded updates is in the sum, such as shares of noise.
        """
        return num_users * self.l2_bound

    def apply(self, update: Tree) -> Tree:
        """Return the bounded update; raise `ValueError` if it is not finite."""
        update, factor = self.scaled(update)
        return update if factor == 1.0 else tree.scale(update, factor)


def scaling_factor(bound: Bound, norm: float, num_elements: int) -> float:
    """Return what a bound multiplies an update of some norm by, 1 for the zero update.

    The one place where a norm becomes a factor: for updates, for users side by side on a device,
    and for per-example gradients of which nothing but the norm is ever formed.

    Args:
        bound: Its multiplier and mixture are in the norm already.
        norm: l2 norm over all tensors, not checked yet; or an array of them, finite and not 0.
        num_elements: Coordinates of the params.

    Raises:
        ValueError: If the norm is not finite.
    """
    if isinstance(norm, np.ndarray):
        return bound.bounded_norm(norm, num_elements) / norm
    if not math.isfinite(norm):
        raise ValueError(f"the update's norm is {norm}; a diverged or hostile user contributes 0")
    return 1.0 if norm == 0.0 else bound.bounded_norm(norm, num_elements) / norm


def _least(norm: float, limit: float) -> float:
    """Return the lesser of the two; of an array of norms each with the limit."""
    return np.minimum(norm, limit) if isinstance(norm, np.ndarray) else min(norm, limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip(Bound):
    """Scale updates longer than C down to C: Δ · min(1, C/‖Δ‖).

    Guarantees:
        * ‖output‖₂ <= C, over all tensors concatenated (the Frobenius norm of matrices, never the
          spectral norm).
        * Adding or removing one user moves the sum by at most C; replacing one by at most 2C.

    Reference: McMahan et al., "Learning Differentially Private Recurrent Language Models" (2018),
    Algorithm 1, flat clipping.
    """

    l2_clip_norm: float

    def __post_init__(self) -> None:
        set_checked(self, positive_float, "l2_clip_norm")

    name = "clip"

    @property
    def l2_bound(self) -> float:
        """C."""
        return self.l2_clip_norm

    def bounded_norm(self, norm: float, num_elements: int) -> float:
        """Return the smaller of the norm and (just below) C."""
        return _least(norm, self.l2_clip_norm * _ROUNDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalise(Bound):
    """Replace the length of an update by (almost) C: C · Δ/(r + ‖Δ‖).

    Guarantees:
        * ‖output‖₂ <= C (strictly below when r > 0).
        * Adding or removing one user moves the sum by at most C; replacing one by at most 2C.

    With r = 0 this is the normalised update of DP-NormFedAvg (Das et al. 2021); r > 0 is the
    regulariser of DP-NSGD (Yang et al. 2022, Algorithm 1), scaled by C.
    """

    l2_clip_norm: float
    regulariser: float = 0.0

    def __post_init__(self) -> None:
        set_checked(self, positive_float, "l2_clip_norm")
        finite_float("regulariser", self.regulariser, Range.AT_LEAST_ZERO)

    name = "normalise"

    @property
    def l2_bound(self) -> float:
        """C."""
        return self.l2_clip_norm

    def bounded_norm(self, norm: float, num_elements: int) -> float:
        """Return C ‖Δ‖/(r + ‖Δ‖), or just below it."""
        return self.l2_clip_norm * (norm / (self.regulariser + norm)) * _ROUNDING


@dataclass(frozen=True, slots=True)
class Unbounded(Bound):
    """Let every finite update through. Only a plan without noise, and without an ε, accepts it."""

    name = "none"
    l2_bound = math.inf

    def bounded_norm(self, norm: float, num_elements: int) -> float:
        """Return the norm."""
        return norm


class _Wrapper(Bound):
    """A bound around another, `bound`, whose name and l2 norm it keeps."""

    __slots__ = ()

    bound: Bound

    @property
    def name(self) -> str | None:
        """The inner bound's."""
        return self.bound.name

    @property
    def batched(self) -> bool:
        """Whether the inner bound is of a whole batch."""
        return self.bound.batched

    @property
    def l2_bound(self) -> float:
        """The inner bound's."""
        return self.bound.l2_bound

    def sum_limit(self, num_users: int) -> float:
        """Return the inner bound's."""
        return self.bound.sum_limit(num_users)

    def bounded_norm(self, norm: float, num_elements: int) -> float:
        """Return what the inner bound allows."""
        return self.bound.bounded_norm(norm, num_elements)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preconditioned(_Wrapper):
    """Multiply the update by a public multiplier (1/A), *then* bound it.

    Guarantees:
        * The output has the inner bound's norm, whatever the multiplier: precondition first,
          bound second. The reverse order would have sensitivity C · max(1/A).
        * A mixture comes first of all and is public, so it costs nothing: whoever takes part
          still moves the sum by at most the inner bound. (Its public part is bounded with the
          user's own: without users it is not in the sum.)

    Reference: Li et al., "Private Adaptive Optimization with Side Information" (2022),
    Algorithm 1, where ψ mixes with public moments and divides; and the server-side variant
    discussed with Algorithm 3.
    """

    multiplier: Mapping[str, np.ndarray] = field(repr=False)
    bound: Bound
    mixture: Mixture | None = None

    def __post_init__(self) -> None:
        inner = self.bound
        if inner.multiplier or inner.mixture is not None or inner.granularity is not None:
            raise ValueError(
                f"{self.bound!r} preconditions or rounds already; precondition once, then bound, "
                "then round: Rounded(bound=Preconditioned(multiplier=..., bound=Clip(...)))"
            )


# Absorb float64's own rounding of products, and of a norm summed over so many coordinates.
_SLACK, _SLACK_EACH = 2.0**-40, 2.0**-53
# Of a mixture the square of a norm may be the 10^4th part of that of its offset, from which it was
# made by sums and differences (`fedpriv.training.per_example.sparse_sums`): it has lost as much.
_SLACK_EACH_MIXED = 2.0**14 * _SLACK_EACH


class _OnGrid(_Wrapper):
    """A bound that rounds to multiples of `granularity` and preconditions as the inner one does."""

    __slots__ = ()

    @property
    def granularity(self) -> float:
        """The grid's spacing, l2_bound / 2^24."""
        return self.l2_bound * 2.0**-BITS

    @property
    def multiplier(self) -> Mapping[str, np.ndarray]:
        """The inner bound's."""
        return self.bound.multiplier

    @property
    def mixture(self) -> Mixture | None:
        """The inner bound's."""
        return self.bound.mixture


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounded(_OnGrid):
    """Bound an update, then round it to whole multiples of `granularity`.

    Guarantees:
        * Every coordinate of an output is a whole multiple of `granularity`, at most 2^24 of them.
        * ‖output‖₂ <= l2_bound, the inner bound's, rounding included.
        * Adding or removing one user moves the sum by at most l2_bound, as without rounding.

    Attributes:
        bound: The bound that comes first; finite.
    """

    bound: Bound

    def __post_init__(self) -> None:
        _check_finite(self.bound)

    def bounded_norm(self, norm: float, num_elements: int) -> float:
        """Return what the inner bound allows, less what rounding may add.

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
        return min(self.bound.bounded_norm(norm, num_elements), self.l2_bound * share)

    def apply(self, update: Tree) -> Tree:
        """Return the bounded update on the grid, float64."""
        update, factor = self.scaled(update)
        return {
            name: _round_to_grid(tensor, factor, self.granularity)
            for name, tensor in update.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedSum(_OnGrid):
    """Bound each contribution, sum in float64, then round the sum once to a grid.

    For sums whose contributions are never formed, such as those of single examples' gradients.

    Guarantees:
        * Whoever joins or leaves moves the *rounded* sum by at most l2_bound: of d coordinates each
          moves by less than a granularity more than before rounding, and what float64 does to the
          two sums is at most `float_error`. Contributions are shortened by as much beforehand,
          and by what float64 may have got wrong of their norms.

    Attributes:
        bound: Of each contribution; finite and on no grid.
        float_error: How far float64 takes two neighbouring sums apart, over l2_bound, added to the
            contribution itself (`fedpriv.training.per_example.example_sum.SumsApart`).
        mixed_error: The same where contributions are mixed with a public update; None refuses that.
    """

    bound: Bound
    float_error: float
    mixed_error: float | None = None

    def __post_init__(self) -> None:
        _check_finite(self.bound)
        if self.bound.mixture is not None and self.mixed_error is None:
            raise ValueError(
                "contributions are mixed with a public update, and no float64 error of such sums "
                "is given (mixed_error); sum floats (exact-sum false)"
            )

    @property
    def error(self) -> float:
        """Largest float64 error between two neighbouring sums, with that inside the bound."""
        if self.mixture is None or self.mixed_error is None:
            return self.float_error
        return self.mixed_error

    @property
    def inside(self) -> Bound:
        """This bound without the grid, which bounds each contribution."""
        return _Shortened(bound=self)

    def bounded_norm(self, norm: float, num_elements: int) -> float:
        """Return what the inner bound allows, less what float64 and rounding may add.

        Raises:
            ValueError: If that would fill half the bound.
        """
        error, each = self.error, _SLACK_EACH if self.mixture is None else _SLACK_EACH_MIXED
        share = 1.0 - _SLACK - error - num_elements * each - math.sqrt(num_elements) * 2.0**-BITS
        if not share >= 0.5:
            raise ValueError(
                f"{num_elements} coordinates and a float64 error of {error:.2g} are too "
                f"much for a grid of 2^{BITS} steps; sum floats (exact-sum false)"
            )
        return _least(self.bound.bounded_norm(norm, num_elements), self.l2_bound * share)

    def apply(self, update: Tree) -> Tree:
        """Return the bounded contribution, not rounded: its sum is."""
        return self.inside.apply(update)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shortened(_Wrapper):
    """A `RoundedSum` before the sum is rounded."""

    bound: RoundedSum

    @property
    def multiplier(self) -> Mapping[str, np.ndarray]:
        return self.bound.multiplier

    @property
    def mixture(self) -> Mixture | None:
        return self.bound.mixture

    def apply(self, update: Tree) -> Tree:
        update, factor = self.scaled(update)
        return tree.scale(update, factor)


def _round_to_grid(
    tensor: Tensor, factor: float, spacing: float, *, keep_dtype: bool = False
) -> Tensor:
    """Return `factor * tensor` rounded to whole multiples of `spacing`, as float64.

    The product with `factor / spacing` is taken in float64. With `keep_dtype` the result has the
    tensor's dtype (float32 for float16), which has to hold the multiples exactly.
    """
    if isinstance(tensor, RowSparse):
        values = _round_to_grid(tensor.values, factor, spacing, keep_dtype=keep_dtype)
        assert isinstance(values, np.ndarray)
        return RowSparse(rows=tensor.rows, values=values, num_rows=tensor.num_rows)
    whole = np.rint(np.multiply(tensor, factor / spacing, dtype=np.float64)) * spacing
    return whole.astype(np.result_type(tensor.dtype, np.float32)) if keep_dtype else whole


def _check_finite(bound: Bound) -> None:
    if not math.isfinite(bound.l2_bound) or bound.granularity is not None:
        raise ValueError(
            f"{bound!r} has no finite bound to make a grid of, or has a grid already; "
            "sum its updates as floats (exact-sum false)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Capped(Bound):
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

    cap: float
    num_coordinates: int

    def __post_init__(self) -> None:
        set_checked(self, positive_float, "cap")
        number = positive_int("num_coordinates", self.num_coordinates)
        object.__setattr__(self, "num_coordinates", number)

    name = "capped"

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

    def bounded_norm(self, norm: float, num_elements: int) -> float:
        """Return the norm, or the bound where that is less."""
        return min(norm, self.l2_bound)

    def scaled(self, update: Tree) -> tuple[Tree, float]:
        """Return the capped vector, and 1.

        Raises:
            ValueError: If a loss is not finite.
        """
        dense = tree.to_dense(update)
        if not all(np.isfinite(array).all() for array in dense.values()):
            raise ValueError("a loss is not finite; its user contributes 0")
        return {
            name: np.clip(array, 0.0, self.most, dtype=np.float64) for name, array in dense.items()
        }, 1.0

    def apply(self, update: Tree) -> Tree:
        """Return the capped vector on the grid, float64."""
        capped, _ = self.scaled(update)
        granularity = self.granularity
        return {
            name: np.rint(array / granularity) * granularity
            for name, array in tree.to_dense(capped).items()
        }


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
class _Unchanged(Bound):
    """A bound that is stated or checked, and that shortens nothing."""

    l2_bound: float

    def __post_init__(self) -> None:
        set_checked(self, positive_float, "l2_bound")

    def bounded_norm(self, norm: float, num_elements: int) -> float:
        """Return the norm."""
        return norm


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSensitivity(_Unchanged):
    """State that one user moves the result of a training by at most `l2_bound`; bound nothing.

    A result is as long as it is: here `l2_bound` is how far apart two of them are, not the norm of
    one, and `sum_limit` is refused.

    Attributes:
        l2_bound: Δ, of a user who is there or not, from `fedpriv.training.permutation_sgd`.
    """

    name = "output-sensitivity"

    def sum_limit(self, num_users: int) -> float:
        """Refuse: nothing is known of how long a result is.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "OutputSensitivity says how far a user moves a result, and not how long that is; "
            "no sum can be held to it"
        )

    def scaled(self, update: Tree) -> tuple[Tree, float]:
        """Return the result, and 1."""
        return update, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked(_Unchanged):
    """Refuse an update that is longer than a loss's Lipschitz constant allows; shorten none.

    Attributes:
        l2_bound: K η L₀ of K local steps.

    Guarantees:
        * ‖output‖₂ <= (1 + 2^-16) l2_bound, and every output is its input: what is longer raises,
          and its user contributes zero. The sensitivity of who uses it has to cover that factor,
          as `fedpriv.training.bolt_on.UserSchedule.sensitivity` does.
        * But that coordinates are rounded to whole multiples of a power of two, at most 2^-39 of
          the bound, so that float64 sums of up to 8,192 users are the same to the last bit in
          whatever order, on every backend. Two runs drift apart by at most 2^-39 √d l2_bound more
          an update; `UserSchedule.sensitivity` has room for it.
    """

    name = "checked"

    def sum_limit(self, num_users: int) -> float:
        """Return `num_users * l2_bound`, with float32's rounding."""
        return num_users * self.l2_bound * (1.0 + CHECKED_EXCESS)

    def scaled(self, update: Tree) -> tuple[Tree, float]:
        """Return the update, rounded, and 1.

        Raises:
            ValueError: If it is longer than the bound, or not finite.
        """
        norm = tree.l2_norm(update)
        if not norm <= self.l2_bound * (1.0 + CHECKED_EXCESS):
            raise ValueError(
                f"an update of norm {norm:g} is longer than {self.l2_bound:g}, the most that a "
                "loss of these constants can do; its inputs are longer than stated, or its loss "
                "is another"
            )
        spacing = math.ldexp(1.0, math.frexp(self.l2_bound)[1] - _FINE_BITS)
        return {
            name: _round_to_grid(tensor, 1.0, spacing, keep_dtype=True)
            for name, tensor in update.items()
        }, 1.0
