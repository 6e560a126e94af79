"""Figure 6, tag prediction by user: a fair grid, and every recorded run found again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from simulations.adadps import figure6
from simulations.adadps.figure6 import REPRODUCTIONS
from simulations.reproduction.page import given_rows, markdown
from simulations.reproduction.runs import (
    Run,
    best,
    final_runs,
    pending,
    perform,
    read,
    reported_runs,
    tuning_runs,
)

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "docs" / "results" / "tags.jsonl"
SEEDS = (0, 1, 2)
FIGURE, TABLE = REPRODUCTIONS
ROWS = {row.label: row for row in TABLE.rows}
BASELINES = ("DP-FedAvg", "DP-FedAdam", "DP-NormFedAvg")


@pytest.fixture(autouse=True)
def real_corpus(monkeypatch):
    """What the recorded runs were on, of which nothing but names is needed to find them."""
    seen = SimpleNamespace(name="onstartups", rosters=("onstartups-all", "onstartups-400"))
    monkeypatch.setattr(figure6, "corpus", lambda: seen)


@pytest.fixture(scope="module")
def done():
    return read(RECORDED)


def wanted(done):
    """Every run that the table needs: tuning, then seeds."""
    tuning = tuning_runs(TABLE, reduced=False)
    return [*tuning, *final_runs(TABLE, done, seeds=SEEDS, reduced=False)]


class TestGrid:
    @pytest.mark.parametrize("column", [c for c in TABLE.columns if "private-2" not in c])
    def test_baselines_get_at_least_as_many_configurations_as_adadps(self, column):
        sizes = {
            label: len(row.cells[column].grid)
            for label, row in ROWS.items()
            if row.cells[column].tuned_as is None
        }
        most = max(size for label, size in sizes.items() if label.startswith("AdaDPS"))
        assert most > 1 and min(sizes[label] for label in BASELINES) >= most

    @pytest.mark.slow
    def test_every_configuration_is_an_experiment(self):
        made = [run.experiment for run in tuning_runs(TABLE, reduced=False)]
        assert len(made) > 110  # the forms with momentum share the grid of the plain ones
        for label in ("FedAvg, not private", "FedAvg with local preconditioning, not private"):
            one = ROWS[label].cells["paper tff"].make("test", False)
            assert (one.options()["noise"], one.options()["bound"]) == ("none", "none")

    @pytest.mark.slow
    def test_momentum_takes_over_the_plain_forms_choice_and_half_the_noise_twice_the_norm(
        self, done
    ):
        plain, momentum = ROWS["AdaDPS, local"], ROWS["AdaDPS, local, server momentum"]
        chosen = {
            column: best(TABLE, row.cells[column], done, reduced=False)
            for row in (plain, momentum)
            for column in ("private-8 tff", "private-2 tff")
        }
        assert chosen["private-8 tff"]["l2-clip-norm"] == 220.0
        assert chosen["private-2 tff"] == {**chosen["private-8 tff"], "l2-clip-norm": 110.0}
        for column in chosen:
            assert best(TABLE, plain.cells[column], done, reduced=False) == chosen[column]

    @pytest.mark.slow
    def test_every_method_of_the_paper_has_server_momentum(self):
        """As the left panel of its Figure 6; Adam's own β₁ is DP-FedAdam's."""
        for label, row in ROWS.items():
            made = [cell.make("test", False).options() for cell in row.cells.values()]
            others = "not private" in label or label == "DP-NormFedAvg"
            if others or label.endswith(", server momentum"):
                continue
            if label == "DP-FedAdam":
                assert {one["server.momentum"] for one in made} == {0.9}
                continue
            momentum = ROWS[f"{label}, server momentum"]
            for column, cell in momentum.cells.items():
                found = cell.make("test", False).options()
                assert (found["server"], found["server.momentum"]) == ("ema-momentum", 0.9)
                plain = row.cells[column].make("test", False).options()
                assert found["bound"] == plain["bound"] and plain["server"] == "sgd"

    @pytest.mark.parametrize(
        ("name", "number", "few"), [("stackoverflow", 400, None), ("synthetic", 600, 400)]
    )
    def test_another_corpus_has_its_own_roster(self, name, number, few, monkeypatch):
        seen = SimpleNamespace(name=name, rosters=("tff",), listed=lambda: range(number))
        monkeypatch.setattr(figure6, "corpus", lambda: seen)
        for column, users in (("private-8 tff", None), ("paper tff", few)):
            made = ROWS["DP-FedAvg"].cells[column].make("test", False)
            options = made.options()
            assert (options["task.roster"], options["task.users"]) == (None, users)
            assert made.name == f"{name}-by-user"


class TestFigure:
    def test_it_is_of_few_users_by_round_in_the_settings_of_the_table(self, done):
        assert FIGURE.kind == "figure" and FIGURE.has_reduced and not TABLE.has_reduced
        runs = list(final_runs(FIGURE, done, seeds=SEEDS, reduced=False))
        assert not pending(tuning_runs(FIGURE, reduced=False), done)
        for run in runs:
            assert run.curve == 5 and run.experiment.options()["task.roster"] == "onstartups-400"
        found = {row.label for row in FIGURE.rows}
        assert {label for pair in FIGURE.orderings for label in pair} <= found <= set(ROWS)

    def test_its_reduced_size_has_as_much_noise_and_as_many_users(self):
        for row in FIGURE.rows:
            for cell in row.cells.values():
                whole, small = (cell.make("test", size).options() for size in (False, True))
                changed = {name for name in whole if whole[name] != small[name]}
                assert changed == {"rounds"} and small["rounds"] >= 40

    def test_rows_of_other_data_are_left_out(self, done):
        found = reported_runs(TABLE, done, seeds=SEEDS, reduced=False)
        assert given_rows(TABLE, found) == list(TABLE.given)
        other = {
            place: [{**row, "data": "another"} for row in rows] for place, rows in found.items()
        }
        assert given_rows(TABLE, other) == []


class TestRuns:
    @pytest.mark.slow
    @pytest.mark.parametrize("label", ROWS)
    def test_two_rounds_of_every_cell(self, label, monkeypatch, tiny_corpus):
        monkeypatch.setattr(figure6, "corpus", lambda: tiny_corpus)
        small = {"rounds": 2, "users": 20, "cohort": 5}
        for column, cell in ROWS[label].cells.items():
            made = cell.make("test", False).with_options(small)
            if made.options()["noise"] != "none":
                made = made.with_options({"noise-multiplier": 0.5})  # calibration takes longer
            settings = (
                cell.grid[-1] if cell.tuned_as is None else cell.adapt(cell.tuned_as.grid[-1])
            )
            experiment = made.with_options(settings)
            line = perform(Run(experiment=experiment, split="test", seed=0, reduced=False))
            assert line["unit"] == "user" and line["synthetic"], column
            assert (line["epsilon"] is None) == ("not private" in label)
            assert (line["side_information"] is None) == (made.options()["precondition"] == "none")


class TestRecorded:
    """Three hours of runs: 184 of tuning and 204 that are reported."""

    @pytest.mark.slow
    def test_nothing_would_be_run_anew_and_nothing_recorded_is_lost(self, done):
        runs = wanted(done)
        assert pending(runs, done) == []
        assert {run.identity for run in runs} == set(done)
        splits = [row["split"] for row in done.values()]
        assert (splits.count("validation"), splits.count("test")) == (184, 204)

    @pytest.mark.slow
    def test_rows_say_all_that_their_identity_is_of(self, done):
        runs = {run.identity: run for run in wanted(done)}
        for identity, row in done.items():
            run = runs[identity]
            again = Run(
                experiment=run.experiment.restored(row["options"]),
                split=row["split"],
                seed=row["seed"],
                reduced=row["reduced"],
            )
            assert again.identity == identity and row["experiment"] == run.experiment.name
            assert row["failed_in_last_round"] == 0

    @pytest.mark.slow
    def test_the_published_page_is_that_of_the_recorded_runs(self, done):
        page = (ROOT / "docs" / "results" / "tags.md").read_text("utf-8")
        assert markdown(TABLE, done, seeds=SEEDS) == page
