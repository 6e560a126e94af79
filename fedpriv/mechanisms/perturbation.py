"""Output perturbation: pure-ε or Gaussian noise on a result.

What was trained without noise is perturbed once and released. The result of a whole training moves
by at most Δ (l2) where one neighbour's records are there or not; how far is the training's affair
(`fedpriv.training.permutation_sgd`).
Both kinds give the identical release again after a crash, and are charged once for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedpriv import tree
from fedpriv.mechanisms.event import NONPRIVATE, Event
from fedpriv.mechanisms.gaussian import gaussian
from fedpriv.mechanisms.privatizer import Privatizer
from fedpriv.parts import PositiveFloat
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.tree import Params, Tree

# Uniform words that are turned into logarithms at a time.
_BLOCK = 1 << 20
_TO_UNIT = 2.0**-53


class Perturbing(Privatizer):
    """Base of noise on a finished result, which is released once.

    A release that a crash cut off is made again, bit for bit.
    """

    __slots__ = ()
    after_crash = "replay"

    def release(self, total: PartialSum, drawn: Params, share: float) -> Params:
        """Return the result with the noise on it, float32; nothing is divided."""
        result = tree.to_dense(total.real())
        return {name: (result[name] + drawn[name]).astype(np.float32) for name in result}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sphere(Perturbing):
    """Noise of uniform direction and Gamma length, on a result that was trained without noise.

    Attributes:
        epsilon: ε of the release, for one user who is there or not.

    Guarantees:
        * A release is ε-DP, with δ = 0: the noise has a density proportional to exp(-ε ‖κ‖₂ / Δ)
          (Chaudhuri, Monteleoni and Sarwate 2011, Algorithm 1), as far as floating point is real
          arithmetic.
    """

    epsilon: PositiveFloat

    name = "sphere"

    @property
    def event(self) -> Event:
        """Pure ε."""
        return Event(kind="pure", epsilon=self.epsilon)

    def draws(self, *, template: Tree, sensitivity: float, key: Key) -> Iterator[Params]:
        """Yield the noise, float64: of d coordinates, E‖κ‖ = dΔ/ε."""
        normal = gaussian(key.fold("direction"), template, 1.0, np.float64)
        size = sum(array.size for array in normal.values())
        radius = gamma(key.fold("radius"), size) * (sensitivity / self.epsilon)
        scale = radius / math.sqrt(sum(float(np.vdot(a, a)) for a in normal.values()))
        yield {name: array * scale for name, array in normal.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputGaussian(Perturbing):
    """Gaussian noise of standard deviation `noise_multiplier * Δ` on a finished result.

    Attributes:
        noise_multiplier: σ.

    Guarantees:
        * A release is a Gaussian mechanism of noise multiplier σ (Balle and Wang 2018 calibrate it
          exactly, and so does a plan), as far as floating point is real arithmetic.
    """

    noise_multiplier: PositiveFloat

    name = "output-gaussian"

    @property
    def event(self) -> Event:
        """A Gaussian mechanism of σ."""
        return Event(kind="gaussian", noise_multiplier=self.noise_multiplier)

    def draws(self, *, template: Tree, sensitivity: float, key: Key) -> Iterator[Params]:
        """Yield the noise, float64."""
        stddev = self.noise_multiplier * sensitivity
        normal = gaussian(key, template, 1.0, np.float64)
        yield {name: array * stddev for name, array in normal.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unperturbed(Perturbing):
    """No noise on a finished result: for comparison.

    Guarantees:
        * None: ε is infinite.
    """

    name = "none"
    after_crash = "retry"

    @property
    def event(self) -> Event:
        """None is protected: ε is infinite."""
        return NONPRIVATE

    def draws(self, *, template: Tree, sensitivity: float, key: Key) -> Iterator[Params]:
        """Yield zeros."""
        yield tree.zeros(template, np.float64)


def relative_length(noise: object, *, num_params: int, num_users: int) -> float | None:
    """Return how long noise is over the furthest that a training can go; None of other noise.

    One user moves the end of k passes with a constant step by Δ₂ = kηL/b, and k passes lead no
    further away than k (m/b) ηL = mΔ₂; so this is d/(mε) under pure ε, and σ√d/m of a Gaussian,
    where ε and σ are of a user who is there or not. Of steps that shorten within a pass, or a
    regulariser, it is a rough figure: Δ₂ is of the longest step of a pass, the path of all.

    Args:
        noise: A privatizer.
        num_params: d.
        num_users: m.
    """
    if isinstance(noise, Sphere):
        return num_params / (num_users * noise.epsilon)
    if isinstance(noise, OutputGaussian):
        return noise.noise_multiplier * math.sqrt(num_params) / num_users
    return None


def gamma(key: Key, shape: int) -> float:
    """Return a draw of Gamma(shape, 1), of whole shape: the sum of so many exponentials.

    Of the key's cryptographic words, 53 bits each; a word that is zero counts as half of the last
    bit, so that no logarithm is infinite.
    """
    total, drawn, stream = 0.0, 0, 0
    while drawn < shape:
        count = min(_BLOCK, shape - drawn)
        units = ((key.words(count, stream) >> np.uint64(11)).astype(np.float64) + 0.5) * _TO_UNIT
        total -= float(np.log(units).sum())
        drawn, stream = drawn + count, stream + 1
    return total
