"""`fedpriv study --dry-run`: what it does once, what it says, and that it is what would be run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedpriv.api import forecast
from fedpriv.api.forecast import RoundCost, timed_as
from fedpriv.api.studying import forecast_study
from fedpriv.experiments import settings
from fedpriv.experiments.build import build
from fedpriv.experiments.tasks import TagPredictionTask
from fedpriv.studies.study import Resolver, Study
from tests.harness.command_line import fedpriv
from tests.harness.refusals import refuses
from tests.studies.small import small, study, task


@pytest.fixture
def calls(monkeypatch):
    """How often each of some functions was called, by name."""
    found = {}

    def counted(where, name):
        before = getattr(where, name)

        def count(*given, **named):
            found[name] = found.get(name, 0) + 1
            return before(*given, **named)

        monkeypatch.setattr(where, name, count)

    counted(forecast, "_user_seconds")
    counted(settings, "public_update_norms")
    counted(TagPredictionTask, "__call__")
    return found


MADE = []


def counting(experiment):
    MADE.append(experiment.options()["noise"])
    return task(experiment)


PAIRS = [
    {"noise": "tree"},
    {"noise": "tree", "sampling": "separated", "min_separation": 2, "bound": "adaptive"},
    {"sampling": "separated", "min_separation": 2},
    {"sampling": "fixed", "cohort": None},
]


@pytest.mark.parametrize("options", PAIRS, ids=["-".join(map(str, p.values())) for p in PAIRS])
def test_what_does_not_fit_together_is_refused_by_name_before_any_data_are_read(calls, options):
    MADE.clear()
    first = replace(small(), task=counting)
    chosen = Study(
        name="s", methods={"first": first, "second": {"experiment": first, **options}}, epsilons=[2]
    )
    for use in (forecast_study, lambda study: Resolver(study).trials()):
        with refuses(ValueError, "'second'"):
            use(chosen)
    with pytest.raises(ValueError):  # of a single run too
        build(first.with_options(options))
    assert MADE == [] and calls == {}


def test_what_does_not_fit_the_data_names_the_method():
    chosen = Study(name="s", methods={"wide": {"experiment": small(), "cohort": 900.0}})
    with refuses(ValueError, "'wide'"):
        forecast_study(chosen)


class TestOnce:
    """The data are prepared and the training is timed once, and not for every row."""

    @pytest.mark.slow
    def test_a_task_is_made_and_a_method_is_timed_once_for_all_its_levels(self, calls):
        MADE.clear()
        methods = {"x": replace(small(), task=counting)}
        study = Study(name="s", methods=methods, epsilons=[2, 4, 8, None])
        rows = forecast_study(study)
        assert MADE == ["gaussian"] and calls == {"_user_seconds": 1}
        assert len({row.noise_multiplier for row in rows}) == 4
        # At equal cohorts the time is the one that was taken, and no row is without it.
        assert len({row.cost.seconds for row in rows}) == 1 and rows[0].minutes > 0

    @pytest.mark.slow
    def test_methods_of_one_task_share_it_and_settings_are_those_that_a_run_has(
        self, calls, tiny_corpus
    ):
        where = {"corpus": str(tiny_corpus.directory)}
        study = Study(
            name="s",
            methods={
                "plain": "adadps-tags",
                "momentum": {"experiment": "adadps-tags", "server": "momentum"},
            },
            epsilons=[2, 8],
            data={"tiny": where, "fold 1": {**where, "fold": 1}},
        )
        rows = forecast_study(study)
        assert calls.pop("__call__") == 2  # one for each data
        assert calls == {"_user_seconds": 4, "public_update_norms": 4}  # for each data and method
        resolver = Resolver(study)
        for row in rows:
            trial = resolver.trial(row.method, row.epsilon, row.data, 0)
            alone = build(trial.experiment, resolver.corpus_of(trial))
            assert row.rounds == alone.plan.affordable_rounds
            assert row.noise_multiplier == alone.plan.mechanism.noise_multiplier
            assert row.cost.cohort == alone.plan.mechanism.expected_cohort_size
            spent = row.cost.user_seconds * row.cost.cohort + row.cost.server_seconds
            assert row.cost.seconds == pytest.approx(spent)
        assert len({row.noise_multiplier for row in rows}) > 2


def test_a_time_is_of_the_rows_own_cohort():
    row = RoundCost(num_params=3, cohort=10.0, workers=1, server_bytes=1, worker_bytes=1)
    known = replace(row, cohort=40.0, seconds=9.0, user_seconds=0.2, server_seconds=1.0, timed=5)
    assert timed_as(row, known).seconds == 3.0 and timed_as(row, known).timed == 5
    assert timed_as(replace(row, cohort=None, reason="why"), known).seconds is None
    failed = replace(known, user_seconds=None, reason="they fail")
    assert timed_as(row, failed).reason == "they fail"


TOML = """
epsilons = [8]
methods = ["dp-fedavg-tags", "adadps-tags"]

[options]
rounds = 2
users = 12
cohort = 6.0
"""
START = "start is fresh for dp-fedavg-tags, public for adadps-tags"


def invoke(*given):
    done = fedpriv("study", *given)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


@pytest.mark.slow
def test_methods_that_start_differently_are_said_to(tiny_corpus, tmp_path, monkeypatch):
    """In a dry run, in its JSON, before a study is run and on its page; alike ones are not."""
    monkeypatch.setenv("FEDPRIV_DATA", str(tiny_corpus.directory))
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("by mail.toml").write_text(TOML, "utf-8")
    assert START in invoke("by mail.toml", "--dry-run")
    found = json.loads(fedpriv("study", "by mail.toml", "--dry-run", "--json").stdout)
    assert not Path("studies").exists()
    assert found["name"] == "by mail" and START in found["unlike"][0]
    said = invoke("by mail.toml", "--workers", "1")
    assert said.index(START) < said.index("2 to run")
    assert START in Path("studies/by-mail/index.html").read_text("utf-8")
    Path("by mail.toml").write_text(TOML + 'start = "fresh"\nselect = "last"\n', "utf-8")
    assert "Not like" not in invoke("by mail.toml", "--dry-run")
    assert Resolver(study()).unlike() == []


def other(experiment):
    made = task(experiment)
    made._sets["public"] = made._sets["public"].take(slice(20))
    return made


def of_other_public_data():
    return Study(name="s", methods={"a": small(), "b": replace(small(), task=other)})


@pytest.mark.slow
def test_so_are_tasks_with_other_public_data():
    said = invoke(f"{__name__}:of_other_public_data", "--dry-run")
    assert "public-examples is 30 for a, 20 for b." in said
