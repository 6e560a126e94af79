"""The study of encoders as a command, on a tiny synthetic corpus and a tiny encoder."""

import json
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from fedpriv.datasets.stackexchange.splits import Split
from fedpriv.experiments.build import build
from simulations.threads import encoders
from tests.simulations.threads.short import shortened

if find_spec("transformers") is None:
    pytest.skip("the extra `pretrained` is not installed", allow_module_level=True)


@pytest.fixture
def small(encoder, monkeypatch):
    """A tiny encoder, three rounds and few dimensions."""
    monkeypatch.setattr(encoders, "MINILM", encoder.id)
    monkeypatch.setattr(encoders, "DIMENSIONS", 5)
    monkeypatch.setattr(encoders, "COMPONENTS", 4)
    for name in ("ENCODED", "WORDS"):
        short = shortened(getattr(encoders, name), rounds=3, cohort=5.0)
        monkeypatch.setattr(encoders, name, short)
    return encoder


@pytest.mark.slow
def test_all_kinds_of_inputs_are_measured_by_one_command(small, tiny_corpus, tmp_path, capsys):
    page, plot = tmp_path / "page.md", tmp_path / "plot.svg"
    encoders.reproduce(
        corpus=str(tiny_corpus.directory), seeds=2, folds=1, epsilons=(1.0, 2.0), roster=None,
        out=page, plot=plot,
    )  # fmt: skip
    text = page.read_text("utf-8")
    assert text.strip() in capsys.readouterr().out and "Synthetic data" in text
    assert "SYNTHETIC" in plot.read_text("utf-8")
    found = json.loads(page.with_suffix(".json").read_text("utf-8"))
    kinds = {"words", "titles", "components", "titles and sentences", "random", "public vectors"}
    assert set(found) == kinds
    for name, kind in found.items():
        assert {"private, ε = 1", "private, ε = 2"} <= set(kind["models"])
        control = name in ("random", "public vectors")
        returned = set() if control else {"returned, ε = 1", "returned, ε = 2"}
        assert set(kind.get("returned", ())) == returned
        assert kind["models"]["private, ε = 2"]["seeds"] == (1 if control else 2)
        assert all(said in kind["guarantee"] for said in ("δ", "PLD", "user-level", "add-remove"))


@pytest.mark.slow
def test_word_vectors_know_nothing_of_rostered_users(small, tiny_corpus):
    """Red where all users' examples make the vectors: others than public ones change nothing."""
    experiment = encoders.public_vector_tags().with_options({"dimensions": 5})
    view = tiny_corpus.view(split=Split(kind="by-thread"))
    rows = view.public_rows("train")
    columns = view.columns
    rostered = np.setdiff1d(np.arange(len(columns)), rows)
    counts = columns.counts.copy()
    for row in rostered:
        counts[columns.indptr[row] : columns.indptr[row + 1]] = 1
    blank = replace(view, columns=replace(columns, counts=counts))
    assert (counts != columns.counts).any()
    found, other = (encoders._word_vectors(one, 5) for one in (view, blank))
    assert found.tobytes() == other.tobytes()
    task = build(experiment, tiny_corpus).task
    assert task.init_params(None)["kernel"].shape[0] == 5


@pytest.mark.slow
def test_a_random_encoder_differs_from_the_trained_one_alone_in_its_weights(small):
    drawn = encoders.add_random_encoder(small)
    again = encoders.add_random_encoder(small)
    assert drawn.id == again.id != small.id
    assert drawn.weights_sha256 != small.weights_sha256
    for file in ("config.json", "tokenizer.json", "sentence_bert_config.json"):
        assert (drawn.folder / file).read_bytes() == (small.folder / file).read_bytes()
