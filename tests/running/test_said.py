"""What is said of a run while it goes and at its end: whose a figure is, and who failed."""

import json
import re
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedpriv.api.result import load
from fedpriv.api.running import run
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.runs.prepared import start_run
from fedpriv.tasks.module_task import ModuleTask


def person(number, classes=2):
    x = np.random.default_rng(number).normal(size=(6, 4))
    return x, (x[:, 0] > 0).astype(int) + (classes - 2)


def experiment(broken=0, **changes):
    """Of some users the targets are of classes that the model has not got."""
    users = {f"u{n:02d}": person(n, 9 if n < broken else 2) for n in range(12)}

    def task(experiment):
        return ModuleTask(
            name="t",
            module=lambda: nn.Linear(4, 2),
            loss=nn.functional.cross_entropy,
            users=users,
            **{"public": person(99), "synthetic": True, **changes},
        )

    return FederatedExperiment(name="own", description="", task=task, rounds=4).with_options(
        {"cohort": 6.0, "noise_multiplier": 1.0}
    )


class TestFailures:
    @pytest.mark.slow
    def test_some_are_counted_with_the_first_cause(self, tmp_path, capsys):
        """Red before: fewer than half of a cohort failed, and nothing was said at the end."""
        prepared = start_run(experiment(broken=3), None, None, tmp_path / "run")
        summary = prepared.run()
        lines = (tmp_path / "run" / "diagnostics.jsonl").read_text().splitlines()
        rounds = [json.loads(line) for line in lines]
        failed, drawn = (
            sum(line[name] for line in rounds) for name in ("num_failed", "cohort_size")
        )
        assert 0 < failed < drawn / 2
        assert (summary["users_failed"], summary["users_drawn"]) == (failed, drawn)
        said = " ".join(str(load(tmp_path / "run")).split())
        found = re.search(rf"failures {failed} \(of {drawn} users drawn; ([^)]*)\)", said)
        assert found and "IndexError" in found[1] and "not covered by ε" in found[1]

    @pytest.mark.slow
    def test_none_are_not_mentioned(self, tmp_path):
        done = run(experiment(), tmp_path / "run", progress=False)
        assert done.summary["users_failed"] == 0 and done.summary["first_failure"] is None
        assert "  failures" not in str(done)

    @pytest.mark.slow
    def test_a_secure_run_says_nothing_of_it(self, tmp_path):
        summary = start_run(experiment(broken=3), None, None, tmp_path / "run", secure=True).run()
        for name in ("users_failed", "users_drawn", "first_failure", "rounds_mostly_failed"):
            assert summary[name] is None, name
        assert "  failures" not in str(load(tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("diagnosed", [True, False])
def test_a_figure_of_rostered_users_is_marked_where_it_is_shown(tmp_path, capsys, diagnosed):
    """Red before: it looked like the released one."""
    test: dict[str, Any] = {"test": person(1)} if diagnosed else {}
    done = run(experiment(**test), tmp_path / "run", progress=True)
    shown = capsys.readouterr().err
    [line] = [line for line in shown.splitlines() if "round 4 of 4" in line]
    assert ("% (not covered by ε)" in line) == diagnosed and "accuracy" in line
    assert "measured on public examples; released" in str(done)
    assert "0 public" not in str(done)


@pytest.mark.slow
def test_json_and_print_agree_on_what_this_epsilon_misses(tmp_path):
    """Red before: JSON had nothing, and the text below "not covered" three paragraphs."""
    done = run(experiment(), tmp_path / "run", progress=False)
    assert done.summary["epsilon_does_not_cover"] == []
    assert "not covered" not in str(done) and "no ε covers" in str(done)
    assert "What no ε covers" in str(done.statement)
