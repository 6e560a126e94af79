"""What an attacker learns from one published checkpoint and public facts alone.

A released value R of a secure run is a float. The attacker knows the grid, the noise and the
denominator, and asks of each R: could it be float32(k · unit) with k a number that the noise alone
can take? Where it could not, somebody's own words are in the sum, for certain. With noise that was
drawn in float32 and rounded to the grid afterwards most of those who took part were recognised so,
and nobody else, whatever ε said.
"""

import math
from functools import partial

import numpy as np
import pytest
from scipy import sparse, stats

from fedpriv.backends import Backend
from fedpriv.datasets.dataset import Dataset
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.rng import Key
from fedpriv.runs.backends import serial
from fedpriv.runs.loop import first_state, rounds
from fedpriv.tasks.dataset_tasks import linear_task
from fedpriv.training.per_example.linear import SoftmaxGradients

RUNS = 20
# Two-sided normal interval of 99.9 %: a fresh family of keys fails one time in a thousand.
Z = stats.norm.isf(0.0005)


def flags(released, granularity, share):
    """Return which released values no noise of float32 alone could have given.

    Args:
        released: float32.
        granularity: The grid's spacing.
        share: One over the denominator.
    """
    noise = (released.astype(np.float64) / share).astype(np.float32)
    for _ in range(4):
        noise = np.nextafter(noise, np.float32(-np.inf))
    possible = np.zeros(released.shape, bool)
    for _ in range(9):  # every float32 that is close enough
        k = np.rint(noise.astype(np.float64) / granularity)
        for value in (k * (granularity * share), k * granularity * share):  # either order
            possible |= value.astype(np.float32) == released
        noise = np.nextafter(noise, np.float32(np.inf))
    return ~possible


def test_the_flags_know_every_value_of_float32_noise():
    """No false alarm: of noise alone nothing is flagged, whatever the grid and the unit."""
    for number, (norm, divisor) in enumerate([(0.5, 100.0), (0.3, 20.0), (60.0, 1973.0)]):
        granularity = norm * 2.0**-24
        noise = Key.simulation(number).normal((100_000,), np.float32, stddev=4 * norm)
        k = np.rint(noise.astype(np.float64) / granularity)
        released = (k * (granularity / divisor)).astype(np.float32)
        assert not flags(released, granularity, 1 / divisor).any()


def features(num_examples, dim, own):
    """Return a data set whose first examples have a feature that nobody else has."""
    rng = np.random.default_rng(0)

    def part(size, first):
        rows = np.repeat(np.arange(size), 6)
        cols = rng.integers(own, dim, rows.size)
        x = sparse.csr_matrix((np.ones(rows.size, np.float32), (rows, cols)), (size, dim))
        x = x.tolil()
        for i in range(first):
            x[i, i] = 1.0
        return x.tocsr().astype(np.float32), rng.integers(0, CLASSES, size)

    (x, y), (x_test, y_test) = part(num_examples, own), part(20, 0)
    return Dataset(
        name="own features", x_train=x, y_train=y, x_test=x_test, y_test=y_test, x_public=None,
        y_public=None, provenance={}, synthetic=True,
    )  # fmt: skip


DIM, OWN, CLASSES = 600, 200, 40
DATA = features(400, DIM, OWN)


def task(experiment, corpus):
    shapes = {"kernel": (DIM, CLASSES), "bias": (CLASSES,)}
    return linear_task(DATA, partial(SoftmaxGradients, num_classes=CLASSES), shapes, {})


def experiment(**options):
    made = CentralExperiment(name="attacked", description="A test.", task=task)
    given = {"batch-size": 100.0, "learning-rate": 1.0, "steps": 1, "noise-multiplier": 4.0}
    return made.with_options({**given, "l2-clip-norm": 0.5, "exact-sum": True, **options})


def attacked(made, key, corpus=None):
    """Return the flags of one release and what is not zero in its sum, of the shape of the kernel.

    It is the first release of params that start at zero.
    """
    components = build(made, corpus)
    truth = {}
    inner = serial(made, components)

    class Seeing(Backend):
        """The backend, and the tester's own look at the raw sum."""

        def evaluate(self, params, *, public):
            return inner.evaluate(params, public=public)

        def sum(self, request, attempt, cohort):
            total = inner.sum(request, attempt, cohort)
            truth.update({n: np.asarray(t) != 0 for n, t in total.real().items()})
            return total

    start = first_state(components, key)
    before = {n: np.array(a, copy=True) for n, a in components.algorithm.result(start).items()}
    *_, (_, state) = rounds(components, Seeing(), key, state=start, eval_every=1000)
    after = components.algorithm.result(state)
    mechanism = components.plan.live_mechanism
    granularity = mechanism.bound.granularity
    assert not before["kernel"].any()
    return flags(after["kernel"], granularity, 1 / mechanism.denominator), truth["kernel"]


def of_runs(made, number, corpus=None):
    """Return flags and truth of so many secure runs, one after the other."""
    found = []
    for run in range(number):
        key = Key.from_bytes(Key.simulation(run).to_bytes(), "secure")
        found.append(attacked(made, key, corpus))
    return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))


def of_owners(made, number):
    """Return flags of features that one example alone has, and whether it is in the batch."""
    flagged, nonzero = (a.reshape(number, DIM, -1)[:, :OWN] for a in of_runs(made, number))
    return flagged.reshape(-1, CLASSES), nonzero.any(axis=2).reshape(-1)


def difference(flagged, there):
    """Return the share of flags of those who are there less the others', and its half width."""
    share = np.array([flagged[there].mean(), flagged[~there].mean()])
    asked = np.array([flagged[there].size, flagged[~there].size])
    width = Z * math.sqrt(float((share * (1 - share) / asked).sum()))
    return float(share[0] - share[1]), width


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_no_better_than_chance(optimizer):
    """Twenty secure runs of 200 examples with a feature of their own, a quarter in the batch.

    The attacker counts flags. With all whole numbers possible they are as many for everybody.
    """
    flagged, there = of_owners(experiment(optimizer=optimizer), RUNS)
    found, width = difference(flagged, there)
    assert abs(found) <= width < 0.02
    assert flagged.mean() > 0.05  # noise takes values that float32 noise would not


def test_no_better_than_chance_on_the_main_job(tiny_corpus):
    """Twenty secure rounds; a coordinate is in the sum if somebody of the cohort used its word."""
    made = load_experiment("adadps-tags").with_options(
        {"start": "fresh", "rounds": 1, "target-epsilon": None, "noise-multiplier": 4.0}
    )
    found, width = difference(*of_runs(made, RUNS, tiny_corpus))
    assert abs(found) <= width < 0.04


def test_the_old_sampler_gave_members_away(monkeypatch):
    """The power of the test above: float32 noise that is rounded to the grid afterwards."""
    monkeypatch.setattr(Gaussian, "on_grid", False)
    flagged, there = of_owners(experiment(), 2)
    recognised = flagged.any(axis=1)
    assert recognised[there].mean() > 0.6 and not recognised[~there].any()
    found, width = difference(flagged, there)
    assert found > 3 * width
