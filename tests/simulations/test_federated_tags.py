"""Figure 6, tag prediction by user: a fair grid, and the same settings in figure and table."""

from types import SimpleNamespace

import pytest

from simulations.adadps import figure6
from simulations.adadps.figure6 import REPRODUCTIONS
from simulations.reproduction.runs import Run, final_runs, pending, perform, tuning_runs

SEEDS = (0, 1, 2)
FIGURE, TABLE = REPRODUCTIONS
ROWS = {row.label: row for row in TABLE.rows}
BASELINES = ("DP-FedAvg", "DP-FedAdam", "DP-NormFedAvg")


@pytest.fixture(autouse=True)
def real_corpus(monkeypatch):
    """The real corpus, of which nothing but names is needed to name runs."""
    seen = SimpleNamespace(name="onstartups", rosters=("onstartups-all", "onstartups-400"))
    monkeypatch.setattr(figure6, "corpus", lambda: seen)


@pytest.fixture
def done():
    """Rows of every run that the table needs: tuning, whose first settings are best, then seeds."""
    rows = {run.identity: {"accuracy": 0.2, "data": "onstartups"}
            for run in tuning_runs(TABLE, reduced=False)}  # fmt: skip
    reported = final_runs(TABLE, rows, seeds=SEEDS, reduced=False)
    return rows | {run.identity: {"accuracy": 0.3, "data": "onstartups"} for run in reported}


@pytest.mark.parametrize("column", [c for c in TABLE.columns if "private-2" not in c])
def test_baselines_get_at_least_as_many_configurations_as_adadps(column):
    sizes = {
        label: len(row.cells[column].grid)
        for label, row in ROWS.items()
        if row.cells[column].tuned_as is None
    }
    most = max(size for label, size in sizes.items() if label.startswith("AdaDPS"))
    assert most > 1 and min(sizes[label] for label in BASELINES) >= most


@pytest.mark.slow
def test_every_configuration_is_an_experiment():
    made = [run.experiment for run in tuning_runs(TABLE, reduced=False)]
    assert len(made) > 110  # the forms with momentum share the grid of the plain ones
    for label in ("FedAvg, not private", "FedAvg with local preconditioning, not private"):
        one = ROWS[label].cells["paper tff"].make("test", False)
        assert (one.options()["noise"], one.options()["bound"]) == ("none", "none")


@pytest.mark.slow
def test_every_method_of_the_paper_has_server_momentum():
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
def test_another_corpus_has_its_own_roster(name, number, few, monkeypatch):
    seen = SimpleNamespace(name=name, rosters=("tff",), listed=lambda: range(number))
    monkeypatch.setattr(figure6, "corpus", lambda: seen)
    for column, users in (("private-8 tff", None), ("paper tff", few)):
        made = ROWS["DP-FedAvg"].cells[column].make("test", False)
        options = made.options()
        assert (options["task.roster"], options["task.users"]) == (None, users)
        assert made.name == f"{name}-by-user"


def test_it_is_of_few_users_by_round_in_the_settings_of_the_table(done):
    assert FIGURE.kind == "figure" and FIGURE.has_reduced and not TABLE.has_reduced
    runs = list(final_runs(FIGURE, done, seeds=SEEDS, reduced=False))
    assert not pending(tuning_runs(FIGURE, reduced=False), done)
    for run in runs:
        assert run.curve == 5 and run.experiment.options()["task.roster"] == "onstartups-400"
    found = {row.label for row in FIGURE.rows}
    assert {label for pair in FIGURE.orderings for label in pair} <= found <= set(ROWS)


def test_its_reduced_size_has_as_much_noise_and_as_many_users():
    for row in FIGURE.rows:
        for cell in row.cells.values():
            whole, small = (cell.make("test", size).options() for size in (False, True))
            changed = {name for name in whole if whole[name] != small[name]}
            assert changed == {"rounds"} and small["rounds"] >= 40


@pytest.mark.slow
@pytest.mark.parametrize("label", ROWS)
def test_two_rounds_of_every_cell(label, monkeypatch, tiny_corpus):
    monkeypatch.setattr(figure6, "corpus", lambda: tiny_corpus)
    small = {"rounds": 2, "users": 20, "cohort": 5}
    for column, cell in ROWS[label].cells.items():
        made = cell.make("test", False).with_options(small)
        if made.options()["noise"] != "none":
            made = made.with_options({"noise-multiplier": 0.5})  # calibration takes longer
        settings = cell.grid[-1] if cell.tuned_as is None else cell.adapt(cell.tuned_as.grid[-1])
        experiment = made.with_options(settings)
        line = perform(Run(experiment=experiment, split="test", seed=0, reduced=False))
        assert line["unit"] == "user" and line["synthetic"], column
        assert (line["epsilon"] is None) == ("not private" in label)
        assert (line["side_information"] is None) == (made.options()["precondition"] == "none")
