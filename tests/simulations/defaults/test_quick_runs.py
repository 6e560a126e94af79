"""The study's quick runs do what a run does: the same updates, clipping, steps and noise."""

import numpy as np
import pytest

from fedpriv.datasets.importers.synthetic import Shape, synthesize
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.mechanisms import Clip
from fedpriv.rng import Key
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.local.softmax import CompiledSoftmaxTrainer
from simulations.defaults import quick
from tests.harness.toys_of_training import bounded

SHAPE = Shape(
    num_users=30, num_sentences=900, public_users=20, num_words=300, num_tags=8, num_topics=4
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return synthesize(tmp_path_factory.mktemp("synthetic") / "c", seed=3, shape=SHAPE)


@pytest.fixture(scope="module")
def bench(corpus):
    return quick.bench(corpus)


@pytest.mark.slow
def test_a_round_without_noise_is_the_mean_of_the_trainers_clipped_updates(corpus, bench):
    experiment = load_experiment("adadps-tags").with_options(
        {"noise-multiplier": 1.0, "target-epsilon": None, "local-learning-rate": 10.0}
    )
    components = build(experiment, corpus, task=bench.task)
    trainer = components.trainer
    assert isinstance(trainer, CompiledSoftmaxTrainer)
    start, clip = bench.start(0.5), Clip(l2_clip_norm=20.0)
    users = bench.task.roster
    assert max(bench.view.num_examples(user) for user in users) > 100  # users of two batches
    settings = quick.Settings(rounds=1, rate=10.0, norm=20.0, q=1.0, sigma=0.0, decay=0.0)
    ends, norm = quick.run(bench, start, settings, 0)
    few = [user for user in users if 0 < bench.view.num_examples(user) <= 100]
    total = {name: np.zeros_like(array) for name, array in start.items()}
    for user in few:
        update = trainer.train(start, NO_CONTEXT, bench.view.examples(user), Key.simulation(1))
        for name, array in bounded(clip, update).items():
            total[name] += array
    # Of users of several batches only the norm is known: their batches are drawn.
    rest = (len(users) - len(few)) * 20.0
    moved = {name: ends["last"][name] - start[name] for name in start}
    gap = {name: len(users) * moved[name] - total[name] for name in start}
    assert np.sqrt(sum(np.sum(array**2) for array in gap.values())) <= rest + 1e-3
    assert norm == 20.0
    np.testing.assert_array_equal(ends["last"]["kernel"], ends["ema"]["kernel"])


@pytest.mark.slow
def test_noise_on_the_mean_is_that_of_the_plan(bench):
    start = bench.start(0.5)
    settings = quick.Settings(rounds=9, rate=1e-6, norm=2.0, q=1.0, sigma=4.0)
    ends, _ = quick.run(bench, start, settings, 0)
    moved = ends["last"]["kernel"] - start["kernel"]
    assert moved.std() == pytest.approx(3.0 * 4.0 * 2.0 / bench.num_users, rel=0.05)


def test_noise_of_full_cohorts_is_that_of_one_release_times_the_root_of_the_rounds():
    assert quick.sigma_of(1.0, 16, 2.0, 300) == 4.0 * quick.sigma_of(1.0, 1, 2.0, 300)
    assert quick.sigma_of(0.5, 4, 2.0, 300) > 0.5 * quick.sigma_of(1.0, 4, 2.0, 300)
