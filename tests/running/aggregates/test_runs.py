"""Runs with each aggregate: resumed, measured, of users and of examples, and from own code."""

import dataclasses

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedpriv import json_lines
from fedpriv.backends import SerialBackend
from fedpriv.checkpoints.aggregates import Aggregate, OfLast, answers, packed, uniform
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.optimizers import Sgd
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.report.export import export_run, released_params
from fedpriv.report.run_record import read_run
from fedpriv.rng import Key
from fedpriv.runs.loop import rounds
from fedpriv.training.evaluate import measure_models
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.training.per_example.linear import LogisticGradients
from tests.harness.command_line import fedpriv
from tests.harness.kills import Killed, after_round
from tests.harness.other_components import with_components
from tests.harness.refusals import refuses
from tests.harness.resumed import resume_run
from tests.harness.tag_runs import average, checkpoint, iterate, same, start
from tests.running.methods.test_runs import central, of_examples

ROUNDS = 6
KINDS = {
    "ema": {"aggregate": "ema", "ema-decay": 0.5, "ema-warmup": True},
    "upa": {"aggregate": "upa", "aggregate-k": 3},
    "opa": {"aggregate": "opa", "aggregate-k": 3, "select": "last"},
    "omv": {"aggregate": "omv", "aggregate-k": 3, "select": "last"},
    "ema-replace": {
        **{"aggregate": "ema", "ema-decay": 0.5},
        **{"aggregate-training": "replace", "aggregate-start": 2},
    },
    "upa-gradient-only": {
        **{"aggregate": "upa", "aggregate-k": 2},
        **{"aggregate-training": "gradient-only", "aggregate-start": 1},
    },
}


def checkpoints(folder):
    return [checkpoint(folder, number) for number in range(1, ROUNDS + 1)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_uninterrupted_one(kind, tiny_corpus, tmp_path):
    start(tiny_corpus, tmp_path / "whole", **KINDS[kind]).run()
    with pytest.raises(Killed):
        start(tiny_corpus, tmp_path / "parts", **KINDS[kind]).run(after_round(3))
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
    assert "'upa'" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["opa", "omv"])
def test_outputs_of_the_last_models_are_measured(rule, tiny_corpus, tmp_path):
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
    for arguments in (["predict", "--text", "a"], ["export", "--to", tmp_path / "out"]):
        shown = fedpriv(arguments[0], tmp_path / "run", *arguments[1:])
        assert shown.exit_code == 0 and f"({rule})" in shown.output
    assert f"({rule})" in (tmp_path / "out" / "README.md").read_text()


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


def test_own_code_may_give_any_function_of_checkpoints(tiny_corpus, tmp_path):
    """Components may have a transform of one's own."""

    def trimmed(past):
        return {n: np.sort([one[n] for one in past], axis=0)[len(past) // 2] for n in past[0]}

    def with_trimmed(made):
        algorithm = dataclasses.replace(made.algorithm, aggregate=OfLast(k=3, function=trimmed))
        return dataclasses.replace(made, algorithm=algorithm)

    options = {"rounds": 3, "noise-multiplier": 1.0, "cohort": 6}
    experiment = load_experiment("dp-fedavg-tags").with_options(options)
    made = build(with_components(experiment, with_trimmed), tiny_corpus)
    backend = SerialBackend(trainer=made.trainer, data=made.task.data, measure=made.task.evaluate)
    states = [state for _, state in rounds(made, backend, Key.simulation(2))]
    assert same(made.algorithm.result(states[-1]), trimmed([state.params for state in states]))


def test_outputs_of_a_task_without_classes(tmp_path):
    made = of_examples(
        LogisticGradients, aggregate="opa", batch_size=5, steps=5, noise_multiplier=1.0
    )
    task = dataclasses.replace(central(LogisticGradients), scores=None)
    with refuses(ValueError, "opa"):
        build(made, task=task)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"aggregate": "upa", "aggregate-start": 3}, "aggregate-start 3"),
        ({"aggregate": "ema", "aggregate-training": "replace", "aggregate-start": 6}, 6),
        ({"aggregate": "upa", "aggregate-k": 0}, "aggregate-k 0"),
        ({"aggregate": "opa", "aggregate-training": "replace"}, "aggregate-training"),
    ],
)
def test_options_that_do_not_fit(tiny_corpus, tmp_path, options, named):
    with refuses(ValueError, named):
        start(tiny_corpus, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


PARAMS = {"w": np.zeros((2, 3), np.float32)}


def averaging(aggregate):
    return FederatedAveraging(optimizer=Sgd(), aggregate=aggregate)


@dataclasses.dataclass(frozen=True)
class Running(Aggregate):
    """A running average whose next value is what `change` makes of the params."""

    change: object

    def init(self, params):
        return {"average": dict(params)}

    def next(self, update, state):
        return update, {"average": self.change(update)}


def in_place(params):
    params["w"] *= 0.5
    return params


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda params: {"w": params["w"][:1]}, "w [1, 3] float32"),
        (lambda params: {"w": params["w"].astype(np.float64)}, "float64"),
        (lambda params: {}, "w [2, 3] float32"),
        (lambda params: {"w": params["w"] * np.float32(np.nan)}, "'w'"),
        (in_place, "read-only"),
    ],
)
def test_what_is_no_model_of_finite_params_is_refused(change, named):
    with refuses(ValueError, named):
        averaging(Running(change)).check_params(PARAMS)


def test_a_function_that_needs_more_checkpoints_than_there_are_raises_its_own_error():
    with pytest.raises(IndexError):
        averaging(OfLast(k=3, function=lambda models: models[-3])).check_params(PARAMS)


def test_params_that_are_not_finite_are_nobodys_fault():
    state = Running(dict).init(PARAMS)
    odd = {"w": np.full((2, 3), np.inf, np.float32)}
    assert averaging(Running(dict))._aggregated(odd, state, 1)["average"]["w"][0, 0] == np.inf


def test_the_trial_leaves_the_start_alone():
    class InPlace(Aggregate):
        def init(self, params):
            return {"average": dict(params)}

        def next(self, update, state):
            for name, array in update.items():
                state["average"][name] += array
            return update, state

    start = {"w": np.ones((2, 3), np.float32)}
    averaging(InPlace()).check_params(start)
    assert np.array_equal(start["w"], np.ones((2, 3), np.float32))
