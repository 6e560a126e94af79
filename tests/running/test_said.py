"""What is said of a run while it goes and at its end: whose a figure is, and who failed."""

import itertools
import json
import re

import pytest

from fedpriv.api.result import load
from fedpriv.api.running import run
from fedpriv.runs import callbacks
from fedpriv.runs.callbacks import make_clock
from fedpriv.runs.prepared import start_run
from tests.harness.toy_users import person, toy_experiment


def partly_broken(out, **mode):
    """Run where the labels of three users are of classes that the model has not got."""
    users = {f"u{n:02d}": person(n) for n in range(12)}
    users |= {name: (x, y + 7) for name, (x, y) in list(users.items())[:3]}
    return start_run(toy_experiment({"users": users}), None, None, out, **mode).run()


@pytest.mark.slow
def test_failures_are_counted_with_the_first_cause(tmp_path):
    summary = partly_broken(tmp_path / "run")
    lines = (tmp_path / "run" / "diagnostics.jsonl").read_text().splitlines()
    rounds = [json.loads(line) for line in lines]
    failed, drawn = (sum(line[name] for line in rounds) for name in ("num_failed", "cohort_size"))
    assert 0 < failed < drawn / 2
    assert (summary["users_failed"], summary["users_drawn"]) == (failed, drawn)
    for line in rounds:
        assert ("IndexError: Target" in line.get("first_error", "")) == (line["num_failed"] > 0)
    said = " ".join(str(load(tmp_path / "run")).split())
    (failures,) = re.findall(rf"failures {failed} \(of {drawn} users drawn; ([^)]*)\)", said)
    assert "IndexError" in failures and "not covered by ε" in failures


@pytest.mark.slow
def test_a_secure_run_says_nothing_of_them(tmp_path):
    summary = partly_broken(tmp_path / "run", secure=True)
    for name in ("users_failed", "users_drawn", "first_failure", "rounds_mostly_failed"):
        assert summary[name] is None, name
    assert "  failures" not in str(load(tmp_path / "run"))
    assert not (tmp_path / "run" / "diagnostics.jsonl").exists()


@pytest.mark.slow
@pytest.mark.parametrize("diagnosed", [True, False])
def test_a_figure_of_rostered_users_is_marked_where_it_is_shown(tmp_path, capsys, diagnosed):
    test = {"test": person(1)} if diagnosed else {}
    done = run(toy_experiment(test), tmp_path / "run", progress=True)
    shown = capsys.readouterr().err
    [line] = [line for line in shown.splitlines() if "round 4 of 4" in line]
    assert ("% (not covered by ε)" in line) == diagnosed and "accuracy" in line
    # Nobody failed, and all that this ε misses is what no ε covers.
    assert done.summary["users_failed"] == 0 and done.summary["first_failure"] is None
    assert "  failures" not in str(done)
    assert done.summary["epsilon_does_not_cover"] == []
    assert "no ε covers" in str(done) and "What no ε covers" in str(done.statement)


@pytest.mark.parametrize(("mode", "times"), [("secure", 1), ("simulation", 3)])
def test_a_secure_runs_values_have_one_time(monkeypatch, mode, times):
    """How long rounds took depends on who was drawn."""
    ticks = itertools.count(100.0)
    monkeypatch.setattr(callbacks.time, "time", lambda: next(ticks))
    timer = make_clock(mode)
    assert len({timer() for _ in range(3)}) == times
