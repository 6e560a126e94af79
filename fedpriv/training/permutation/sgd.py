"""Permutation SGD of linear models, in float64: every example once a pass, in random order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy import sparse

from fedpriv import tree
from fedpriv.mechanisms.bounds import Bound
from fedpriv.ranges import positive_float, positive_int
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.permutation.constants import Constants
from fedpriv.training.permutation.rows import finite_rows
from fedpriv.training.permutation.schedules import StepSchedule
from fedpriv.training.permutation.sensitivity import Displacement, displacement
from fedpriv.tree import Params

#: Where training of examples may start from, as far as Δ has room for rounding: in float64 that
#: is next to nothing.
LONGEST_START = 1024.0

Residual = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From logits (n, k) and labels (n,) to the loss's derivatives by the logits (n, k)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """How long, in which steps, and what is returned. All of it is public.

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

    def starts(self, num_examples: int) -> range:
        """Return where in a pass's order each batch begins."""
        return range(0, self.updates_per_pass(num_examples) * self.batch_size, self.batch_size)

    def rates(self, constants: Constants, num_examples: int) -> np.ndarray:
        """Return the step size of every update; errors are those of `StepSchedule.rates`."""
        return self.schedule.rates(
            self.passes * self.updates_per_pass(num_examples),
            constants=constants,
            num_examples=num_examples,
        )

    def displacement(
        self, constants: Constants, num_examples: int, *, local_steps: int = 1
    ) -> Displacement:
        """Return how far one example (or user) that is there or not moves the results, at most.

        Raises:
            ValueError: As `StepSchedule.rates` and `sensitivity.displacement`.
        """
        return displacement(
            self.rates(constants, num_examples),
            updates_per_pass=self.updates_per_pass(num_examples),
            lipschitz=constants.lipschitz,
            convexity=constants.convexity,
            batch_size=self.batch_size,
            local_steps=local_steps,
        )

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
        return share * (found.average if self.average else found.last) + slack

    def orders(self, num_examples: int, key: Key) -> Sequence[np.ndarray]:
        """Return the examples' order in each pass, int64 (m,): drawn without looking at them."""
        if not self.reshuffled:
            return [key.generator().permutation(num_examples)] * self.passes
        return [
            key.fold(number).generator().permutation(num_examples) for number in range(self.passes)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PermutationSgd:
    """The whole training of a linear model, whose "sum" is where it ends. A `Work`.

    Params are `name` (d,) or (d, k) and "bias" (1,) or (k,): all of them are regularised, projected
    and noised. An input x with its constant 1 is shortened to `constants.inputs`; shortening turns
    no logit's sign and no order of logits, so that the model predicts from inputs as they are. One
    that is not finite leaves its place in a batch empty, as one that is not there.

    Attributes:
        x: float32 (m, d), dense or CSR.
        y: Labels int64 (m,).
        name: Of the params.
        residual: Of the loss.
        constants: Of the loss with its regulariser.
        passes: How long.
        present: bool (m,), which examples are there; None for all. Those that are not leave their
            place in a batch empty.
    """

    x: np.ndarray | sparse.csr_matrix = field(repr=False)
    y: np.ndarray = field(repr=False)
    name: str
    residual: Residual = field(repr=False)
    constants: Constants
    passes: Passes
    present: np.ndarray | None = field(default=None, repr=False)

    def template(self, params: Params) -> Params:
        """Return the params' own shapes."""
        return params

    def partial_sum(
        self,
        *,
        params: Params,
        bound: Bound,
        data: object = None,
        user_ids: Sequence[str],
        key: Key,
    ) -> PartialSum:
        """Return the trained params as float64.

        Args:
            params: Where training starts.
            bound: Not looked at: it says how far the result moves.
            data: Not looked at.
            user_ids: All of the training set.
            key: Draws the order.

        Raises:
            ValueError: If it is not all of them: a subset's place in the order would be another.
        """
        if len(user_ids) != len(self.y):
            raise ValueError(
                f"{len(user_ids)} examples were asked for, and permutation SGD is over all "
                f"{len(self.y)}"
            )
        return PartialSum(
            total=self.trained(params, key.fold("order")), num_users=len(user_ids), num_failed=0
        )

    def trained(self, params: Params, key: Key) -> dict[str, np.ndarray]:
        """Return the trained params, float64, of an order drawn by a key."""
        shape, bias_shape = params[self.name].shape, params["bias"].shape
        kernel = params[self.name].astype(np.float64).reshape(shape[0], -1)
        bias = params["bias"].astype(np.float64).reshape(-1)
        inputs, scales = self.rows()
        number, size = len(self.y), self.passes.batch_size
        rates = self.passes.rates(self.constants, number)
        decay, update = self.constants.convexity, 0
        kernels, biases = np.zeros_like(kernel), np.zeros_like(bias)
        for order in self.passes.orders(number, key):
            for start in self.passes.starts(number):
                batch = order[start : start + size]
                rate, x, scale = rates[update], inputs[batch], scales[batch, np.newaxis]
                logits = np.asarray(x @ kernel, np.float64) + bias
                weighed = self.residual(scale * logits, self.y[batch]) * scale
                weighed *= rate / size
                kernel = (1.0 - rate * decay) * kernel - np.asarray(x.T @ weighed)
                bias = (1.0 - rate * decay) * bias - weighed.sum(axis=0)
                if self.passes.radius is not None:
                    kernel, bias = _projected(kernel, bias, self.passes.radius)
                if self.passes.average:
                    kernels += kernel
                    biases += bias
                update += 1
        if self.passes.average:
            kernel, bias = kernels / update, biases / update
        return {self.name: kernel.reshape(shape), "bias": bias.reshape(bias_shape)}

    def rows(self) -> tuple[np.ndarray | sparse.csr_matrix, np.ndarray]:
        """Return inputs, and what each and its constant 1 are multiplied by; 0 if it is absent."""
        x, squares = finite_rows(self.x)
        finite = np.isfinite(squares)
        norms = np.sqrt(np.where(finite, squares, 0.0) + 1.0)
        # A part in 2^40 for the rounding of the norm itself.
        scales = np.minimum(1.0, self.constants.inputs * (1.0 - 2.0**-40) / norms) * finite
        return x, scales if self.present is None else scales * self.present


def refuse_long_start(params: Params, longest: float) -> None:
    """Refuse to train from params that Δ has no room for.

    Raises:
        ValueError: If they are longer, or not finite.
    """
    length = tree.l2_norm(params)
    if not length <= longest * (1.0 + 2.0**-40):
        raise ValueError(
            f"where training starts is {length:.6g} long, and Δ has no room for the rounding of "
            f"more than {longest:g}: start nearer to zero (start=fresh, or a lower start-factor), "
            f"or, of users, raise longest-start to {_up(length):g}, which costs noise"
        )


def _up(length: float) -> float:
    """Return a length rounded up to two digits."""
    if not math.isfinite(length):
        return length
    unit = 10.0 ** (math.floor(math.log10(length)) - 1)
    return math.ceil(length / unit) * unit


def _projected(
    kernel: np.ndarray, bias: np.ndarray, radius: float
) -> tuple[np.ndarray, np.ndarray]:
    norm = math.sqrt(float(np.vdot(kernel, kernel)) + float(np.vdot(bias, bias)))
    if norm <= radius:
        return kernel, bias
    return kernel * (radius / norm), bias * (radius / norm)
