"""Independent Gaussian noise on the sum of a round.

Guarantees:
    * Every coordinate of every tensor gets an independent N(0, stddev²), in one draw over the
      whole tree: never per tensor, never per user.
    * The stream depends on the key alone, so it may be drawn at any time after the round was
      charged, in any number of threads, and is the same in every backend.
"""

from __future__ import annotations

import math

import numpy as np

from fedpriv.rng import Key
from fedpriv.tree import Tree


def gaussian(key: Key, template: Tree, stddev: float) -> dict[str, np.ndarray]:
    """Return noise of the template's shapes.

    Args:
        key: A key used for nothing else, folded by round and attempt.
        template: Names and shapes.
        stddev: Absolute standard deviation, `noise_multiplier * l2_bound`; 0 gives zeros.

    Returns:
        Dense float32 tensors.

    Raises:
        ValueError: If stddev is negative, not finite, or out of float32's comfortable range,
            where it would round to no noise at all.
    """
    if not (math.isfinite(stddev) and stddev >= 0):
        raise ValueError(f"stddev {stddev!r} must be finite and not negative")
    if stddev != 0 and not 1e-30 < stddev < 1e30:
        raise ValueError(
            f"stddev {stddev!r} is beyond what float32 noise can hold; scale the bound to lie "
            "between 1e-30 and 1e30"
        )
    noise: dict[str, np.ndarray] = {}
    for name in sorted(template):
        shape = tuple(template[name].shape)
        if stddev == 0:
            noise[name] = np.zeros(shape, np.float32)
            continue
        noise[name] = key.fold(name).normal(shape, np.float32, stddev=stddev)
    return noise
