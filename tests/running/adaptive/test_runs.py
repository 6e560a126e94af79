"""Runs of an adaptive plan, whose end only a refused charge tells: killed, resumed, reported."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from fedpriv import cli, json_lines
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.report.page import write_report
from fedpriv.report.run_record import read_run, rho_spent
from fedpriv.rng import Key
from fedpriv.runs.backends import serial
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.loop import rounds
from tests.harness.resumed import resume_run
from tests.running.adaptive.descent import CHARGES, NAME, ROUNDS, SPENT, changed, start


@pytest.fixture
def fedpriv(monkeypatch, capsys):
    """Run the command: (out, err)."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedpriv", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        shown = capsys.readouterr()
        assert left.value.code == 0, shown
        return shown.out, shown.err

    return call


class Killed(BaseException):
    """The process is gone."""


def killed_after(number, kinds, prepared, monkeypatch):
    """Run until right after the so-manieth line of these kinds is on the disk."""
    write, seen = Ledger._write, []

    def written(self, record, line):
        write(self, record, line)
        if self.path is not None and record.kind in kinds:
            seen.append(record)
            if len(seen) == number:
                raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_write", written)
        with pytest.raises(Killed):
            prepared.run()


def charges(folder):
    return len(read_ledger(Path(folder) / "ledger.jsonl")[1].charges)


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


def test_it_runs_as_a_command_and_says_what_it_spends(fedpriv, tmp_path):
    """Red before: the command ended in an AttributeError before the first round."""
    out, err = fedpriv("run", NAME, "--out", "run")
    assert "for ρ = 1, however much of it is spent" in err
    said = f"{CHARGES} charges, ε ≤ 5.42 at δ = 0.001, distance "
    assert f"round {ROUNDS}, ρ = {SPENT} of 1 spent in {said}" in err
    assert f"{ROUNDS} at " in out and f"; ρ = {SPENT} of 1 spent in {CHARGES} charges" in out
    check_ended("run")
    summary = json.loads(Path("run/summary.json").read_text("utf-8"))
    assert (summary["rounds"], summary["charges"]) == (ROUNDS, CHARGES)
    assert summary["rounds_planned"] is summary["stopped_early"] is None
    assert summary["noise_multiplier"] is None
    last = json_lines.read(Path("run/rounds.jsonl"))[-1]
    assert summary["epsilon"] == last["epsilon"]
    assert summary["distance_public"] == last["distance_public"]
    told = json.loads(fedpriv("verify", "run", "--json")[0])
    said = next(check["text"] for check in told["checks"] if check["name"] == "charges")
    assert said == f"ρ = {SPENT} of 1 spent in {CHARGES} charges, {ROUNDS} released, 1 lost"


def test_its_report_shows_rho_over_rounds(fedpriv):
    fedpriv("run", NAME, "--out", "run", "--json")
    page = Path("run/report.html").read_text("utf-8")
    assert "ρ spent" in page and "planned total 1" in page and "adaptive" in page
    assert f"{ROUNDS} of {ROUNDS}" not in page
    assert f"<dt>Rounds</dt><dd>{ROUNDS}<small>none were planned<" in page
    x, y = rho_spent(read_run("run"))
    assert x == list(range(1, ROUNDS + 1))
    np.testing.assert_allclose(y, np.array(x) * (1 / 50 + 1 / 8))
    fedpriv("export", "run", "--to", "model")
    assert verify_run("run").ok
    compared = json.loads(fedpriv("compare", "run", "--json")[0])
    assert compared[0]["rounds_planned"] is None and compared[0]["rounds"] == ROUNDS


@pytest.mark.parametrize(
    "line", [2, 13, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 7, 12))]
)
def test_it_goes_on_after_a_kill(line, monkeypatch, fedpriv):
    killed_after(line, ("charge",), start("run"), monkeypatch)
    write_report("run")  # of a run under way
    fedpriv("run", NAME, "--resume", "run", "--json")
    found = check_ended("run", len(json_lines.read(Path("run/rounds.jsonl"))))
    # A lost attempt stays spent; the last charge may have been what the end would have refused.
    assert CHARGES <= found.num_charges <= CHARGES + 4 and kinds("run")[-2:] == ["end", "seal"]


def test_a_round_that_was_kept_and_not_written_down(monkeypatch):
    prepared = start("run")

    def killed(self, released, diagnostics):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "record", killed)
        with pytest.raises(Killed):
            prepared.run()
    assert resume_run(Path("run")).run()["charges"] == CHARGES
    check_ended("run")


def test_an_ended_run_that_is_resumed_is_charged_no_further():
    """Red before: the next round's gradient was charged again, at every resume."""
    start("run").run()
    before = Path("run/rounds.jsonl").read_bytes()
    for _ in range(2):
        summary = resume_run(Path("run")).run()
        assert (summary["charges"], charges("run")) == (CHARGES, CHARGES)
        assert summary["distance_public"] is not None
    assert Path("run/rounds.jsonl").read_bytes() == before
    assert kinds("run").count("end") == 1
    check_ended("run")


def test_a_run_that_was_killed_at_its_end_is_evaluated_when_it_is_resumed(monkeypatch):
    killed_after(1, ("end",), start("run"), monkeypatch)
    assert json_lines.read(Path("run/rounds.jsonl"))[-1]["distance_public"] is None
    shutil.copytree("run", "again")
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
    stated = [record.released.epsilon is not None for record in played]
    assert stated == [True] * 7
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


def test_an_algorithm_that_has_nothing_left_to_ask(fedpriv):
    """Of a fixed plan: the last round is evaluated, and why there are no more is said."""
    changed(
        "        asked = Query(params=state.params, mechanism=answered(5.0)",
        "        if state.round_num == 3:\n            return None\n"
        "        return state.after(door.ask(Query(params=state.params)).update)\n"
        "        asked = Query(params=state.params, mechanism=answered(5.0)",
    )
    source = Path("own_descent.py").read_text("utf-8")
    source = source.replace("replace(made, plan=plan, ", "replace(made, ")
    Path("own_descent.py").write_text(source, "utf-8")
    out, _ = fedpriv("run", NAME, "--out", "run")
    assert "the algorithm had nothing left to ask" in out
    lines = json_lines.read(Path("run/rounds.jsonl"))
    assert len(lines) == 3 and lines[-1]["distance_public"] is not None
    assert verify_run("run").ok and kinds("run")[-2:] == ["end", "seal"]
    summary = resume_run(Path("run")).run()
    assert (summary["stopped_early"], summary["charges"]) == ("nothing-left", 3)
