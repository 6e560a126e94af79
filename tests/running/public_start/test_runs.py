"""Runs that start from public examples or a file: recorded, resumed, and read against them."""

import json

import numpy as np
import pytest

from fedpriv.checkpoints.store import CheckpointStore
from fedpriv.checkpoints.tensor_files import (
    START_FILE,
    params_sha256,
    read_sealed_model,
    read_tensors,
    write_tensors,
)
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.build import build
from fedpriv.experiments.start import public_only
from fedpriv.privacy.statement.coverage import coverage_of
from fedpriv.rng import Key
from fedpriv.runs.document import read_document
from fedpriv.runs.prepared import resume_run, start_run
from fedpriv.training.per_example.linear import LogisticGradients, linear_metrics
from tests.harness.kills import Killed, after_round
from tests.harness.refusals import refuses
from tests.harness.toy_users import person, toy_experiment
from tests.tasks.sixty import features_and_labels, sixty


def of_users(**changes):
    given = {"test": person(97, 60), "public_train": person(99, 60)} | {
        name: changes.pop(name) for name in ("test", "public", "public_train") if name in changes
    }
    return toy_experiment(given, **{"rounds": 3, "delta": 1e-3, **changes})


def of_examples(**changes):
    x, y = (part[20:40] for part in features_and_labels())
    public = {
        "public": LogisticGradients(x, y),
        "num_public": 20,
        "public_measure": lambda params, index: linear_metrics(params, x[index], y[index]),
    }
    options = {
        "batch_size": 5, "steps": 3, "noise_multiplier": 1.0, "delta": 1e-3,
        "optimizer.learning_rate": 0.1, "eval_every": 1, **changes,
    }  # fmt: skip
    made = CentralExperiment(name="sixty", description="", task=lambda experiment: sixty(**public))
    return made.with_options(options)


KINDS = {"users": of_users, "examples": of_examples}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_records_where_it_started_and_goes_on_from_there(tmp_path, kind, one_root):
    experiment = KINDS[kind](start="public")
    whole = start_run(experiment, None, None, tmp_path / "whole").run()
    facts = read_document(tmp_path / "whole")["start"]
    assert facts["kind"] == "public" and whole["start"] == facts
    assert facts["num_public_examples"] == (60 if kind == "users" else 20)
    begun = build(experiment).begin(Key.simulation(0).fold("init")).params
    assert params_sha256(begun) == facts["sha256"]
    found = read_sealed_model(tmp_path / "whole" / START_FILE, facts["sha256"])
    assert all(np.array_equal(found[name], array) for name, array in begun.items())

    with pytest.raises(Killed):
        start_run(experiment, None, None, tmp_path / "r").run(after_round(2))
    ended = resume_run(tmp_path / "r", experiment=experiment).run()
    assert ended["accuracy_public"] == whole["accuracy_public"]
    last = [CheckpointStore(tmp_path / r / "checkpoints").load(3)[0] for r in ("whole", "r")]
    assert all(np.array_equal(last[1][name], array) for name, array in last[0].items())
    fresh = build(KINDS[kind]()).begin(Key.simulation(0).fold("init")).params
    assert params_sha256(fresh) != facts["sha256"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changes"), [("users", {}), ("users", {"test": None}), ("examples", {})]
)
def test_a_run_is_read_against_public_examples_alone(tmp_path, kind, changes):
    """On the very examples that its own figure is of."""
    measured = "accuracy" if kind == "users" and not changes else "accuracy_public"
    experiment = KINDS[kind](**changes)
    summary = start_run(experiment, None, None, tmp_path / "r").run()
    task = build(experiment).task
    found = public_only(task, Key.simulation(0).fold("init"))
    expected = task.evaluate(found.model, public=measured == "accuracy_public")
    assert summary["accuracy_public_only"] == expected.get("accuracy")
    assert summary["gain"] == pytest.approx(summary[measured] - expected.get("accuracy"))
    document = json.loads((tmp_path / "r" / "experiment.json").read_text())
    assert document["baseline"]["accuracy_public_only"] == expected.get("accuracy")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_secure_run_may_start_in_public_and_says_nothing_of_who_is_tested(tmp_path, kind):
    prepared = start_run(KINDS[kind](start="public"), None, None, tmp_path / "r", secure=True)
    summary = prepared.run()
    assert summary["start"]["kind"] == "public" and "accuracy_public_only" not in summary


@pytest.mark.slow
def test_a_task_with_nothing_public_to_learn_from(tmp_path):
    summary = start_run(of_users(public_train=None), None, None, tmp_path / "r").run()
    assert "accuracy_public_only" not in summary and "gain" not in summary
    experiment = of_users(public_train=None, start="public")
    with refuses(ValueError, "start", "public_train"):
        start_run(experiment, None, None, tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_start_from_a_file(tmp_path, kind):
    made = build(KINDS[kind]())
    params = {n: a + np.float32(0.5) for n, a in made.begin(Key.simulation(9)).params.items()}
    file = tmp_path / "model.safetensors"
    write_tensors(file, params, {})
    experiment = KINDS[kind](start="file", start_file=str(file))
    prepared = start_run(experiment, None, None, tmp_path / "r")
    assert all(np.array_equal(prepared.state.params[n], a) for n, a in params.items())
    prepared.run()
    file.unlink()  # the folder has its own
    assert resume_run(tmp_path / "r", experiment=experiment).run()["start"]["kind"] == "file"

    write_tensors(file, {"weight": np.zeros((2, 7), np.float32)}, {})
    with refuses(ValueError, "model.safetensors"):
        start_run(experiment, None, None, tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_public_examples_to_learn_from_that_are_somebodys(tmp_path):
    """The ε of the run does not hold for user u03."""
    own = {"public_train": tuple(map(np.concatenate, zip(person(3), person(99), strict=True)))}
    prepared = start_run(of_users(start="public", **own), None, None, tmp_path / "r")
    assert "6 of 12" in prepared.cautions[0]
    prepared.folder.close()
    [said] = coverage_of(prepared.folder.document).not_covered
    assert said == "a start from public examples, some of which equal rostered users'"
    prepared = start_run(of_users(**own), None, None, tmp_path / "fresh")  # nothing is taken over
    prepared.folder.close()
    assert prepared.cautions and coverage_of(prepared.folder.document).not_covered == ()


def test_what_public_examples_alone_reach_does_not_begin_where_a_warm_start_ends():
    """A warm start has seen the examples that settings are chosen on."""
    key = Key.simulation(0)
    warm, cold = (build(of_examples(**o)).task for o in ({"warm_start_epochs": 5}, {}))
    assert np.any(warm.init_params(key)["weight"] != cold.init_params(key)["weight"])
    left, right = public_only(warm, key), public_only(cold, key)
    assert left.choices == right.choices
    assert np.array_equal(left.model["weight"], right.model["weight"])


@pytest.mark.slow
@pytest.mark.parametrize("which", ["last", "ema"])
def test_a_start_from_either_half_of_a_checkpoint(tmp_path, which):
    """A public pre-training run's checkpoint holds the last params and their running average."""
    pretrained = of_users(aggregate="ema", ema_decay=0.5)
    start_run(pretrained, None, None, tmp_path / "before").run()
    file = max((tmp_path / "before" / "checkpoints").glob("*.safetensors"))
    kept, _ = read_tensors(file)
    names = {"last": "weight", "ema": "ema/weight"}
    assert not np.array_equal(kept["weight"], kept["ema/weight"])
    experiment = of_users(start="file", start_file=str(file), start_which=which)
    prepared = start_run(experiment, None, None, tmp_path / "after")
    np.testing.assert_array_equal(prepared.state.params["weight"], kept[names[which]])
    assert set(prepared.state.params) == {"weight", "bias"}
    prepared.folder.close()


def test_public_examples_that_cannot_be_learnt_from():
    with refuses(ValueError, "public_train", 1):
        build(of_users(public_train=person(1, 1)))
    with refuses(ValueError, "public_train", 60):
        build(of_users(public_train=person(98, 60)))


def test_a_start_from_an_average_that_is_not_there(tmp_path):
    file = tmp_path / "model.safetensors"
    write_tensors(file, {"weight": np.zeros((2, 4), np.float32)}, {})
    experiment = of_users(start="file", start_file=str(file), start_which="ema")
    with refuses(ValueError, file):
        start_run(experiment, None, None, tmp_path / "x")
