"""Threads and sharding; what they sum is held to the oracle in tests/oracles/test_backends.py."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from fedpriv.backends.in_process import ThreadBackend, shards_of
from fedpriv.backends.ray.cluster import Share
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.runs.backends import on_ray, on_threads, serial, serial_on
from fedpriv.runs.prepared import resume_run, start_run
from fedpriv.tasks.tag_prediction import TagPrediction
from fedpriv.training.work import UserTrainer
from tests.harness import toy_users
from tests.harness.refusals import refuses

NAME = "adadps-tags"
OPTIONS = {
    "cohort": 8,
    "cohort-cap": 30,
    "rounds": 3,
    "noise-multiplier": 1.0,
    "delta": 0.001,
    "eval-every": 2,
}


def run(corpus, out, backend):
    experiment = load_experiment(NAME).with_options(OPTIONS)
    prepared = start_run(experiment, NAME, corpus, out, make_backend=backend)
    return prepared.run(), load_file(out / "checkpoints" / "round-000003.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_run_ends_with_the_bits_and_figures_of_the_serial_one(tiny_corpus, tmp_path, workers):
    told, expected = run(tiny_corpus, tmp_path / "serial", serial)
    found, params = run(tiny_corpus, tmp_path / "threads", on_threads(workers))
    assert all(np.array_equal(params[name], expected[name]) for name in expected)
    for name in ("accuracy", "recall_at_5", "accuracy_public", "epsilon"):
        assert found[name] == told[name] is not None
    (backend,) = (tmp_path / "threads" / "backends.jsonl").read_text().splitlines()
    assert json.loads(backend) == {
        "first_round": 1,
        "name": "threads",
        "workers": workers,
        "devices": ["cpu"],
    }


def backend(corpus, **changes):
    components = build(load_experiment(NAME).with_options(OPTIONS), corpus)
    arguments = {
        "trainer": components.trainer,
        "data": components.task.data,
        "measure": components.task.evaluate,
        "num_workers": 2,
        "max_examples": 256,
        **changes,
    }
    return ThreadBackend(**arguments)


def test_a_trainer_with_a_model_of_its_own_is_refused(tiny_corpus):
    class Resident(UserTrainer):
        def train(self, params, context, examples, key):
            return params

    with refuses(ValueError, "Resident", "ray"):
        backend(tiny_corpus, trainer=Resident())


@pytest.mark.slow
def test_it_is_refused_before_a_run_folder_is_made_or_opened(tmp_path):
    out = tmp_path / "run"
    arguments = (toy_users.experiment(), toy_users.NAME, None, out)
    with refuses(ValueError, "ModuleTrainer", "ray"):
        start_run(*arguments, make_backend=on_threads(2))
    assert not out.exists()
    start_run(*arguments).folder.close()
    with (out / "rounds.jsonl").open("a") as file:
        file.write('{"torn')  # opening the folder would cut it
    with refuses(ValueError, "ModuleTrainer", "ray"):
        resume_run(out, experiment=arguments[1], make_backend=on_threads(2))
    assert (out / "rounds.jsonl").read_text() == '{"torn'


def test_devices_for_a_task_that_takes_none_are_refused_before_a_run_folder_is_made(
    tiny_corpus, tmp_path, monkeypatch
):
    """The workers would refuse them too, one by one and with the folder there."""
    experiment, out = load_experiment(NAME).with_options(OPTIONS), tmp_path / "run"
    trainer = TagPrediction.trainer
    monkeypatch.setattr(
        TagPrediction, "trainer", lambda self, schedule, m: trainer(self, schedule, m)
    )

    def on_workers(**share):
        cluster = SimpleNamespace(share=Share(num_workers=2, **share))
        return on_ray(cluster, NAME, str(tiny_corpus.directory))

    for backend in (
        on_workers(num_gpus=0.5),
        on_workers(num_gpus=0.5, logical=True),
        on_workers(device="cpu"),
        serial_on("cpu"),
    ):
        with refuses(ValueError, "TagPrediction"):
            start_run(experiment, NAME, tiny_corpus, out, make_backend=backend)
        assert not out.exists()
    on_workers().check(experiment, build(experiment, tiny_corpus))


@pytest.mark.slow
def test_a_run_on_a_device_names_it_and_is_the_serial_one_but_for_rounding(tiny_corpus, tmp_path):
    _, expected = run(tiny_corpus, tmp_path / "serial", serial)
    _, found = run(tiny_corpus, tmp_path / "device", serial_on("cpu"))
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-5)
    (backend,) = (tmp_path / "device" / "backends.jsonl").read_text().splitlines()
    assert json.loads(backend)["devices"] == ["cpu"]


SIZES = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 50), max_size=8)


def longest(shards, sizes):
    return max(sum(max(sizes[user], 1) for user in shard) for shard in shards)


@pytest.mark.slow
@given(SIZES, st.integers(1, 4))
def test_everybody_is_dealt_once(sizes, num_workers):
    shards = shards_of(sizes, num_workers)
    assert len(shards) == num_workers
    assert sorted(itertools.chain(*shards)) == sorted(sizes)


@pytest.mark.slow
@given(SIZES.filter(bool), st.integers(1, 3))
def test_no_worker_has_more_than_four_thirds_of_the_best_sharding(sizes, num_workers):
    best = min(
        max(
            sum(max(sizes[u], 1) for u, worker in zip(sizes, choice, strict=True) if worker == w)
            for w in range(num_workers)
        )
        for choice in itertools.product(range(num_workers), repeat=len(sizes))
    )
    assert longest(shards_of(sizes, num_workers), sizes) <= best * 4 / 3


@pytest.mark.slow
@given(SIZES, st.integers(1, 4))
def test_the_longest_come_first(sizes, num_workers):
    for shard in shards_of(sizes, num_workers):
        assert [sizes[u] for u in shard] == sorted((sizes[u] for u in shard), reverse=True)
