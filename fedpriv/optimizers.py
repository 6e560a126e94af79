"""Server optimisers: transforms of the released (noised) mean update g into the server's step.

All of it is post-processing: the input is already private, so nothing here can cost privacy. An
update is `local - global` params, so the server *adds* the step.

References: Reddi et al., "Adaptive Federated Optimization" (2021), Algorithm 2 (FedAdagrad,
FedYogi, FedAdam), from which the adaptive ones differ in two points: v starts at 0, where the paper
starts it at adaptivity² or more, and `Adam` corrects the bias of m and v, which the paper does not.
Hsu et al. (2019) for server momentum.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpriv.parts import Fraction, PositiveFloat, PositiveInt
from fedpriv.transform import State, Tensors, Transform

#: From the number of a step, from 1, to what its learning rate is multiplied by.
Factor = Callable[[int], float]


def _zeros(params: Tensors) -> Tensors:
    return {name: np.zeros_like(array) for name, array in params.items()}


def _no_steps() -> Tensors:
    return {"steps": np.zeros((), np.int64)}


class Optimizer(Transform):
    """Base of optimisers; a class that states its `kind` is one that experiments take."""

    __slots__ = ()

    @property
    def past_of_sums(self) -> float:
        """β where steps are along sums of the past with weights β^k; 0 for what is not linear."""
        return 0.0

    def check_rounds(self, num_rounds: int) -> None:
        """Refuse options without an effect in so many rounds.

        Raises:
            ValueError: If there is one.
        """
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class Sgd(Optimizer):
    """Plain steps: rate g. With rate 1 it is FedAvg.

    Attributes:
        learning_rate: Step size on the released mean.
    """

    kind: ClassVar[str] = "sgd"
    learning_rate: PositiveFloat = 1.0

    def next(self, update: Tensors, state: State) -> tuple[Tensors, State]:
        """Return the step."""
        rate = np.float32(self.learning_rate)
        if rate != 1:
            for array in update.values():
                array *= rate
        return update, state


@dataclass(frozen=True, slots=True, kw_only=True)
class Momentum(Optimizer):
    """Steps along a decayed sum of the past: rate u, u <- βu + g from 0.

    Attributes:
        learning_rate: Step size on the released mean.
        momentum: Weight of the past.
    """

    kind: ClassVar[str] = "momentum"
    learning_rate: PositiveFloat = 1.0
    momentum: Fraction = 0.9

    @property
    def past_of_sums(self) -> float:
        """β."""
        return self.momentum

    def init(self, params: Tensors) -> State:
        """Return u = 0."""
        return {"velocity": _zeros(params)}

    def next(self, update: Tensors, state: State) -> tuple[Tensors, State]:
        """Return the step, and u."""
        return self._along(update, state, np.float32(1))

    def _along(self, update: Tensors, state: State, gain: np.float32) -> tuple[Tensors, State]:
        rate, beta = np.float32(self.learning_rate), np.float32(self.momentum)
        velocity = state["velocity"]
        for name, array in update.items():
            own = velocity[name]
            own *= beta
            if gain != 1:
                array *= gain
            own += array
            np.multiply(own, rate, out=array)
        return update, {"velocity": velocity}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmaMomentum(Momentum):
    """Steps along an average of the past: u <- βu + (1-β)g (AdaDPS, Figure 6 left)."""

    kind: ClassVar[str] = "ema-momentum"

    @property
    def past_of_sums(self) -> float:
        """0: noise is optimised for sums."""
        return 0.0

    def next(self, update: Tensors, state: State) -> tuple[Tensors, State]:
        """Return the step, and u."""
        return self._along(update, state, np.float32(1) - np.float32(self.momentum))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ftrl(Momentum):
    """Steps from where training began (DP-FTRL), along the sum of all that was released.

    θ_t = θ_0 + rate v_t, v_t = βv_{t-1} + S_t, S_t = Σ_{i<=t} g_i; the step is θ_t - θ_{t-1}. The
    state is of releases alone, so that gradients may be taken elsewhere than at θ, as at an
    aggregate. Without restarts these are the steps of classic momentum, g being summed before it is
    decayed or after; a restart begins at the θ of that time with sums of zero, as a tree of noise
    that ends does.

    Source: Kairouz et al., "Practical and Private (Deep) Learning without Sampling or Shuffling"
    (2021), Algorithm 1 and Section 5 for momentum.

    Attributes:
        restart: Steps after which it restarts from where it is; none for never.
    """

    kind: ClassVar[str] = "ftrl"
    restart: PositiveInt | None = None

    def check_rounds(self, num_rounds: int) -> None:
        """Refuse a restart that never comes."""
        if self.restart is not None and self.restart >= num_rounds:
            raise ValueError(
                f"restart {self.restart} restarts nothing in {num_rounds} rounds; give fewer, or "
                "leave it out"
            )

    def init(self, params: Tensors) -> State:
        """Return sums of zero."""
        return {"sum": _zeros(params), "velocity": _zeros(params), "count": _no_steps()}

    def next(self, update: Tensors, state: State) -> tuple[Tensors, State]:
        """Return the step, and the sums."""
        rate, beta, every = np.float32(self.learning_rate), np.float32(self.momentum), self.restart
        steps = int(state["count"]["steps"])
        if every is not None and steps and steps % every == 0:
            for tensors in (state["sum"], state["velocity"]):
                for array in tensors.values():
                    array[...] = 0.0
        for name, array in update.items():
            summed, velocity = state["sum"][name], state["velocity"][name]
            summed += array
            np.multiply(velocity, beta - np.float32(1), out=array)
            array += summed  # v_t - v_{t-1} = S_t - (1 - β) v_{t-1}
            velocity += array
            array *= rate
        return update, {**state, "count": {"steps": np.array(steps + 1, np.int64)}}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveOptimizer(Optimizer):
    """Base of steps rate m̂/(√v̂ + adaptivity), m <- β₁m + (1-β₁)g; both moments start at 0.

    Attributes:
        learning_rate: Step size of every coordinate, however small its mean: try 0.01 to 0.2.
        adaptivity: Added to √v; of a server 1e-3 is usual.
    """

    learning_rate: PositiveFloat = 0.1
    adaptivity: PositiveFloat = 1e-8

    @property
    def first_decay(self) -> float:
        """β₁."""
        return 0.0

    @abstractmethod
    def second(self, moment: np.ndarray, gradient: np.ndarray) -> None:
        """Update v by g, in place."""

    def corrections(self, steps: int) -> tuple[float, float]:
        """Return what m and v are divided by after so many steps, from 1; by default 1."""
        return 1.0, 1.0

    def init(self, params: Tensors) -> State:
        """Return moments of zero."""
        return {"first": _zeros(params), "second": _zeros(params), "count": _no_steps()}

    def next(self, update: Tensors, state: State) -> tuple[Tensors, State]:
        """Return the step, and the moments."""
        rate, beta = np.float32(self.learning_rate), self.first_decay
        steps = int(state["count"]["steps"]) + 1
        first_correction, second_correction = self.corrections(steps)
        for name, gradient in update.items():
            first, moment = state["first"][name], state["second"][name]
            self.second(moment, gradient)
            first *= np.float32(beta)
            gradient *= np.float32(1.0 - beta)
            first += gradient
            # gradient's buffer becomes the step: rate * m̂ / (√v̂ + adaptivity)
            denominator = np.sqrt(moment)
            denominator *= np.float32(1 / math.sqrt(second_correction))
            denominator += np.float32(self.adaptivity)
            np.divide(first, denominator, out=gradient)
            gradient *= rate * np.float32(1 / first_correction)
        return update, {**state, "count": {"steps": np.array(steps, np.int64)}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam(AdaptiveOptimizer):
    """Steps along an average of the past, divided by √v, both corrected for their start.

    v <- β₂v + (1-β₂)g². Of private updates it is DP-FedAdam.

    Attributes:
        momentum: Weight of the past, β₁.
    """

    kind: ClassVar[str] = "adam"
    second_decay: ClassVar[float] = 0.999
    momentum: Fraction = 0.9

    @property
    def first_decay(self) -> float:
        """β₁, as float32 has it."""
        return float(np.float32(self.momentum))

    def second(self, moment: np.ndarray, gradient: np.ndarray) -> None:
        """Update v by g, in place."""
        moment *= np.float32(self.second_decay)
        # 1 - float32(β₂) is 5e-5 off at 0.999
        moment += np.float32(1.0 - self.second_decay) * np.square(gradient)

    def corrections(self, steps: int) -> tuple[float, float]:
        """Return 1 - β₁^t and 1 - β₂^t."""
        return 1 - self.momentum**steps, 1 - self.second_decay**steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Yogi(AdaptiveOptimizer):
    """Steps along an average of the past, divided by √v that falls slowly (FedYogi).

    v <- v - (1-β₂) g² sign(v - g²), uncorrected.

    Attributes:
        momentum: Weight of the past, β₁.
    """

    kind: ClassVar[str] = "yogi"
    second_decay: ClassVar[float] = 0.99
    momentum: Fraction = 0.9

    @property
    def first_decay(self) -> float:
        """β₁."""
        return self.momentum

    def second(self, moment: np.ndarray, gradient: np.ndarray) -> None:
        """Update v by g, in place."""
        square = np.square(gradient)
        moment -= np.float32(1.0 - self.second_decay) * square * np.sign(moment - square)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adagrad(AdaptiveOptimizer):
    """Steps divided by √v, v a sum of squares: v <- v + g², uncorrected (FedAdagrad)."""

    kind: ClassVar[str] = "adagrad"

    def second(self, moment: np.ndarray, gradient: np.ndarray) -> None:
        """Update v by g, in place."""
        moment += np.square(gradient)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rmsprop(AdaptiveOptimizer):
    """Steps divided by √v, v an average of squares: v <- βv + (1-β)g², uncorrected (DP-RMSProp)."""

    kind: ClassVar[str] = "rmsprop"
    second_decay: ClassVar[float] = 0.9

    def second(self, moment: np.ndarray, gradient: np.ndarray) -> None:
        """Update v by g, in place."""
        keep = np.float32(self.second_decay)
        moment *= keep
        moment += (np.float32(1) - keep) * np.square(gradient)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled(Transform):
    """Multiplies the t-th step, from 1, by a factor.

    Attributes:
        factor: Of t.
    """

    factor: Factor

    def init(self, params: Tensors) -> State:
        """Return no step."""
        return {"count": _no_steps()}

    def next(self, update: Tensors, state: State) -> tuple[Tensors, State]:
        """Return the step times its factor."""
        step = int(state["count"]["steps"]) + 1
        by = np.float32(self.factor(step))
        if by != 1:
            for array in update.values():
                array *= by
        return update, {"count": {"steps": np.array(step, np.int64)}}


def stepwise(num_steps: int, share: float = 0.1, at: tuple[float, ...] = (0.5, 0.75)) -> Factor:
    """Return a factor that falls by `share` each time a fraction of the steps is done.

    >>> factor = stepwise(100)
    >>> [round(factor(t), 6) for t in (1, 50, 51, 75, 76)]
    [1.0, 1.0, 0.1, 0.1, 0.01]
    """
    return lambda step: share ** sum(step > fraction * num_steps for fraction in at)


def cyclic(num_steps: int, lowest: float = 0.05) -> Factor:
    """Return a factor that rises from `lowest` to 1 in the first half and falls in the second.

    Smith, "Cyclical Learning Rates" (2017), with one triangular cycle.

    >>> factor = cyclic(101, lowest=0.0)
    >>> [round(factor(t), 2) for t in (1, 26, 51, 76, 101)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    def factor(step: int) -> float:
        place = (step - 1) / max(1, num_steps - 1)
        return lowest + (1 - lowest) * (1 - abs(2 * place - 1))

    return factor


def inverse_root() -> Factor:
    """Return 1/√t: the step size α/√t of the convergence theorems.

    >>> inverse_root()(4)
    0.5
    """
    return lambda step: 1.0 / math.sqrt(step)
