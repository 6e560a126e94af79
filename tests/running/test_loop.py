"""The run: reproducible, paid for before it is drawn, and the same after a kill at any moment."""

import hashlib
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from fedpriv import json_lines
from fedpriv.backends import SerialBackend
from fedpriv.checkpoints.store import CheckpointStore, load_state
from fedpriv.experiments.build import build
from fedpriv.experiments.catalogue import load_experiment
from fedpriv.experiments.experiment import Experiment
from fedpriv.privacy import accounting
from fedpriv.privacy.ledger.ledger import BudgetSpentError, Ledger
from fedpriv.privacy.ledger.reading import read_ledger
from fedpriv.privacy.plans.cohort_plan import cohort_plan
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.rng import Key
from fedpriv.running.folder import RunFolder
from fedpriv.running.loop import accounted_rounds, rounds
from fedpriv.running.prepared import resume_run, start_run
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.local.module import ArrayExamples

ROOT = Path(__file__).parents[2]
NOISE = importlib.import_module("fedpriv.noise.gaussian")
OPTIONS = {
    "rounds": 6,
    "noise-multiplier": 1.0,
    "cohort": 6.0,
    "delta": 1e-3,
    "l2-clip-norm": 0.5,
    "eval-every": 2,
    "server-optimizer": "ema-momentum",
    "aggregate": "ema",
    "seed": 11,
}
RELEASED = {
    "round_num",
    "attempt",
    "epsilon",
    "delta",
    "accuracy_public",
    "recall_at_5_public",
    "update_norm",
}
DIAGNOSTIC = {
    "round_num",
    "attempt",
    "cohort_size",
    "num_failed",
    "accuracy",
    "recall_at_5",
    "loss",
    "seconds",
    "covered_by_epsilon",
}


def start(corpus, out, *, secure=False, make_backend=None, **options):
    changes = {**OPTIONS, **{name.replace("_", "-"): value for name, value in options.items()}}
    if changes.get("noise") == "none":
        del changes["noise-multiplier"]
    experiment = load_experiment("dp-fedavg-tags").with_options(changes)
    extra = {} if make_backend is None else {"make_backend": make_backend}
    return start_run(experiment, "dp-fedavg-tags", corpus, out, secure=secure, **extra)


def stopping(number, error=KeyboardInterrupt):
    """A backend that fails in its so-many-th round, after the cohort was drawn."""

    class Stopping(SerialBackend):
        calls = 0

        def partial_sum(self, **arguments):
            type(self).calls += 1
            if self.calls == number:
                raise error
            return super().partial_sum(**arguments)

    return lambda experiment, components: Stopping(
        trainer=components.trainer, data=components.task.data, measure=components.task.evaluate
    )


def ledger_state(folder):
    return read_ledger(folder / "ledger.jsonl")[1]


def pairs(lines):
    return [(line["round_num"], line["attempt"]) for line in lines]


def charged(folder):
    return [(charge.round_num, charge.attempt) for charge in ledger_state(folder).charges]


def tensors(folder, round_num):
    return CheckpointStore(folder / "checkpoints").load(round_num)[0]


def same_tensors(left, right):
    return set(left) == set(right) and all(np.array_equal(left[n], right[n]) for n in left)


class TestReproducible:
    def test_the_same_seed_gives_the_same_run_bit_for_bit(self, tiny_corpus, tmp_path):
        summaries = []
        for name in ("a", "b"):
            np.random.seed(len(name))
            summaries.append(start(tiny_corpus, tmp_path / name).run())
        for number in range(1, 7):
            assert same_tensors(tensors(tmp_path / "a", number), tensors(tmp_path / "b", number))
        for name in ("rounds", "diagnostics"):
            a, b = (json_lines.read(tmp_path / f / f"{name}.jsonl") for f in ("a", "b"))
            for line in a + b:
                line.pop("seconds", None)
            assert a == b and len(a) == 6
        own = {"run_dir", "seconds_per_round"}
        assert {k: v for k, v in summaries[0].items() if k not in own} == {
            k: v for k, v in summaries[1].items() if k not in own
        }
        other = start(tiny_corpus, tmp_path / "c", seed=12)
        other.run()
        assert not same_tensors(tensors(tmp_path / "a", 6), tensors(tmp_path / "c", 6))

    def test_a_run_verifies_though_not_every_round_is_accounted(self, tiny_corpus, tmp_path):
        start(tiny_corpus, tmp_path / "run").run()
        told = [line["epsilon"] for line in json_lines.read(tmp_path / "run" / "rounds.jsonl")]
        assert None in told and told[-1] is not None
        assert verify_run(tmp_path / "run").ok
        rounds_file = tmp_path / "run" / "rounds.jsonl"
        lines = [json.loads(line) for line in rounds_file.read_text().splitlines()]
        lines[-1]["epsilon"] = None  # the plan's last round has to say
        rounds_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert not verify_run(tmp_path / "run").ok

    @pytest.mark.parametrize("eval_every", [1, 2, 3, 7, 10, 2000])
    @pytest.mark.parametrize("num_rounds", [1, 6, 19, 100, 1000])
    def test_few_rounds_are_accounted_all_of_them_evaluated(self, num_rounds, eval_every):
        plan = cohort_plan(
            num_users=100,
            expected_cohort_size=10,
            num_rounds=num_rounds,
            bound="clip",
            l2_bound=1.0,
            noise="gaussian",
            noise_multiplier=1.0,
        )
        accounted = accounted_rounds(plan, eval_every)
        evaluated = {*range(eval_every, num_rounds + 1, eval_every), num_rounds}
        assert num_rounds in accounted <= evaluated and len(accounted) <= 21
        assert len(evaluated) > 20 or accounted == evaluated

    def test_the_loop_prices_nothing_that_was_not_accounted_before_it(self, tiny_corpus, tmp_path):
        accounting._epsilon.cache_clear()
        prepared = start(tiny_corpus, tmp_path / "run")
        misses = []
        prepared.run(on_round=lambda record: misses.append(accounting._epsilon.cache_info().misses))
        assert len(misses) == 6 and misses[0] == misses[-1] > 0

    def test_a_run_without_a_folder_is_the_same_run(self, tiny_corpus, tmp_path):
        prepared = start(tiny_corpus, tmp_path / "a")
        prepared.run()
        components = build(prepared.experiment, tiny_corpus)
        backend = SerialBackend(
            trainer=components.trainer, data=components.task.data, measure=components.task.evaluate
        )
        *_, (record, state) = rounds(components, backend, Key.simulation(11))
        found = tensors(tmp_path / "a", 6)
        for name, array in state.params.items():
            np.testing.assert_array_equal(found[name], array)
            np.testing.assert_array_equal(found[f"ema/{name}"], state.aggregate["average"][name])
        assert record.released.round_num == 6

    def test_secure_runs_share_nothing_and_keep_no_key(self, tiny_corpus, tmp_path, monkeypatch):
        made, secure = [], Key.secure
        monkeypatch.setattr(
            Key, "secure", classmethod(lambda cls: made.append(secure()) or made[-1])
        )
        for name in ("a", "b"):
            np.random.seed(0)
            summary = start(tiny_corpus, tmp_path / name, secure=True).run()
            assert summary["mode"] == "secure" == ledger_state(tmp_path / name).mode
        a, b = tensors(tmp_path / "a", 1), tensors(tmp_path / "b", 1)
        for name in a:
            assert len(np.intersect1d(a[name], b[name])) < 3
        assert len(made) == 2
        for key in made:
            for file in tmp_path.rglob("*"):
                if file.is_file():
                    content = file.read_bytes()
                    assert key.to_bytes() not in content
                    assert key.to_bytes().hex().encode() not in content


class TestWhatIsKept:
    def test_released_and_diagnostics_are_kept_apart(self, tiny_corpus, tmp_path):
        prepared = start(tiny_corpus, tmp_path / "run")
        seen = []
        summary = prepared.run(on_round=seen.append)
        released = json_lines.read(tmp_path / "run" / "rounds.jsonl")
        diagnostics = json_lines.read(tmp_path / "run" / "diagnostics.jsonl")
        assert [set(line) for line in released] == [RELEASED] * 6
        assert [set(line) for line in diagnostics] == [DIAGNOSTIC] * 6
        assert all(line["covered_by_epsilon"] is False for line in diagnostics)
        plan = prepared.components.plan
        assert [line["epsilon"] for line in released] == [
            None if i % 2 else plan.epsilon(i).value for i in range(1, 7)
        ]
        measured = [line["round_num"] for line in released if line["accuracy_public"] is not None]
        assert measured == [2, 4, 6]
        assert [record.released.round_num for record in seen] == [1, 2, 3, 4, 5, 6]
        assert summary["rounds"] == summary["charges"] == 6
        assert summary["epsilon"] == released[-1]["epsilon"] == plan.epsilon(6).value
        assert summary == json.loads((tmp_path / "run" / "summary.json").read_text())

    def test_in_secure_mode_there_are_no_diagnostics(self, tiny_corpus, tmp_path):
        summary = start(tiny_corpus, tmp_path / "run", secure=True).run()
        assert len(json_lines.read(tmp_path / "run" / "rounds.jsonl")) == 6
        assert not (tmp_path / "run" / "diagnostics.jsonl").exists()
        # What is measured on rostered users is a diagnostic too.
        assert summary["accuracy"] is summary["recall_at_5"] is None
        assert summary["majority_class_accuracy"] is None
        assert summary["accuracy_public"] is not None
        document = json.loads((tmp_path / "run" / "experiment.json").read_text())
        assert document["baseline"]["majority_class_accuracy"] is None

    @pytest.mark.parametrize("secure", [False, True])
    def test_no_file_names_a_user(self, tiny_corpus, tmp_path, secure):
        start(tiny_corpus, tmp_path / "run", secure=secure).run()
        files = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
        assert len(files) > 5
        for file in files:
            content = file.read_bytes()
            for user in tiny_corpus.view().roster:
                assert f'"{user}"'.encode() not in content, file

    def test_the_summary_of_a_run_without_privacy_has_no_epsilon(self, tiny_corpus, tmp_path):
        summary = start(tiny_corpus, tmp_path / "run", noise="none").run()
        assert summary["epsilon"] is summary["epsilon_rdp"] is None
        assert all(
            line["epsilon"] is None for line in json_lines.read(tmp_path / "run" / "rounds.jsonl")
        )
        text = (tmp_path / "run" / "summary.json").read_text()
        assert "Infinity" not in text and "NaN" not in text

    def test_a_task_without_classes_writes_json_without_nan(self, tmp_path):
        rng = np.random.default_rng(0)
        people = {
            f"u{i}": ArrayExamples(
                rng.normal(size=(4, 2)).astype(np.float32),
                rng.normal(size=(4, 1)).astype(np.float32),
            )
            for i in range(6)
        }
        experiment = Experiment(
            name="line",
            description="",
            rounds=2,
            noise_multiplier=1.0,
            cohort=3.0,
            delta=0.01,
            task=lambda experiment, corpus: ModuleTask(
                name="line",
                module=lambda: nn.Linear(2, 1),
                loss=nn.functional.mse_loss,
                users=people,
                test=people["u0"],
                public=people["u1"],
            ),
        )
        summary = start_run(experiment, "line", None, tmp_path / "run").run()
        assert "accuracy" not in summary and summary["mean_squared_error_public"] > 0
        assert json_lines.read(tmp_path / "run" / "diagnostics.jsonl")[-1]["loss"] > 0
        for file in (tmp_path / "run").glob("*.json*"):
            assert "NaN" not in file.read_text() and "Infinity" not in file.read_text()


class TestBudget:
    def test_a_run_stops_before_the_charge_that_would_exceed_it(self, tiny_corpus, tmp_path):
        rich = start(tiny_corpus, tmp_path / "rich").components.plan
        target = (rich.epsilon(4).value + rich.epsilon(5).value) / 2
        prepared = start(tiny_corpus, tmp_path / "run", target_epsilon=target, noise_multiplier=1.0)
        assert prepared.components.plan.affordable_rounds == 4
        summary = prepared.run()
        assert (summary["rounds"], summary["charges"]) == (4, 4)
        assert summary["epsilon"] == rich.epsilon(4).value <= target
        assert json_lines.read(tmp_path / "run" / "rounds.jsonl")[-1]["accuracy_public"] is not None
        before = {f: f.read_bytes() for f in (tmp_path / "run").rglob("*") if f.is_file()}
        with (
            Ledger.open(tmp_path / "run" / "ledger.jsonl") as ledger,
            pytest.raises(BudgetSpentError, match="target"),
        ):
            ledger.charge(5, 1)
        assert before == {f: f.read_bytes() for f in before}

    def test_resuming_a_finished_run_buys_nothing_more(self, tiny_corpus, tmp_path):
        first = start(tiny_corpus, tmp_path / "run").run()
        again = resume_run(tmp_path / "run").run()
        assert again == first
        assert charged(tmp_path / "run") == [(i, 1) for i in range(1, 7)]

    def test_lost_attempts_use_up_the_planned_charges(self, tiny_corpus, tmp_path):
        with pytest.raises(KeyboardInterrupt):
            start(tiny_corpus, tmp_path / "run", make_backend=stopping(3)).run()
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                resume_run(tmp_path / "run", make_backend=stopping(1)).run()
        prepared = resume_run(tmp_path / "run")
        summary = prepared.run()
        assert charged(tmp_path / "run") == [(1, 1), (2, 1), (3, 1), (3, 2), (3, 3), (3, 4)]
        assert (summary["rounds"], summary["charges"]) == (3, 6)
        lines = json_lines.read(tmp_path / "run" / "rounds.jsonl")
        assert pairs(lines) == [(1, 1), (2, 1), (3, 4)]
        plan = prepared.components.plan
        assert [line["epsilon"] for line in lines] == [
            None,
            plan.epsilon(2).value,
            plan.epsilon(6).value,
        ]
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
        real = NOISE.gaussian

        def spied(key, template, stddev):
            made = real(key, template, stddev)
            noise.append((key.to_bytes(), np.concatenate([made[n].ravel() for n in made])))
            return made

        class Spy(SerialBackend):
            def partial_sum(self, **arguments):
                drawn.append((arguments["cohort"], arguments["key"].to_bytes()))
                return super().partial_sum(**arguments)

        def backend(experiment, components):
            return Spy(
                trainer=components.trainer,
                data=components.task.data,
                measure=components.task.evaluate,
            )

        monkeypatch.setattr(NOISE, "gaussian", spied)
        monkeypatch.setattr("fedpriv.running.folder.RunFolder.keep", _dies_before(4))
        with pytest.raises(KeyboardInterrupt):
            start(tiny_corpus, tmp_path / "run", make_backend=backend).run()
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                resume_run(tmp_path / "run", make_backend=backend).run()
        resume_run(tmp_path / "run", make_backend=backend).run()
        assert charged(tmp_path / "run")[:5] == [(1, a) for a in range(1, 6)]
        assert len({key for key, _ in noise}) == len({key for _, key in drawn}) == 6
        assert len({cohort for cohort, _ in drawn[:5]}) == 5
        # All 15 pairs of 730 values: |r| above 0.25 once in 1e10 for each.
        correlation = np.corrcoef(np.stack([values for _, values in noise]))
        np.fill_diagonal(correlation, 0)
        assert np.abs(correlation).max() < 0.25


def _dies_before(number):
    """Dies with the noise drawn and nothing kept, the first so many times."""
    real, calls = RunFolder.keep, []

    def keep(self, state):
        calls.append(state.round_num)
        if len(calls) <= number:
            raise KeyboardInterrupt
        real(self, state)

    return keep


def interrupted(corpus, folder, after=4):
    with pytest.raises(KeyboardInterrupt):
        start(corpus, folder, make_backend=stopping(after)).run()
    return folder


class TestDamage:
    def test_torn_last_lines_are_cut_off(self, tiny_corpus, tmp_path):
        folder = interrupted(tiny_corpus, tmp_path / "run")
        for name, torn in (
            ("ledger", b'{"attempt":2,"ev'),
            ("rounds", b'{"round_num": 4, "at'),
            ("diagnostics", b'{"round'),
        ):
            with (folder / f"{name}.jsonl").open("ab") as file:
                file.write(torn)
        assert resume_run(folder).run()["rounds"] == 5
        assert pairs(json_lines.read(folder / "rounds.jsonl")) == [
            (1, 1),
            (2, 1),
            (3, 1),
            (4, 2),
            (5, 1),
        ]
        assert pairs(json_lines.read(folder / "diagnostics.jsonl")) == pairs(
            json_lines.read(folder / "rounds.jsonl")
        )
        assert len(charged(folder)) == 6

    def test_a_record_that_was_torn_away_is_written_again(self, tiny_corpus, tmp_path):
        folder = interrupted(tiny_corpus, tmp_path / "run")
        content = (folder / "rounds.jsonl").read_bytes()
        (folder / "rounds.jsonl").write_bytes(content[:-9])
        plan = resume_run(folder)
        epsilon = plan.components.plan.epsilon(3).value
        plan.run()
        lines = json_lines.read(folder / "rounds.jsonl")
        assert [line["round_num"] for line in lines] == [1, 2, 3, 4, 5]
        assert lines[2]["epsilon"] == epsilon and set(lines[2]) == RELEASED

    @pytest.mark.parametrize("change", ["drop", "swap", "edit", "repeat"])
    def test_an_edited_ledger_is_refused_and_nothing_is_drawn(self, tiny_corpus, tmp_path, change):
        folder = interrupted(tiny_corpus, tmp_path / "run")
        lines = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
        if change == "drop":
            del lines[1]
        elif change == "swap":
            lines[1], lines[2] = lines[2], lines[1]
        elif change == "edit":
            lines[0] = lines[0].replace(b'"noise_multiplier":1.0', b'"noise_multiplier":9.0')
        else:
            lines.insert(2, lines[1])
        (folder / "ledger.jsonl").write_bytes(b"".join(lines))
        before = {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()}
        with pytest.raises(ValueError, match="ledger"):
            resume_run(folder)
        assert before == {f: f.read_bytes() for f in before}

    @pytest.mark.parametrize("lines", [1, 3, 5])
    def test_an_older_ledger_is_refused(self, tiny_corpus, tmp_path, lines):
        folder = interrupted(tiny_corpus, tmp_path / "run")
        content = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
        (folder / "ledger.jsonl").write_bytes(b"".join(content[:lines]))
        with pytest.raises(ValueError, match="older than the state"):
            resume_run(folder)

    def test_another_runs_ledger_is_refused(self, tiny_corpus, tmp_path):
        folder = interrupted(tiny_corpus, tmp_path / "run")
        start(tiny_corpus, tmp_path / "other").run()
        (folder / "ledger.jsonl").write_bytes((tmp_path / "other" / "ledger.jsonl").read_bytes())
        with pytest.raises(ValueError, match="another"):
            resume_run(folder)

    def test_a_state_whose_checkpoint_is_gone_is_refused(self, tiny_corpus, tmp_path):
        folder = interrupted(tiny_corpus, tmp_path / "run")
        next(folder.glob("checkpoints/round-000003*")).unlink()
        charges = charged(folder)
        with pytest.raises(ValueError, match="no checkpoint of round 3"):
            resume_run(folder)
        assert charged(folder) == charges

    def test_a_released_state_that_is_gone_is_refused(self, tiny_corpus, tmp_path):
        folder = interrupted(tiny_corpus, tmp_path / "run")
        (folder / "state.safetensors").unlink()
        before = (folder / "ledger.jsonl").read_bytes()
        with pytest.raises(ValueError, match="is gone, but rounds were released"):
            resume_run(folder)
        assert (folder / "ledger.jsonl").read_bytes() == before

    @pytest.mark.parametrize("change", [{"mode": "secure"}, {"engine": "flower"}])
    def test_an_edited_document_is_refused(self, tiny_corpus, tmp_path, change):
        """A secure run must never go on as a seeded one, nor the other way round."""
        folder = interrupted(tiny_corpus, tmp_path / "run")
        document = json.loads((folder / "experiment.json").read_text("utf-8"))
        (folder / "experiment.json").write_text(json.dumps({**document, **change}))
        with pytest.raises(ValueError, match="not the one the run was started with"):
            resume_run(folder)

    def test_from_an_older_state_rounds_are_paid_and_drawn_anew(
        self, tiny_corpus, tmp_path, monkeypatch
    ):
        """As after a power cut, or a backup: nothing that was spent comes back."""
        keys = []
        real = NOISE.gaussian
        monkeypatch.setattr(
            NOISE, "gaussian", lambda key, *rest: keys.append(key.to_bytes()) or real(key, *rest)
        )
        folder = interrupted(tiny_corpus, tmp_path / "run", after=3)
        state = folder / "state.safetensors"
        old = state.read_bytes()
        with pytest.raises(KeyboardInterrupt):
            resume_run(folder, make_backend=stopping(2)).run()
        assert charged(folder) == [(1, 1), (2, 1), (3, 1), (3, 2), (4, 1)]
        state.write_bytes(old)
        prepared = resume_run(folder)
        summary = prepared.run()
        again = (3, 3)
        assert charged(folder) == [(1, 1), (2, 1), (3, 1), (3, 2), (4, 1), again]
        # Noise is drawn as soon as an attempt is paid for, so lost attempts have drawn theirs too.
        assert len(keys) == len(set(keys)) == 6
        assert summary["charges"] == 6 and summary["rounds"] == again[0]
        assert summary["epsilon"] == prepared.components.plan.epsilon(6).value

    def test_a_damaged_state_is_refused(self, tiny_corpus, tmp_path):
        folder = interrupted(tiny_corpus, tmp_path / "run")
        content = bytearray((folder / "state.safetensors").read_bytes())
        content[-1] ^= 1
        (folder / "state.safetensors").write_bytes(bytes(content))
        with pytest.raises(ValueError, match="damaged"):
            resume_run(folder)

    def test_changed_options_are_refused(self, tiny_corpus, tmp_path):
        folder = interrupted(tiny_corpus, tmp_path / "run")
        document = json.loads((folder / "experiment.json").read_text())
        document["experiment"]["noise-multiplier"] = 5.0
        (folder / "experiment.json").write_text(json.dumps(document))
        with pytest.raises(ValueError, match="plan"):
            resume_run(folder)
        document["plan"]["noise_multiplier"] = 5.0
        (folder / "experiment.json").write_text(json.dumps(document))
        with pytest.raises(ValueError, match="plan"):
            resume_run(folder)

    def test_folders_that_hold_a_run_or_none(self, tiny_corpus, tmp_path):
        start(tiny_corpus, tmp_path / "run").run()
        with pytest.raises(ValueError, match="--resume"):
            start(tiny_corpus, tmp_path / "run")
        with pytest.raises(ValueError, match="holds no run"):
            resume_run(tmp_path)
        with pytest.raises(ValueError, match="holds no run"):
            resume_run(tmp_path / "nowhere")
        (tmp_path / "odd").mkdir()
        (tmp_path / "odd" / "experiment.json").write_text('{"format": "other", "version": 1}')
        with pytest.raises(ValueError, match="other"):
            resume_run(tmp_path / "odd")

    def test_one_process_at_a_time(self, tiny_corpus, tmp_path):
        prepared = start(tiny_corpus, tmp_path / "run")
        with pytest.raises(ValueError, match="in use by another process"):
            resume_run(tmp_path / "run")
        prepared.run()


# Kills. One helper process imports everything once and forks a real process for each run, so that
# a kill costs milliseconds and not an import of torch. The forked process kills itself with
# SIGKILL at the so-many-th of the moments that matter (before, in the middle of and after every
# write, sync, rename and draw), or is killed from outside at a random one: after so many draws and
# a little more, however long they take. It does not end before it is killed, so nobody is too late.

CHILD = """
import builtins, hashlib, importlib, io, json, os, signal, sys, threading, time
from pathlib import Path
from fedpriv.data.corpus.corpus import Corpus
from fedpriv.backends import SerialBackend
from fedpriv.experiments.catalogue import load_experiment
from fedpriv.running.prepared import resume_run, start_run
from fedpriv.privacy.sampling import PoissonSampler

noise = importlib.import_module("fedpriv.noise.gaussian")
write, fsync, replace, unlink = os.write, os.fsync, os.replace, os.unlink
opened, gaussian, cohort = io.open, noise.gaussian, PoissonSampler.cohort
count, crash_at = 0, None


def tick():
    global count
    count += 1
    if count == crash_at:
        os.kill(os.getpid(), signal.SIGKILL)


def around(function):
    def call(*arguments, **named):
        tick()
        result = function(*arguments, **named)
        tick()
        return result
    return call


def note(log, kind, key, **more):
    digest = hashlib.sha256(key.to_bytes()).hexdigest()
    write(log, (json.dumps({"kind": kind, "key": digest, **more}) + "\\n").encode())


def work(order):
    global crash_at
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    folder = Path(order["folder"])

    class Slow(SerialBackend):
        def partial_sum(self, **arguments):
            note(log, "users", arguments["key"], cohort=arguments["cohort"],
                 pair=[arguments["round_num"], arguments["attempt"]])
            tick()
            return super().partial_sum(**arguments)

    def backend(experiment, components):
        return Slow(trainer=components.trainer, data=components.task.data,
                    measure=components.task.evaluate)

    def noisy(key, template, stddev):
        note(log, "noise", key)
        tick()
        return gaussian(key, template, stddev)

    def drawn(self, key, roster):
        note(log, "cohort", key)
        tick()
        return cohort(self, key, roster)

    def torn(descriptor, data):
        tick()
        if count + 1 == crash_at:
            write(descriptor, bytes(data)[: len(data) // 2])
        tick()
        done = write(descriptor, data)
        tick()
        return done

    def opening(file, mode="r", *arguments, **named):
        if "r" not in mode:
            tick()
        return opened(file, mode, *arguments, **named)

    noise.gaussian, PoissonSampler.cohort = noisy, drawn
    os.fsync, os.replace, os.unlink = map(around, (fsync, replace, unlink))
    os.write, io.open = torn, opening
    crash_at = order["crash_at"]
    if (folder / "experiment.json").exists():
        prepared = resume_run(folder, make_backend=backend)
    else:
        experiment = load_experiment("dp-fedavg-tags").with_options(order["options"])
        prepared = start_run(experiment, "dp-fedavg-tags", Corpus.open(order["corpus"]), folder,
                             make_backend=backend)
    prepared.run()
    crash_at = None
    opened(order["log"] + ".ticks", "w").write(str(count))
    while order["killed"]:
        time.sleep(1)


for line in sys.stdin:
    order = json.loads(line)
    if "warm" in order:  # what is loaded, compiled or computed once, such as the privacy loss
        experiment = load_experiment("dp-fedavg-tags").with_options(order["options"])
        prepared = start_run(experiment, "dp-fedavg-tags", Corpus.open(order["corpus"]),
                             Path(order["warm"]))
        prepared.run()
        for charges in range(min(experiment.rounds, 3) + 1):
            prepared.components.plan.epsilon(charges)
        assert threading.active_count() == 1  # a fork has no other thread
        print(json.dumps({"warm": True}), flush=True)
        continue
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(order)
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    print(json.dumps({"pid": child}), flush=True)
    if order["killed"]:
        sys.stdin.readline()
    print(json.dumps({"status": os.waitpid(child, 0)[1]}), flush=True)
"""


class Runner:
    """Runs one plan in forked processes and checks everything after each of their deaths."""

    def __init__(self, process, corpus, tmp_path, options):
        self.process, self.corpus, self.tmp = process, corpus, tmp_path
        self.options = {**OPTIONS, **options}
        experiment = load_experiment("dp-fedavg-tags").with_options(self.options)
        self.plan = build(experiment, corpus).plan
        self.root = Key.simulation(experiment.seed)
        self.order(warm=str(tmp_path / "warm"))
        assert self.answer() == {"warm": True}

    def order(self, **order):
        document = {"corpus": str(self.corpus.directory), "options": self.options, **order}
        self.send(json.dumps(document))

    def send(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        assert line, "the helper process died"
        return json.loads(line)

    def run(self, folder, *, crash_at=None, kill_after=None, jitter=0.0):
        """Run or resume; return whether the run came to its end (else it was killed).

        A kill from outside comes after so many more draws than before, and a jitter in seconds.
        """
        log, killed = Path(f"{folder}.log"), kill_after is not None
        before = self.draws(log)
        self.order(folder=str(folder), log=str(log), crash_at=crash_at, killed=killed)
        pid = self.answer()["pid"]
        try:
            if killed:
                self.wait_for_draws(pid, log, before + kill_after)
                time.sleep(jitter)
        finally:
            if killed:
                os.kill(pid, signal.SIGKILL)
                self.send("")  # it is not reaped before this, and so the id is its own
            status = self.answer()["status"]
        assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL, "it failed instead"
        assert not Path(f"/proc/{pid}").exists()
        return status == 0

    def wait_for_draws(self, pid, log, draws):
        until = time.monotonic() + 900  # a hang, and not a slow machine
        while self.draws(log) < draws and not Path(f"{log}.ticks").exists():
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            assert state != "Z" and time.monotonic() < until
            time.sleep(0.001)

    @staticmethod
    def draws(log):
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def digests(self, kind, charges):
        return {
            hashlib.sha256(self.root.fold(kind).fold(r).fold(a).to_bytes()).hexdigest()
            for r, a in charges
        }

    def check(self, folder):
        """After any death: every draw and every release was charged before it happened."""
        file = folder / "ledger.jsonl"
        log = Path(f"{folder}.log")
        drawn = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        charges = []
        if file.exists() and b"\n" in file.read_bytes():
            charges = charged(folder)
        for kind in ("cohort", "users", "noise"):
            keys = [entry["key"] for entry in drawn if entry["kind"] == kind]
            assert len(keys) == len(set(keys))  # nothing is ever drawn twice
            assert set(keys) <= self.digests(kind, charges)
        assert len(charges) == len(set(charges)) <= self.plan.num_rounds
        released = (
            [(r.round_num, r.attempt) for r in ledger_state(folder).releases] if charges else []
        )
        assert set(released) <= set(charges)
        lines = json_lines.read(folder / "rounds.jsonl")
        assert [line["round_num"] for line in lines] == list(range(1, len(lines) + 1))
        for line in lines:
            position = charges.index((line["round_num"], line["attempt"])) + 1
            assert line["epsilon"] in (None, self.plan.epsilon(position).value)
        on_disk = CheckpointStore(folder / "checkpoints").rounds()
        assert set(on_disk) <= {round_num for round_num, _ in charges}
        saved = folder / "state.safetensors"
        if saved.exists():
            metadata = load_state(saved)[1]
            assert (int(metadata["round_num"]), int(metadata["attempt"])) in charges

    def check_end(self, folder, kills):
        """After the end: at least T - k rounds are released, for no more than the plan."""
        self.check(folder)
        plan, charges = self.plan, charged(folder)
        past = ledger_state(folder)
        assert len(charges) == plan.num_rounds and len(past.lost) <= kills
        assert len(past.releases) == len(charges) - len(past.lost) >= plan.num_rounds - kills
        lines = json_lines.read(folder / "rounds.jsonl")
        assert pairs(lines) == [(r.round_num, r.attempt) for r in past.releases]
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["rounds"] == len(past.releases)
        assert summary["epsilon"] == plan.epsilon(plan.num_rounds).value
        assert past.epsilon().value <= plan.epsilon(plan.num_rounds).value * (1 + 1e-12)
        # Two attempts at a round, two cohorts.
        log = [json.loads(line) for line in Path(f"{folder}.log").read_text().splitlines()]
        sent = [
            (entry["pair"][0], tuple(entry["cohort"])) for entry in log if entry["kind"] == "users"
        ]
        assert len(sent) == len(set(sent))


def _cmdline(path):
    try:
        return path.read_bytes()
    except OSError:  # gone in the meantime
        return b""


@pytest.fixture(scope="module")
def helper(tmp_path_factory):
    """The process that forks; when it ends, nothing of it may be left."""
    mark = f"forks for {tmp_path_factory.mktemp('helper')}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    yield process
    process.stdin.close()
    assert process.wait(timeout=900) == 0
    process.stdout.close()
    assert [p for p in Path("/proc").glob("[0-9]*/cmdline") if mark.encode() in _cmdline(p)] == []


@pytest.fixture
def runner(helper, tiny_corpus, tmp_path, request):
    return Runner(helper, tiny_corpus, tmp_path, request.param)


TWO_ROUNDS = {"rounds": 2, "eval-every": 3}
THREE_ROUNDS = {"rounds": 3, "eval-every": 3}


@pytest.mark.parametrize("runner", [TWO_ROUNDS], indirect=True)
def test_a_kill_at_every_moment_of_a_run(runner):
    whole = runner.tmp / "whole"
    assert runner.run(whole)
    runner.check_end(whole, 0)
    moments = int(Path(f"{whole}.log.ticks").read_text())
    assert moments > 50
    lost = set()
    for moment in range(1, moments + 1):
        folder = runner.tmp / f"at-{moment}"
        assert not runner.run(folder, crash_at=moment)
        runner.check(folder)
        assert runner.run(folder)
        runner.check_end(folder, 1)
        lost.add(len(ledger_state(folder).lost))
    assert lost == {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize("runner", [THREE_ROUNDS], indirect=True)
def test_a_kill_at_every_moment_and_another_while_resuming(runner):
    assert runner.run(runner.tmp / "whole")
    moments = int((runner.tmp / "whole.log.ticks").read_text())
    choice = random.Random(0)
    for moment in range(1, moments + 1):
        folder = runner.tmp / f"at-{moment}"
        assert not runner.run(folder, crash_at=moment)
        runner.check(folder)
        kills = 1
        for _ in range(3):
            if runner.run(folder, crash_at=choice.randint(1, 40)):
                break
            kills += 1
            runner.check(folder)
        assert runner.run(folder)
        runner.check_end(folder, kills)


def kill_at_random(runner, kills):
    """SIGKILL from outside at random moments of a run that is resumed after each."""
    folder, choice = runner.tmp / "run", random.Random(kills)
    for _ in range(kills):
        # Up to 13 rounds of three draws each: `kills` times as many are fewer than the plan's.
        draws, jitter = choice.randint(1, 39), choice.uniform(0.0, 0.02)
        assert not runner.run(folder, kill_after=draws, jitter=jitter)
        runner.check(folder)
    assert runner.run(folder)
    runner.check_end(folder, kills)
    resumes = (folder / "ledger.jsonl").read_bytes().count(b'"kind":"resume"')
    assert 1 <= resumes <= kills


@pytest.mark.parametrize("runner", [{"rounds": 60, "eval-every": 50}], indirect=True)
def test_killed_at_random_moments_and_resumed(runner):
    kill_at_random(runner, 3)


@pytest.mark.slow
@pytest.mark.parametrize("runner", [{"rounds": 300, "eval-every": 200}], indirect=True)
def test_killed_at_twenty_random_moments_and_resumed(runner):
    kill_at_random(runner, 20)


@pytest.mark.slow
def test_the_command_itself_killed_and_resumed(tiny_corpus, tmp_path):
    """The real command in a real process, killed at random moments of its rounds."""
    code = "from fedpriv.cli import main; main()"
    folder = tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def command(*arguments):
        return subprocess.Popen(
            [sys.executable, "-c", code, "run", *arguments, "--json"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    first = [
        "dp-fedavg-tags",
        "--corpus",
        str(tiny_corpus.directory),
        "--out",
        str(folder),
        "--rounds",
        "400",
        "--noise-multiplier",
        "1.0",
        "--delta",
        "0.001",
        "--set",
        "l2-clip-norm=0.5",
        "--set",
        "roster=tiny-60",
    ]
    choice = random.Random(5)
    for kill in range(3):
        process = command(*first) if kill == 0 else command("--resume", str(folder))
        known = len(json_lines.read(folder / "rounds.jsonl"))
        deadline = time.monotonic() + 900  # a hang, and not a slow machine
        wanted = known + choice.randint(1, 20)
        while len(json_lines.read(folder / "rounds.jsonl")) <= wanted and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
        process.communicate()
        assert process.returncode in (0, -signal.SIGKILL)
        assert set(pairs(json_lines.read(folder / "rounds.jsonl"))) <= set(charged(folder))
    process = command("--resume", str(folder))
    out, _ = process.communicate(timeout=900)
    summary = json.loads(out)
    assert process.returncode == 0 and summary["charges"] == 400
    assert summary["rounds"] >= 397
    assert summary["rounds"] == len(json_lines.read(folder / "rounds.jsonl"))
