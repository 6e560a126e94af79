"""How far one example moves where permutation SGD ends: the exact sum, not a closed form.

Two runs that differ in one example take the same steps but for one in each pass. A step of a convex
loss with η <= 2/β brings two points no further apart, one of a γ-strongly convex loss with η <= 1/β
to 1 - ηγ of their distance; the step in which they differ adds η L₀/b on the side on which the
example is, b examples a step. So after update t the distance is at most

    δ_t = Σ_j max_s (η_s L₀/b) Π_{s < r <= t} (1 - η_r γ),   s <= t of pass j, over passes j,

wherever in each pass the example stands; a permutation of its own for each pass is as good as one.
That is of an example that is there or not, whose place in its batch is empty then; the batch is
still divided by b. Replaced by another it is twice as far, which is what the literature states:
2kLη/b for a constant step of a convex loss, and 2L/(γm) for min(1/β, 1/γt), *with no gain from b*:
there are b times fewer updates, so that 1/γt is b times longer where it counts.

Projecting onto a convex set after each step brings no two points further apart. An average of
iterates with weights that do not depend on data is at most as far as their distances' average.

References: Wu et al. (2017), Lemmas 2 to 4 and Corollary 1; Hardt, Recht and Singer (2016).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpriv.ranges import positive_float, positive_int


@dataclass(frozen=True, slots=True, kw_only=True)
class Displacement:
    """What one example that is there or not does to the result, at most.

    Attributes:
        last: To the last iterate.
        average: To the mean of all iterates after an update.
    """

    last: float
    average: float


def displacement(
    rates: np.ndarray,
    *,
    updates_per_pass: int,
    lipschitz: float,
    convexity: float = 0.0,
    batch_size: int = 1,
    local_steps: int = 1,
) -> Displacement:
    """Return the largest distance of two runs of which one has an example that the other has not.

    Args:
        rates: η of every update, over all passes.
        updates_per_pass: How many updates a pass has: ⌊m/b⌋.
        lipschitz: L₀ of one example's data term.
        convexity: γ of the regulariser.
        batch_size: b, by which every batch's sum is divided.
        local_steps: K, the steps of rate η that one user takes before its batch is averaged: each
            moves it by at most η L₀, so that it counts K-fold.

    Raises:
        ValueError: If the updates are no whole number of passes, or local steps of a strongly
            convex loss are asked for, which the sum does not cover.
    """
    each = positive_int("updates_per_pass", updates_per_pass)
    if not len(rates) or len(rates) % each:
        raise ValueError(f"{len(rates)} updates are no whole number of passes of {each}")
    if local_steps > 1 and convexity > 0.0:
        raise ValueError(
            f"local_steps {local_steps} of a strongly convex loss: give one step, or no regulariser"
        )
    factor = positive_float("lipschitz", lipschitz) * positive_int("local_steps", local_steps)
    factor /= positive_int("batch_size", batch_size)
    before = current = summed = 0.0  # of finished passes, of this one, and of all iterates
    for update, rate in enumerate(rates.tolist()):
        kept = 1.0 - rate * convexity
        before *= kept
        current = max(kept * current, rate)
        summed += before + current
        if (update + 1) % each == 0:
            before, current = before + current, 0.0
    return Displacement(last=factor * before, average=factor * summed / len(rates))
