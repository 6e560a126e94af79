"""Rows of a pretrained encoder on SuperNodes: each makes its own, of its own text and weights."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import fedpriv as fp
from client import app as client_app
from fedpriv.backends.flower import registry
from fedpriv.cli import app as command
from fedpriv.datasets.encoders import Encoder, add_encoder
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.embeddings import make_embeddings
from fedpriv.datasets.stackexchange.parts import SERVER, cut_corpus
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.backends import serial
from fedpriv.runs.document import read_document
from fedpriv.runs.prepared import start_run
from tests.harness.command_line import CliRunner
from tests.harness.refusals import refuses
from tests.harness.tiny_bert import write_tiny_bert
from tests.running.selected import topical

if find_spec("transformers") is None:
    pytest.skip("the extra `pretrained` is not installed", allow_module_level=True)

NODES = ("node-1", "node-2", "node-3")
EXPERIMENT = """
from fedpriv.experiments import FederatedExperiment, GaussianNoise
from fedpriv.mechanisms import Clip
from fedpriv.experiments import LocalSgd
from fedpriv.experiments.tasks import EncodedTagPredictionTask


def experiment():
    return FederatedExperiment(
        name="own", description="Tags on rows of an encoder.", rounds=3,
        task=EncodedTagPredictionTask(encoder={encoder!r}, encoder_texts="both", roster="inside"),
        cohort=12.0, bound=Clip(l2_clip_norm=2.0),
        noise=GaussianNoise(multiplier=1.0), local=LocalSgd(learning_rate=1.0))
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    return Place(tmp_path, monkeypatch)


class Place:
    """A server and three nodes, each with its part of a corpus and a cache of its own."""

    def __init__(self, root: Path, monkeypatch) -> None:
        self.root, answer = root, client_app.app
        self.whole = topical.make_in_letters(root / "corpus")
        cut_corpus(self.whole, root / "parts", nodes=len(NODES))
        self.weights = write_tiny_bert(root / "tiny")
        for machine in ("alone", SERVER, *NODES):
            with self.on(machine):
                self.encoder = add_encoder(self.weights).id
        self.file = root / "own.py"
        self.file.write_text(EXPERIMENT.format(encoder=self.encoder), "utf-8")

        def on_its_machine(message, context):
            with self.on(Path(context.node_config["corpus"]).name):
                return answer(message, context)

        monkeypatch.setattr(client_app, "app", on_its_machine)
        monkeypatch.setattr(registry, "_GRACE_SECONDS", 0.05)

    @contextmanager
    def on(self, machine: str):
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("FEDPRIV_CACHE", str(self.root / "caches" / machine))
            yield

    def embed(self, *machines: str) -> None:
        for machine in machines:
            with self.on(machine):
                words = ["encoder", "embed", self.encoder, "--processes", "1"]
                part = self.root / "parts" / machine
                done = CliRunner().invoke(command, [*words, "--corpus", str(part)])
                assert done.exit_code == 0, done.output

    def run(self, deploy, name="run", **changes):
        with self.on(SERVER):
            deploy(
                out=self.root / name, experiment=f"{self.file}:experiment",
                corpus=self.root / "parts" / SERVER, parts=self.root / "parts", **changes,
            )  # fmt: skip
        return fp.load(self.root / name)


def assert_equals_one_process(place, found, draws_of):
    """The released params are, to the last bit, those of one process with all users' text."""
    assert verify_run(found.path).ok
    draws_of(found.path)
    chosen = load_experiment(f"{place.file}:experiment")
    chosen = chosen.with_options(read_document(found.path)["experiment"])
    with place.on("alone"):
        make_embeddings(place.whole, Encoder(add_encoder(place.weights)), processes=1)
        everybody = build(chosen, place.whole)
    with place.on(SERVER):
        start_run(
            chosen,
            f"{place.file}:experiment",
            Corpus.open(place.root / "parts" / SERVER),
            place.root / "whole",
            make_backend=lambda experiment, components: serial(experiment, everybody),
        ).run()
    whole = fp.load(place.root / "whole")
    assert all(np.array_equal(array, found.params[name]) for name, array in whole.params.items())
    assert found.summary["epsilon"] == whole.summary["epsilon"]
    assert found.summary["accuracy_public"] == whole.summary["accuracy_public"]


@pytest.mark.slow
def test_nodes_with_their_own_text_and_weights_train_what_one_process_does(place, deploy, draws_of):
    """To the same bits: no row depends on which other texts were embedded with it."""
    place.embed(SERVER, *NODES)
    assert_equals_one_process(place, place.run(deploy), draws_of)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("none", "fedpriv encoder add FOLDER"),
        ("others", "tiny"),
        ("edited", "node-3"),
        ("rows", "fedpriv encoder embed"),
    ],
)
def test_a_node_without_the_weights_is_refused_in_a_line_and_stops_no_other(
    place, deploy, change, why, caplog
):
    place.embed(SERVER, *NODES[: 3 if change != "rows" else 2])
    (folder,) = (place.root / "caches/node-3/encoders").glob("*-*")
    if change in ("none", "others"):
        for file in folder.rglob("*.*"):
            file.unlink()
        folder.rename(folder.with_name(".gone"))
    if change == "others":
        with place.on("node-3"):
            assert add_encoder(write_tiny_bert(place.root / "b", seed=1)).id != place.encoder
    if change == "edited":
        write_tiny_bert(folder, seed=1)
    # Without keys another node might host who is missing, and is waited for.
    with refuses(ValueError, why) as error:
        place.run(deploy, register_seconds=2.0)
    assert "\n" not in str(error.value)
    assert not (place.root / "run/rounds.jsonl").exists()  # nothing was charged or released
    with caplog.at_level(logging.WARNING, "fedpriv"):
        found = place.run(deploy, "others", allow_missing_users=True, register_seconds=2.0)
    assert "10 of 30 rostered users" in caplog.text and "they will contribute zero" in caplog.text
    assert found.summary["rounds"] == 3


@pytest.mark.slow
def test_on_parts_an_encoder_is_named_by_its_contents(place):
    """A folder of one name on two machines may hold two encoders."""
    task = load_experiment(f"{place.file}:experiment").task
    with place.on(SERVER), refuses(ValueError, place.encoder):
        replace(task, encoder=str(place.weights))(None, Corpus.open(place.root / "parts" / SERVER))
