"""The carrier of threads; what it sums is held to the oracle in tests/laws/test_carriers.py."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedpriv.catalogue import load_experiment
from fedpriv.engine.threads import ThreadCarrier
from fedpriv.experiment import build
from fedpriv.job import on_threads, serial, start_job

NAME = "adadps-tags"
OPTIONS = {
    "cohort": 8,
    "cohort-cap": 30,
    "rounds": 3,
    "noise-multiplier": 1.0,
    "delta": 0.001,
    "eval-every": 2,
}


def run(corpus, out, carrier):
    experiment = load_experiment(NAME).with_options(OPTIONS)
    job = start_job(experiment, NAME, corpus, out, make_carrier=carrier)
    return job.run(), load_file(out / "checkpoints" / "round-000003.safetensors")


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_run_ends_with_the_bits_and_figures_of_the_serial_one(tiny_corpus, tmp_path, workers):
    told, expected = run(tiny_corpus, tmp_path / "serial", serial)
    found, params = run(tiny_corpus, tmp_path / "threads", on_threads(workers))
    assert all(np.array_equal(params[name], expected[name]) for name in expected)
    for name in ("accuracy", "recall_at_5", "accuracy_public", "epsilon"):
        assert found[name] == told[name] is not None
    (engine,) = (tmp_path / "threads" / "engines.jsonl").read_text().splitlines()
    assert json.loads(engine) == {
        "first_round": 1,
        "name": "threads",
        "workers": workers,
        "devices": ["cpu"],
    }


def carrier(corpus, **changes):
    parts = build(load_experiment(NAME).with_options(OPTIONS), corpus)
    arguments = {
        "trainer": parts.trainer,
        "data": parts.task.data,
        "measure": parts.task.evaluate,
        "num_workers": 2,
        "max_examples": 256,
        **changes,
    }
    return ThreadCarrier(**arguments)


def test_a_trainer_with_a_model_of_its_own_is_refused(tiny_corpus):
    class Resident:
        def train(self, params, examples, key):
            return params

    with pytest.raises(ValueError, match=r"Resident keeps a model of its own.*engine ray"):
        carrier(tiny_corpus, trainer=Resident())


def test_there_is_at_least_one_worker(tiny_corpus):
    with pytest.raises(ValueError, match="--workers 0"):
        carrier(tiny_corpus, num_workers=0)


def test_closing_ends_the_threads(tiny_corpus):
    made = carrier(tiny_corpus)
    made.close()
    with pytest.raises(RuntimeError):
        made.evaluate({}, public=True)
