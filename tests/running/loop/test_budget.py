"""A run is paid for before it is drawn: budgets, lost attempts, new attempts."""

import numpy as np
import pytest

from fedpriv import json_lines
from fedpriv.backends import SerialBackend
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.state import BudgetSpentError
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.prepared import resume_run
from tests.harness.kills import killed
from tests.harness.tag_runs import (
    NOISE,
    charged,
    interrupted,
    ledger_state,
    pairs,
    start,
    stopping,
    unchanged,
)


class TestBudget:
    def test_a_run_stops_before_the_charge_that_would_exceed_it(self, tiny_corpus, tmp_path):
        folder = tmp_path / "run"
        rich = start(tiny_corpus, tmp_path / "rich").components.plan
        target = (rich.epsilon(4).value + rich.epsilon(5).value) / 2
        prepared = start(tiny_corpus, folder, target_epsilon=target, noise_multiplier=1.0)
        assert prepared.components.plan.affordable_rounds == 4
        summary = prepared.run()
        assert (summary["rounds"], summary["charges"]) == (4, 4)
        assert summary["epsilon"] == rich.epsilon(4).value <= target
        assert json_lines.read(folder / "rounds.jsonl")[-1]["accuracy_public"] is not None
        with (
            Ledger.open(folder / "ledger.jsonl") as ledger,
            unchanged(folder),
            pytest.raises(BudgetSpentError),
        ):
            ledger.charge(5, 1)

    def test_resuming_a_finished_run_buys_nothing_more(self, tiny_corpus, tmp_path):
        first = start(tiny_corpus, tmp_path / "run").run()
        assert resume_run(tmp_path / "run").run() == first
        assert charged(tmp_path / "run") == [(i, 1) for i in range(1, 7)]

    def test_lost_attempts_use_up_the_planned_charges(self, tiny_corpus, tmp_path):
        folder = interrupted(tiny_corpus, tmp_path / "run", 3)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                resume_run(folder, make_backend=stopping(1)).run()
        prepared = resume_run(folder)
        summary = prepared.run()
        assert charged(folder) == [(1, 1), (2, 1), (3, 1), (3, 2), (3, 3), (3, 4)]
        assert (summary["rounds"], summary["charges"]) == (3, 6)
        lines = json_lines.read(folder / "rounds.jsonl")
        assert pairs(lines) == [(1, 1), (2, 1), (3, 4)]
        plan = prepared.components.plan
        assert [line["epsilon"] for line in lines] == [plan.epsilon(n).value for n in (1, 2, 6)]
        assert summary["epsilon"] == plan.epsilon(plan.num_rounds).value

    @pytest.mark.parametrize("error", [RuntimeError, MemoryError, SystemExit])
    def test_a_backend_that_fails_spends_the_attempt_and_frees_the_ledger(
        self, tiny_corpus, tmp_path, error
    ):
        with pytest.raises(error):
            start(tiny_corpus, tmp_path / "run", make_backend=stopping(2, error)).run()
        assert charged(tmp_path / "run") == [(1, 1), (2, 1)]
        assert len(ledger_state(tmp_path / "run").lost) == 1
        assert resume_run(tmp_path / "run").run()["rounds"] == 5


class TestRedo:
    def test_a_new_attempt_has_a_new_cohort_new_noise_and_new_user_keys(
        self, tiny_corpus, tmp_path, monkeypatch
    ):
        noise, drawn = [], []
        gaussian, sums = NOISE.gaussian, SerialBackend.sum

        def spied(key, template, stddev):
            made = gaussian(key, template, stddev)
            noise.append((key.to_bytes(), np.concatenate([made[n].ravel() for n in made])))
            return made

        def spy(self, request, attempt, cohort):
            drawn.append((cohort, attempt.key.to_bytes()))
            return sums(self, request, attempt, cohort)

        def run(prepared):
            """Run; before that a step is rehearsed on synthetic users, whose noise is no run's."""
            with monkeypatch.context() as patched:
                patched.setattr(NOISE, "gaussian", spied)
                prepared.run()

        monkeypatch.setattr(SerialBackend, "sum", spy)
        monkeypatch.setattr(SerialBackend, "trains_again", False)  # one sum an attempt
        prepared = start(tiny_corpus, tmp_path / "run")
        for _ in range(4):  # it dies with the noise drawn and nothing kept
            with killed(RunFolder, "keep"):
                run(prepared)
            prepared = resume_run(tmp_path / "run")
        run(prepared)
        assert charged(tmp_path / "run")[:5] == [(1, a) for a in range(1, 6)]
        assert len({key for key, _ in noise}) == len({key for _, key in drawn}) == 6
        assert len({cohort for cohort, _ in drawn[:5]}) == 5
        # All 15 pairs of 730 values: |r| above 0.25 once in 1e10 for each.
        correlation = np.corrcoef(np.stack([values for _, values in noise]))
        np.fill_diagonal(correlation, 0)
        assert np.abs(correlation).max() < 0.25
