"""What is said before a run: counted, calibrated or measured, and "not known" where it is not."""

import json

import numpy as np
import pytest
from torch import nn

import fedpriv as fp
from fedpriv.api import forecast as module
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.tasks.dataset_tasks import module_task
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.algorithm import TRAIN
from fedpriv.training.local.module import ArrayExamples
from fedpriv.training.work import Work
from tests.harness.toy_users import person, toy_experiment
from tests.harness.toys_of_training import data_set

RNG, PARAMS = np.random.default_rng(0), 4 * 2 + 2
PUBLIC = ArrayExamples(*person(98, 50))
USERS = {f"u{number:02d}": PUBLIC for number in range(40)}


def an_experiment(users=USERS, **options):
    plan = {"target_epsilon": 4.0, "cohort": 10.0, "rounds": 16, "l2_clip_norm": 0.5, "delta": None}
    given = {"users": users, "public": PUBLIC, "public_train": options.pop("public_train", None)}
    return toy_experiment(given, **(plan | {"noise_multiplier": None} | options))


def forecast(experiment, **more):
    return fp.forecast(experiment, **({"grid_cohorts": (10, 20), "grid_rounds": (16,)} | more))


@pytest.fixture(scope="module")
def line():
    return forecast(an_experiment())


@pytest.mark.slow
def test_it_is_the_noise_that_the_run_adds(line):
    run = fp.run(an_experiment(), progress=False)
    assert run.summary["noise_multiplier"] == line.planned.noise_multiplier


@pytest.mark.slow
def test_json_has_all_terms(line):
    told = json.loads(json.dumps(line.to_json(), allow_nan=False))
    assert {"epsilon", "delta", "relation", "unit", "accountant", "epsilon_does_not_cover"} <= set(
        told
    )
    assert told["synthetic"] is True


@pytest.mark.slow
def test_time_and_memory_are_of_this_plan(line):
    cost = line.cost
    assert cost.num_params == PARAMS and 1 < cost.timed <= 40
    assert cost.seconds == pytest.approx(10 * cost.user_seconds + cost.server_seconds)
    two = forecast(an_experiment(), workers=2).cost
    assert two.seconds == pytest.approx(5 * two.user_seconds + two.server_seconds)
    big = forecast(an_experiment(server="adam"), timed=False).cost
    assert big.server_bytes - cost.server_bytes >= 2 * 4 * PARAMS


@pytest.mark.slow
def test_nobody_is_trained_where_no_time_is_asked_for(monkeypatch):
    trained = []

    class Recorder(Work):
        def __init__(self, trainer):
            self.trainer = trainer

        def answer(self, request, attempt, users):
            trained.append(users.ids)
            return self.trainer.answer(request, attempt, users)

    monkeypatch.setattr(module, "as_works", lambda trainer: {TRAIN: Recorder(trainer)})
    found = forecast(an_experiment(), timed=False)
    assert not trained and "not known" in found.cost.time()
    forecast(an_experiment())
    assert len(trained[0]) == 1 < len(trained[1]) and set(trained[-1]) <= set(USERS)


def test_nothing_is_charged_or_written(tmp_path, monkeypatch):
    def charge(*args, **options):
        raise AssertionError("a forecast asked for a ledger")

    for name in ("create", "in_memory", "charge"):
        monkeypatch.setattr(Ledger, name, charge)
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert forecast(an_experiment()).cost.timed
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_public_start_is_learnt_once(monkeypatch):
    learnt = []
    own = ModuleTask.public_learner

    def counted(task, key, *, choosing):
        learnt.append(choosing)
        return own(task, key, choosing=choosing)

    monkeypatch.setattr(ModuleTask, "public_learner", counted)
    found = forecast(an_experiment(public_train=PUBLIC.take(np.arange(30)), start="public"))
    assert sorted(learnt) == [False, True] and found.cost.seconds is not None


def test_without_noise_there_is_no_grid():
    found = forecast(an_experiment(noise="none", target_epsilon=None), timed=False)
    assert found.grid is None and found.planned is None
    assert "ε = ∞" in str(found) and "give a target ε" in str(found)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["epsilon"] is None


def test_where_epsilon_is_zero_there_is_no_grid_and_the_rest_is_said():
    """A δ that pays for it all: no noise is calibrated to an ε of 0."""
    given = {"target_epsilon": None, "noise_multiplier": 1e3, "delta": 0.1}
    found = forecast(an_experiment(**given), timed=False)
    assert found.epsilon.value == 0.0 and found.planned is not None
    assert found.grid is None and "target ε" in found.reason


def test_a_large_delta_is_remarked():
    given = {"target_epsilon": None, "noise_multiplier": 5.0, "delta": 0.1}
    [caution] = forecast(an_experiment(**given), timed=False).cautions
    assert "0.1" in caution and caution in repr(forecast(an_experiment(**given), timed=False))


def test_of_examples_too():
    x = RNG.normal(size=(60, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    data = data_set(x[:40], y[:40], test=(x[40:], y[40:]))
    made = module_task(data, lambda: nn.Linear(4, 2), nn.functional.cross_entropy)
    experiment = CentralExperiment(
        name="c",
        description="",
        task=lambda experiment: made,
        steps=16,
        batch_size=10.0,
        micro_batch=5,
    ).with_options({"target_epsilon": 4.0, "l2_clip_norm": 0.5})
    found = forecast(experiment)
    # Two clip norms of sensitivity, over the two micro-batches of a batch of ten.
    assert found.planned.noise_on_mean == pytest.approx(2 * found.planned.noise_multiplier / 2)
    cell = found.grid.at(10, 16)
    assert cell.noise_on_mean == pytest.approx(found.planned.noise_on_mean, rel=1e-12)
    assert "per example" in str(found) and "16 steps" in str(found) and "a step" in str(found)
    assert found.cost.seconds is not None


def test_users_that_fail_have_no_time():
    bad = ArrayExamples(x=np.full_like(PUBLIC.x, np.nan), y=PUBLIC.y)
    found = forecast(an_experiment(dict.fromkeys(USERS, bad)))
    assert found.cost.seconds is None
