"""The preconditioners: AdaDPS by public gradients, its neighbours, and those of past releases."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedpriv.mechanisms.bound import Mixture
from fedpriv.mechanisms.moments import Statistics, moving_square, rmsprop
from fedpriv.mechanisms.preconditioner import RoundContext, Tensors
from fedpriv.ranges import positive_float
from fedpriv.rng import Key
from fedpriv.transform import State
from fedpriv.tree import Params

#: From params and a key to the gradient of a public batch, float32 by name.
PublicGradient = Callable[[Params, Key], Params]


def _zeros(params: Params) -> Params:
    return {name: np.zeros(array.shape, np.float32) for name, array in params.items()}


def _negative(tensors: Tensors) -> Params:
    return {name: -array for name, array in tensors.items()}


def _inverted(tensors: Tensors) -> Params:
    return {name: np.float32(1.0) / array for name, array in tensors.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """AdaDPS without public data: one A for the whole run (Algorithm 1, option 2).

    Attributes:
        multiplier: 1/A before the bound, by name; parameters without an entry are left alone.
        inverse: A after the noise, for scale-then-privatise.
    """

    multiplier: Tensors = field(default_factory=dict, repr=False)
    inverse: Tensors = field(default_factory=dict, repr=False)

    def init(self, params: Params) -> State:
        """Return an empty state.

        Raises:
            ValueError: If a multiplier is of no parameter, not of its shape (an axis may have
                length 1) or not positive and finite. In a round it would fail in every user
                alone, and no user would contribute.
        """
        for name, array in (*self.multiplier.items(), *self.inverse.items()):
            if name not in params or not np.all(np.isfinite(array) & (np.asarray(array) > 0)):
                raise ValueError(
                    f"multiplier {name!r} must belong to a parameter and be positive and finite"
                )
            shape, given = params[name].shape, np.shape(array)
            if len(given) != len(shape) or any(
                axis not in (1, length) for axis, length in zip(given, shape, strict=True)
            ):
                raise ValueError(
                    f"multiplier {name!r} of shape {given} does not broadcast to {shape}"
                )
        return {}

    def begin(
        self, params: Params, state: State, round_num: int, key: Key
    ) -> tuple[RoundContext, State]:
        """Return 1/A, and A."""
        return RoundContext(multiplier=self.multiplier, inverse=self.inverse), state

    def end(self, mean: Params, state: State) -> State:
        """Return the state."""
        return state


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicMoments:
    """AdaDPS with public data (Algorithm 1, option 1), and the baselines that divide later.

    Attributes:
        gradient: Of public examples.
        statistics: φ, ϕ and ψ.
        refresh_every: Rounds between two looks at the public data: 1 as Algorithm 1 says, an
            epoch as its authors' code does.
        batches: Public batches of a look. With several, v is the mean of their squares and does
            not remember earlier looks, as in that code; 1 is Algorithm 1.
        divide: Where A acts: "before" the bound (AdaDPS), or on the server's "step" after the
            noise (DP-R-Pub with the statistics of RMSProp; DP-Adam-Pub with server momentum).
    """

    gradient: PublicGradient
    statistics: Statistics
    refresh_every: int = 1
    batches: int = 1
    divide: str = "before"

    def __post_init__(self) -> None:
        if self.refresh_every < 1 or self.batches < 1:
            raise ValueError(
                f"refresh_every {self.refresh_every} and batches {self.batches} must be at least 1"
            )
        if self.divide not in ("before", "step"):
            raise ValueError(f"divide {self.divide!r} is unknown; give 'before' or 'step'")

    def init(self, params: Params) -> State:
        """Return v, and m where the statistics have one, as zeros."""
        state: State = {"second": _zeros(params)}
        if self.statistics.first is not None:
            state["first"] = _zeros(params)
        return state

    def begin(
        self, params: Params, state: State, round_num: int, key: Key
    ) -> tuple[RoundContext, State]:
        """Look at the public data if it is time, and return A made of what was seen."""
        if (round_num - 1) % self.refresh_every == 0:
            state = self._look(params, state, key)
        rule = self.statistics
        multiplier = {n: np.float32(1.0) / rule.denominator(v) for n, v in state["second"].items()}
        if self.divide == "step":
            return RoundContext(scale=multiplier), state
        mixture = None
        if rule.first is not None and rule.own < 1.0:
            public = np.float32(rule.own - 1.0)  # negative: a gradient counts against an update
            mixture = Mixture(
                own=rule.own, offset={n: public * m for n, m in state["first"].items()}
            )
        return RoundContext(multiplier=multiplier, mixture=mixture), state

    def _look(self, params: Params, state: State, key: Key) -> State:
        rule = self.statistics
        if self.batches == 1:
            seen = self.gradient(params, key)
            found: State = {
                "second": {n: rule.second(v, seen[n]) for n, v in state["second"].items()}
            }
        else:
            squares, seen = _zeros(params), _zeros(params)
            for batch in range(self.batches):
                for name, array in self.gradient(params, key.fold(batch)).items():
                    squares[name] += np.square(array) / np.float32(self.batches)
                    seen[name] += array / np.float32(self.batches)
            found = {"second": squares}
        if rule.first is not None:
            found["first"] = {n: rule.first(m, seen[n]) for n, m in state["first"].items()}
        return found

    def end(self, mean: Params, state: State) -> State:
        """Return the state: releases teach it nothing."""
        return state


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorDescent:
    """PDA-DPMD in its first-order form: step along α_t g̃ + (1 - α_t) ĝ, α_t = cos(π t / 2T).

    Source: Amid et al., "Public Data-Assisted Mirror Descent for Private Model Training" (ICML
    2022), section 4.

    Attributes:
        gradient: Of public examples.
        num_rounds: T; t counts from 0.
    """

    gradient: PublicGradient
    num_rounds: int

    def __post_init__(self) -> None:
        if self.num_rounds < 1:
            raise ValueError(f"num_rounds {self.num_rounds} must be at least 1")

    def init(self, params: Params) -> State:
        """Return an empty state."""
        return {}

    def begin(
        self, params: Params, state: State, round_num: int, key: Key
    ) -> tuple[RoundContext, State]:
        """Return the blend of this round."""
        alpha = private_share(round_num - 1, self.num_rounds)
        return RoundContext(blend=alpha, public=_negative(self.gradient(params, key))), state

    def end(self, mean: Params, state: State) -> State:
        """Return the state."""
        return state


def private_share(step: int, num_steps: int) -> float:
    """Return PDA-DPMD's α_t.

    >>> [round(private_share(t, 100), 6) for t in (0, 25, 50, 75, 100)]
    [1.0, 0.92388, 0.707107, 0.382683, 0.0]
    """
    return min(1.0, max(0.0, math.cos(math.pi * step / (2 * num_steps))))


@dataclass(frozen=True, slots=True, kw_only=True)
class PastReleases:
    """Scale-then-privatise: A from the means that were released before, undone after the noise.

    Source: Ganesh, McMahan and Thakurta, "On Design Principles for Private Adaptive Optimizers"
    (2025). Give it an adaptive server optimiser, which sees the mean at its own scale again.

    Attributes:
        decay: β of v ← β v + (1 - β) mean².
        regulariser: ε_s of A = √v + ε_s. While v is 0, A is constant and nothing is scaled.
    """

    decay: float = 0.9
    regulariser: float = 1e-3

    def __post_init__(self) -> None:
        rmsprop(self.decay, regulariser=self.regulariser)  # refuses what it cannot use, now

    def init(self, params: Params) -> State:
        """Return v = 0."""
        return {"second": _zeros(params)}

    def begin(
        self, params: Params, state: State, round_num: int, key: Key
    ) -> tuple[RoundContext, State]:
        """Return 1/A before the bound and A after the noise, A of mean square 1."""
        rule = rmsprop(self.decay, regulariser=self.regulariser)
        scale = _unit_mean_square({n: rule.denominator(v) for n, v in state["second"].items()})
        return RoundContext(multiplier=_inverted(scale), inverse=scale), state

    def end(self, mean: Params, state: State) -> State:
        """Learn from the release."""
        second = moving_square(self.decay)
        return {"second": {n: second(v, mean[n]) for n, v in state["second"].items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delayed:
    """DP²: plain rounds gather a denoised mean, the rounds after them are preconditioned by it.

    Source: Li, Zaheer, Liu, Reddi, McMahan and Smith, "Differentially Private Adaptive
    Optimization with Delayed Preconditioners" (ICLR 2023, arXiv:2212.00309), Algorithm 1.

    Attributes:
        plain: s₁, rounds without a preconditioner, whose releases are averaged.
        preconditioned: s₂, rounds with it.
        decay: β of v ← β v + (1 - β) (average of the plain releases)².
        regulariser: ε_s of A = √v + ε_s.
        clip_ratio: C of the preconditioned rounds over C of the plain ones.
        rate_ratio: Their learning rates' ratio likewise.
    """

    plain: int
    preconditioned: int
    decay: float = 0.9
    regulariser: float = 1e-3
    clip_ratio: float = 1.0
    rate_ratio: float = 1.0

    def __post_init__(self) -> None:
        if self.plain < 1 or self.preconditioned < 1:
            raise ValueError(
                f"plain {self.plain} and preconditioned {self.preconditioned} must be at least 1"
            )
        rmsprop(self.decay, regulariser=self.regulariser)  # refuses what it cannot use, now
        for name in ("clip_ratio", "rate_ratio"):
            positive_float(name, getattr(self, name))

    def init(self, params: Params) -> State:
        """Return v and the sum of plain releases, both zero, and the count of rounds."""
        count = {"rounds": np.zeros((), np.float32)}
        return {"second": _zeros(params), "gathered": _zeros(params), "count": count}

    def begin(
        self, params: Params, state: State, round_num: int, key: Key
    ) -> tuple[RoundContext, State]:
        """Return nothing in a plain round, 1/A in a preconditioned one."""
        place = (round_num - 1) % (self.plain + self.preconditioned)
        state = {**state, "count": {"rounds": np.array(place, np.float32)}}
        if place == 0:
            state["gathered"] = _zeros(params)
        if place < self.plain:
            return RoundContext(), state
        if place == self.plain:
            second, share = moving_square(self.decay), np.float32(1 / self.plain)
            state["second"] = {
                n: second(v, share * state["gathered"][n]) for n, v in state["second"].items()
            }
        rule = rmsprop(self.decay, regulariser=self.regulariser)
        inverse = _inverted({n: rule.denominator(v) for n, v in state["second"].items()})
        # A wider clip is the same clip on smaller updates, enlarged again after the noise.
        before, after = np.float32(1 / self.clip_ratio), self.clip_ratio * self.rate_ratio
        return (
            RoundContext(
                multiplier={n: before * array for n, array in inverse.items()},
                inverse={} if after == 1.0 else _constant(params, after),
            ),
            state,
        )

    def end(self, mean: Params, state: State) -> State:
        """Gather the release of a plain round."""
        if float(state["count"]["rounds"]) < self.plain:
            state["gathered"] = {n: g + mean[n] for n, g in state["gathered"].items()}
        return state


def _constant(params: Params, value: float) -> Params:
    return {name: np.full((1,) * array.ndim, value, np.float32) for name, array in params.items()}


def _unit_mean_square(tensors: Mapping[str, np.ndarray]) -> Params:
    total = sum(float(np.square(a, dtype=np.float64).sum()) for a in tensors.values())
    number = sum(a.size for a in tensors.values())
    factor = np.float32(1.0 / math.sqrt(total / number))
    return {name: factor * array for name, array in tensors.items()}
