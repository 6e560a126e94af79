"""The evaluation with threads held out, as a command, on a tiny synthetic corpus."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fedpriv.experiments.load import load_experiment
from fedpriv.report.bootstrap import Interval
from simulations.evaluation.evaluate import Estimate
from simulations.threads import command, study
from simulations.threads.methods import ABLATION, BY_METHOD, METHODS
from simulations.threads.page import differences_table
from tests.harness.refusals import refuses
from tests.laws.test_raw_deletion import LITTLE, community, imported
from tests.simulations.threads.short import shortened


def in_three_rounds(method):
    has_rounds = "rounds" in next(iter(method.options.values()))
    return shortened(method, rounds=3) if has_rounds else method


@pytest.fixture
def small(monkeypatch):
    """Every method in three rounds."""
    for name, kind in command.KINDS_OF_STUDY.items():
        methods = {
            start: {label: in_three_rounds(one) for label, one in known.items()}
            for start, known in kind.methods.items()
        }
        monkeypatch.setitem(command.KINDS_OF_STUDY, name, replace(kind, methods=methods))


def call(corpus, **more):
    given = {"corpus": str(corpus.directory), "seeds": 1, "folds": 1}
    command.reproduce(**{**given, **more})


@pytest.mark.slow
def test_all_rows_of_a_site_are_measured_by_one_command(small, tiny_corpus, tmp_path, capsys):
    page, plot = tmp_path / "page.md", tmp_path / "plot.svg"
    call(tiny_corpus, folds=2, out=page, plot=plot)
    text = page.read_text("utf-8")
    assert text.strip() in capsys.readouterr().out and "Synthetic data" in text
    for label in ("majority class", "public-only", "AdaDPS, from zero", "central, not private"):
        assert f"| {label} |" in text
    assert "δ = n^-1.1" in text and "PLD" in text
    found = json.loads(page.with_suffix(".json").read_text("utf-8"))
    assert found["public_only"] == "public-only" and not found["shares_threads"]
    assert {"public start, ε = 2", "from zero, ε = 8", "federated"} <= set(found["models"])
    assert all(word in found["guarantee"] for word in ("PLD", "δ = ", "user-level", "add-remove"))
    drawn = " ".join(re.findall(r"<text[^>]*>([^<]*)", plot.read_text("utf-8")))
    for said in ("SYNTHETIC", "PLD", "δ = ", "user-level", "add-remove", "not covered by ε"):
        assert said in drawn


@pytest.mark.slow
def test_runs_that_share_what_public_users_teach_are_the_runs_alone(tiny_corpus):
    """At two ε and seeds. Red where one is given another's start, or settings of another task."""
    shared = {}
    asked = (("public", 4.0, 0), ("public", 8.0, 1), ("public", 8.0, 0), ("last", 8.0, 1))
    for selected, epsilon, seed in asked:
        options = {"target-epsilon": epsilon, "seed": seed, "select": selected, "cohort": 10.0}
        experiment = load_experiment("adadps-tags").with_options(options | {"rounds": 2})
        found = study.train(experiment, tiny_corpus, seed, shared)
        alone = study.train(experiment, tiny_corpus, seed)
        results = [(one.params, one.returned()) for one in (found, alone)]
        for left, right in zip(*results, strict=True):
            assert all(left[name].tobytes() == right[name].tobytes() for name in left)
    assert [list(part.alone) for part in shared.values()] == [[0, 1], [1]]


def test_weighted_words_are_measured_as_they_were_trained(small, tiny_corpus, capsys):
    call(tiny_corpus, epsilons=(8.0,), inputs="tf-idf")
    assert "each user alone" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"folds": 6}, 6),
        ({"plot": Path("x.png")}, "x.png"),
        ({"split": "by-sentence"}, "by-sentence"),
        ({"epsilons": (3.0,)}, "ε = 3"),
        ({"kind": "by-stream", "start": "x"}, "x"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(tiny_corpus, more, name):
    with refuses(ValueError, name):
        call(tiny_corpus, **more)


def test_averaging_without_preconditioning_is_the_same_on_both_pages():
    plain, averaged = (
        made.options[2.0] for made in (ABLATION["not adaptive"], BY_METHOD["DP-FedAvg"])
    )
    shared = ("rounds", "l2-clip-norm", "local-learning-rate", "start", "start-factor")
    assert all(plain[name] == averaged[name] for name in shared)


@pytest.mark.slow
def test_users_held_out_are_measured_by_the_same_command(small, tiny_corpus, capsys):
    call(tiny_corpus, split="by-user", epsilons=(8.0,), only=("from zero",))
    assert "Split: by user and thread" in capsys.readouterr().out


def test_a_site_without_dates_is_refused_by_time(small, tiny_corpus):
    with refuses(ValueError, "by-time"):
        call(tiny_corpus, split="by-time", epsilons=(8.0,))


@pytest.mark.slow
def test_every_part_has_a_row_with_an_interval(small, tiny_corpus, tmp_path, capsys):
    out = tmp_path / "page.md"
    call(tiny_corpus, kind="ablation", epsilons=(8.0,), out=out)
    shown, progress = capsys.readouterr()
    assert shown.strip() == out.read_text("utf-8").strip()
    assert "rests on one clip norm" in shown
    assert "Synthetic data" in shown and "PLD" in shown and "δ = n^-1.1" in shown
    for name, method in ABLATION.items():
        assert f"| {method.label}, {'over' if name == 'whole' else 'against'}" in shown
    assert "by-thread-0, seed 0: averaged, ε = 8, 3 rounds" in progress
    rows = json.loads(out.with_suffix(".json").read_text("utf-8"))
    assert {row["model"] for row in rows} == {f"{name}, ε = 8" for name in ABLATION}
    for row in rows:  # nothing that has an ε goes without what it is of
        assert row["synthetic"] and row["data"] == "tiny-synthetic"
        assert "PLD" in row["guarantee"] and "δ = n^-1.1" in row["guarantee"]


@pytest.mark.parametrize("epsilon", [2.0, 8.0])
def test_what_is_taken_away_is_taken_away(epsilon, tiny_corpus):
    view = tiny_corpus.view()
    whole, *others = (method.at(epsilon, view, {}).options() for method in ABLATION.values())
    assert whole == METHODS["public start"].at(epsilon, view, {}).options()
    assert all(other != whole for other in others)
    assert {other["target_epsilon"] for other in others} == {epsilon}


@pytest.mark.parametrize(
    ("kind", "models"),
    [
        pytest.param("by-owners", 4, marks=pytest.mark.slow),
        pytest.param("by-stream", 2, marks=pytest.mark.slow),
    ],
)
def test_methods_are_compared_in_pairs(kind, models, small, tiny_corpus, tmp_path):
    out, only, corpus = tmp_path / "page.md", ("Poisson", "one band"), tiny_corpus
    if kind == "by-owners":  # which needs to know who asked
        only, corpus = (), imported(tmp_path / "dump", community(), **LITTLE)
    call(corpus, kind=kind, epsilons=(8.0,), out=out, only=only)
    found = json.loads(out.with_suffix(".json").read_text("utf-8"))
    assert {row["against"] for row in found["differences"]} >= {"public-only"}
    assert len(found["models"]) >= models + 2 and "| against | difference |" in out.read_text()


def test_two_that_learnt_nothing_are_not_compared():
    def estimate(value):
        ends = Interval(low=value - 0.01, high=value + 0.01)
        return Estimate(value=value, by_thread=ends, by_user=ends)

    values = {
        ("a", "b"): 0.02,
        ("a", "c"): -0.05,
        ("b", "c"): -0.05,
        ("a", "majority"): 0.005,
        ("b", "majority"): -0.02,
        ("c", "majority"): 0.03,
    }
    found = {pair: estimate(value) for pair, value in values.items()}
    lines = dict(zip(found, differences_table(found).splitlines()[2:], strict=True))
    assert [pair for pair, text in lines.items() if "no signal" in text] == [("a", "b")]
    assert "+3.0" in lines["c", "majority"]
