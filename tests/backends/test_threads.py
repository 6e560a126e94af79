"""The backend of threads; what it sums is held to the oracle in tests/laws/test_backends.py."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedpriv.backends.resources import Share
from fedpriv.backends.threads import ThreadBackend
from fedpriv.experiments.build import build
from fedpriv.experiments.catalogue import load_experiment
from fedpriv.runs.backends import on_ray, on_threads, serial
from fedpriv.runs.prepared import resume_run, start_run

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
    class Resident:
        def train(self, params, examples, key):
            return params

    with pytest.raises(ValueError, match=r"Resident keeps a model of its own.*use 'ray'"):
        backend(tiny_corpus, trainer=Resident())


def test_it_is_refused_before_a_run_folder_is_made_or_opened(staff, tmp_path):
    out, said = tmp_path / "run", r"Trainer keeps a model of its own.*use 'ray'"
    arguments = (staff.dense_experiment(), "staff:dense_experiment", None, out)
    with pytest.raises(ValueError, match=said):
        start_run(*arguments, make_backend=on_threads(2))
    assert not out.exists()
    start_run(*arguments).folder.close()
    with (out / "rounds.jsonl").open("a") as file:
        file.write('{"torn')  # opening the folder would cut it
    with pytest.raises(ValueError, match=said):
        resume_run(out, experiment=arguments[1], make_backend=on_threads(2))
    assert (out / "rounds.jsonl").read_text() == '{"torn'


def test_gpus_for_a_task_without_use_for_them_are_refused_before_a_run_folder_is_made(
    tiny_corpus, tmp_path
):
    """The workers would refuse them too, one by one and with the folder there."""
    experiment, out = load_experiment(NAME).with_options(OPTIONS), tmp_path / "run"

    def backends(**share):
        cluster = SimpleNamespace(share=Share(num_workers=2, **share))
        return on_ray(cluster, NAME, str(tiny_corpus.directory))

    with pytest.raises(
        ValueError, match=r"does not train on 'cuda:0'.*leave --gpus-per-worker out"
    ):
        start_run(experiment, NAME, tiny_corpus, out, make_backend=backends(num_gpus=0.5))
    assert not out.exists()
    components = build(experiment, tiny_corpus)
    backends(num_gpus=0.5, logical=True).check(experiment, components)
    backends().check(experiment, components)


def test_gpus_for_a_task_with_a_model_are_left_to_the_workers(staff):
    cluster = SimpleNamespace(share=Share(num_workers=1, num_gpus=1.0))
    experiment = staff.dense_experiment()
    on_ray(cluster, "staff:dense_experiment", None).check(experiment, build(experiment, None))


def test_gpus_for_an_own_trainer_that_says_it_has_no_use_for_them_are_refused(staff):
    experiment = staff.dense_experiment()
    components = build(experiment, None)

    class Scattered:
        cpu_only = "it only looks things up"

    on_gpus = on_ray(SimpleNamespace(share=Share(num_workers=1, num_gpus=1.0)), "own", None)
    with pytest.raises(ValueError, match="Scattered does not train on 'cuda:0': it only looks"):
        on_gpus.check(experiment, replace(components, trainer=Scattered()))


def test_there_is_at_least_one_worker(tiny_corpus):
    with pytest.raises(ValueError, match="workers 0"):
        backend(tiny_corpus, num_workers=0)


def test_closing_ends_the_threads(tiny_corpus):
    made = backend(tiny_corpus)
    made.close()
    with pytest.raises(RuntimeError):
        made.evaluate({}, public=True)
