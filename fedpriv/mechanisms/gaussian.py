"""Gaussian noise on the sum of a round: independent of other rounds, or none at all.

Guarantees:
    * Every coordinate is independent: one stddev for all tensors, one stream per tensor name, and
      one draw for the sum of all users.
    * In simulation a coordinate is float32 N(0, stddev²), whose magnitudes end at 6.76 stddev
      (`fedpriv.kernels.normals`). In secure mode, where the sum lies on a grid, it is exactly
      rounded to it (`fedpriv.mechanisms.rounded_gaussian`).
    * The draw depends on the key alone, so it may be made at any time after the round was charged,
      in any number of threads, and is the same on every backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedpriv import tree
from fedpriv.mechanisms.event import NONPRIVATE, Event
from fedpriv.mechanisms.privatizer import Privatizer
from fedpriv.mechanisms.rounded_gaussian import grid_noise
from fedpriv.parts import NonNegativeFloat, PositiveFloat
from fedpriv.ranges import Range, finite_float
from fedpriv.rng import Key
from fedpriv.tree import Params, Tree


def check_stddev(stddev: float) -> None:
    """Refuse a standard deviation of which noise cannot be drawn; 0 draws zeros.

    Raises:
        ValueError: If it is negative, not finite, or out of float32's comfortable range, where it
            would round to no noise at all.
    """
    finite_float("stddev", stddev, Range.AT_LEAST_ZERO)
    if stddev != 0 and not 1e-30 < stddev < 1e30:
        raise ValueError(
            f"stddev {stddev!r} is beyond what float32 noise can hold; scale the bound so that "
            "noise_multiplier times sensitivity lies between 1e-30 and 1e30"
        )


def gaussian(
    key: Key, template: Tree, stddev: float, dtype: type = np.float32
) -> dict[str, np.ndarray]:
    """Return noise of the template's shapes.

    Args:
        key: A key used for nothing else, folded by round and attempt.
        template: Names and shapes.
        stddev: Absolute standard deviation, `noise_multiplier * l2_bound`; 0 gives zeros.
        dtype: float32 or float64.

    Returns:
        Dense tensors of the dtype.

    Raises:
        ValueError: As `check_stddev`.
    """
    check_stddev(stddev)
    if stddev == 0:
        return tree.zeros(template, dtype)
    return {
        name: key.fold(name).normal(tuple(template[name].shape), dtype, stddev=stddev)
        for name in sorted(template)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian(Privatizer):
    """Gaussian noise of standard deviation `noise_multiplier * sensitivity`, new in every attempt.

    Attributes:
        noise_multiplier: σ.

    Guarantees:
        * Each answer is a Gaussian mechanism of noise multiplier σ (Dwork and Roth 2014, A.1), at
          the sensitivity that the mechanism was given: of real arithmetic where it was drawn on the
          sum's grid, and rounded; else as far as floating point is that.
    """

    noise_multiplier: PositiveFloat

    name = "gaussian"
    on_grid = True

    @property
    def event(self) -> Event:
        """A Gaussian mechanism of σ."""
        return Event(kind="gaussian", noise_multiplier=self.noise_multiplier)

    def scaled(self, noise_multiplier: float) -> Gaussian:
        """Return noise of another multiplier."""
        return Gaussian(noise_multiplier=noise_multiplier)

    def draws(
        self, *, template: Tree, sensitivity: float, key: Key, granularity: float | None = None
    ) -> Iterator[Params]:
        """Yield noise of the attempt's own key; on a grid exactly rounded to whole numbers."""
        stddev = self.noise_multiplier * sensitivity
        if granularity is None:
            yield gaussian(key, template, stddev)
        else:
            yield grid_noise(key, template, stddev=stddev, granularity=granularity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unprotected(Privatizer):
    """No privacy: sums released as they are, or with noise that gives no guarantee.

    Attributes:
        stddev: Absolute standard deviation of noise that is added for comparison only, as to an
            ideal that looks at clean gradients besides; 0 adds none.

    Guarantees:
        * None: ε is infinite.
    """

    stddev: NonNegativeFloat = 0.0

    name = "none"

    @property
    def event(self) -> Event:
        """None is protected: ε is infinite."""
        return NONPRIVATE

    def draws(self, *, template: Tree, sensitivity: float, key: Key) -> Iterator[Params]:
        """Yield the noise, or zeros."""
        yield gaussian(key, template, self.stddev)
