"""`flwr run` itself: Flower's Ray simulation, and a SuperLink with SuperNodes, both on loopback."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedpriv import tree
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.load import load_experiment
from fedpriv.runs.prepared import start_run
from tests.backends.flower.real import processes

# AdaDPS + Gaussian + momentum + EMA, small enough for a machine that also runs Flower.
OPTIONS = {
    "noise-multiplier": 0.5,
    "rounds": 2,
    "cohort": 6,
    "eval-every": 2,
    "seed": 11,
    "server": "ema-momentum",
    "aggregate": "ema",
}
NAME = "adadps-tags"


def config(corpus, run, **changes):
    options = {**OPTIONS, "experiment": NAME, "corpus": str(corpus), "out": str(run), **changes}
    return processes.run_config(**options)


def lines(run, name):
    return [json.loads(line) for line in (run / f"{name}.jsonl").read_text("utf-8").splitlines()]


def everything(run, experiment):
    """Params, their average and the momentum after the last round."""
    last = run / "checkpoints" / f"round-{experiment.rounds:06d}.safetensors"
    return {**load_file(last), **load_file(run / "state.safetensors")}


def assert_equals_in_process(run, corpus, tmp_path, **options):
    """The flower run's state is the in-process one's, bit for bit: sums are exact."""
    experiment = load_experiment(NAME).with_options({**OPTIONS, **options})
    chosen = experiment.options()
    assert (chosen["precondition"], chosen["noise"]) == ("local", "gaussian")
    assert (chosen["server"], chosen["aggregate"]) == ("ema-momentum", "ema")
    prepared = start_run(experiment, NAME, Corpus.open(corpus), tmp_path / "serial")
    expected = prepared.run()
    state, found = everything(tmp_path / "serial", experiment), everything(run, experiment)
    assert set(found) == set(state) and {"kernel", "ema/kernel"} <= set(state)
    for key, array in state.items():
        assert np.array_equal(found[key], array), key
    assert tree.l2_norm(state) > 0
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    assert summary["epsilon"] == expected["epsilon"]
    assert summary["rounds"] == experiment.rounds
    assert (run / "report.html").is_file()
    assert json.loads((run / "experiment.json").read_text("utf-8"))["backend"] == "flower"
    assert all(line["num_failed"] == 0 for line in lines(run, "diagnostics"))


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.ray
def test_flwr_run_on_the_simulation_equals_in_process(flower, tiny_corpus, tmp_path):
    app = processes.copy_app(tmp_path / "app")
    flower.start_superlink(simulation=True)
    run = tmp_path / "run"
    log = flower.run(
        app,
        config(tiny_corpus, run),
        processes.simulated(3),
    )
    assert (run / "summary.json").is_file(), log[-4000:]
    assert_equals_in_process(run, tiny_corpus, tmp_path)


@pytest.mark.slow
@pytest.mark.flower
def test_a_superlink_with_three_supernodes_equals_in_process(flower, tiny_corpus, tmp_path):
    app = processes.copy_app(tmp_path / "app")
    flower.start_nodes(3, corpus=tiny_corpus)
    run = tmp_path / "run"
    log = flower.run(app, config(tiny_corpus, run))
    assert (run / "summary.json").is_file(), log[-4000:]
    assert_equals_in_process(run, tiny_corpus, tmp_path)
