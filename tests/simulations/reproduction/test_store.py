"""The results file: nothing twice, nothing lost."""

from __future__ import annotations

import pytest
from tiny_tables import RATES, row, table

from simulations.reproduction import runs
from simulations.reproduction.runs import complete, pending, perform, read, tuning_runs


class TestComplete:
    def count(self, monkeypatch):
        performed = []

        def counted(run, device):
            performed.append(run.identity)
            return perform(run, device)

        monkeypatch.setattr(runs, "perform", counted)
        return performed

    def test_what_is_done_is_never_repeated(self, tmp_path, monkeypatch):
        performed, path = self.count(monkeypatch), tmp_path / "deep" / "r.jsonl"
        first = complete(tuning_runs(table(), reduced=False), path)
        assert len(performed) == 3 and len(path.read_text().splitlines()) == 3
        assert complete(tuning_runs(table(), reduced=False), path) == first
        assert len(performed) == 3

    def test_two_tables_share_what_they_have_in_common(self, tmp_path, monkeypatch):
        performed = self.count(monkeypatch)
        complete(tuning_runs(table(), reduced=False), tmp_path / "r")
        complete(
            tuning_runs(table(row("b", 0.1, RATES[1:]), name="other"), reduced=False),
            tmp_path / "r",
        )
        assert len(performed) == 3

    def test_killed_in_the_middle_it_goes_on(self, tmp_path, monkeypatch):
        path = tmp_path / "r"

        def killed(done, line):
            if done == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            complete(tuning_runs(table(), reduced=False), path, tell=killed)
        assert len(read(path)) == 2
        performed = self.count(monkeypatch)
        assert len(complete(tuning_runs(table(), reduced=False), path)) == 3
        assert len(performed) == 1

    def test_a_torn_last_line_is_done_again_and_harms_no_other(self, tmp_path, monkeypatch):
        path = tmp_path / "r"
        whole = complete(tuning_runs(table(), reduced=False), path)
        content = path.read_text("utf-8")
        path.write_text(content[: len(content) - 40], "utf-8")
        assert len(read(path)) == 2
        performed = self.count(monkeypatch)
        again = complete(tuning_runs(table(), reduced=False), path)
        assert len(performed) == 1 and set(again) == set(whole)
        # Written behind the torn piece, it must still be readable by the next command.
        assert set(read(path)) == set(whole)


def test_pending_is_what_is_not_done_each_once_in_order(tmp_path):
    runs = list(tuning_runs(table(), reduced=False))
    done = complete(runs[1:2], tmp_path / "r")
    assert pending([*runs, *runs], done) == [runs[0], runs[2]]
