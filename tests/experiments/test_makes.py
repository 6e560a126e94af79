"""A new part is one class: where a place is typed as its base, nothing else names it."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from fedpriv.experiments.averaging import CentralExperiment, FederatedExperiment
from fedpriv.experiments.build import build
from fedpriv.experiments.noise import Noise
from fedpriv.experiments.sampling import Sampling
from fedpriv.mechanisms import Clip
from fedpriv.mechanisms.event import Event
from fedpriv.mechanisms.gaussian import gaussian
from fedpriv.mechanisms.preconditioners import Preconditioner, Preconditioning
from fedpriv.mechanisms.privatizer import Privatizer, noised_mean
from fedpriv.optimizers import Optimizer, Sgd
from fedpriv.parts import Between, PositiveFloat
from fedpriv.privacy.sampling import sampler_of
from fedpriv.rng import Key
from fedpriv.runs.backends import serial
from fedpriv.runs.loop import rounds
from tests.harness.refusals import refuses
from tests.tasks.sixty import sixty

# One new object of each kind, and the part that makes it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Halving(Clip):
    """Clips, and then halves."""

    kind: ClassVar[str] = "halving"

    def factors(self, norms, clip_norm=None):
        return 0.5 * Clip.factors(self, norms, clip_norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoDraws(Privatizer):
    """Gaussian noise as the sum of two draws of half the variance."""

    noise_multiplier: float
    name = "two-draws"

    @property
    def event(self):
        return Event(kind="gaussian", noise_multiplier=self.noise_multiplier)

    def draws(self, *, template, sensitivity, key):
        stddev = self.noise_multiplier * sensitivity / 2**0.5
        halves = [gaussian(key.fold(number), template, stddev) for number in (1, 2)]
        yield {name: halves[0][name] + halves[1][name] for name in template}

    def release(self, total, drawn, share):
        return noised_mean(total, drawn, share)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwiceDrawn(Noise):
    """Noise of two draws.

    Attributes:
        strength: σ.
    """

    kind: ClassVar[str] = "two-draws"
    strength: PositiveFloat = 1.0

    def privatizer(self, *, calibrates=True, **given):
        return TwoDraws(noise_multiplier=self.strength)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared(Sampling):
    """Independent draws of a share of all users, or examples.

    Attributes:
        share: Of them.
    """

    kind: ClassVar[str] = "shared"
    share: Between = 0.5

    def sampler(self, number, size, num_rounds):
        return sampler_of("poisson", number, self.share * number)


@dataclass(frozen=True, kw_only=True)
class Doubling(Preconditioner):
    """Doubles updates.

    Attributes:
        by: How much longer.
    """

    kind: ClassVar[str] = "doubling"
    by: PositiveFloat = 2.0

    def begin(self, params, state, round_num, key):
        return Preconditioning(
            multiplier={n: np.full_like(a, self.by) for n, a in params.items()}
        ), {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Backwards(Optimizer):
    """Steps away.

    Attributes:
        learning_rate: Step size.
    """

    kind: ClassVar[str] = "backwards"
    learning_rate: PositiveFloat = 0.1

    def next(self, update, state):
        return {n: np.float32(-self.learning_rate) * a for n, a in update.items()}, state


@dataclass(frozen=True, kw_only=True)
class ByUser(FederatedExperiment):
    server: Sgd | Backwards = Sgd()


@dataclass(frozen=True, kw_only=True)
class ByExample(CentralExperiment):
    preconditioner: Preconditioner | Doubling = Preconditioner()
    optimizer: Sgd | Backwards = Sgd()


def made(unit, options):
    """An experiment of the unit with options, the parts' places called as there."""
    places = (
        ("server", "release_preconditioner") if unit == "user" else ("optimizer", "preconditioner")
    )
    called = dict(zip(("rule", "step"), places, strict=True))
    options = {called.get(name, name): value for name, value in options.items()}
    given = {"name": "ours", "description": "", "delta": 1e-3}
    if unit == "user":
        return ByUser(**given, rounds=2, cohort=6.0).with_options(options)
    task = {"task": lambda experiment: sixty(), "batch_size": 6, "steps": 2}
    return ByExample(**given, **task).with_options(options)


@pytest.fixture(params=["user", "example"])
def last(request, one_root):
    """Run an experiment of the unit with options; return its components and last params."""

    def call(**options):
        experiment = made(request.param, options)
        corpus = request.getfixturevalue("tiny_corpus") if request.param == "user" else None
        components = build(experiment, corpus)
        *_, (_, state) = rounds(components, serial(experiment, components), Key.simulation(0))
        return components, state.params

    return call


def test_a_bound(last):
    halving, halved = last(bound="halving", l2_clip_norm=0.2, noise="none")
    assert halving.plan.live_mechanism.bound == Halving(l2_clip_norm=0.2)
    _, plain = last(l2_clip_norm=0.1, noise="none")
    for name, array in plain.items():
        np.testing.assert_allclose(halved[name], array, rtol=1e-4, atol=1e-7)


def test_a_noise(last):
    twice, params = last(noise="two-draws", strength=2.0)
    assert twice.plan.live_mechanism.privatizer == TwoDraws(noise_multiplier=2.0)
    plain, other = last(noise_multiplier=2.0)
    assert twice.plan.total() == plain.plan.total()
    assert any(not np.array_equal(params[name], other[name]) for name in params)
    with refuses(ValueError, "two-draws"):
        last(noise="two-draws", bound="none")


REFUSED = [
    {"sampling": "fixed", "relation": "add-remove"}, {"sampling": "separated"},
    {"sampling": "cyclic"},
]  # fmt: skip


@pytest.mark.parametrize("options", REFUSED)
def test_a_noise_that_no_accountant_prices_with_a_sampling_is_refused(last, options):
    with refuses(ValueError):
        last(noise="two-draws", **options)


def test_a_sampling(last):
    """It is drawn from and priced as the sampler that it makes."""
    shared, _ = last(sampling="shared", share=0.25, noise_multiplier=2.0)
    sampler = shared.plan.live_mechanism.sampler
    assert sampler.expected_cohort_size == 0.25 * sampler.num_users
    plain, _ = last(noise_multiplier=2.0)
    smaller = replace(shared.plan.live_mechanism, sampler=plain.plan.live_mechanism.sampler)
    assert replace(shared.plan, mechanism=smaller).total() == plain.plan.total()
    assert shared.plan.total() != plain.plan.total()


def test_a_preconditioner(last):
    doubling, doubled = last(step="doubling", by=2.0, noise="none", bound="none")
    assert doubling.algorithm.preconditioner == Doubling(by=2.0)
    _, plain = last(noise="none", bound="none")
    assert any(not np.array_equal(doubled[name], plain[name]) for name in plain)


def test_an_optimiser(last):
    _, away = last(rule="backwards", noise="none")
    _, towards = last(noise="none")
    assert any((away[name] * towards[name] < 0).any() for name in away)
