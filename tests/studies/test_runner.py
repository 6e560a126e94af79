"""Studies that are run: each trial once, whatever fails, is killed or is added."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
import torch

import fedpriv as fp
from fedpriv import json_lines
from fedpriv.checkpoints.tensor_files import BY_USER, read_tensors
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.report.export import released_params
from fedpriv.report.run_record import read_run
from fedpriv.studies import executors
from fedpriv.studies.page import render_page
from fedpriv.studies.record import read_study
from fedpriv.studies.runner import composed, run_study
from fedpriv.studies.search import Search
from fedpriv.studies.study import Resolver, Study
from tests.harness.kills import ROOT
from tests.harness.other_components import with_components
from tests.harness.refusals import refuses
from tests.harness.waiting import wait_until
from tests.studies.small import broken, deadly, small, study, task


def bits(out):
    """The returned model and the sums by user of every finished trial, as bytes by name."""
    found = {}
    for trial in read_study(out).trials:
        if trial.failure is None:
            params = released_params(trial.run)[1]
            arrays = {**params, **{f"by_user/{n}": a for n, a in by_user(trial).items()}}
            found[trial.key] = {name: array.tobytes() for name, array in arrays.items()}
    return found


def by_user(trial):
    return read_tensors(trial.run.folder / BY_USER)[0]


def mtimes(out):
    return {
        path.relative_to(out).as_posix(): path.stat().st_mtime_ns
        for path in (out / "trials").rglob("*")
    }


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished study of four trials, run one after the other; nobody changes its folder."""
    out = tmp_path_factory.mktemp("study") / "small"
    run_study(study(), out, workers=1)
    return out


@pytest.fixture
def copy(done, tmp_path):
    return shutil.copytree(done, tmp_path / "copy")


class TestTrials:
    @pytest.mark.slow
    def test_every_combination_is_a_run_folder_with_its_record(self, done):
        found = read_study(done)
        assert [(t.epsilon, t.seed) for t in found.trials] == [
            (2.0, 0), (None, 0), (2.0, 1), (None, 1)
        ]  # fmt: skip
        for trial in found.trials:
            assert trial.run.finished and trial.failure is None and trial.seconds > 0
            assert trial.run.options["seed"] == trial.seed and trial.run.label == "small"
            assert verify_run(trial.run.folder).ok
            spent = trial.run.summary["epsilon"]
            assert (spent is None) if trial.epsilon is None else (1.9 < spent <= 2.0)
            [kept] = (trial.run.folder / "checkpoints").iterdir()
            assert kept.name == "round-000011.safetensors"
        rows = json_lines.read(done / "trials.jsonl")
        assert [row["key"] for row in rows] == [trial.key for trial in found.trials]
        assert found.document["methods"]["small"]["experiment"] == "small"
        assert "ε of all runs together" in found.document["privacy"][0]
        assert json.loads((done / "study.json").read_text("utf-8"))["format"] == "fedpriv-study"

    @pytest.mark.slow
    def test_what_ended_is_not_run_again_and_what_is_new_or_gone_is(self, copy):
        before, lines = mtimes(copy), (copy / "trials.jsonl").read_bytes()
        run_study(study(), copy, workers=1)
        assert mtimes(copy) == before and (copy / "trials.jsonl").read_bytes() == lines
        wider = replace(study(), name="wider", epsilons=[2.0], seeds=3)
        found = run_study(wider, copy, workers=1)
        after = mtimes(copy)
        assert all(after[name] == at for name, at in before.items() if "/" in name)
        assert len(found.trials) == 3 and found.document["name"] == "wider"
        assert (copy / "trials.jsonl").read_bytes().startswith(lines)
        assert len(json_lines.read(copy / "trials.jsonl")) == 5
        # Its line alone does not say that it ended: a table would lack its seed unsaid.
        shutil.rmtree(copy / "trials" / found.trials[0].key)
        found = run_study(wider, copy, workers=1)
        assert found.trials[0].run.finished and len(json_lines.read(copy / "trials.jsonl")) == 6

    @pytest.mark.slow
    def test_trials_of_an_earlier_version_that_stayed_are_counted_and_named(self, done, copy):
        lines = (copy / "trials.jsonl").read_text("utf-8").splitlines(keepends=True)
        # One was killed, and the file changed before it was gone on with.
        (copy / "trials.jsonl").write_text("".join(lines[:2] + lines[3:]), "utf-8")
        found = run_study(replace(study(), options={"rounds": 2}), copy, workers=1)
        before = {trial.key for trial in read_study(done).trials}
        assert len(found.trials) == len(found.earlier) == 4
        assert {trial.key for trial in found.earlier} == before
        shown, earlier = found.document["privacy"][:2]
        assert "2 private runs" in shown
        assert "2 more private runs" in earlier and "small, ε 2, seeds 0, 1" in earlier
        assert "4 earlier trials" in render_page(found)[0] and earlier in unescape(
            render_page(found)[0]
        )
        again = run_study(study(), copy, workers=1)  # the first version again: now the other is it
        assert {trial.key for trial in again.trials} == before
        assert len(again.earlier) == 4 and "rounds" in str(again.earlier[0].run.options)

    def test_a_trial_in_this_process_has_one_thread(self, tmp_path, monkeypatch):
        """As in a worker, so that bits do not depend on how many there are."""
        threads, before = [], torch.get_num_threads()
        torch.set_num_threads(3)
        try:

            def performed(*_):
                threads.append(torch.get_num_threads())
                return None, "said so"

            monkeypatch.setattr(executors, "_performed", performed)
            made = Study(name="s", methods={"good": small()}, epsilons=[None], seeds=1)
            run_study(made, tmp_path / "out", workers=1)
            assert threads == [1] and torch.get_num_threads() == 3
        finally:
            torch.set_num_threads(before)

    @pytest.mark.slow
    def test_bits_do_not_depend_on_workers(self, done, tmp_path):
        run_study(study(), tmp_path / "two", workers=2)
        assert bits(tmp_path / "two") == bits(done) and len(bits(done)) == 4


class TestFailures:
    @pytest.mark.slow
    @pytest.mark.parametrize("workers", [1, 2])
    def test_a_trial_that_raises_is_a_row_and_others_go_on(self, tmp_path, workers):
        methods = {"good": small(), "bad": broken()}
        made = Study(name="s", methods=methods, epsilons=[None], seeds=2)
        found = run_study(made, tmp_path / "out", workers=workers)
        failed = [trial for trial in found.trials if trial.failure is not None]
        assert [(t.method, t.seed) for t in failed] == [("bad", 1)]
        assert "KeyError: 'no data here'" in failed[0].failure and "\n" not in failed[0].failure
        assert failed[0].run is None and failed[0].seconds is None
        assert sum(trial.run is not None for trial in found.trials) == 3
        lines = (tmp_path / "out" / "trials.jsonl").read_bytes()
        run_study(made, tmp_path / "out", workers=workers)  # not tried again by itself
        assert (tmp_path / "out" / "trials.jsonl").read_bytes() == lines
        run_study(made, tmp_path / "out", workers=workers, retry_failed=True)
        assert len(json_lines.read(tmp_path / "out" / "trials.jsonl")) == 5

    @pytest.mark.slow
    def test_a_process_that_dies_costs_its_own_trial_alone(self, tmp_path):
        made = Study(name="s", methods={"deadly": deadly()}, epsilons=[None], seeds=4)
        found = run_study(made, tmp_path / "out", workers=2)
        reasons = {trial.seed: trial.failure for trial in found.trials}
        assert "SIGKILL" in reasons.pop(1)
        assert set(reasons.values()) == {None}

    @pytest.mark.slow
    def test_a_run_whose_noise_is_not_calibrated_is_refused(self, tmp_path):
        def weaker(components):
            plan = components.plan.calibrated(3.0)
            return replace(components, plan=plan)

        made = Study(name="s", methods={"x": with_components(small(), weaker)}, epsilons=[2.0])
        [trial] = run_study(made, tmp_path / "out", workers=1).trials
        assert trial.failure and "ε 2 " in trial.failure

    @pytest.mark.slow
    def test_two_commands_on_one_folder_are_refused(self, tmp_path, monkeypatch):
        out = tmp_path / "out"
        out.mkdir()
        monkeypatch.setattr("fedpriv.studies.record._LOCK_SECONDS", 0.1)
        with (out / ".lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with refuses(ValueError, out):
                run_study(study(), out, workers=1)

    @pytest.mark.slow
    def test_a_study_killed_while_its_first_file_was_written_goes_on(self, tmp_path):
        for left in (".lock", ".study.json.part"):
            (tmp_path / left).touch()
        assert len(run_study(study(), tmp_path, workers=1).trials) == 4

    @pytest.mark.slow
    def test_a_folder_of_something_else_is_left_alone(self, tmp_path):
        (tmp_path / "note.txt").write_text("mine", "utf-8")
        with refuses(ValueError, tmp_path):
            run_study(study(), tmp_path)
        with refuses(ValueError, 2, "'cpu'"):
            run_study(study(), tmp_path / "x", device="cpu", workers=2)
        with refuses(ValueError, "path.py:function"):
            run_study(study(), tmp_path / "x", backend="ray")


def command(out, log, *options, **environment):
    """Start `fedpriv study` in a process, which writes to a log."""
    with log.open("w") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "fedpriv", "study", *options, "--out", str(out)],
            cwd=ROOT,
            env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=said,
        )


@pytest.mark.slow
def test_a_study_that_was_killed_goes_on_to_the_same_bits(tmp_path):
    """SIGKILL while a trial is in the middle of a round, some have ended and some not begun."""
    folder, out, whole = tmp_path / "stuck", tmp_path / "killed", tmp_path / "whole"
    folder.mkdir()

    def begun(out, workers):
        options = ("tests.studies.small:stuck_study", "--workers", str(workers))
        return command(out, folder / "log", *options, STUCK_IN=str(folder))

    (folder / "wait").touch()
    first = begun(out, 2)
    wait_until(
        lambda: (folder / "waiting").exists() and len(json_lines.read(out / "trials.jsonl")) >= 2,
        lambda: first.poll() is None,
    )
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    ended = json_lines.read(out / "trials.jsonl")
    assert 2 <= len(ended) < 6
    (folder / "wait").unlink()
    before = {
        row["key"]: {n: t for n, t in mtimes(out).items() if row["key"] in n} for row in ended
    }
    second = begun(out, 2)
    assert second.wait() == 0, (folder / "log").read_text("utf-8")
    third = begun(whole, 1)
    assert third.wait() == 0, (folder / "log").read_text("utf-8")
    rows = json_lines.read(out / "trials.jsonl")
    assert rows[: len(ended)] == ended and len({row["key"] for row in rows}) == len(rows) == 6
    for key, files in before.items():  # nothing of them was touched
        assert {n: t for n, t in mtimes(out).items() if key in n} == files
    found, expected = bits(out), bits(whole)
    assert found.keys() == expected.keys()
    for trial in read_study(out).trials:
        state = trial.run.state
        lost = len(state.charges) - len(state.releases)
        if lost:  # by the rules of a resumed run: charged, and made anew by other noise
            assert trial.seed == 1 and found[trial.key] != expected[trial.key]
        else:
            assert found[trial.key] == expected[trial.key]
        assert verify_run(trial.run.folder).ok


PRIVATE = {"private": True, "sampler": None, "mean": 4.0}


class TestSearch:
    def searched(self, **changes):
        given = {"space": {"local.learning_rate": [0.05, 0.5]}, "sampler": "grid"} | changes
        return replace(study(), epsilons=[2.0], search=Search(**given))

    @pytest.mark.slow
    def test_a_grid_is_run_and_its_best_is_what_the_table_has(self, tmp_path):
        out = tmp_path / "out"
        found = run_study(self.searched(compose=True), out, workers=1)
        tried = found.document["searched"]
        assert [one["options"] for one in tried] == [
            {"local.learning_rate": 0.05}, {"local.learning_rate": 0.5}
        ]  # fmt: skip
        for one in tried:
            run = read_run(out / "trials" / one["key"])
            assert one["score"] == run.summary["accuracy_public"]
        best = max(tried, key=lambda one: one["score"])["options"]["local.learning_rate"]
        assert [t.run.options["local.learning_rate"] for t in found.trials] == [best, best]
        said = " ".join(found.document["privacy"])
        assert "does not cover the choice" in said and "3 private runs" in said
        lines = (out / "trials.jsonl").read_bytes()
        assert run_study(self.searched(compose=True), out, workers=1).document == found.document
        assert (out / "trials.jsonl").read_bytes() == lines  # nothing was run again

    @pytest.mark.slow
    def test_composed_are_the_earlier_ones_on_the_same_users_too(self, tmp_path):
        out = tmp_path / "out"
        run_study(replace(study(), epsilons=[2.0], seeds=1), out, workers=1)
        wider = self.searched(compose=True, space={"local.learning_rate": [0.05]})
        found = run_study(replace(wider, seeds=1), out, workers=1)
        runs = [found.trials[0].run, found.earlier[0].run]
        assert str(composed(runs)) in found.document["privacy"][-1]
        one, both = composed(runs[:1]).value, composed(runs).value
        assert one == pytest.approx(runs[0].summary["epsilon"], rel=1e-6)
        assert 1.2 * one < both < 2.0 * one + 1e-9

    @pytest.mark.slow
    def test_what_is_measured_on_those_whom_epsilon_protects_is_refused(self, tmp_path):
        for score in ("accuracy", "f1"):
            with refuses(ValueError, f"'{score}'"):
                run_study(self.searched(score=score), tmp_path / score, workers=1)
            assert not list((tmp_path / score).glob("trials/*"))

    @pytest.mark.parametrize(
        ("given", "named"),
        [
            ({"space": {}}, ["{}"]),
            ({"space": {"seed": [1]}}, []),
            ({"space": {"rounds": "3"}}, ["rounds", "'3'"]),
            ({"space": {"rounds": {"low": 1}}}, ["rounds", "{'low': 1}"]),
            ({"sampler": "tpe"}, []),
            ({"mean": 4.0}, [4]),
            ({**PRIVATE, "mean": None}, []),
            ({**PRIVATE, "sampler": "tpe"}, ["'tpe'"]),
            ({**PRIVATE, "trials": 3}, [3]),
            ({**PRIVATE, "compose": True}, []),
            ({**PRIVATE, "space": {"rounds": {"low": 1, "high": 3}}}, ["rounds"]),
        ],
    )
    def test_what_does_not_fit_is_said(self, given, named):
        with refuses(ValueError, *named):
            self.searched(**given)

    def test_a_private_search_has_no_table(self, tmp_path):
        with refuses(ValueError, "fedpriv.study"):
            run_study(self.searched(**PRIVATE), tmp_path / "out")

    def test_optuna_is_asked_for_clearly_where_it_is_missing(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "optuna", None)
        given = self.searched(sampler="tpe", trials=2)
        with refuses(ValueError, "optuna", "fedpriv[studies]"):
            run_study(given, tmp_path / "out", workers=1)

    @pytest.mark.parametrize("sampler", ["tpe", "random", "qmc"])
    def test_samplers_of_optuna_are_gone_through_again_alike(self, tmp_path, sampler):
        pytest.importorskip("optuna")
        rates = {"low": 0.01, "high": 1.0, "log": True}
        space = {"local.learning_rate": rates, "rounds": [2, 3]}
        made = self.searched(sampler=sampler, trials=3, space=space)
        found = run_study(made, tmp_path / "out", workers=1)
        tried = found.document["searched"]
        assert len({one["key"] for one in tried}) == 3
        assert run_study(made, tmp_path / "out", workers=2).document == found.document
        assert len(json_lines.read(tmp_path / "out" / "trials.jsonl")) <= 5


def test_equal_trials_of_two_labels_have_one_key(tiny_corpus):
    """Of the product's own tasks: other code is told by the name that a study gives it."""
    methods = {"a": "adadps-tags", "b": "adadps-tags"}
    data = {"tiny": {"corpus": str(tiny_corpus.directory)}}
    made = Study(name="s", methods=methods, epsilons=[8.0], data=data)
    assert len({trial.key for trial in Resolver(made).trials()}) == 1
    apart = Study(name="s", methods={"a": small(), "b": small()}, epsilons=[None])
    assert len({trial.key for trial in Resolver(apart).trials()}) == 2


@pytest.mark.ray
@pytest.mark.slow
def test_tasks_of_ray_give_the_same_bits(done, tmp_path):
    """In a process of its own: Ray may run in this one already."""
    options = ("tests.studies.small:study", "--backend", "ray", "--workers", "2")
    ended = command(tmp_path / "out", tmp_path / "log", *options)
    assert ended.wait() == 0, (tmp_path / "log").read_text("utf-8")
    assert bits(tmp_path / "out") == bits(done)


@pytest.mark.slow
def test_what_public_examples_made_is_kept_for_the_next_method_and_changes_no_bits(
    tiny_corpus, tmp_path
):
    options = {"rounds": 2, "cohort": 6.0, "task.users": 8}
    made = Study(
        name="s",
        methods={"first": "fedavg-tags", "second": "dp-fedavg-tags"},
        epsilons=[8.0],
        data={"tiny": {"corpus": str(tiny_corpus.directory)}},
        options=options,
    )
    found = run_study(made, tmp_path / "out", workers=1)
    given = {"corpus": tiny_corpus.directory, "progress": False, "target_epsilon": 8.0, **options}
    alone = fp.run("dp-fedavg-tags", tmp_path / "alone", **given)
    params = released_params(found.trials[1].run)[1]
    for name, array in alone.params.items():
        np.testing.assert_array_equal(params[name], array)
    for name in ("accuracy_public_only", "gain"):
        assert found.trials[1].run.summary[name] == alone.summary[name]
    count, public = (by_user(found.trials[1])[n] for n in ("count", "public_value"))
    assert public.sum() / count.sum() == pytest.approx(alone.summary["accuracy_public_only"])


@pytest.mark.slow
def test_page_and_data_frames_show_the_runs(copy):
    found = fp.study(study(), copy, workers=1, progress=False)
    text = found.page.read_text("utf-8")
    [private, free] = found.table.itertuples()
    assert private.Index[2] == 2.0 and private.epsilon <= 2.0 and free.seeds == [0, 1]
    reached = [trial.run.summary["accuracy"] for trial in found.record.trials]
    assert sorted(found.trials["accuracy"]) == sorted(reached)
    assert f"{100 * private.accuracy:.1f}\u202f%" in text and "Synthetic data" in text


NOTE = "10,000 images decoded from JPEG: lossy"


def noted(experiment):
    made = task(experiment)
    read = {"note": NOTE, "source": {"b.xz": "12", "a.xz": "34"}, "credit": "Krizhevsky"}
    made._name, made._synthetic, made._provenance = "CIFAR-10", False, read
    return made


@pytest.mark.slow
def test_a_statement_and_the_page_say_what_was_read_whatever_the_task_is_called(tmp_path, done):
    experiment = replace(small(), task=noted)
    made = fp.Study(name="s", methods={"x": experiment}, epsilons=[2.0], options={"rounds": 1})
    found = fp.study(made, tmp_path / "out", workers=1, progress=False)
    said = f"The data 'CIFAR-10' (files a.xz, b.xz): {NOTE}."
    run = found.record.trials[0].run
    assert run_statement(run.folder).paragraphs("The data") == (said,)
    assert unescape(found.page.read_text("utf-8")).count(said) == 2  # above, and in the statement
    assert run.corpus["credit"] == "Krizhevsky"
    other = run_statement(read_study(done).trials[0].run.folder)
    assert "The data" not in {part.title for part in other.sections}
