"""The evaluation with threads held out, as a command, on a tiny synthetic corpus."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fedpriv.datasets.importers.synthetic import Shape, synthesize
from fedpriv.experiments.load import load_experiment
from fedpriv.report.bootstrap import Interval
from simulations.evaluation.evaluate import Estimate
from simulations.threads import command, study
from simulations.threads.methods import ABLATION, BY_METHOD, BY_SIZE, METHODS
from simulations.threads.page import differences_table
from tests.laws.test_raw_deletion import LITTLE, community, imported


@pytest.fixture
def small(monkeypatch):
    """Every method in three rounds."""

    def short(method):
        options = {epsilon: {**o, "rounds": 3} for epsilon, o in method.options.items()}
        return replace(method, options=options)

    for name, kind in command.KINDS_OF_STUDY.items():
        methods = {
            start: {
                label: short(one) if "rounds" in next(iter(one.options.values())) else one
                for label, one in known.items()
            }
            for start, known in kind.methods.items()
        }
        monkeypatch.setitem(command.KINDS_OF_STUDY, name, replace(kind, methods=methods))


def call(corpus, folder, **more):
    given = {"corpus": str(corpus.directory), "results": folder / "tags", "seeds": 1, "folds": 1}
    command.reproduce(**{**given, **more})


@pytest.mark.slow
def test_all_rows_of_a_site_are_measured_by_one_command(small, tiny_corpus, tmp_path, capsys):
    page, plot = tmp_path / "page.md", tmp_path / "plot.svg"
    call(tiny_corpus, tmp_path, folds=2, out=page, plot=plot)
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
def test_what_was_done_on_another_corpus_is_not_taken_over(small, tmp_path, monkeypatch):
    """Its roster, its threads and its options are the same, but not its text."""
    shape = Shape(
        num_users=20, num_sentences=400, public_users=8, num_words=200, num_tags=10, num_topics=4
    )
    one, other = (synthesize(tmp_path / f"{n}", shape=shape, max_words=n) for n in (40, 60))
    call(one, tmp_path, epsilons=(8.0,))

    def trained(*arguments, **more):
        raise AssertionError("trained again")

    monkeypatch.setattr(study, "rounds", trained)
    call(one, tmp_path, epsilons=(8.0,))
    for corpus, epsilon in ((other, 8.0), (one, 2.0)):
        with pytest.raises(AssertionError, match="trained again"):
            call(corpus, tmp_path, epsilons=(epsilon,))


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


def test_a_whole_epsilon_is_not_another_run(tiny_corpus, tmp_path):
    """Options of the command line may be whole numbers, and runs are found by their options."""
    asked = study.Study(
        corpus=tiny_corpus, roster=None, splits=(), seeds=1, epsilons=(8,),
        methods={"private": BY_SIZE["adadps-tags"]}, kept=tmp_path,
    )  # fmt: skip
    ((_, _, epsilon),) = asked.trained
    assert isinstance(epsilon, float)


def test_weighted_words_are_measured_as_they_were_trained(small, tiny_corpus, tmp_path, capsys):
    call(tiny_corpus, tmp_path, epsilons=(8.0,), inputs="tf-idf")
    assert "each user alone" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"folds": 6}, "folds 6"),
        ({"plot": Path("x.png")}, "must end in .svg"),
        ({"split": "by-sentence"}, "holds out no threads"),
        ({"epsilons": (3.0,)}, "no settings for ε = 3"),
        ({"kind": "by-stream", "start": "x"}, "'x' is not one of public, zero"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(tiny_corpus, tmp_path, more, message):
    with pytest.raises(ValueError, match=message):
        call(tiny_corpus, tmp_path, **more)


def test_averaging_without_preconditioning_is_the_same_on_both_pages():
    plain, averaged = (
        made.options[2.0] for made in (ABLATION["not adaptive"], BY_METHOD["DP-FedAvg"])
    )
    shared = ("rounds", "l2-clip-norm", "local-learning-rate", "start", "start-factor")
    assert all(plain[name] == averaged[name] for name in shared)


@pytest.mark.slow
def test_users_held_out_are_measured_by_the_same_command(small, tiny_corpus, tmp_path, capsys):
    call(tiny_corpus, tmp_path, split="by-user", epsilons=(8.0,), only=("from zero",))
    assert "Split: by user and thread" in capsys.readouterr().out


def test_a_site_without_dates_is_refused_by_time(small, tiny_corpus, tmp_path):
    with pytest.raises(ValueError, match="no dates, so it cannot be split by-time"):
        call(tiny_corpus, tmp_path, split="by-time", epsilons=(8.0,))


@pytest.mark.slow
def test_fewer_public_users_are_said(small, tiny_corpus, tmp_path, capsys):
    number = len(tiny_corpus.view().public_users) // 2
    call(tiny_corpus, tmp_path, public_users=number, epsilons=(8.0,), only=("public start",))
    assert f"{number} of the users outside the roster count as public" in capsys.readouterr().out


class TestAblation:
    @pytest.mark.slow
    def test_every_part_has_a_row_with_an_interval(self, small, tiny_corpus, tmp_path, capsys):
        out = tmp_path / "page.md"
        call(tiny_corpus, tmp_path, kind="ablation", epsilons=(8.0,), out=out)
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
    def test_what_is_taken_away_is_taken_away(self, epsilon, tiny_corpus):
        view = tiny_corpus.view()
        whole, *others = (method.at(epsilon, view, {}).options() for method in ABLATION.values())
        assert whole == METHODS["public start"].at(epsilon, view, {}).options()
        assert all(other != whole for other in others)
        assert {other["noise.target_epsilon"] for other in others} == {epsilon}


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
    call(corpus, tmp_path, kind=kind, epsilons=(8.0,), out=out, only=only)
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
