"""Runs with each aggregate: resumed, measured, of users and of examples, and from own code."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import typer
from safetensors.numpy import load_file

from fedpriv import json_lines
from fedpriv.backends import SerialBackend
from fedpriv.checkpoints.aggregates import answers, of_last, packed, uniform
from fedpriv.checkpoints.store import CheckpointStore
from fedpriv.cli import results
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.report.export import export_run, released_params
from fedpriv.report.run_record import read_run
from fedpriv.rng import Key
from fedpriv.runs.loop import rounds
from fedpriv.training.evaluate import best_on_public, measure_models
from tests.harness.command_line import CliRunner
from tests.harness.resumed import resume_run
from tests.harness.tag_runs import start

ROUNDS = 6
KINDS = {
    "ema": {"aggregate": "ema", "ema-decay": 0.5, "ema-warmup": True},
    "upa": {"aggregate": "upa", "aggregate-k": 3},
    "opa": {"aggregate": "opa", "aggregate-k": 3, "select": "last"},
    "omv": {"aggregate": "omv", "aggregate-k": 3, "select": "last"},
    "ema-replace": {
        "aggregate": "ema",
        "ema-decay": 0.5,
        "aggregate-training": "replace",
        "aggregate-start": 2,
    },
    "upa-gradient-only": {
        "aggregate": "upa",
        "aggregate-k": 2,
        "aggregate-training": "gradient-only",
        "aggregate-start": 1,
    },
}
kinds = pytest.mark.parametrize("kind", KINDS)


def checkpoints(folder, first=1):
    store = CheckpointStore(folder / "checkpoints")
    return [store.load(number)[0] for number in range(first, ROUNDS + 1)]


def iterate(tensors):
    return {name: array for name, array in tensors.items() if "/" not in name}


def average(tensors):
    return {n.removeprefix("ema/"): array for n, array in tensors.items() if "/" in n}


def same(left, right):
    return set(left) == set(right) and all(np.array_equal(left[n], right[n]) for n in left)


@pytest.mark.slow
@kinds
def test_a_resumed_run_is_the_uninterrupted_one(kind, tiny_corpus, tmp_path):
    whole = start(tiny_corpus, tmp_path / "whole", **KINDS[kind])
    whole.run()

    class Stop(Exception):
        pass

    def stop(record):
        if record.released.round_num == 3:
            raise Stop

    with pytest.raises(Stop):
        start(tiny_corpus, tmp_path / "parts", **KINDS[kind]).run(stop)
    resume_run(tmp_path / "parts").run()
    for left, right in zip(*(checkpoints(tmp_path / n) for n in ("whole", "parts")), strict=True):
        assert same(left, right)
    states = [load_file(tmp_path / n / "state.safetensors") for n in ("whole", "parts")]
    assert same(*states)
    assert verify_run(tmp_path / "parts").ok


def test_upa_in_a_folder_is_the_mean_of_its_checkpoints(tiny_corpus, tmp_path):
    start(tiny_corpus, tmp_path / "run", **KINDS["upa"], select="last").run()
    found = checkpoints(tmp_path / "run")
    assert same(average(found[-1]), uniform([iterate(one) for one in found[-3:]]))
    # What is exported and measured is the average.
    assert same(released_params(read_run(tmp_path / "run"))[1], average(found[-1]))
    export_run(tmp_path / "run", tmp_path / "out")
    assert "this is the 'upa' aggregate after round" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["opa", "omv"])
def test_outputs_of_the_last_models_are_measured(rule, tiny_corpus, tmp_path):
    run = str(tmp_path / "run")
    prepared = start(tiny_corpus, tmp_path / "run", **KINDS[rule])
    summary = prepared.run()
    last, task = checkpoints(tmp_path / "run")[-3:], prepared.components.task
    blocks = [list(task.class_scores(model, public=True)) for model in last]
    right = total = 0
    for parts in zip(*blocks, strict=True):
        labels = parts[0][1]
        right += int((answers(rule, [scores for scores, _ in parts]) == labels).sum())
        total += len(labels)
    assert total and summary["accuracy_public"] == right / total
    assert summary["recall_at_5_public"] is None  # of several models it is not measured
    lines = json_lines.read(tmp_path / "run" / "rounds.jsonl")
    assert lines[-1]["accuracy_public"] == right / total
    # The model that is released and exported is the last.
    assert same(released_params(read_run(tmp_path / "run"))[1], last[-1])
    said = f"of what its last 3 models answer together ({rule}); this model is the last of them"
    export_run(tmp_path / "run", tmp_path / "out")
    assert said in (tmp_path / "out" / "README.md").read_text()
    for arguments in (["predict", run, "--text", "a"], ["export", run, "--to", f"{run}-too"]):
        app = typer.Typer()
        results.register(app)
        shown = CliRunner().invoke(app, arguments)
        assert shown.exit_code == 0 and said in " ".join(shown.output.split())


def test_one_model_s_outputs_are_measured_as_the_model_is(tiny_corpus, tmp_path):
    prepared = start(tiny_corpus, tmp_path / "run", aggregate="none")
    prepared.run()
    task, model = prepared.components.task, checkpoints(tmp_path / "run")[-1]
    for public in (True, False):
        alone = task.evaluate(model, public=public)
        for rule in ("opa", "omv"):
            found = measure_models(task, packed(rule, [model] * 2), public=public)
            assert found.get("accuracy") == alone.get("accuracy")
            assert found.num_examples == alone.num_examples


def own_examples():
    return load_experiment(f"{Path(__file__).with_name('blobs.py')}:blobs")


def test_own_code_may_give_any_function_of_checkpoints(tiny_corpus, tmp_path):
    """`refine` takes a transform of one's own; a resumed run has its state."""

    def trimmed(past):
        return {n: np.sort([one[n] for one in past], axis=0)[len(past) // 2] for n in past[0]}

    def refine(made):
        algorithm = dataclasses.replace(made.algorithm, aggregate=of_last(3, trimmed))
        return dataclasses.replace(made, algorithm=algorithm)

    base = load_experiment("dp-fedavg-tags")
    experiment = dataclasses.replace(
        base.with_options({"rounds": 3, "noise-multiplier": 1.0, "cohort": 6}), refine=refine
    )
    made = build(experiment, tiny_corpus)
    backend = SerialBackend(trainer=made.trainer, data=made.task.data, measure=made.task.evaluate)
    states = [state for _, state in rounds(made, backend, Key.simulation(2))]
    assert same(made.algorithm.result(states[-1]), trimmed([state.params for state in states]))


class TestRefused:
    def test_outputs_of_a_task_without_classes(self, tmp_path):
        experiment = own_examples().with_options({"steps": 2, "noise-multiplier": 1.0})
        made = build(experiment)
        task = dataclasses.replace(made.task, scores=None)
        with pytest.raises(ValueError, match=r"'opa' is made of probabilities.*use ema or upa"):
            build(experiment.with_options({"aggregate": "opa"}), task=task)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"aggregate": "upa", "aggregate-start": 3}, "aggregate-start 3 is of training over"),
            (
                {"aggregate": "ema", "aggregate-training": "replace", "aggregate-start": 6},
                "after 6 rounds, of which there are only 6",
            ),
            ({"aggregate": "upa", "aggregate-k": 0}, "aggregate-k 0 must be at least 1"),
            ({"aggregate": "opa", "aggregate-training": "replace"}, "aggregate-training belongs"),
        ],
    )
    def test_options_that_do_not_fit(self, tiny_corpus, tmp_path, options, message):
        with pytest.raises(ValueError, match=message):
            start(tiny_corpus, tmp_path / "run", **options)
        assert not (tmp_path / "run").exists()


class TestChoice:
    def test_it_is_made_of_public_examples(self, tiny_corpus, tmp_path):
        prepared = start(tiny_corpus, tmp_path / "run", **KINDS["upa"])
        prepared.run()
        task, last = prepared.components.task, checkpoints(tmp_path / "run")[-1]
        candidates = {"last": iterate(last), "upa": average(last)}
        figures = {n: task.evaluate(p, public=True).get("accuracy") for n, p in candidates.items()}
        assert best_on_public(task, candidates) == max(figures, key=lambda name: figures[name])

    def test_rostered_users_are_never_measured_for_it(self):
        class OnlyPrivate:
            measures = load_experiment("dp-fedavg-tags") and ()

            def evaluate(self, params, *, public):
                assert public, "a choice by rostered users is not free"

        with pytest.raises(ValueError, match=r"no public examples.*fedpriv tune"):
            best_on_public(OnlyPrivate(), {"last": {}})

    def test_a_test_set_is_not_chosen_on(self):
        task = build(own_examples().with_options({"steps": 2, "noise-multiplier": 1.0})).task
        with pytest.raises(ValueError, match="no public examples to choose"):
            best_on_public(task, {"last": task.init_params(Key.simulation(0))})
        with pytest.raises(ValueError, match="no aggregates to choose among"):
            best_on_public(task, {})
