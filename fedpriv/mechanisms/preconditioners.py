"""Preconditioners: AdaDPS and its neighbours, from public data or from past releases.

A preconditioner looks at released params, public data and released means, never at a user. Before
the cohort is drawn it gives the round's `Preconditioning`; after the release it may learn from it.
So whatever it says is public, and a round keeps its sensitivity: what acts before the noise acts
before the bound.

===============  ==========================================  ===================================
where            what happens                                who
===============  ==========================================  ===================================
before bound     Δ ← (own Δ + offset) · multiplier           AdaDPS; DP²; scale-then-privatise
after noise      mean ← mean · inverse                       scale-then-privatise; DP²
before stepping  mean ← own mean + offset                    PDA-DPMD
after stepping   step ← step · scale                         DP-R-Pub, DP-Adam-Pub
===============  ==========================================  ===================================

Everything lives in the space of updates (`local - global` params), in which a public gradient
counts negatively.

`Statistics` holds the rules φ, ϕ and ψ of AdaDPS, all coordinate-wise: `second` (φ) updates v,
`first` (ϕ) updates m, and an update is then preconditioned as ψ(Δ) = (own Δ + (1 - own) m) / A with
A made of v by `denominator`. For further rules write functions of those shapes.

Source: Li, Zaheer, Reddi and Smith, "Private Adaptive Optimization with Side Information" (ICML
2022, arXiv:2202.05963), Algorithm 1 and its instances RMSProp, Adam and AdaGrad.

>>> rule = rmsprop(decay=0.9)
>>> v = rule.second(np.zeros(2, np.float32), np.array([1.0, 0.1], np.float32))
>>> [round(float(x), 4) for x in v]
[0.1, 0.001]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fedpriv import tree
from fedpriv.parts import Fraction, Part, PositiveFloat, PositiveInt
from fedpriv.ranges import Range, finite_float, positive_float
from fedpriv.rng import Key
from fedpriv.transform import State
from fedpriv.tree import Params

Tensors = Mapping[str, np.ndarray]


def _weight(name: str, value: Any) -> float:
    """Return a weight that leaves something of what it weighs.

    Raises:
        ValueError: If it is not in (0, 1].
    """
    weight = positive_float(name, value)
    if weight > 1.0:
        raise ValueError(f"{name} {weight!r} must be above 0 and at most 1")
    return weight


_Weight = Annotated[float, _weight]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture(Part):
    """A public update with which each update Δ is averaged: own · Δ + offset.

    Attributes:
        own: Weight of the update, in (0, 1].
        offset: The public part with its weight in it, float32 arrays by name.
    """

    own: _Weight
    offset: Mapping[str, np.ndarray] = field(repr=False)

    def check(self) -> None:
        """Copy the public part, read-only."""
        object.__setattr__(self, "offset", tree.read_only_copy(self.offset))

    @classmethod
    def with_gradient(cls, own: float, gradient: Tensors) -> Mixture:
        """Return the mean with a public gradient, which counts against an update."""
        public = np.float32(own - 1.0)
        return cls(own=own, offset={name: public * array for name, array in gradient.items()})

    def of(self, update: Params) -> Params:
        """Return the mixture of a dense update."""
        own = np.float32(self.own)
        return {name: own * array + self.offset[name] for name, array in update.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preconditioning:
    """Public part of one round: factors and updates, float32 arrays by parameter name.

    Attributes:
        multiplier: 1/A, before the bound; empty for nothing.
        mixture: What every update is mixed with before that; None for nothing.
        inverse: What the released mean is multiplied by; empty for nothing.
        blend: What the released mean is mixed with after that; None for nothing.
        scale: What the server's step is multiplied by; empty for nothing.

    Guarantees:
        * Users' contributions keep the bound's norm, whatever multiplier and mixture are: these
          come first, and the bound second. The reverse order would have sensitivity C · max(1/A).

    Reference: Li et al., "Private Adaptive Optimization with Side Information" (2022),
    Algorithm 1, where ψ mixes with public moments and divides; and the server-side variant
    discussed with Algorithm 3.
    """

    multiplier: Tensors = field(default_factory=dict[str, np.ndarray], repr=False)
    mixture: Mixture | None = None
    inverse: Tensors = field(default_factory=dict[str, np.ndarray], repr=False)
    blend: Mixture | None = None
    scale: Tensors = field(default_factory=dict[str, np.ndarray], repr=False)


@dataclass(frozen=True)
class Preconditioner(Part):
    """Turns public data and past releases into a round's preconditioning; by default into none."""

    kind: ClassVar[str] = "none"

    def check_rounds(self, planned: int) -> None:
        """Refuse a number of rounds in which it would do nothing.

        Raises:
            ValueError: If it would.
        """

    def init(self, params: Params) -> State:
        """Return the state before round 1: named trees of float32 arrays, as a transform's."""
        return {}

    def begin(
        self, params: Params, state: State, round_num: int, key: Key
    ) -> tuple[Preconditioning, State]:
        """Return a round's preconditioning; nothing of the round has been drawn yet.

        Args:
            params: The released params the round starts from; not changed.
            state: From `init`, or the last `end`. The caller gives it up.
            round_num: From 1.
            key: For the choice of public examples, and nothing else.
        """
        return Preconditioning(), state

    def end(self, mean: Params, state: State) -> State:
        """Return the state after a round's release.

        Args:
            mean: The released mean update, after `inverse`; not changed.
            state: From `begin`. The caller gives it up.
        """
        return state


#: From (moment, public gradient) to the new moment, float32 arrays of one shape.
Rule = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics(Part):
    """Rules φ, ϕ and ψ by which public gradients become a preconditioner.

    Attributes:
        second: φ, updates the second moment v.
        first: ϕ, updates the first moment m; None where ψ does not mix.
        own: Weight of the private gradient in the mix; 1 without.
        regulariser: ε_s, keeps A away from 0.
        inside: Whether ε_s is added to v, A = √(v + ε_s), or to its root, A = √v + ε_s.
        scale: From v to A, positive, in the place of the root; None for the root.
        mean_of_look: Of a look at several public batches: whether v becomes the mean of their
            squared gradients, without φ and without earlier looks, and ϕ takes their mean gradient,
            as in the authors' code. Otherwise φ and ϕ take the gradient of each batch in turn.
    """

    second: Rule
    first: Rule | None = None
    own: _Weight = 1.0
    regulariser: PositiveFloat = 1e-3
    inside: bool = False
    scale: Callable[[np.ndarray], np.ndarray] | None = None
    mean_of_look: bool = False

    def check(self) -> None:
        """Refuse a mix with a first moment that has no rule."""
        if self.first is None and self.own != 1.0:
            raise ValueError(
                f"weight {self.own!r} of the private gradient needs a rule for the first moment"
            )

    @property
    def rules(self) -> dict[str, Rule]:
        """The rules of the moments that there are, by the names of a state."""
        first = {} if self.first is None else {"first": self.first}
        return {"second": self.second, **first}

    def denominator(self, second: np.ndarray) -> np.ndarray:
        """Return A, float32.

        Raises:
            ValueError: If a user-defined `scale` is not positive and finite everywhere.
        """
        if self.scale is not None:
            found = np.asarray(self.scale(second), np.float32)
            if found.shape != second.shape or not np.all(np.isfinite(found) & (found > 0)):
                raise ValueError(
                    f"scale() of v {second.shape} gave {found.shape} that is not positive and "
                    "finite everywhere; add a small number"
                )
            return found
        if self.inside:
            return np.sqrt(second + np.float32(self.regulariser))
        return np.sqrt(second) + np.float32(self.regulariser)


def moving_average(decay: float) -> Rule:
    """Return m ← β m + (1 - β) g.

    Raises:
        ValueError: If β is not in [0, 1).
    """
    finite_float("decay", decay, Range.FRACTION)
    keep, add = np.float32(decay), np.float32(1.0 - decay)
    return lambda moment, gradient: keep * moment + add * gradient


def moving_square(decay: float) -> Rule:
    """Return v ← β v + (1 - β) g².

    Raises:
        ValueError: If β is not in [0, 1).
    """
    average = moving_average(decay)
    return lambda moment, gradient: average(moment, np.square(gradient))


def rmsprop(decay: float = 0.9, *, regulariser: float = 1e-3, inside: bool = False) -> Statistics:
    """Return v ← β v + (1 - β) ĝ² and ψ(g) = g / A; v is the `mean_of_look` of several batches."""
    return Statistics(
        second=moving_square(decay), regulariser=regulariser, inside=inside, mean_of_look=True
    )


def adagrad(*, regulariser: float = 1e-3, inside: bool = False) -> Statistics:
    """Return v ← v + ĝ², the sum over all batches of all looks, and ψ(g) = g / A."""
    return Statistics(
        second=lambda moment, gradient: moment + np.square(gradient),
        regulariser=regulariser,
        inside=inside,
    )


def adam(
    decay: float = 0.9,
    decay_second: float = 0.9,
    *,
    regulariser: float = 1e-3,
    inside: bool = False,
) -> Statistics:
    """Return both moments and ψ(g) = (β g + (1 - β) m) / A, without bias correction.

    v is the `mean_of_look` of several batches.
    """
    return Statistics(
        second=moving_square(decay_second),
        first=moving_average(decay),
        own=decay,
        regulariser=regulariser,
        inside=inside,
        mean_of_look=True,
    )


#: From params and a key to the gradient of a public batch, float32 by name.
PublicGradient = Callable[[Params, Key], Params]


def _zeros(params: Params) -> Params:
    return tree.zeros(params, np.float32)


def _inverted(tensors: Tensors) -> Params:
    return {name: np.float32(1.0) / array for name, array in tensors.items()}


def _moved(rule: Rule, moments: Tensors, seen: Tensors) -> Params:
    return {name: rule(moment, seen[name]) for name, moment in moments.items()}


def _denominators(rule: Statistics, state: State) -> Params:
    return {name: rule.denominator(second) for name, second in state["second"].items()}


@dataclass(frozen=True, kw_only=True)
class Fixed(Preconditioner):
    """AdaDPS without public data: one A for the whole run (Algorithm 1, option 2).

    Attributes:
        multiplier: 1/A before the bound, by name; parameters without an entry are left alone.
        inverse: A after the noise, for scale-then-privatise.
    """

    multiplier: Tensors = field(default_factory=dict[str, np.ndarray], repr=False)
    inverse: Tensors = field(default_factory=dict[str, np.ndarray], repr=False)

    def init(self, params: Params) -> State:
        """Return an empty state.

        Raises:
            ValueError: If a multiplier is of no parameter, not of its shape (an axis may have
                length 1) or not positive and finite. In a round it would fail in every user
                alone, and no user would contribute.
        """
        for name, array in (*self.multiplier.items(), *self.inverse.items()):
            shape, given = params[name].shape if name in params else (), np.shape(array)
            fits = name in params and len(given) == len(shape)
            if not fits or not all(axis in (1, of) for axis, of in zip(given, shape, strict=True)):
                raise ValueError(
                    f"multiplier {name!r} of shape {given} does not broadcast to a parameter of "
                    f"shape {shape}"
                )
            if not np.all(np.isfinite(array) & (np.asarray(array) > 0)):
                raise ValueError(f"multiplier {name!r} must be positive and finite")
        return {}

    def begin(
        self, params: Params, state: State, round_num: int, key: Key
    ) -> tuple[Preconditioning, State]:
        """Return 1/A, and A."""
        return Preconditioning(multiplier=self.multiplier, inverse=self.inverse), state


@dataclass(frozen=True, kw_only=True)
class PublicMoments(Preconditioner):
    """AdaDPS with public data (Algorithm 1, option 1), and the baselines that divide later.

    Attributes:
        gradient: Of public examples.
        statistics: φ, ϕ and ψ.
        refresh_every: Rounds between two looks at the public data: 1 as Algorithm 1 says, an
            epoch as its authors' code does.
        batches: Public batches of a look; 1 is Algorithm 1. What several do to v and m is
            `Statistics.mean_of_look`.
        divide: Where A acts: "before" the bound (AdaDPS), or on the server's "step" after the
            noise (DP-R-Pub with the statistics of RMSProp; DP-Adam-Pub with server momentum).
    """

    gradient: PublicGradient
    statistics: Statistics
    refresh_every: PositiveInt = 1
    batches: PositiveInt = 1
    divide: Literal["before", "step"] = "before"

    def init(self, params: Params) -> State:
        """Return v, and m where the statistics have one, as zeros."""
        return {moment: _zeros(params) for moment in self.statistics.rules}

    def begin(
        self, params: Params, state: State, round_num: int, key: Key
    ) -> tuple[Preconditioning, State]:
        """Look at the public data if it is time, and return A made of what was seen."""
        if (round_num - 1) % self.refresh_every == 0:
            state = self._look(params, state, key)
        rule = self.statistics
        multiplier = _inverted(_denominators(rule, state))
        if self.divide == "step":
            return Preconditioning(scale=multiplier), state
        mixture = None if rule.own == 1.0 else Mixture.with_gradient(rule.own, state["first"])
        return Preconditioning(multiplier=multiplier, mixture=mixture), state

    def _look(self, params: Params, state: State, key: Key) -> State:
        rules, number = self.statistics.rules, self.batches
        keys = [key] if number == 1 else [key.fold(batch) for batch in range(number)]
        looks = (self.gradient(params, own) for own in keys)
        if number == 1 or not self.statistics.mean_of_look:
            for seen in looks:
                state = {name: _moved(rules[name], held, seen) for name, held in state.items()}
            return state
        squares, mean = _zeros(params), _zeros(params)
        for seen in looks:
            for name, array in seen.items():
                squares[name] += np.square(array) / np.float32(number)
                mean[name] += array / np.float32(number)
        return {
            name: squares if name == "second" else _moved(rule, state[name], mean)
            for name, rule in rules.items()
        }


@dataclass(frozen=True, kw_only=True)
class MirrorDescent(Preconditioner):
    """PDA-DPMD in its first-order form: step along α_t g̃ + (1 - α_t) ĝ, α_t = cos(π t / 2T).

    Source: Amid et al., "Public Data-Assisted Mirror Descent for Private Model Training" (ICML
    2022), as AdaDPS compares with it; α_t is of the code of AdaDPS's authors.

    Attributes:
        gradient: Of public examples.
        num_rounds: T; t counts from 0.
    """

    gradient: PublicGradient
    num_rounds: PositiveInt

    def begin(
        self, params: Params, state: State, round_num: int, key: Key
    ) -> tuple[Preconditioning, State]:
        """Return the blend of this round."""
        alpha = private_share(round_num - 1, self.num_rounds)
        blend = Mixture.with_gradient(alpha, self.gradient(params, key))
        return Preconditioning(blend=blend), state


def private_share(step: int, num_steps: int) -> float:
    """Return PDA-DPMD's α_t.

    >>> [round(private_share(t, 100), 6) for t in (0, 25, 50, 75, 100)]
    [1.0, 0.92388, 0.707107, 0.382683, 0.0]
    """
    return min(1.0, max(0.0, math.cos(math.pi * step / (2 * num_steps))))


@dataclass(frozen=True, kw_only=True)
class PastReleases(Preconditioner):
    """Scale-then-privatise: A from the means that were released before, undone after the noise.

    Source: Ganesh, McMahan and Thakurta, "On Design Principles for Private Adaptive Optimizers"
    (2025). Give it an adaptive server optimiser, which sees the mean at its own scale again.

    Attributes:
        decay: β of v ← β v + (1 - β) mean².
        regulariser: ε_s of A = √v + ε_s. While v is 0, A is constant and nothing is scaled.
    """

    kind: ClassVar[str] = "past-releases"
    decay: Fraction = 0.9
    regulariser: PositiveFloat = 1e-3

    def init(self, params: Params) -> State:
        """Return v = 0."""
        return {"second": _zeros(params)}

    def begin(
        self, params: Params, state: State, round_num: int, key: Key
    ) -> tuple[Preconditioning, State]:
        """Return 1/A before the bound and A after the noise, A of mean square 1."""
        rule = rmsprop(self.decay, regulariser=self.regulariser)
        scale = _unit_mean_square(_denominators(rule, state))
        return Preconditioning(multiplier=_inverted(scale), inverse=scale), state

    def end(self, mean: Params, state: State) -> State:
        """Learn from the release."""
        return {"second": _moved(moving_square(self.decay), state["second"], mean)}


@dataclass(frozen=True, kw_only=True)
class Delayed(Preconditioner):
    """DP²: plain rounds gather a denoised mean, the rounds after them are preconditioned by it.

    Source: Li, Zaheer, Liu, Reddi, McMahan and Smith, "Differentially Private Adaptive
    Optimization with Delayed Preconditioners" (ICLR 2023, arXiv:2212.00309), Algorithm 1.

    Attributes:
        delay_plain: s₁, plain rounds in a turn, whose releases are averaged.
        delay_preconditioned: s₂, preconditioned rounds in a turn.
        decay: β of v ← β v + (1 - β) (average of the plain releases)².
        regulariser: ε_s of A = √v + ε_s.
        clip_ratio: C of the preconditioned rounds over C of the plain ones.
        rate_ratio: Their learning rates' ratio likewise.
    """

    kind: ClassVar[str] = "delayed"
    delay_plain: PositiveInt = 10
    delay_preconditioned: PositiveInt = 10
    decay: Fraction = 0.9
    regulariser: PositiveFloat = 1e-3
    clip_ratio: PositiveFloat = 1.0
    rate_ratio: PositiveFloat = 1.0

    def check_rounds(self, planned: int) -> None:
        """Refuse plain rounds alone.

        Raises:
            ValueError: If no round is left after the first plain ones.
        """
        if self.delay_plain >= planned:
            raise ValueError(
                f"delay-plain {self.delay_plain} leaves none of {planned} rounds to precondition; "
                "give fewer, or leave the preconditioner out"
            )

    def init(self, params: Params) -> State:
        """Return v and the sum of plain releases, both zero, and the count of rounds."""
        count = {"rounds": np.zeros((), np.float32)}
        return {"second": _zeros(params), "gathered": _zeros(params), "count": count}

    def begin(
        self, params: Params, state: State, round_num: int, key: Key
    ) -> tuple[Preconditioning, State]:
        """Return nothing in a plain round, 1/A in a preconditioned one."""
        place = (round_num - 1) % (self.delay_plain + self.delay_preconditioned)
        state = {**state, "count": {"rounds": np.array(place, np.float32)}}
        if place == 0:
            state["gathered"] = _zeros(params)
        if place < self.delay_plain:
            return Preconditioning(), state
        if place == self.delay_plain:
            share = np.float32(1 / self.delay_plain)
            mean = {name: share * array for name, array in state["gathered"].items()}
            state["second"] = _moved(moving_square(self.decay), state["second"], mean)
        rule = rmsprop(self.decay, regulariser=self.regulariser)
        inverse = _inverted(_denominators(rule, state))
        # A wider clip is the same clip on smaller updates, enlarged again after the noise.
        before, after = np.float32(1 / self.clip_ratio), self.clip_ratio * self.rate_ratio
        return (
            Preconditioning(
                multiplier={n: before * array for n, array in inverse.items()},
                inverse={}
                if after == 1.0
                else {n: np.full((1,) * a.ndim, after, np.float32) for n, a in params.items()},
            ),
            state,
        )

    def end(self, mean: Params, state: State) -> State:
        """Gather the release of a plain round."""
        if float(state["count"]["rounds"]) < self.delay_plain:
            state["gathered"] = {n: g + mean[n] for n, g in state["gathered"].items()}
        return state


def _unit_mean_square(tensors: Mapping[str, np.ndarray]) -> Params:
    total = sum(float(np.square(a, dtype=np.float64).sum()) for a in tensors.values())
    number = sum(a.size for a in tensors.values())
    factor = np.float32(1.0 / math.sqrt(total / number))
    return {name: factor * array for name, array in tensors.items()}
