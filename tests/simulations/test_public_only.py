"""Public-only on the centralised data sets: who is learnt from, and how settings are chosen."""

import json

import numpy as np
import pytest
from scipy import sparse

from fedpriv.datasets.dataset import Dataset, hold_out_public
from fedpriv.measures import ACCURACY
from fedpriv.tasks.dataset_tasks import linear_task
from fedpriv.training.per_example.linear import LogisticGradients
from simulations.adadps.public_only import examples as script
from simulations.adadps.public_only import tags

DIM = 6


def data(draw):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, DIM)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int64)
    made = Dataset(
        name="halves", x_train=sparse.csr_matrix(x[:600]), y_train=y[:600],
        x_test=sparse.csr_matrix(x[600:]), y_test=y[600:], provenance={}, synthetic=True,
    )  # fmt: skip
    return hold_out_public(made, 0.05, draw)


@pytest.fixture
def halves(monkeypatch):
    def task(made):
        return linear_task(made, LogisticGradients, {"weight": (DIM,), "bias": (1,)})

    study = script.Study(
        data=data,
        task=task,
        public={"rates": (0.01, 0.1, 0.3), "most_passes": 5},
        private={"rates": (0.01, 0.1), "most_passes": 3},
    )
    monkeypatch.setattr(script, "STUDIES", {"halves": study})
    return study


def test_both_rows_are_of_one_test_set_and_all_beat_some(halves, capsys):
    script.reproduce(names=("halves",), draws=2)
    *lines, ends = map(json.loads, capsys.readouterr().out.splitlines())
    assert [(line["row"], line["draw"]) for line in lines] == [
        ("public-only", 0), ("public-only", 1), ("all, not private", 0),
    ]  # fmt: skip
    assert [line["num_examples"] for line in lines] == [30, 30, 570]
    assert all(line["synthetic"] for line in lines)
    accuracies = [line["accuracy"] for line in lines]
    assert ends["range"] == sorted(accuracies[:2]) and min(accuracies) > 0.7
    assert max(accuracies[:2]) < accuracies[2]


def test_every_public_example_is_held_out_once_and_never_learnt_from_then(halves, monkeypatch):
    seen = []
    kept = script._in_public

    def noted(task, key, learnt, held):
        seen.append((set(learnt), set(held)))
        return kept(task, key, learnt, held)

    monkeypatch.setattr(script, "_in_public", noted)
    script.public_only(halves, 0)
    *folds, (everything, nobody) = seen
    assert len(folds) == 5 and everything == set(range(30)) and not nobody
    assert sorted(n for _, held in folds for n in held) == list(range(30))
    assert all(not learnt & held and learnt | held == everything for learnt, held in folds)


def test_of_equal_figures_the_lower_loss_is_chosen_and_edges_are_said(halves):
    task = halves.task(halves.data(0))
    trial = script._in_public(task, script.Key.simulation(0), np.arange(29), np.arange(29, 30))
    found = script.chosen_by([trial], ACCURACY, rates=(0.01, 0.1), most_passes=4)
    # One example is right or wrong; the steepest descent has the lowest loss.
    assert (found.learning_rate, found.passes) == (0.1, 4)
    assert script._edges(found, (0.01, 0.1), 4) == ["learning_rate", "passes"]
    assert script._edges(found, (0.01, 0.1, 1.0), 5) == []


@pytest.fixture(scope="module")
def found(tiny_corpus):
    return list(
        tags.lines(
            tiny_corpus.default_roster,
            "unit-norm",
            rates=(0.1, 0.3, 1.0),
            most_passes=6,
            corpus=str(tiny_corpus.directory),
        )
    )


def test_public_only_learns_from_public_users_alone_and_all_from_everybody(found, tiny_corpus):
    view = tiny_corpus.view(split=tags.BY_SENTENCE)
    public = sum(view.num_examples(user, "all") for user in view.public_users)
    trained = sum(view.num_examples(user, "train") for user in view.roster)
    assert [row["num_examples"] for row in found[1:]] == [public, public + trained]


def test_the_command_prints_a_line_for_each(tiny_corpus, capsys):
    roster = tiny_corpus.default_roster
    given = {"corpus": str(tiny_corpus.directory), "rosters": (roster,), "inputs": ("tff",)}
    tags.reproduce(**given, rates=(0.3,), most_passes=1)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["row"] for row in rows] == list(tags.ROWS)
    assert all(row["data"] == f"{roster}, by-sentence" and row["synthetic"] for row in rows)
    assert {row["inputs"] for row in rows} == {"tff"}
    assert all(0 < row["accuracy"] <= 1 for row in rows)
