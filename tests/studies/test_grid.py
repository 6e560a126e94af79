"""Studies of an experiment: what is released of them, and what ε it states."""

import json
import os
import shutil
import stat
from unittest import mock

import pytest

from fedpriv.backends import SerialBackend
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.accounting import epsilon
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.privacy.trials import Trials
from fedpriv.studies.grid import GridStudy
from tests.harness import tag_runs
from tests.harness.kills import killed
from tests.harness.refusals import refuses
from tests.harness.resealed import edit_document
from tests.harness.tag_runs import unchanged

OPTIONS = {**tag_runs.OPTIONS, "rounds": 2}
GRID = {"l2-clip-norm": (0.1, 0.5), "server-learning-rate": (0.5, 1.0)}
LAW = Trials(mean=3.0)
SHORT = {"grid": {"l2-clip-norm": (0.5,)}, "trials": Trials(mean=1.5)}


def study(corpus, **changes):
    experiment = load_experiment("dp-fedavg-tags").with_options(OPTIONS)
    numbers = {"grid": GRID, "trials": LAW, "reference": "dp-fedavg-tags", "corpus": corpus}
    return GridStudy(experiment=changes.pop("experiment", experiment), **{**numbers, **changes})


@pytest.fixture(scope="module")
def released(tiny_corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("studies") / "one"
    return study(tiny_corpus).run(out)


@pytest.mark.slow
def test_the_released_run_states_the_epsilon_of_the_study(released):
    _, state, _ = read_ledger(released / "ledger.jsonl")
    assert state.plan.event is not None
    wanted = epsilon(state.plan.event, 2, delta=1e-3, relation="add-remove", trials=LAW)
    assert wanted.value > epsilon(state.plan.event, 2, delta=1e-3, relation="add-remove").value
    found = verify_run(released)
    assert found.ok and found.epsilon is not None
    assert found.epsilon.value == wanted.value and found.epsilon.accountant == "RDP"
    summary = json.loads((released / "summary.json").read_text("utf-8"))
    assert summary["epsilon"] == wanted.value and summary["accountant"] == "RDP"
    # No file says where or when among the trials it was run.
    assert "run_dir" not in summary and "started" not in state.extra
    assert not found.not_checked[1:]
    rows = [json.loads(line) for line in (released / "rounds.jsonl").read_text().splitlines()]
    assert {row["epsilon"] for row in rows} <= {wanted.value, None} and rows
    stated = json.loads((released.parent / "study.json").read_text("utf-8"))
    assert stated["privacy"] == found.epsilon.to_json()
    assert "by this study, which ε covers" in " ".join(str(run_statement(released)).split())


def test_elsewhere_tuning_is_said_not_to_be_covered(tiny_corpus, tmp_path):
    tag_runs.start(tiny_corpus, tmp_path / "run", rounds=2).run()
    said = " ".join(str(run_statement(tmp_path / "run")).split())
    assert "What no ε covers Tuning:" in said and "study" not in said


@pytest.mark.slow
def test_a_statement_of_one_run_does_not_verify_as_the_study(released, tmp_path):
    """The twin: the plan of the released run without its trials."""
    copied = shutil.copytree(released, tmp_path / "run")
    plan = json.loads((copied / "experiment.json").read_text("utf-8"))["plan"]
    edit_document(copied, plan={name: plan[name] for name in plan if name != "trials"})
    assert not verify_run(copied).ok


@pytest.mark.slow
def test_nothing_else_is_left(released):
    assert sorted(os.listdir(released.parent)) == ["run", "study.json"]
    text = (released.parent / "study.json").read_text("utf-8")
    assert set(json.loads(text)) == {
        *("format", "trials", "mode", "experiment", "reference", "options", "grid", "score"),
        *("higher_is_better", "seed", "privacy"),
    }
    whole = b"".join(path.read_bytes() for path in released.rglob("*") if path.is_file())
    assert b"/secret/" not in whole and b"secret/trial" not in whole
    times = {path.stat().st_mtime for path in released.rglob("*")}
    assert max(times) - min(times) < 30


@pytest.mark.slow
def test_going_on_with_a_finished_study_changes_nothing(released, tiny_corpus):
    with unchanged(released.parent):
        assert study(tiny_corpus).run(released.parent) == released


def test_a_secure_study_is_secure(tiny_corpus, tmp_path):
    released = study(tiny_corpus, secure=True, **SHORT).run(tmp_path / "s")
    found = verify_run(released)
    assert found.ok and found.mode == "secure"
    assert json.loads((tmp_path / "s" / "study.json").read_text("utf-8"))["seed"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"measure": "accuracy"}, ["accuracy"]),
        ({"measure": "loss_public"}, ["loss_public"]),
        ({"grid": {"cohort": (6.0, 7.0)}}, ["cohort"]),
        ({"grid": {"rounds": (1, 2)}}, ["rounds"]),
        ({"grid": {"noise-multiplier": (1.0, 2.0)}}, ["noise-multiplier"]),
        ({"grid": {"cohort-cap": (20,)}}, ["add-remove"]),
        ({"grid": {"no-such": (1,)}}, ["no-such"]),
        ({"trials": Trials(mean=3.0, shape=float("inf"))}, []),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_epsilon_would_not_cover_is_refused_before_anything_is_drawn(
    tiny_corpus, tmp_path, changes, named
):
    with refuses(ValueError, *named):
        study(tiny_corpus, **changes).run(tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("grid", [{}, {"seed": (1, 2)}, {"l2-clip-norm": ()}], ids=str)
def test_grids_that_are_none_are_refused(tiny_corpus, grid):
    with pytest.raises(ValueError):
        study(tiny_corpus, grid=grid)


def test_without_noise_there_is_no_study(tiny_corpus, tmp_path):
    options = {"noise": "none", "rounds": 2, "cohort": 6.0}
    plain = load_experiment("dp-fedavg-tags").with_options(options)
    with refuses(ValueError, "dp-fedavg-tags"):
        study(tiny_corpus, experiment=plain).run(tmp_path / "s")


@pytest.mark.slow
def test_noise_is_calibrated_to_the_whole_study(tiny_corpus, tmp_path):
    options = {**OPTIONS, "noise-multiplier": None, "target-epsilon": 6.0}
    target = load_experiment("dp-fedavg-tags").with_options(options)
    released = study(tiny_corpus, experiment=target, **SHORT).run(tmp_path / "s")
    spent = verify_run(released).epsilon
    assert spent is not None and 5.9 < spent.value <= 6.0


def test_folders_under_way_are_their_owners_alone(tiny_corpus, tmp_path):
    with killed(GridStudy, "_trial"):
        study(tiny_corpus).run(tmp_path / "s")
    secret = tmp_path / "s" / "secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o700
    for name in ("number", "state"):
        assert stat.S_IMODE((secret / name).stat().st_mode) == 0o600


@pytest.mark.slow
def test_a_trial_that_is_interrupted_is_gone_on_with(tiny_corpus, tmp_path, monkeypatch):
    """Killed in the second round of the first trial: the round is lost, the number stays."""
    one, real = study(tiny_corpus, grid={"l2-clip-norm": (0.5,)}), SerialBackend.sum
    monkeypatch.setattr(SerialBackend, "trains_again", False)  # one sum an attempt
    with mock.patch.object(SerialBackend, "sum", autospec=True, side_effect=real) as sums:
        with killed(SerialBackend, "sum", 2):
            one.run(tmp_path / "s")
        number = int((tmp_path / "s" / "secret" / "number").read_text())
        _, before, _ = read_ledger(tmp_path / "s" / "secret" / "trial" / "ledger.jsonl")
        assert len(before.charges) == 2 and len(before.releases) == 1
        found = verify_run(one.run(tmp_path / "s"))
    assert found.ok and found.num_charges == 2
    # Of two rounds a trial the first trial lost one; the others made both.
    assert sums.call_count == 1 + 2 * (number - 1)
