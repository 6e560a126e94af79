"""The evaluation with threads held out, as a command, on a tiny synthetic corpus."""

import json
import re
from pathlib import Path

import pytest

from fedpriv.datasets.stackexchange.synthetic import Shape, synthesize
from simulations.evaluation.evaluate import Evaluation
from simulations.evaluation.table import shown
from simulations.threads import by_thread, study
from simulations.threads.methods import METHODS, Method

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "docs" / "results"


@pytest.fixture
def small(monkeypatch):
    """Every method in three rounds."""
    methods = {
        name: Method(
            label=method.label,
            experiment=method.experiment,
            options={epsilon: {**o, "rounds": 3} for epsilon, o in method.options.items()},
            cohort=method.cohort,
        )
        for name, method in METHODS.items()
    }
    monkeypatch.setattr(by_thread, "METHODS", methods)


def call(corpus, folder, *more):
    arguments = ["--corpus", corpus.directory, "--results", folder / "tags", "--seeds", 1, *more]
    by_thread.main([str(argument) for argument in arguments])


def test_all_rows_of_a_site_are_measured_by_one_command(small, tiny_corpus, tmp_path, capsys):
    page, plot = tmp_path / "page.md", tmp_path / "plot.svg"
    call(tiny_corpus, tmp_path, "--folds", 2, "--out", page, "--plot", plot)
    text = page.read_text("utf-8")
    assert text.strip() in capsys.readouterr().out and "Synthetic data" in text
    for label in ("majority class", "public-only", "AdaDPS, from zero", "central, not private"):
        assert f"| {label} |" in text
    assert "δ = n^-1.1" in text and "PLD" in text
    found = Evaluation.from_json(json.loads(page.with_suffix(".json").read_text("utf-8")))
    assert found.public_only == "public-only" and not found.shares_threads
    assert {"public start, ε = 2", "from zero, ε = 8", "federated"} <= set(found.models)
    assert all(word in found.promise for word in ("PLD", "δ = ", "user-level", "add-remove"))
    drawn = " ".join(re.findall(r"<text[^>]*>([^<]*)", plot.read_text("utf-8")))
    for said in ("SYNTHETIC", "PLD", "δ = ", "user-level", "add-remove", "not covered by ε"):
        assert said in drawn


def test_what_is_done_is_not_done_again(small, tiny_corpus, tmp_path, monkeypatch):
    call(tiny_corpus, tmp_path, "--folds", 1, "--target-epsilon", 8)

    def trained(*arguments, **more):
        raise AssertionError("trained again")

    monkeypatch.setattr(study, "rounds", trained)
    call(tiny_corpus, tmp_path, "--folds", 1, "--target-epsilon", 8)
    with pytest.raises(AssertionError, match="trained again"):
        call(tiny_corpus, tmp_path, "--folds", 1, "--target-epsilon", 2)


def test_what_was_done_on_another_corpus_is_not_taken_over(small, tmp_path, monkeypatch):
    """Its roster, its threads and its options are the same, but not its text."""
    shape = Shape(
        num_users=20, num_sentences=400, public_users=8, num_words=200, num_tags=10, num_topics=4
    )
    one, other = (synthesize(tmp_path / f"{n}", shape=shape, max_words=n) for n in (40, 60))
    call(one, tmp_path, "--folds", 1, "--target-epsilon", 8)

    def trained(*arguments, **more):
        raise AssertionError("trained again")

    monkeypatch.setattr(study, "rounds", trained)
    call(one, tmp_path, "--folds", 1, "--target-epsilon", 8)
    with pytest.raises(AssertionError, match="trained again"):
        call(other, tmp_path, "--folds", 1, "--target-epsilon", 8)


def test_weighted_words_are_measured_as_they_were_trained(small, tiny_corpus, tmp_path, capsys):
    call(tiny_corpus, tmp_path, "--folds", 1, "--target-epsilon", 8, "--inputs", "tf-idf")
    assert "each user alone" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [(["--folds", 6], "folds 6"), (["--plot", "x.png"], "must end in .svg")],
)
def test_what_cannot_be_asked_for_is_refused(tiny_corpus, tmp_path, more, message):
    with pytest.raises(ValueError, match=message):
        call(tiny_corpus, tmp_path, *more)


def rows_of(text):
    """Markdown tables' rows by their first cell, of the first table that has it."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and not line.startswith("|---"):
            found.setdefault(cells[0], cells[1:])
    return found


@pytest.fixture(scope="module")
def published():
    return Evaluation.from_json(json.loads((RESULTS / "threads.json").read_text("utf-8")))


def test_the_published_table_is_the_recorded_evaluation(published):
    rows = rows_of((RESULTS / "threads.md").read_text("utf-8"))
    models = {"majority class": "majority", "public-only": "public-only"}
    models |= {"central, not private": "central", "federated, not private": "federated"}
    for label, name in models.items():
        assert rows[label][0] == shown(published.models[name].values["accuracy"])
    columns = rows[""]
    for name in ("public start", "from zero"):
        for column, heading in enumerate(columns):
            found = published.models.get(f"{name}, {heading}")
            value = None if found is None else found.values["accuracy"]
            assert rows[METHODS[name].label][column] == shown(value)


def test_what_the_readme_says_of_the_gap_is_the_recorded_evaluation(published):
    text = (ROOT / "README.md").read_text("utf-8")
    for epsilon in (2, 8):
        names = [f"{name}, ε = {epsilon}" for name in ("public start", "from zero")]
        best = max(names, key=lambda name: published.models[name].closed_shares["accuracy"].value)
        share = published.models[best].closed_shares["accuracy"].value
        assert re.search(rf"{100 * share:.0f} % at ε = {epsilon}\b", text), (epsilon, share)


def test_users_held_out_are_measured_by_the_same_command(small, tiny_corpus, tmp_path, capsys):
    call(tiny_corpus, tmp_path, "--split", "by-user", "--folds", 1, "--target-epsilon", 8,
         "--methods", "from zero")  # fmt: skip
    assert "Split: by user and thread" in capsys.readouterr().out


def test_a_site_without_dates_is_refused_by_time(small, tiny_corpus, tmp_path):
    with pytest.raises(ValueError, match="no dates, so it cannot be split by-time"):
        call(tiny_corpus, tmp_path, "--split", "by-time", "--target-epsilon", 8)


def test_fewer_public_users_are_said(small, tiny_corpus, tmp_path, capsys):
    number = len(tiny_corpus.view().public_users) // 2
    call(tiny_corpus, tmp_path, "--folds", 1, "--public-users", number, "--target-epsilon", 8,
         "--methods", "public start")  # fmt: skip
    assert f"{number} of the users outside the roster count as public" in capsys.readouterr().out
