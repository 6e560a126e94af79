"""A mistake in a task ends a run before anything is charged, and never by a user's data."""

import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv import json_lines
from fedpriv.datasets.dataset import Dataset
from fedpriv.experiments.averaging import CentralExperiment, FederatedExperiment
from fedpriv.experiments.load import load_experiment
from fedpriv.runs.prepared import start_run
from fedpriv.tasks.dataset_tasks import module_task
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.failures import KeepsStateError
from fedpriv.training.local.module import ArrayExamples
from tests.harness.resumed import resume_run

NUM_USERS = 12


def users(width=8, labels=np.int64):
    for number in range(NUM_USERS):
        x = np.random.default_rng(number).normal(size=(6, width)).astype(np.float32)
        yield f"u{number:02d}", ArrayExamples(x, (x[:, 0] > 0).astype(labels))


def experiment(task, **options):
    options = {"rounds": 3, "cohort": 6.0, "noise_multiplier": 1.0, **options}
    return FederatedExperiment(
        name="own", description="", task=lambda experiment, corpus: task, delta=0.01
    ).with_options(options)


def task(width=8, **changes):
    arguments = {
        "name": "t",
        "module": lambda: nn.Linear(width, 2),
        "loss": nn.functional.cross_entropy,
        "users": dict(users()),
        "synthetic": True,
        **changes,
    }
    return ModuleTask(**arguments)


PUBLIC = next(users())[1]
WRONG = {
    "width": {"width": 9},
    "width, with public examples": {"width": 9, "public": PUBLIC},
    "labels": {"users": dict(users(labels=np.float32))},
    "labels, where public ones are right": {
        "users": dict(users(labels=np.float32)),
        "public": PUBLIC,
    },
    "loss": {"loss": lambda outputs, targets: {}["loss"]},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG)
def test_a_programming_error_is_raised_and_nothing_is_written(tmp_path, changes):
    """Red before: the rounds ran, every user contributed zero, and ε was spent on noise."""
    wrong = experiment(task(**changes))
    with pytest.raises((RuntimeError, KeyError)) as caught:
        start_run(wrong, "own:experiment", None, tmp_path / "run")
    assert "before anything was charged" in caught.value.__notes__[0]
    assert not (tmp_path / "run").exists()


def test_rostered_examples_are_not_looked_at(tmp_path):
    """Values that no model takes change nothing but those users' contributions."""
    hostile = dict(users())
    for user in list(hostile)[1:]:
        hostile[user] = ArrayExamples(hostile[user].x, hostile[user].y + 1000)
    prepared = start_run(experiment(task(users=hostile)), "own:x", None, tmp_path / "run")
    prepared.folder.close()
    assert prepared.trial.untried == ""


def test_a_task_without_a_batch_is_not_tried(tmp_path):
    made = task(width=9, users={"a": ArrayExamples(np.zeros((0, 8)), np.zeros(0, int))})
    one = experiment(made, cohort=1.0)
    prepared = start_run(one, "own:x", None, tmp_path / "run")
    prepared.folder.close()
    untried = prepared.trial.untried
    assert untried.startswith("what a user does in the task (ModuleTask) could not be")
    assert "synthetic_batch()" in untried and "\n" not in untried
    resumed = resume_run(tmp_path / "run", experiment=one)
    resumed.folder.close()
    assert resumed.trial.untried == prepared.trial.untried


@pytest.mark.slow
@pytest.mark.parametrize("with_public", [True, False])
def test_centralised_tasks_are_tried_too(tmp_path, with_public):
    """Red before: the run ended in the first step, which had been charged."""
    x = np.random.default_rng(0).normal(size=(90, 8)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    public = {"x_public": x[60:], "y_public": y[60:]} if with_public else {}
    data = Dataset(
        name="d",
        x_train=x[:40],
        y_train=y[:40],
        x_test=x[40:60],
        y_test=y[40:60],
        provenance={},
        **public,
    )

    def central(width):
        made = module_task(data, lambda: nn.Linear(width, 2), nn.functional.cross_entropy)
        return CentralExperiment(
            name="c", description="", task=lambda experiment: made, steps=2, batch_size=8
        ).with_options({"noise_multiplier": 1.0})

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        start_run(central(9), "own:x", None, tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()
    assert start_run(central(8), "own:x", None, tmp_path / "right").run()["rounds"] == 2


def own(source, folder, monkeypatch, name):
    (folder / f"{name}.py").write_text(source, "utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)


SOURCE = """
import numpy as np
from torch import nn
from fedpriv.experiments import FederatedExperiment, GaussianNoise, PoissonCohorts
from fedpriv.tasks.module_task import ModuleTask


def experiment():
    users = {name: (np.ones((2, 3)), np.array([0, 1])) for name in "abcd"}
    return FederatedExperiment(
        name="own", description="",
        noise=GaussianNoise(multiplier=1.0), sampling=PoissonCohorts(cohort=2.0),
        delta=0.01, rounds=2,
        task=lambda experiment, corpus: ModuleTask(
            name="own", module=lambda: nn.Linear(3, 2), loss=loss, users=users,
        ),
    )


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)
"""


@pytest.mark.slow
def test_a_resumed_task_is_tried_again(tmp_path, monkeypatch):
    own(SOURCE, tmp_path, monkeypatch, "own_resumed")
    prepared = start_run(
        load_experiment("own_resumed:experiment"), "own_resumed:experiment", None, tmp_path / "run"
    )
    prepared.folder.close()
    # Of another length: bytecode is found stale by its second and its source's size.
    faulty = SOURCE.replace("return nn.functional", "return nn.not_functional")
    (tmp_path / "own_resumed.py").write_text(faulty, "utf-8")
    del sys.modules["own_resumed"]
    with pytest.raises(AttributeError):
        resume_run(tmp_path / "run")
    (tmp_path / "own_resumed.py").write_text(SOURCE + "\n\n# mended\n", "utf-8")
    del sys.modules["own_resumed"]
    assert resume_run(tmp_path / "run").run()["rounds"] == 2  # the ledger was let go of


class TestMostlyFailed:
    def failing(self):
        """Users whose own labels no model of two classes takes, and two who are fine."""
        made = dict(users())
        for user in list(made)[2:]:
            made[user] = ArrayExamples(made[user].x, made[user].y + 1000)
        return made

    @pytest.mark.slow
    def test_it_is_said_at_once_and_in_the_summary(self, tmp_path, caplog):
        wrong = experiment(task(users=self.failing()), eval_every=1, cohort=12.0)
        seen = []
        prepared = start_run(wrong, "own:x", None, tmp_path / "run")
        summary = prepared.run(on_round=lambda record: seen.append(len(said(caplog))))
        assert seen[0] == 1, "after the first round already"
        assert len(said(caplog)) == 1 and "round 1: 10 of 12 " in said(caplog)[0]
        assert "the first error: IndexError: Target 100" in said(caplog)[0]
        assert summary["rounds_mostly_failed"] == 3

    @pytest.mark.slow
    def test_a_secure_run_says_nothing_of_it(self, tmp_path, caplog):
        wrong = experiment(task(users=self.failing()))
        prepared = start_run(wrong, "own:x", None, tmp_path / "run", secure=True)
        assert prepared.run()["rounds_mostly_failed"] is None
        assert not said(caplog) and not json_lines.read(tmp_path / "run" / "diagnostics.jsonl")


def said(caplog):
    return [r.getMessage() for r in caplog.records if "mostly noise" in r.getMessage()]


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(
    "given",
    [{}, {"public": PUBLIC}, {"users_at_once": 4}, {"synthetic_batch": PUBLIC.take(np.arange(2))}],
)
def test_a_rate_at_which_everybody_diverges_is_refused(tmp_path, secure, given):
    """Red before: the update of infinities was thrown away; in secure mode the run said nothing."""
    wrong = experiment(task(**given), local_learning_rate=1e39, local_epochs=3)
    with pytest.raises((ValueError, RuntimeError), match=r"not finite.*learning rate|overflow"):
        start_run(wrong, "own:x", None, tmp_path / "run", secure=secure)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("name", ["dp-fedavg-tags", "adadps-tags", "dp-fedavg-words"])
def test_so_it_is_for_tags_and_words(tmp_path, tiny_corpus, name, secure):
    options = {"local-learning-rate": 1e308, "cohort": 6, "delta": 1e-3, "rounds": 2}
    own = load_experiment(name).with_options(options)
    with pytest.raises((ValueError, RuntimeError), match=r"not finite|overflow"):
        start_run(own, name, tiny_corpus, tmp_path / "run", secure=secure)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("secure", [False, True])
def test_public_labels_numbered_from_one_are_refused(tmp_path, secure):
    """Red before: the first two public examples happened to have label 1 of labels 1 and 2."""
    y = np.ones(1_100, int)  # the first 1,024 are measured beforehand
    y[1_050] = 2
    wrong = task(public=ArrayExamples(PUBLIC.x[y * 0], y), users=numbered_from_one())
    with pytest.raises(IndexError) as caught:
        start_run(experiment(wrong), "own:x", None, tmp_path / "run", secure=secure)
    assert "before anything was charged" in caught.value.__notes__[0]


def numbered_from_one():
    return {user: ArrayExamples(own.x, own.y + 1) for user, own in users()}


class Averaging:
    """A trainer of one's own that remembers whom it has trained, where no module is looked at."""

    def __init__(self, kept):
        self.seen, self.kept = [], kept

    def train(self, params, examples, key):
        found = {name: np.full_like(array, examples.x.mean()) for name, array in params.items()}
        if self.kept == "examples":
            self.seen.append(examples.x.mean())
            found = {name: array + np.float32(sum(self.seen)) for name, array in found.items()}
        elif self.kept == "calls":
            self.seen.append(1)
            found = {name: array * len(self.seen) for name, array in found.items()}
        elif self.kept == "stream":
            drawn = np.float32(np.random.normal())
            found = {name: array + drawn for name, array in found.items()}
        return found


@pytest.mark.parametrize("kept", ["examples", "calls", "stream", ""])
def test_a_trainer_of_ones_own_that_keeps_something_is_refused(tmp_path, kept):
    """Red before: the second of two synthetic users was never trained."""

    class Own(ModuleTask):
        def trainer(self, schedule, multiplier, device="cpu"):
            return Averaging(kept)

    own = Own(
        name="t", module=lambda: nn.Linear(8, 2), loss=lambda o, t: o.sum(), users=dict(users())
    )
    if not kept:
        start_run(experiment(own), "own:x", None, tmp_path / "run").folder.close()
        return
    with pytest.raises(KeepsStateError, match="Averaging"):
        start_run(experiment(own), "own:x", None, tmp_path / "run")


class Gradient:
    """A trainer of one's own: logistic regression, on whatever `scaled` makes of the inputs."""

    def __init__(self):
        self.kept = None

    def scaled(self, x):
        return x

    def train(self, params, examples, key):
        x = self.scaled(examples.x)
        z = x @ params["weight"].T + params["bias"]
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(x)), examples.y] -= 1
        found = {"weight": -(p.T @ x) / len(x), "bias": -p.mean(0)}
        return {name: array.astype(np.float32) for name, array in found.items()}


class FittedOnTheFirst(Gradient):
    """Consistent in this process, once a synthetic user came first; not in another one."""

    def scaled(self, x):
        self.kept = (x.mean(0), np.abs(x).mean()) if self.kept is None else self.kept
        return (x - self.kept[0]) / self.kept[1]


class RunningMaximum(Gradient):
    def scaled(self, x):
        self.kept = max(self.kept or 0.0, float(np.abs(x).max()))
        return x / self.kept


class OnlyLarge(Gradient):
    def scaled(self, x):
        if np.abs(x).max() > 15:
            self.kept = x.mean(0)
        return x if self.kept is None else x + self.kept


class OnlyMany(Gradient):
    def scaled(self, x):
        self.kept = x.mean(0) if len(x) > 16 else self.kept
        return x if self.kept is None else x + self.kept


class AfterMany(Gradient):
    def scaled(self, x):
        self.kept = (self.kept or 0) + 1
        return x if self.kept < 30 else x * self.kept


def of_trainers(trainer):
    class Own(ModuleTask):
        def trainer(self, schedule, multiplier, device="cpu"):
            return trainer()

    return Own(
        name="t", module=lambda: nn.Linear(8, 2), loss=lambda o, t: o.sum(), users=dict(users())
    )


@pytest.mark.parametrize("kind", [FittedOnTheFirst, RunningMaximum, OnlyLarge, OnlyMany, AfterMany])
def test_so_is_one_that_looks_consistent_in_one_order(tmp_path, kind):
    """Red before: one trainer was tried on three small users, and one of them moved 31 C."""
    with pytest.raises(KeepsStateError, match=kind.__name__):
        start_run(experiment(of_trainers(kind)), "own:x", None, tmp_path / "run")
    assert not (tmp_path / "run").exists()


class WithALock(FittedOnTheFirst):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def test_what_cannot_be_copied_is_made_again(tmp_path):
    with pytest.raises(KeepsStateError, match="WithALock"):
        start_run(experiment(of_trainers(WithALock)), "own:x", None, tmp_path / "run")


def test_what_can_be_neither_is_said_to_be_so(tmp_path):
    one = WithALock()
    with pytest.raises(ValueError, match=r"WithALock cannot be copied .* let it make another"):
        start_run(experiment(of_trainers(lambda: one)), "own:x", None, tmp_path / "run")


def test_one_that_the_task_keeps_is_copied(tmp_path):
    kept, pure = FittedOnTheFirst(), Gradient()
    with pytest.raises(KeepsStateError):
        start_run(experiment(of_trainers(lambda: kept)), "own:x", None, tmp_path / "no")
    start_run(experiment(of_trainers(lambda: pure)), "own:x", None, tmp_path / "run").folder.close()


class Constants(Gradient):
    """Legitimate: a table made at the first call, a count for a log, chance from the key."""

    calls = 0

    def train(self, params, examples, key):
        type(self).calls += 1
        if self.kept is None:
            self.kept = np.linspace(0.5, 2.0, examples.x.shape[1], dtype=np.float32)
        drawn = key.generator().normal(size=examples.x.shape).astype(np.float32)
        noisy = ArrayExamples(examples.x * self.kept + drawn, examples.y)
        return super().train(params, noisy, key)


def test_constants_counts_and_chance_are_not_refused_and_trainings_are_dozens(tmp_path):
    Constants.calls = 0
    start_run(experiment(of_trainers(Constants)), "own:x", None, tmp_path / "run").folder.close()
    assert 30 < Constants.calls < 72


def test_inputs_that_a_trainer_refuses_are_left_out(tmp_path):
    class Careful(Gradient):
        def scaled(self, x):
            if np.abs(x).max() > 15:
                raise ValueError("inputs are expected to be standardised")
            return x

    start_run(experiment(of_trainers(Careful)), "own:x", None, tmp_path / "run").folder.close()


LEFT = {"mean": 0.0}


class LeavesOnlyOfOutliers(nn.Module):
    """What no trial finds: it depends on an input that nobody would make up."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 2)

    def forward(self, x):
        if (x[:, 0] == 1234.5).any():
            LEFT["mean"] = float(x.mean())
        return self.score(x) + LEFT["mean"]


def with_an_outlier():
    made = dict(users())
    made["u03"] = ArrayExamples(made["u03"].x.copy(), made["u03"].y)
    made["u03"].x[0, 0] = 1234.5
    return task(module=LeavesOnlyOfOutliers, users=made)


@pytest.mark.slow
@pytest.mark.parametrize("users_at_once", [1, 4])
def test_a_simulation_looks_again_after_real_users(tmp_path, users_at_once):
    """Red before: the run went on to its end."""
    LEFT["mean"] = 0.0
    made = with_an_outlier()
    made._users_at_once = users_at_once
    prepared = start_run(experiment(made, cohort=12.0), "own:x", None, tmp_path / "run")
    with pytest.raises(KeepsStateError, match=r"LEFT\['mean'\]"):
        prepared.run()


@pytest.mark.slow
def test_a_secure_run_does_not_since_that_would_be_a_release(tmp_path):
    LEFT["mean"] = 0.0
    own = experiment(with_an_outlier(), cohort=12.0)
    prepared = start_run(own, "own:x", None, tmp_path / "run", secure=True)
    assert prepared.run()["rounds"] == 3
    assert LEFT["mean"] != 0.0


CACHED = {}


@pytest.mark.slow
def test_caches_by_size_are_not_taken_for_state(tmp_path):
    class Caching(nn.Module):
        def __init__(self):
            super().__init__()
            self.score, self.ones = nn.Linear(8, 2), None

        def forward(self, x):
            if self.ones is None or len(self.ones) != len(x):
                self.ones = torch.ones(len(x), 1)
            CACHED.setdefault(len(x), torch.ones(len(x), 1))
            return self.score(x * self.ones * CACHED[len(x)])

    own = experiment(task(module=Caching))
    assert start_run(own, "own:x", None, tmp_path / "run").run()["rounds"] == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"module": nn.Linear(8, 2)}, "module is a Linear; give a function"),
        (
            {"client_optimizer": torch.optim.Adam([torch.zeros(1)])},
            "client_optimizer is a Adam made already, and each user starts anew; give the class",
        ),
    ],
)
def test_what_is_made_anew_is_given_as_what_makes_it(changes, said):
    with pytest.raises(ValueError, match=said):
        task(**changes)


def test_labels_that_are_floats_are_told_to_be_made_integers(tmp_path):
    labels = ArrayExamples(np.ones((6, 8), np.float32), np.zeros(6, np.float32))
    wrong = experiment(task(users={f"u{n:02d}": labels for n in range(12)}))
    with pytest.raises(RuntimeError) as caught:
        start_run(wrong, "own:experiment", None, tmp_path / "run")
    told = " ".join(caught.value.__notes__)
    assert 'y.astype("int64")' in told and "pixels" not in told


def test_pixels_that_are_integers_are_told_to_be_made_float(tmp_path):
    pixels = ArrayExamples(np.ones((6, 8), np.uint8), np.zeros(6, np.int64))
    wrong = experiment(task(users={f"u{n:02d}": pixels for n in range(12)}))
    with pytest.raises(RuntimeError) as caught:
        start_run(wrong, "own:experiment", None, tmp_path / "run")
    assert "make pixels and other quantities float" in " ".join(caught.value.__notes__)
