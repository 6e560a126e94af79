"""Adaptive descent and bolt-on by user on real SuperNodes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.prepared import start_run
from tests.running.methods.test_runs import OPTIONS


def model(run):
    return load_file(max((run / "checkpoints").glob("*.safetensors")))


def charged(run):
    return [(charge.query, charge.event) for charge in read_ledger(run / "ledger.jsonl")[1].charges]


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.parametrize("name", OPTIONS)
def test_supernodes_end_where_one_process_ends(name, processes, flower, tiny_corpus, tmp_path):
    """To the last bit: sums are of whole numbers, or of floats that no order rounds."""
    options = {**OPTIONS[name], "seed": 11}
    app = processes.copy_app(tmp_path / "app")
    flower.start_nodes(2, corpus=tiny_corpus)
    run = tmp_path / "run"
    asked = {"experiment": name, "corpus": str(tiny_corpus), "out": str(run), **options}
    log = flower.run(app, processes.run_config(**asked))
    assert (run / "summary.json").is_file(), log[-4000:]
    assert json.loads((run / "experiment.json").read_bytes())["backend"] == "flower"

    experiment = load_experiment(name).with_options(options)
    start_run(experiment, name, Corpus.open(tiny_corpus), tmp_path / "serial").run()
    found, expected = model(run), model(tmp_path / "serial")
    assert set(found) == set(expected)
    for tensor, array in expected.items():
        assert np.any(array) and found[tensor].tobytes() == array.tobytes(), tensor
    assert charged(run) == charged(tmp_path / "serial")
    verified = verify_run(run)
    assert verified.ok and verified.num_lost == 0
    lines = (run / "diagnostics.jsonl").read_text("utf-8").splitlines()
    assert {json.loads(line)["num_failed"] for line in lines} == {0}
