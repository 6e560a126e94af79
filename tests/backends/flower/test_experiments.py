"""Every experiment that claims Flower runs there, and ends where the in-process run ends.

To the last bit where sums do not hang on their order, which is wherever there is noise.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedpriv import tree
from fedpriv.backends.flower.strategy import GridSettings
from fedpriv.datasets.encoders import Encoder, add_encoder
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.embeddings import make_embeddings
from fedpriv.experiments.build import takes_corpus
from fedpriv.experiments.load import find_experiments
from fedpriv.experiments.tasks import EncodedTagPredictionTask
from fedpriv.runs.backends import serial
from fedpriv.runs.prepared import start_run
from tests.backends.flower import stub_grid as stub
from tests.harness.tiny_bert import write_tiny_bert

EXPERIMENTS = {
    name: make
    for name, make in find_experiments().items()
    if make().runs_on("flower") and takes_corpus(make().task)
}
# A plain round, a preconditioned one and the next plain one, where rounds take turns.
OPTIONS = {
    "rounds": 3,
    "users": None,
    "cohort": 8,
    "eval-every": 3,
}
OWN = {
    "agd": {"iterations": 2, "num-steps": 3, "delta": 1e-3, "target-epsilon": 20.0},
    "bolt-on": {"users-per-update": 20, "passes": 1, "step-rate": 0.5},
}
TURNS = {"delay-plain": 1, "delay-preconditioned": 1}


def carried_by(num_nodes):
    def make(experiment, components):
        settings = GridSettings(max_in_flight=3)
        trainer = components.trainer
        return stub.started(components.task, num_nodes, settings=settings, trainer=trainer)

    return make


def finished(corpus, experiment, name, out, make_backend):
    prepared = start_run(experiment, name, corpus, out, make_backend=make_backend)
    figures = prepared.run()
    last = max((out / "checkpoints").glob("*.safetensors"))
    return figures, {**load_file(last), **load_file(out / "state.safetensors")}


#: One of each kind; the others differ in options that no backend sees.
USUAL = ("adadps-tags", "adadps-ftrl-tags", "agd-tags", "bolt-on-tags", "dp-fedavg-words")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in USUAL else pytest.mark.slow) for n in EXPERIMENTS],
)
def test_three_rounds_on_flower_equal_three_in_process(tiny_corpus, tmp_path, monkeypatch, name):
    corpus = Corpus.open(tiny_corpus)
    experiment = EXPERIMENTS[name]()
    if isinstance(experiment.task, EncodedTagPredictionTask):
        pytest.importorskip("transformers", reason="the extra `pretrained` is not installed")
        monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
        encoder = Encoder(add_encoder(write_tiny_bert(tmp_path / "tiny")))
        make_embeddings(corpus, encoder, ("title",), processes=1)
        experiment = experiment.with_options({"encoder": encoder.files.id})
    experiment = experiment.with_options(OWN.get(experiment.method, OPTIONS))
    if experiment.options().get("sampling") == "cyclic":
        experiment = experiment.with_options({"cohort": None, "min-separation": 3})
    if experiment.options().get("release_preconditioner") == "delayed":
        experiment = experiment.with_options(TURNS)
    expected, state = finished(corpus, experiment, name, tmp_path / "serial", serial)
    found, other = finished(corpus, experiment, name, tmp_path / "grid", carried_by(5))
    assert state and set(other) == set(state)
    options = experiment.options()
    exact = experiment.method != "averaging" or options["noise"] != "none"
    for key in state:
        if exact:
            assert other[key].tobytes() == state[key].tobytes()
        off = tree.l2_norm({key: other[key].astype(np.float64) - state[key]})
        assert off <= 1e-5 * tree.l2_norm({key: state[key]})
    assert found["epsilon"] == expected["epsilon"]
    lines = (tmp_path / "grid" / "diagnostics.jsonl").read_text("utf-8").splitlines()
    assert {json.loads(line)["num_failed"] for line in lines} == {0}
