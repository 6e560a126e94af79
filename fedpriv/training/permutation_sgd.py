"""Permutation SGD of linear models without noise, and its sensitivity to one example or user.

Every example is used once a pass, in random order, in float64. How far one example moves the
result follows from the loss's constants and the step sizes alone, as an exact sum.

Loss constants, of inputs within ‖x‖₂ <= r, the bias's constant input included, and per example:

===========  ===================  ================  =============================================
loss         L₀ (data term)       β (data term)     source
===========  ===================  ================  =============================================
logistic     r                    r²/4              |∂| <= 1, |∂²| <= 1/4
Huber SVM    r                    r²/2h             quadratic within h of the corner
softmax      √2 r                 r²/2              ‖p - y‖₂ <= √2; Böhning (1992), ‖diag p - pp'‖
one-vs-all   √k r                 r²/4              k logistic losses at once, each its own row
mod. Huber   4 r                  2 r²              (1 - z)² for z > -1, and -4z below
===========  ===================  ================  =============================================

A regulariser λ/2 ‖w‖² adds λ to β and makes the sum λ-strongly convex. It adds λR to the Lipschitz
constant on a ball of radius R, which is what the literature's L = L₀ + λR is; but it is the *same*
in two neighbouring runs and cancels in the step in which they differ, so that their distance is
made of L₀ alone.

Step sizes are those of `fedpriv.training.step_schedules`.

Sensitivity.

Two runs that differ in one example take the same steps but for one in each pass. A step of a convex
loss with η <= 2/β brings two points no further apart, one of a γ-strongly convex loss with η <= 1/β
to 1 - ηγ of their distance; the step in which they differ adds η L₀/b on the side on which the
example is, b examples a step. So after update t the distance is at most

    δ_t = Σ_j max_s (η_s L₀/b) Π_{s < r <= t} (1 - η_r γ),   s <= t of pass j, over passes j,

wherever in each pass the example is; a permutation of its own for each pass is as good as one.
That is of an example that is there or not, whose place in its batch is empty then; the batch is
still divided by b. Replaced by another it is twice as far, which for b = 1 is what Wu et al.
state: 2kLη/b for a constant step of a convex loss, and 2L/(γm) for min(1/β, 1/γt), *with no gain
from b*: there are b times fewer updates, so that 1/γt is b times longer where it counts.

Projecting onto a convex set after each step brings no two points further apart. An average of
iterates with weights that do not depend on data is at most as far as their distances' average.

References: Wu et al., "Bolt-on Differential Privacy for Scalable Stochastic Gradient Descent-based
Analytics" (2017), Algorithms 1 and 2, of which the slides of a talk were read; its schedules
between the two are remembered; Hardt, Recht and Singer (2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from scipy import sparse

from fedpriv.ranges import Range, finite_float, positive_float, positive_int
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.convex_losses import Constants
from fedpriv.training.step_schedules import StepSchedule
from fedpriv.training.work import Attempt, Users, Work, as_positions
from fedpriv.tree import Params

#: Why nothing bounds what a loss does, by its name in libraries.
UNBOUNDED = {
    "hinge": "has a corner (it is not smooth); use a Huber SVM or 'modified_huber'",
    "perceptron": "has a corner (it is not smooth); use a Huber SVM or 'modified_huber'",
    "squared_hinge": "is ever steeper (it is not Lipschitz); use 'modified_huber'",
    "squared_error": "is ever steeper (it is not Lipschitz); use a logistic or Huber loss",
    "epsilon_insensitive": "has corners (it is not smooth)",
    "squared_epsilon_insensitive": "is ever steeper (it is not Lipschitz)",
    "huber": "is of regression, and its targets are not bounded here; use 'modified_huber'",
}


def loss_constants(
    name: str,
    *,
    regulariser: float = 0.0,
    inputs: float = 1.0,
    width: float = 0.1,
    num_classes: int = 2,
) -> Constants:
    """Return how steep, smooth and convex a loss is, by its name, for `fedpriv.bolt_on`.

    Args:
        name: "logistic" (or "log_loss"), "huber-svm", "modified_huber" (scikit-learn's: 4 steep,
            of curvature 2), "softmax" (over all classes together) or "one-vs-all" (k logistic
            regressions on the same inputs, seen as one vector).
        regulariser: λ of λ/2 ‖w‖².
        inputs: r, to which rows are shortened, their constant column for a bias included.
        width: h, of "huber-svm".
        num_classes: k, of "one-vs-all".

    Raises:
        ValueError: If nothing bounds it, such as hinge, or the name is unknown.
    """
    if name in UNBOUNDED:
        raise ValueError(f"loss {name!r} {UNBOUNDED[name]}: nothing says how far it moves a result")
    name = "logistic" if name == "log_loss" else name
    width = positive_float("width", width)
    known = {
        "logistic": ("logistic", inputs, inputs**2 / 4.0),
        "huber-svm": ("Huber SVM", inputs, inputs**2 / (2.0 * width)),
        "modified_huber": ("modified Huber", 4.0 * inputs, 2.0 * inputs**2),
        "softmax": ("softmax", math.sqrt(2.0) * inputs, inputs**2 / 2.0),
        "one-vs-all": ("one-vs-all", math.sqrt(num_classes) * inputs, inputs**2 / 4.0),
    }
    if name not in known:
        raise ValueError(
            f"loss {name!r} is unknown; give one of {', '.join(known)}, or Constants of your own"
        )
    shown, lipschitz, smoothness = known[name]
    weight = finite_float("regulariser", regulariser, Range.AT_LEAST_ZERO)
    return Constants(
        name=shown,
        lipschitz=lipschitz,
        smoothness=smoothness + weight,
        convexity=weight,
        inputs=inputs,
    )


def shortened(rows: Any, length: float = 1.0) -> Any:
    """Return rows scaled to ‖x‖₂ <= length, float64; a row without a finite norm becomes zero.

    Args:
        rows: One (d,), or several (n, d), dense or CSR, whose entries of one place are added up. A
            constant column for a bias counts. They are not changed.
        length: r.
    """
    if not sparse.issparse(rows):
        rows = np.asarray(rows, np.float64)
        scale = _scales(np.einsum("...d,...d->...", rows, rows), length)[..., np.newaxis]
        return np.where(scale > 0.0, rows, 0.0) * scale
    found = sparse.csr_matrix(rows, dtype=np.float64, copy=True)
    found.has_canonical_format = found.has_sorted_indices = False  # it may be marked otherwise
    with np.errstate(over="ignore", invalid="ignore"):
        found.sum_duplicates()
        lines = np.repeat(np.arange(len(found.indptr) - 1), np.diff(found.indptr))
        squares = np.bincount(lines, np.square(found.data), minlength=len(found.indptr) - 1)
    scale = _scales(squares, length)[lines]
    found.data = np.where(scale > 0.0, found.data, 0.0) * scale
    return found


def _scales(squares: np.ndarray, length: float) -> np.ndarray:
    """Return the factor of each row by its ‖x‖₂²: 0 for one that is not finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        # A part in 2^40 for the rounding of the norm itself.
        scale = length * (1.0 - 2.0**-40) / np.sqrt(squares)
    return np.nan_to_num(np.minimum(1.0, scale))


#: Where training of examples may start from, as far as Δ has room for rounding: in float64 that
#: is next to nothing.
LONGEST_START = 1024.0

Residual = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From logits (n, k) and labels (n,) to the loss's derivatives by the logits (n, k)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Passes, batches and step sizes of a training, and what it returns; all public.

    Attributes:
        passes: k.
        batch_size: b, by which every batch's sum is divided.
        last_batch: Examples that do not fill one sit a pass out ("dropped"), or make a shorter one
            that is divided by b all the same ("divided"). Divided by their own number they would
            move the result further than any other.
        schedule: Of the step sizes.
        radius: R of the ball that params are projected onto after every step; None for none.
        average: Whether the mean of all iterates is returned, and not the last.
        reshuffled: Whether each pass has an order of its own.
    """

    passes: int = 1
    batch_size: int = 1
    schedule: StepSchedule
    last_batch: Literal["dropped", "divided"] = "dropped"
    radius: float | None = None
    average: bool = False
    reshuffled: bool = True

    def __post_init__(self) -> None:
        positive_int("passes", self.passes)
        positive_int("batch_size", self.batch_size)
        if self.last_batch not in ("dropped", "divided"):
            raise ValueError(
                f"last_batch {self.last_batch!r} is unknown; give 'dropped' or 'divided' (by "
                "batch_size): a mean over fewer examples moves further than the bound says"
            )
        if self.radius is not None:
            object.__setattr__(self, "radius", positive_float("radius", self.radius))

    def updates_per_pass(self, num_examples: int) -> int:
        """Return ⌊m/b⌋, or ⌈m/b⌉ with a last batch that is not full.

        Raises:
            ValueError: If there are fewer examples than a batch has.
        """
        if self.batch_size > num_examples:
            raise ValueError(
                f"batch_size {self.batch_size} is above the {num_examples} there are; lower it"
            )
        if self.last_batch == "divided":
            return -(-num_examples // self.batch_size)
        return num_examples // self.batch_size

    def rates(self, constants: Constants, num_examples: int) -> np.ndarray:
        """Return the step size of every update; errors are those of `StepSchedule.rates`."""
        return self.schedule.rates(
            self.passes * self.updates_per_pass(num_examples),
            constants=constants,
            num_examples=num_examples,
        )

    def displacement(
        self, constants: Constants, num_examples: int, *, local_steps: int = 1
    ) -> float:
        """Return how far one example (or user) that is there or not moves the result, at most.

        Args:
            constants: L₀ and γ of the loss.
            num_examples: m.
            local_steps: K, the steps of rate η that one user takes before its batch is averaged:
                each moves it by at most η L₀, so that it counts K-fold.

        Raises:
            ValueError: As `StepSchedule.rates`, or if local steps of a strongly convex loss are
                asked for, which the sum does not cover.
        """
        if local_steps > 1 and constants.convexity > 0.0:
            raise ValueError(
                f"local_steps {local_steps} of a strongly convex loss: give one step, or no "
                "regulariser"
            )
        rates, each = self.rates(constants, num_examples), self.updates_per_pass(num_examples)
        factor = constants.lipschitz * positive_int("local_steps", local_steps) / self.batch_size
        before = current = summed = 0.0  # of finished passes, of this one, and of all iterates
        for update, rate in enumerate(rates.tolist()):
            kept = 1.0 - rate * constants.convexity
            before *= kept
            current = max(kept * current, rate)
            summed += before + current
            if (update + 1) % each == 0:
                before, current = before + current, 0.0
        return factor * (summed / len(rates) if self.average else before)

    def sensitivity(
        self,
        constants: Constants,
        num_examples: int,
        *,
        local_steps: int = 1,
        relative_rounding: float = 2.0**-44,
        start: float = 0.0,
        share: float = 1.0,
    ) -> float:
        """Return Δ of what is released, for one that is there or not, with room for rounding.

        Two runs whose every update rounds the params by a part ρ drift apart by 2ρ‖w‖ more an
        update; they are never longer than where they start and the path that led on from there,
        and in a ball no longer than that or its radius.

        Args:
            constants: Of the loss.
            num_examples: m.
            local_steps: K.
            relative_rounding: ρ: of float64 with sums of up to 2^9 terms an update, by default.
            start: ‖w₀‖₂ at most. Who trains from elsewhere has to be refused.
            share: Of each step that is taken; below 1 the server's rate.
        """
        found = self.displacement(constants, num_examples, local_steps=local_steps)
        rates = self.rates(constants, num_examples)
        longest = start + share * float(rates.sum()) * constants.lipschitz * local_steps
        if self.radius is not None:
            longest = min(longest, max(start, self.radius))
        slack = 2.0 * relative_rounding * len(rates) * longest
        return share * found + slack

    def updates(
        self, constants: Constants, num_examples: int, key: Key
    ) -> Iterator[tuple[np.ndarray, float]]:
        """Yield the examples' numbers and the step size of each update, in a key's orders."""
        rates = self.rates(constants, num_examples)
        return updates_of(self.orders(num_examples, key), rates, self.batch_size)

    def orders(self, num_examples: int, key: Key) -> Sequence[np.ndarray]:
        """Return the examples' order in each pass, int64 (m,): drawn without looking at them."""
        if not self.reshuffled:
            return [key.generator().permutation(num_examples)] * self.passes
        return [
            key.fold(number).generator().permutation(num_examples) for number in range(self.passes)
        ]


def updates_of(
    orders: Sequence[np.ndarray], rates: np.ndarray, batch_size: int
) -> Iterator[tuple[np.ndarray, float]]:
    """Yield the numbers of a batch and the step size, update by update.

    Args:
        orders: One a pass.
        rates: Of every update, over all passes.
        batch_size: b.
    """
    each = len(rates) // len(orders)
    for update, rate in enumerate(rates.tolist()):
        number, place = divmod(update, each)
        yield orders[number][place * batch_size : (place + 1) * batch_size], rate


@dataclass(frozen=True, slots=True, kw_only=True)
class PermutationSgd(Work):
    """Client work: the whole training of a linear model, whose "sum" is its final params.

    Params are `name` (d,) or (d, k) and "bias" (1,) or (k,): all of them are regularised, projected
    and noised. The bias is the weight of the last input, which is a constant 1 before shortening.
    Shortening turns no logit's sign and no order of logits, so that the model predicts from inputs
    as they are. A row of zeros leaves its place in a batch empty, as an example that is not there.

    Attributes:
        rows: float64 (m, d + 1), dense or CSR, within `constants.inputs` by `shortened`.
        y: Labels int64 (m,).
        name: Of the params.
        residual: Of the loss.
        constants: Of the loss with its regulariser.
        passes: How long.
        part_size: How many of the examples it is asked for, and trains on; None for all.
    """

    rows: np.ndarray | sparse.csr_matrix = field(repr=False)
    y: np.ndarray = field(repr=False)
    name: str
    residual: Residual = field(repr=False)
    constants: Constants
    passes: Passes
    part_size: int | None = None

    def answer(self, request: SumRequest, attempt: Attempt, users: Users) -> PartialSum:
        """Return the params as float64, trained from those given in an order that the key draws.

        Raises:
            ValueError: If other than `part_size` are asked for: places in the order would be
                others.
        """
        number, size = len(users.ids), len(self.y) if self.part_size is None else self.part_size
        if number != size:
            raise ValueError(
                f"{number} examples were asked for, and permutation SGD is over all {size}"
            )
        asked = self if self.part_size is None else self.on(users.ids)
        total = asked.trained(request.params, attempt.key.fold("order"))
        return PartialSum(total=total, num_users=number)

    def on(self, ids: Sequence[str]) -> PermutationSgd:
        """Return the training on the examples of these ids, in their order."""
        index = as_positions(ids)
        return replace(self, rows=self.rows[index], y=self.y[index])

    def trained(self, params: Params, key: Key) -> dict[str, np.ndarray]:
        """Return the trained params, float64, of an order drawn by a key."""
        weights, decay, radius = self.weights(params), self.constants.convexity, self.passes.radius
        size, summed, count = self.passes.batch_size, np.zeros_like(weights), 0
        for batch, rate in self.passes.updates(self.constants, len(self.y), key):
            x = self.rows[batch]
            slopes = self.residual(np.asarray(x @ weights), self.y[batch])
            slopes *= rate / size
            weights = (1.0 - rate * decay) * weights - np.asarray(x.T @ slopes)
            if radius is not None and (norm := float(np.linalg.norm(weights))) > radius:
                weights *= radius / norm
            if self.passes.average:
                summed += weights
                count += 1
        if self.passes.average:
            weights = summed / count
        parts = {self.name: weights[:-1], "bias": weights[-1]}
        return {name: part.reshape(params[name].shape) for name, part in parts.items()}

    def weights(self, params: Params) -> np.ndarray:
        """Return kernel and bias as one matrix, float64 (d + 1, k), whose last row is the bias."""
        found = [params[name].astype(np.float64).reshape(-1) for name in (self.name, "bias")]
        return np.concatenate(found).reshape(-1, params["bias"].size)
