"""Runs of an adaptive plan, whose end only a refused charge tells: killed, resumed, reported."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fedpriv import json_lines
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.report.page import write_report
from fedpriv.report.run_record import read_run, rho_spent
from fedpriv.rng import Key
from fedpriv.runs.backends import serial
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.loop import rounds
from tests.cli.typed import figures, run
from tests.harness.kills import killed, killed_after
from tests.harness.refusals import refuses
from tests.harness.resumed import resume_run
from tests.harness.tag_runs import charged
from tests.running.adaptive.descent import CHARGES, NAME, ROUNDS, SPENT, changed, start


def kinds(folder):
    return [row["kind"] for row in json_lines.read(Path(folder) / "ledger.jsonl")]


def check_ended(folder, num_rounds=ROUNDS):
    """The folder's last round is evaluated, states the plan's ε, and everything verifies."""
    found = verify_run(folder)
    assert found.ok, found
    lines = json_lines.read(Path(folder) / "rounds.jsonl")
    assert [line["round_num"] for line in lines] == list(range(1, num_rounds + 1))
    assert found.epsilon is not None and lines[-1]["epsilon"] == found.epsilon.value
    assert lines[-1]["distance_public"] is not None
    seen = json_lines.read(Path(folder) / "diagnostics.jsonl")
    if seen and seen[-1]["round_num"] == num_rounds:
        assert seen[-1]["distance"] is not None and seen[-1]["covered_by_epsilon"] is False
    return found


def test_it_runs_as_a_command_and_says_what_it_spends():
    done = run("run", NAME, "--out", "run")
    assert f"ρ = {SPENT} of 1" in done.stderr and "ε ≤ 5.42" in done.stderr
    assert f"{CHARGES} charges" in done.stderr
    check_ended("run")
    summary = json.loads(Path("run/summary.json").read_text("utf-8"))
    assert (summary["rounds"], summary["charges"]) == (ROUNDS, CHARGES)
    assert summary["rounds_planned"] is summary["stopped_early"] is None
    assert summary["noise_multiplier"] is None
    last = json_lines.read(Path("run/rounds.jsonl"))[-1]
    assert summary["epsilon"] == last["epsilon"]
    assert summary["distance_public"] == last["distance_public"]
    told = figures("verify", "run")
    [said] = [check["text"] for check in told["checks"] if check["name"] == "charges"]
    for figure in (f"ρ = {SPENT} of 1", f"{CHARGES} charges", f"{ROUNDS} released", "1 lost"):
        assert figure in said


def test_its_report_shows_rho_over_rounds():
    run("run", NAME, "--out", "run", "--json")
    page = Path("run/report.html").read_text("utf-8")
    assert "ρ spent" in page and f"{ROUNDS} of {ROUNDS}" not in page
    assert f"<dt>Rounds</dt><dd>{ROUNDS}<" in page
    x, y = rho_spent(read_run("run"))
    assert x == list(range(1, ROUNDS + 1))
    np.testing.assert_allclose(y, np.array(x) * (1 / 50 + 1 / 8))
    run("export", "run", "--to", "model")
    assert verify_run("run").ok
    [compared] = figures("compare", "run")
    assert compared["rounds_planned"] is None and compared["rounds"] == ROUNDS


@pytest.mark.parametrize(
    "line", [2, 13, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 7, 12))]
)
def test_it_goes_on_after_a_kill(line):
    prepared = start("run")
    with killed_after(line, "charge"):
        prepared.run()
    write_report("run")  # of a run under way
    run("run", NAME, "--resume", "run", "--json")
    found = check_ended("run", len(json_lines.read(Path("run/rounds.jsonl"))))
    # A lost attempt stays spent; the last charge may have been what the end would have refused.
    assert CHARGES <= found.num_charges <= CHARGES + 4 and kinds("run")[-2:] == ["end", "seal"]


def test_a_round_that_was_kept_and_not_written_down():
    prepared = start("run")
    with killed(RunFolder, "record"):
        prepared.run()
    assert resume_run(Path("run")).run()["charges"] == CHARGES
    check_ended("run")


def test_an_ended_run_that_is_resumed_is_charged_no_further():
    start("run").run()
    before = Path("run/rounds.jsonl").read_bytes()
    for _ in range(2):
        summary = resume_run(Path("run")).run()
        assert (summary["charges"], len(charged(Path("run")))) == (CHARGES, CHARGES)
        assert summary["distance_public"] is not None
    assert Path("run/rounds.jsonl").read_bytes() == before
    assert kinds("run").count("end") == 1
    check_ended("run")


def test_a_run_that_was_killed_at_its_end_is_evaluated_when_it_is_resumed():
    prepared = start("run")
    with killed_after(1, "end"):
        prepared.run()
    assert json_lines.read(Path("run/rounds.jsonl"))[-1]["distance_public"] is None
    assert resume_run(Path("run")).run()["charges"] == CHARGES
    check_ended("run")
    whole = start("whole").run()
    lines = [json_lines.read(Path(name, "rounds.jsonl"))[-1] for name in ("run", "whole")]
    assert lines[0] == lines[1] and lines[0]["distance_public"] == whole["distance_public"]


def test_the_last_round_is_yielded_again_when_it_is_known_to_be_the_last():
    prepared = start("run")
    prepared.folder.close()
    made = prepared.components
    backend = serial(prepared.experiment, made)
    played = [record for record, _ in rounds(made, backend, Key.simulation(0), eval_every=4)]
    assert [record.released.round_num for record in played] == [1, 2, 3, 4, 5, 6, 6]
    assert all(record.released.epsilon is not None for record in played)
    *_, early, late = played
    assert early.figure("distance") is None and late.figure("distance") is not None
    assert late.released.measured["distance"] is not None
    assert late.diagnostics.cohort_size == early.diagnostics.cohort_size == 12
    # Evaluated where it fell due: there is nothing to add.
    due = [record for record, _ in rounds(made, backend, Key.simulation(0), eval_every=3)]
    assert [record.released.round_num for record in due] == [1, 2, 3, 4, 5, 6]


def test_a_plan_that_pays_for_nothing():
    changed("rho=1.0", "rho=0.1")
    summary = start("run").run()
    assert (summary["rounds"], summary["charges"]) == (0, 1)
    assert summary["distance_public"] is not None and verify_run("run").ok
    assert resume_run(Path("run")).run()["charges"] == 1
    write_report("run")


def test_an_algorithm_that_has_nothing_left_to_ask():
    """Of a fixed plan: the last round is evaluated, and why there are no more is known."""
    changed(
        "        asked = SumRequest(params=state.params, mechanism=answered(5.0)",
        "        if state.round_num == 3:\n            return None\n"
        "        return state.after(door.ask(SumRequest(params=state.params)))\n"
        "        asked = SumRequest(params=state.params, mechanism=answered(5.0)",
    )
    changed("replace(made, plan=plan, ", "replace(made, ")
    start("run").run()
    lines = json_lines.read(Path("run/rounds.jsonl"))
    assert len(lines) == 3 and lines[-1]["distance_public"] is not None
    assert verify_run("run").ok and kinds("run")[-2:] == ["end", "seal"]
    summary = resume_run(Path("run")).run()
    assert (summary["stopped_early"], summary["charges"]) == ("nothing-left", 3)


WHOLE = """from fedpriv.training.work import Work


class Whole(Work):
    def answer(self, request, attempt, users):
        from fedpriv.sums import PartialSum
        from fedpriv.training.failures import contributes_zero
        failed = 0
        for user in users.ids:
            try:
                users.data.examples(user).gone
            except AttributeError as error:
                FAILED
                failed += 1
        return PartialSum(
            total=request.params, num_users=len(users.ids), num_failed=failed)


class Near(Task):"""


@pytest.mark.parametrize(
    ("old", "new", "error", "named"),
    [
        ("np.linalg.norm(examples - w)", "np.linalg.norm(example - w)", NameError, "example"),
        ('door.ask(asked)["losses"]', 'door.ask(asked)["loss"]', KeyError, "loss"),
        ('{"w": examples - params["w"]}', '{"w": examples[:2]}', ValueError, "w"),
    ],
    ids=["work", "algorithm", "shapes"],
)
def test_a_mistake_ends_the_run_with_nothing_written(old, new, error, named):
    changed(old, new)
    with refuses(error, named) as caught:
        start("run")
    assert error is not NameError or caught.value.__notes__
    assert not Path("run").exists()


@pytest.mark.parametrize("says", [True, False])
def test_a_work_of_ones_own_is_tried(says):
    failed = "contributes_zero(error)" if says else "pass"
    changed("class Near(Task):", WHOLE.replace("FAILED", failed))
    changed('"train": Gradient()', '"train": Whole()')
    with refuses(AttributeError if says else ValueError, "gone" if says else "train"):
        start("run")
    assert not Path("run").exists()


def test_no_rostered_user_is_looked_at():
    changed(
        "        return np.array([1, 2",
        "        LOOKED.append(user_id)\n        return np.array([1, 2",
    )
    changed("SIZES =", "LOOKED = []\nSIZES =")
    prepared = start("run")
    looked = sys.modules["own_descent"].LOOKED
    assert looked == []
    prepared.run()
    assert len(looked) >= 12 * CHARGES and len(set(looked)) == 12
