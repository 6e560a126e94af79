"""The settings of the audit, and mechanisms that state an ε and do not keep it.

Each is broken in one object that is put into an otherwise real mechanism, and states what the right
one would: the plan, the door, the sum and the accountant notice nothing.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedpriv.mechanisms import Bound, Clip, Rounded
from fedpriv.mechanisms.gaussian import Gaussian, gaussian
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan, Unit
from fedpriv.privacy.sampling import Memory, PoissonSampler, Sampler
from fedpriv.rng import Key
from fedpriv.tree import Params, Tree

DELTA = 1e-3
CLIP = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """σ, q, T, canaries (in and out) and the ε that is stated at δ = 1e-3."""

    sigma: float
    share: float
    rounds: int
    trials: int
    epsilon: float

    @property
    def gaussian(self) -> Gaussian:
        """The noise that is stated."""
        return Gaussian(noise_multiplier=self.sigma)

    def plan(
        self,
        *,
        sampler: Callable[..., Sampler] = PoissonSampler,
        bound: Bound | None = None,
        privatizer: Any = None,
        unit: Unit = "user",
    ) -> Plan:
        """The plan, with parts of its mechanism substituted."""
        users = min(self.trials, 20_000)
        return Plan(
            mechanism=Mechanism(
                sampler=sampler(num_users=users, expected_cohort_size=users * self.share),
                bound=Clip(l2_clip_norm=CLIP) if bound is None else bound,
                privatizer=self.gaussian if privatizer is None else privatizer,
            ),
            num_rounds=self.rounds,
            delta=DELTA,
            unit=unit,
        )


SETTINGS = (
    Setting(sigma=1.0, share=1.0, rounds=1, trials=20_000, epsilon=3.139),
    Setting(sigma=2.0, share=1.0, rounds=1, trials=20_000, epsilon=1.352),
    Setting(sigma=4.0, share=1.0, rounds=16, trials=20_000, epsilon=3.139),
    Setting(sigma=1.0, share=0.05, rounds=100, trials=20_000, epsilon=2.194),
    Setting(sigma=1.5, share=0.05, rounds=100, trials=20_000, epsilon=1.049),
    Setting(sigma=0.75, share=0.05, rounds=40, trials=20_000, epsilon=2.796),
)


class TwiceTheBound(Clip):
    """Lets updates be twice as long as it says."""

    times = 2.0
    elementwise = True

    def factors(self, norms: np.ndarray, clip_norm: float | None = None) -> np.ndarray:
        return np.minimum(1.0, self.times * self.l2_clip_norm / np.maximum(norms, 1e-300))


class NoClip(TwiceTheBound):
    """Lets every update through."""

    times = math.inf


class CountedTwice(PoissonSampler):
    """Draws as it says, and names every user twice."""

    event = PoissonSampler.event

    def next(
        self, memory: Memory, key: Key, roster: Sequence[str]
    ) -> tuple[tuple[str, ...], Memory]:
        cohort = self.cohort(key, roster)
        return (*cohort, *cohort), memory


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietGaussian:
    """Adds a part of the noise that it states."""

    honest: Gaussian
    part: float

    def __getattr__(self, name: str):
        return getattr(self.honest, name)

    def draws(self, *, template: Tree, sensitivity: float, key: Key) -> Iterator[Params]:
        yield gaussian(key, template, self.part * self.honest.noise_multiplier * sensitivity)


class SharedNoise(QuietGaussian):
    """Adds the same noise in every round."""

    def draws(self, *, key: Key, **given: Any) -> Iterator[Params]:
        return super().draws(key=Key.simulation(77), **given)


def quiet(setting: Setting, part: float, kind: type[QuietGaussian] = QuietGaussian) -> Plan:
    return setting.plan(privatizer=kind(honest=setting.gaussian, part=part))


# Noise over √T is for a single round noise over √2, as if for two.
BROKEN: dict[str, Callable[[Setting], Plan]] = {
    "sensitivity 2C": lambda setting: setting.plan(bound=TwiceTheBound(l2_clip_norm=CLIP)),
    "noise/2": lambda setting: quiet(setting, 0.5),
    "noise/sqrt(T)": lambda setting: quiet(setting, max(setting.rounds, 2) ** -0.5),
    "shared noise": lambda setting: quiet(setting, 1.0, SharedNoise),
    "no clip": lambda setting: setting.plan(bound=NoClip(l2_clip_norm=CLIP)),
    "user counted twice": lambda setting: setting.plan(sampler=CountedTwice),
}


#: Faults so gross that few canaries show them, where there are several rounds.
GROSS = ("noise/sqrt(T)", "shared noise", "no clip")


def sized(setting: Setting, name: str) -> Setting:
    """The setting with the fewest canaries that refute a fault surely, "right" and others too.

    `python -m tests.audit.power 100` computes how surely; docs/audit.md has its table.
    """
    if setting.rounds == 1:
        trials = 80_000 if name == "noise/sqrt(T)" else 20_000
    elif name in GROSS:
        trials = 5_000
    else:
        trials = 20_000 if setting.share == 1.0 and name in BROKEN else 10_000
    return replace(setting, trials=trials)


def has_meaning(setting: Setting, name: str) -> bool:
    """Whether there is such a fault: one round shares its noise with none."""
    return name != "shared noise" or setting.rounds > 1


def on_grid(plan: Plan) -> Plan:
    """The same plan with sums of whole numbers."""
    mechanism = plan.live_mechanism
    return replace(plan, mechanism=replace(mechanism, bound=Rounded(bound=mechanism.bound)))
