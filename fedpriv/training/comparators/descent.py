"""Noisy gradient descent whose length is fixed beforehand: one algorithm under several plans."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedpriv import tree
from fedpriv.privacy.adaptive_plan import AdaptivePlan
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import AnyPlan
from fedpriv.privacy.zcdp import rho_of
from fedpriv.ranges import Range, finite_float, positive_float, positive_int
from fedpriv.training.algorithm import Algorithm, ArrayState, Door, Query
from fedpriv.tree import Params

_AVERAGE = "average "


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyDescent(Algorithm):
    """w ← Π(w - η_t (g + λw)), of a noised mean gradient g, for a number of steps.

    Attributes:
        steps: How many.
        rate: η of the first step.
        schedule: "constant", or "inverse-root": η_t = η/√t.
        regulariser: λ of λ/2 ‖w‖², public.
        radius: R of the ball onto which Π projects; None for none.
        average: Whether the run stands for the mean of its iterates.
        mechanism: Of every answer; None for the plan's.
    """

    steps: int
    rate: float
    schedule: Literal["constant", "inverse-root"] = "constant"
    regulariser: float = 0.0
    radius: float | None = None
    average: bool = False
    mechanism: Mechanism | None = None

    def __post_init__(self) -> None:
        positive_int("steps", self.steps)
        positive_float("rate", self.rate)
        finite_float("regulariser", self.regulariser, Range.AT_LEAST_ZERO)
        if self.schedule not in ("constant", "inverse-root"):
            raise ValueError(
                f"schedule {self.schedule!r} is unknown; give 'constant' or 'inverse-root'"
            )
        if self.radius is not None:
            positive_float("radius", self.radius)

    def check_plan(self, plan: AnyPlan) -> None:
        """Refuse a filter without a mechanism of one's own, and one that pays for fewer steps.

        Raises:
            ValueError: If that is so.
        """
        if not isinstance(plan, AdaptivePlan):
            return
        if self.mechanism is None:
            raise ValueError("a filter has no mechanism of its own; give the descent one")
        rho = rho_of(self.mechanism.event, plan.relation) * self.steps
        if rho > plan.rho * (1.0 + 1e-9):
            raise ValueError(
                f"{self.steps} steps cost ρ = {rho:g}, above the {plan.rho:g} of the plan; take "
                "fewer, or add more noise"
            )

    def init(self, params: Params) -> ArrayState:
        """Return the state before the first step."""
        memory = {_AVERAGE + name: np.zeros(a.shape) for name, a in params.items()}
        return ArrayState(params=params, memory=memory if self.average else {})

    def result(self, state: ArrayState) -> Params:
        """Return the params, or the mean of all that were released."""
        if not self.average or not state.round_num:
            return state.params
        return {n: state.memory[_AVERAGE + n].astype(np.float32) for n in state.params}

    def step(self, state: ArrayState, door: Door) -> ArrayState | None:
        """Return the state after one more step; None after the last."""
        if state.round_num == self.steps:
            return None
        answer = door.ask(Query(params=state.params, mechanism=self.mechanism))
        number = state.round_num + 1
        rate = self.rate / (math.sqrt(number) if self.schedule == "inverse-root" else 1.0)
        kept = 1.0 - rate * self.regulariser
        # An answer is of updates, which are gradients with their sign turned.
        params = {
            name: kept * array.astype(np.float64) + rate * answer.update[name]
            for name, array in state.params.items()
        }
        if self.radius is not None and (norm := tree.l2_norm(params)) > self.radius:
            params = {name: array * (self.radius / norm) for name, array in params.items()}
        return state.after(
            {name: array.astype(np.float32) for name, array in params.items()},
            memory=self._averaged(state.memory, params, number),
        )

    def _averaged(self, memory: Mapping[str, np.ndarray], params: Params, number: int) -> Params:
        if not self.average:
            return {}
        means = {name: memory[_AVERAGE + name] for name in params}
        return {_AVERAGE + n: a + (params[n] - a) / number for n, a in means.items()}
