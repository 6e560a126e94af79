"""Callbacks: what they are told, what they are not, and that nothing they do changes a run."""

import json
import logging
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

import fedpriv as fp
from fedpriv import json_lines
from fedpriv.runs.callbacks import describe_run, numbers
from fedpriv.runs.prepared import start_run
from fedpriv.trackers import WandB, tracker_of
from tests.harness.kills import Killed, Stop
from tests.harness.refusals import refuses
from tests.harness.toy_users import toy_experiment
from tests.running.adaptive import descent


def experiment():
    return toy_experiment(eval_every=2)


class Recording(fp.Callback):
    def __init__(self, *, diagnostics=False):
        self.diagnostics, self.started, self.rows, self.ended = diagnostics, [], [], []

    def on_start(self, run):
        self.started.append(run)

    def on_round(self, released, round_num):
        assert released["round_num"] == round_num
        self.rows.append(released)

    def on_end(self, summary):
        self.ended.append(summary)


class TestToldOfARun:
    @pytest.mark.slow
    def test_the_rows_are_those_of_the_file_and_nothing_else(self, tmp_path):
        told = Recording()
        run = fp.run(experiment(), tmp_path / "run", callbacks=[told], progress=False)
        assert told.rows == json_lines.read(tmp_path / "run" / "rounds.jsonl")
        frame = run.rounds(every=True)
        for row in told.rows:
            shown = frame.loc[row["round_num"]]
            assert numbers(row) == {n: v for n, v in shown.items() if v == v}
        (begun,) = told.started
        assert begun.options == run.options and begun.mode == "simulation"
        assert begun.state.rounds_done == 0 and begun.guaranteed == run.epsilon
        described = describe_run(begun)
        assert (described["epsilon"], described["delta"]) == (run.epsilon.value, 0.01)
        assert described["options.bound.l2_clip_norm"] == 1.0
        assert json.loads(json.dumps(described)) == described
        (summary,) = told.ended
        assert summary["epsilon"] == run.epsilon.value and summary["rounds"] == 4
        # Figures of rostered users, seconds and cohort sizes are in the run's own summary.
        seen = {"accuracy", "seconds_per_round", "users_drawn", "users_failed", "run_dir"}
        assert seen < set(run.summary) and not seen & set(summary)

    @pytest.mark.slow
    def test_diagnostics_are_marked_and_for_those_who_ask(self, tmp_path):
        told, plain = Recording(diagnostics=True), Recording()
        run = fp.run(experiment(), tmp_path / "run", callbacks=[told, plain], progress=False)
        for row, released, diagnosed in zip(told.rows, plain.rows, run.diagnosed, strict=True):
            seen = {n: v for n, v in row.items() if n.startswith("diagnostics/")}
            assert seen["diagnostics/cohort_size"] == diagnosed["cohort_size"]
            assert seen["diagnostics/accuracy"] == diagnosed["accuracy"]
            assert {n: v for n, v in row.items() if n not in seen} == released
        assert told.ended[0]["diagnostics/users_failed"] == 0
        assert not any("diagnostics/" in name for name in plain.ended[0])

    @pytest.mark.slow
    def test_a_secure_run_is_told_what_is_released_alone(self, tmp_path):
        told = Recording()
        fp.run(experiment(), tmp_path / "run", callbacks=[told], progress=False, secure=True)
        assert told.rows == json_lines.read(tmp_path / "run" / "rounds.jsonl")
        assert told.started[0].mode == "secure"
        assert not any("seconds" in n or "drawn" in n for n in (*told.rows[0], *told.ended[0]))

    def test_a_secure_run_refuses_diagnostics_before_anything_is_written(self, tmp_path):
        asking = Recording(diagnostics=True)
        with refuses(ValueError, "Recording"):
            fp.run(experiment(), tmp_path / "run", callbacks=[asking], secure=True)
        assert not (tmp_path / "run").exists() and asking.started == []
        prepared = start_run(experiment(), None, None, tmp_path / "other", secure=True)
        with refuses(ValueError, "Recording"):
            prepared.with_callbacks([asking])
        prepared.folder.close()
        with refuses(ValueError, "Recording"):
            fp.resume(tmp_path / "other", experiment=experiment(), callbacks=[asking])

    def test_what_is_no_callback_is_refused(self):
        with refuses(ValueError, print):
            fp.run(experiment(), callbacks=[print])

    @pytest.mark.slow
    def test_a_resumed_run_tells_the_rounds_before_first(self, tmp_path):
        stopped, told = Recording(), Recording()
        with pytest.raises(Killed):
            fp.run(experiment(), tmp_path / "run", callbacks=[stopped, Stop(2)], progress=False)
        assert stopped.ended == [None] and len(stopped.rows) == 2
        given = {"experiment": experiment(), "callbacks": [told], "progress": False}
        again = fp.resume(tmp_path / "run", **given)
        assert told.started[0].state.rounds_done == 2
        assert told.rows == json_lines.read(tmp_path / "run" / "rounds.jsonl")
        assert [row["round_num"] for row in told.rows] == [1, 2, 3, 4]
        assert told.ended[0]["epsilon"] == again.epsilon.value

    def test_a_completed_last_line_is_told_again(self, tmp_path, monkeypatch):
        (tmp_path / "own_descent.py").write_text(descent.SOURCE, "utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        told = Recording()
        descent.start(tmp_path / "run").with_callbacks([told]).run()
        monkeypatch.delitem(sys.modules, "own_descent")
        lines = json_lines.read(tmp_path / "run" / "rounds.jsonl")
        by_round = {row["round_num"]: row for row in told.rows}
        assert list(by_round.values()) == lines and len(told.rows) == len(lines) + 1


class TestErrors:
    @pytest.mark.slow
    @pytest.mark.parametrize("method", ["on_start", "on_round", "on_end"])
    def test_an_error_is_logged_once_and_changes_nothing(self, method, tmp_path, caplog):
        def broken(self, *args):
            raise RuntimeError("the server is away")

        broken = type("Broken", (Recording,), {method: broken})()
        told = Recording()
        with caplog.at_level(logging.WARNING):
            run = fp.run(experiment(), tmp_path / "run", callbacks=[broken, told], progress=False)
        [warned] = [r.getMessage() for r in caplog.records if "Broken" in r.getMessage()]
        assert method in warned
        alone = fp.run(experiment(), progress=False)
        for name, array in alone.params.items():
            np.testing.assert_array_equal(array, run.params[name])
        assert [row["round_num"] for row in told.rows] == [1, 2, 3, 4] and told.ended[0]
        if method == "on_start":  # it never began
            assert broken.rows == [] and broken.ended == []

    @pytest.mark.slow
    def test_what_it_does_to_its_arguments_reaches_nobody(self, tmp_path):
        greedy, told = fp.Callback(), Recording()
        greedy.on_round = lambda released, round_num: released.clear()
        fp.run(experiment(), tmp_path / "run", callbacks=[greedy, told], progress=False)
        assert told.rows == json_lines.read(tmp_path / "run" / "rounds.jsonl")


@pytest.mark.parametrize("text", ["tensorboard", "tensorboard:", "neptune:x", ""])
def test_a_tracker_that_is_none_is_refused(text):
    with refuses(ValueError, repr(text)):
        tracker_of(text)


@pytest.mark.parametrize("package", ["tensorboard", "mlflow", "wandb"])
def test_a_package_that_is_missing_is_said_before_the_run(package, monkeypatch):
    monkeypatch.setattr("fedpriv.libraries.find_spec", lambda name: None)
    with refuses(ValueError, package, "fedpriv[trackers]"):
        tracker_of(f"{package}:somewhere")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["simulation", "secure"])
def test_wandb_is_sent_the_rows_of_a_secure_run_at_its_end(mode, monkeypatch, tmp_path):
    """It stamps what it is sent by its own clock: how long a round took would be seen."""
    sent, calls = [], []

    class Fake:
        summary = MagicMock()

        def log(self, row, step, commit):
            sent.append((step, {n: v for n, v in row.items() if n != "_timestamp"}))
            calls.append(("log", step))

        def finish(self, exit_code):
            calls.append(("finish", exit_code))

    wandb = SimpleNamespace(Settings=MagicMock(), init=lambda **given: Fake())
    monkeypatch.setattr("fedpriv.libraries.find_spec", lambda name: True)
    monkeypatch.setattr("fedpriv.trackers.library", lambda name: wandb)
    told = fp.Callback()
    told.on_round = lambda released, round_num: calls.append(("round", round_num))
    out = tmp_path / "run"
    tracked = [WandB("project"), told]
    fp.run(experiment(), out, callbacks=tracked, progress=False, secure=mode == "secure")
    lines = json_lines.read(out / "rounds.jsonl")
    assert sent == [(line["round_num"], numbers(line)) for line in lines]
    assert calls[-1] == ("finish", 0)
    if mode == "secure":
        assert calls[:4] == [("round", n) for n in range(1, 5)]
    else:
        assert calls[:2] == [("log", 1), ("round", 1)]
