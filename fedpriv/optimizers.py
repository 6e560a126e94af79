"""Server optimisers: transforms of the released (noised) mean update g into the server's step.

All of it is post-processing: the input is already private, so nothing here can cost privacy. An
update is `local - global` params, so the server *adds* the step.

References: Reddi et al., "Adaptive Federated Optimization" (2021), Algorithm 2 (FedAdagrad,
FedYogi, FedAdam), from which the adaptive ones differ in two points: v starts at 0, where the paper
starts it at adaptivity² or more, and `adam` corrects the bias of m and v, which the paper does not.
Hsu et al. (2019) for server momentum.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fedpriv.ranges import Range, finite_float, positive_float, positive_int
from fedpriv.transform import State, Transform

Tensors = dict[str, np.ndarray]
#: From the number of a step, from 1, to what its learning rate is multiplied by.
Factor = Callable[[int], float]


def _rate(learning_rate: float) -> np.float32:
    return np.float32(positive_float("server learning rate", learning_rate))


def _fraction(name: str, value: float) -> np.float32:
    return np.float32(finite_float(name, value, Range.FRACTION))


def _zeros(params: Tensors) -> Tensors:
    return {name: np.zeros_like(array) for name, array in params.items()}


def sgd(learning_rate: float = 1.0) -> Transform:
    """Return the transform whose step is rate g; with rate 1 it is FedAvg."""
    rate = _rate(learning_rate)

    def next_(update: Tensors, state: State) -> tuple[Tensors, State]:
        if rate != 1:
            for array in update.values():
                array *= rate
        return update, state

    return Transform(init=lambda params: {}, next=next_)


def momentum(learning_rate: float = 1.0, decay: float = 0.9, *, ema: bool) -> Transform:
    """Return the transform whose step is rate u, of a velocity u that starts at 0.

    Args:
        learning_rate: Multiplies the velocity.
        decay: β, the weight of the past.
        ema: True for the exponential moving average u <- βu + (1-β)g (AdaDPS, Figure 6 left);
            False for the classic u <- βu + g.
    """
    rate, beta = _rate(learning_rate), _fraction("server momentum", decay)
    gain = np.float32(1) - beta if ema else np.float32(1)

    def next_(update: Tensors, state: State) -> tuple[Tensors, State]:
        velocity = state["velocity"]
        for name, array in update.items():
            own = velocity[name]
            own *= beta
            if gain != 1:
                array *= gain
            own += array
            np.multiply(own, rate, out=array)
        return update, {"velocity": velocity}

    return Transform(init=lambda params: {"velocity": _zeros(params)}, next=next_)


def ftrl(
    learning_rate: float = 1.0, decay: float = 0.9, *, restart: int | None = None
) -> Transform:
    """Return the transform of DP-FTRL with momentum, whose step is θ_t - θ_{t-1}.

    θ_t = θ_0 + rate v_t, v_t = βv_{t-1} + S_t, S_t = Σ_{i<=t} g_i. The state is of releases alone,
    so that gradients may be taken elsewhere than at θ, as at an aggregate. Without restarts these
    are the steps of classic momentum, g being summed before it is decayed or after; a restart
    begins at the θ of that time with sums of zero, as a tree of noise that ends does.

    Source: Kairouz et al., "Practical and Private (Deep) Learning without Sampling or Shuffling"
    (2021), Algorithm 1 and Section 5 for momentum.

    Args:
        learning_rate: Multiplies v.
        decay: β, the weight of the past.
        restart: After so many steps θ_0 becomes θ, and sums are zero; None for never.
    """
    rate, beta = _rate(learning_rate), _fraction("server momentum", decay)
    every = None if restart is None else positive_int("server restart", restart)

    def init(params: Tensors) -> State:
        return {
            "sum": _zeros(params),
            "velocity": _zeros(params),
            "count": {"steps": np.zeros((), np.int64)},
        }

    def next_(update: Tensors, state: State) -> tuple[Tensors, State]:
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

    return Transform(init=init, next=next_)


def _adaptive(
    learning_rate: float,
    adaptivity: float,
    beta1: float,
    second: Callable[[np.ndarray, np.ndarray], None],
    corrections: Callable[[int], tuple[float, float]],
) -> Transform:
    """Return the transform whose step is rate m̂/(√v̂ + adaptivity), m <- β₁m + (1-β₁)g.

    Args:
        learning_rate: Multiplies the step.
        adaptivity: Added to √v̂.
        beta1: β₁.
        second: Updates v by g, in place. Both moments start at 0.
        corrections: From the number of a step, from 1, to what m and v are divided by.
    """
    rate, decay = _rate(learning_rate), _fraction("beta1", beta1)
    positive_float("server adaptivity", adaptivity)

    def init(params: Tensors) -> State:
        return {
            "first": _zeros(params),
            "second": _zeros(params),
            "count": {"steps": np.zeros((), np.int64)},
        }

    def next_(update: Tensors, state: State) -> tuple[Tensors, State]:
        steps = int(state["count"]["steps"]) + 1
        first_correction, second_correction = corrections(steps)
        for name, gradient in update.items():
            first, moment = state["first"][name], state["second"][name]
            second(moment, gradient)
            first *= decay
            gradient *= np.float32(1.0 - beta1)
            first += gradient
            # gradient's buffer becomes the step: rate * m̂ / (√v̂ + adaptivity)
            denominator = np.sqrt(moment)
            denominator *= np.float32(1 / math.sqrt(second_correction))
            denominator += np.float32(adaptivity)
            np.divide(first, denominator, out=gradient)
            gradient *= rate * np.float32(1 / first_correction)
        return update, {**state, "count": {"steps": np.array(steps, np.int64)}}

    return Transform(init=init, next=next_)


def adam(
    learning_rate: float = 1.0, adaptivity: float = 1e-8, beta1: float = 0.9, beta2: float = 0.999
) -> Transform:
    """Return the transform of Adam: v <- β₂v + (1-β₂)g², m and v corrected for their start at 0.

    Of private updates it is DP-FedAdam.
    """
    b1, b2 = _fraction("beta1", beta1), _fraction("beta2", beta2)
    new = np.float32(1.0 - beta2)  # 1 - float32(β₂) is 5e-5 off at 0.999

    def second(moment: np.ndarray, gradient: np.ndarray) -> None:
        moment *= b2
        moment += new * np.square(gradient)

    def corrections(steps: int) -> tuple[float, float]:
        return 1 - beta1**steps, 1 - beta2**steps

    return _adaptive(learning_rate, adaptivity, float(b1), second, corrections)


def yogi(
    learning_rate: float = 1.0, adaptivity: float = 1e-3, beta1: float = 0.9, beta2: float = 0.99
) -> Transform:
    """Return the transform of Yogi (FedYogi): v <- v - (1-β₂) g² sign(v - g²), uncorrected."""
    _fraction("beta2", beta2)
    new = np.float32(1.0 - beta2)

    def second(moment: np.ndarray, gradient: np.ndarray) -> None:
        square = np.square(gradient)
        moment -= new * square * np.sign(moment - square)

    return _adaptive(learning_rate, adaptivity, beta1, second, lambda steps: (1.0, 1.0))


def adagrad(learning_rate: float = 1.0, adaptivity: float = 1e-3, beta1: float = 0.0) -> Transform:
    """Return the transform of AdaGrad (FedAdagrad): v <- v + g², uncorrected."""

    def second(moment: np.ndarray, gradient: np.ndarray) -> None:
        moment += np.square(gradient)

    return _adaptive(learning_rate, adaptivity, beta1, second, lambda steps: (1.0, 1.0))


def rmsprop(learning_rate: float = 1.0, adaptivity: float = 1e-8, decay: float = 0.9) -> Transform:
    """Return the transform of RMSProp (DP-RMSProp): v <- decay v + (1 - decay) g², uncorrected."""
    keep = _fraction("decay", decay)

    def second(moment: np.ndarray, gradient: np.ndarray) -> None:
        moment *= keep
        moment += (np.float32(1) - keep) * np.square(gradient)

    return _adaptive(learning_rate, adaptivity, 0.0, second, lambda steps: (1.0, 1.0))


def scheduled(factor: Factor) -> Transform:
    """Return the transform that multiplies the t-th step, from 1, by `factor(t)`."""

    def next_(update: Tensors, state: State) -> tuple[Tensors, State]:
        step = int(state["count"]["steps"]) + 1
        by = np.float32(factor(step))
        if by != 1:
            for array in update.values():
                array *= by
        return update, {"count": {"steps": np.array(step, np.int64)}}

    return Transform(init=lambda params: {"count": {"steps": np.zeros((), np.int64)}}, next=next_)


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
