"""A mistake in a task ends a run before anything is charged, and never by a user's data."""

import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv import json_lines
from fedpriv.experiments.load import load_experiment
from fedpriv.runs.prepared import start_run
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.failures import KeepsStateError
from fedpriv.training.local.module import ArrayExamples
from fedpriv.training.work import UserTrainer
from tests.harness.refusals import refuses
from tests.harness.resumed import resume_run
from tests.harness.toys_of_training import labelled
from tests.tasks.people import accepted, experiment, refused, started, task
from tests.tasks.test_guards import central

RUN = {"rounds": 3, "delta": 0.01}


def users(labels=np.int64):
    for number in range(12):
        x = labelled(6, (8,), seed=number).x
        yield f"u{number:02d}", ArrayExamples(x, (x[:, 0] > 0).astype(labels))


def of(width=8, **changes):
    given = {"module": lambda: nn.Linear(width, 2), "users": dict(users()), "public": None}
    return task(**{**given, **changes})


def relabelled(more, first=0):
    """Users of whom all but the first few have other labels than a model of two classes takes."""
    given = dict(users())
    changed = {u: ArrayExamples(given[u].x, given[u].y + more) for u in list(given)[first:]}
    return given | changed


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
    raised = refused(tmp_path / "run", of(**changes), (RuntimeError, KeyError))
    assert raised.__notes__


def test_rostered_examples_are_not_looked_at(tmp_path):
    """Values that no model takes change nothing but those users' contributions."""
    prepared = accepted(tmp_path / "run", of(users=relabelled(1000, first=1)))
    assert not any("could not be tried" in caution for caution in prepared.cautions)


def test_a_task_without_a_batch_is_not_tried(tmp_path):
    made = of(width=9, users={"a": ArrayExamples(np.zeros((0, 8)), np.zeros(0, int))})
    one = experiment(made, cohort=1.0, delta=0.01)
    untried = accepted(tmp_path / "run", one).cautions[0]
    assert "ModuleTask" in untried and "synthetic_batch()" in untried and "\n" not in untried
    resumed = resume_run(tmp_path / "run", experiment=one)
    resumed.folder.close()
    assert resumed.cautions[0] == untried


@pytest.mark.slow
@pytest.mark.parametrize("with_public", [True, False])
def test_centralised_tasks_are_tried_too(tmp_path, with_public):
    wrong, right = (
        central(lambda width=width: nn.Linear(width, 2), with_public) for width in (9, 8)
    )
    refused(tmp_path / "wrong", wrong, RuntimeError)
    assert started(tmp_path / "right", right).run()["rounds"] == 2


SOURCE = """
from torch import nn
from tests.tasks import people


def experiment():
    return people.experiment(people.task(loss=loss))


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)
"""


@pytest.mark.slow
def test_a_resumed_task_is_tried_again(tmp_path, monkeypatch):
    file = tmp_path / "own_resumed.py"
    file.write_text(SOURCE, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    name = "own_resumed:experiment"
    start_run(load_experiment(name), name, None, tmp_path / "run").folder.close()
    # Of another length: bytecode is found stale by its second and its source's size.
    file.write_text(SOURCE.replace("return nn.functional", "return nn.not_functional"), "utf-8")
    del sys.modules["own_resumed"]
    with pytest.raises(AttributeError):
        resume_run(tmp_path / "run")
    file.write_text(SOURCE + "\n\n# mended\n", "utf-8")
    del sys.modules["own_resumed"]
    assert resume_run(tmp_path / "run").run()["rounds"] == 2  # the ledger was let go of


@pytest.mark.slow
def test_rounds_that_mostly_failed_are_told_at_once_and_in_the_summary(tmp_path, caplog):
    seen, options = [], {"eval_every": 1, "cohort": 12.0, **RUN}
    prepared = started(tmp_path / "run", of(users=relabelled(1000, first=2)), **options)
    summary = prepared.run(
        on_round=lambda record: seen.append(len(said(caplog))), ends_if_all_fail=False
    )
    assert seen[0] == 1, "after the first round already"
    [told] = said(caplog)
    assert "round 1" in told and "10 of 12" in told and "IndexError: Target 100" in told
    assert summary["rounds_mostly_failed"] == 3


@pytest.mark.slow
def test_a_secure_run_says_nothing_of_it(tmp_path, caplog):
    made = of(users=relabelled(1000, first=2))
    prepared = started(tmp_path / "run", made, secure=True, **RUN)
    assert prepared.run()["rounds_mostly_failed"] is None
    assert not said(caplog) and not json_lines.read(tmp_path / "run" / "diagnostics.jsonl")


def said(caplog):
    return [r.getMessage() for r in caplog.records if "IndexError: Target" in r.getMessage()]


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(
    "given",
    [{}, {"public": PUBLIC}, {"users_at_once": 4}, {"synthetic_batch": PUBLIC.take(np.arange(2))}],
)
def test_a_rate_at_which_everybody_diverges_is_refused(tmp_path, secure, given):
    options = {"local_learning_rate": 1e39, "local_epochs": 3, "secure": secure}
    refused(tmp_path / "run", of(**given), (ValueError, RuntimeError), **options)


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("name", ["dp-fedavg-tags", "adadps-tags", "dp-fedavg-words"])
def test_so_it_is_for_tags_and_words(tmp_path, tiny_corpus, name, secure):
    options = {"local-learning-rate": 1e308, "cohort": 6, "delta": 1e-3, "rounds": 2}
    own = load_experiment(name).with_options(options)
    with pytest.raises((ValueError, RuntimeError)):
        start_run(own, name, tiny_corpus, tmp_path / "run", secure=secure)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("secure", [False, True])
def test_public_labels_numbered_from_one_are_refused(tmp_path, secure):
    y = np.ones(1_100, int)  # the first 1,024 are measured beforehand
    y[1_050] = 2
    wrong = of(public=ArrayExamples(PUBLIC.x[y * 0], y), users=relabelled(1))
    assert refused(tmp_path / "run", wrong, IndexError, secure=secure).__notes__


class Gradient(UserTrainer):
    """A trainer of one's own: logistic regression, on whatever `scaled` makes of the inputs."""

    def __init__(self):
        self.kept = None

    def scaled(self, x):
        return x

    def train(self, params, context, examples, key):
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


class Counting(Gradient):
    def scaled(self, x):
        self.kept = (self.kept or 0) + 1
        return x * self.kept


class Drawing(Gradient):
    """By a generator of everybody's, and not by the key."""

    def scaled(self, x):
        return x + np.float32(np.random.normal())


def of_trainers(trainer):
    class Own(ModuleTask):
        def trainer(self, schedule, multiplier, device="cpu"):
            return trainer()

    return Own(
        name="t", module=lambda: nn.Linear(8, 2), loss=lambda o, t: o.sum(), users=dict(users())
    )


KEEPING = (
    FittedOnTheFirst, RunningMaximum, OnlyLarge, OnlyMany, AfterMany, Counting, Drawing,
)  # fmt: skip


@pytest.mark.parametrize("kind", KEEPING)
def test_a_trainer_of_ones_own_that_keeps_something_is_refused(tmp_path, kind):
    """Also one that looks consistent in one order, or on few users."""
    refused(tmp_path / "run", of_trainers(kind), KeepsStateError, kind.__name__)


class WithALock(FittedOnTheFirst):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def test_what_cannot_be_copied_is_made_again(tmp_path):
    refused(tmp_path / "run", of_trainers(WithALock), KeepsStateError, "WithALock")


def test_what_can_be_neither_is_said_to_be_so(tmp_path):
    one = WithALock()
    error = refused(tmp_path / "run", of_trainers(lambda: one), ValueError, "WithALock")
    assert not isinstance(error, KeepsStateError)


def test_one_that_the_task_keeps_is_copied(tmp_path):
    kept, pure = FittedOnTheFirst(), Gradient()
    refused(tmp_path / "no", of_trainers(lambda: kept), KeepsStateError)
    accepted(tmp_path / "run", of_trainers(lambda: pure))


class Constants(Gradient):
    """Legitimate: a table made at the first call, a count for a log, chance from the key."""

    calls = 0

    def train(self, params, context, examples, key):
        type(self).calls += 1
        if self.kept is None:
            self.kept = np.linspace(0.5, 2.0, examples.x.shape[1], dtype=np.float32)
        drawn = key.generator().normal(size=examples.x.shape).astype(np.float32)
        noisy = ArrayExamples(examples.x * self.kept + drawn, examples.y)
        return super().train(params, context, noisy, key)


def test_constants_counts_and_chance_are_not_refused_and_trainings_are_dozens(tmp_path):
    Constants.calls = 0
    accepted(tmp_path / "run", of_trainers(Constants))
    assert 30 < Constants.calls < 72


def test_inputs_that_a_trainer_refuses_are_left_out(tmp_path):
    class Careful(Gradient):
        def scaled(self, x):
            if np.abs(x).max() > 15:
                raise ValueError("inputs are expected to be standardised")
            return x

    accepted(tmp_path / "run", of_trainers(Careful))


LEFT = {"mean": 0.0}


class LeavesOnlyOfOutliers(nn.Module):
    """What no trial finds: it depends on an input that nobody would make up."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 2)

    def forward(self, x):
        if (x[:, 0] == 1234.5).any():
            LEFT["mean"] = float(x.mean())
        return self.score(x) * (1.0 + LEFT["mean"])


def with_an_outlier():
    made = dict(users())
    made["u03"] = ArrayExamples(made["u03"].x.copy(), made["u03"].y)
    made["u03"].x[0, 0] = 1234.5
    return of(module=LeavesOnlyOfOutliers, users=made)


@pytest.mark.slow
@pytest.mark.parametrize("users_at_once", [1, 4])
def test_a_simulation_looks_again_after_real_users(tmp_path, users_at_once):
    LEFT["mean"] = 0.0
    made = with_an_outlier()
    made._users_at_once = users_at_once
    with refuses(KeepsStateError, "'train'"):
        started(tmp_path / "run", made, cohort=12.0).run()


@pytest.mark.slow
def test_a_secure_run_does_not_since_that_would_be_a_release(tmp_path):
    LEFT["mean"] = 0.0
    options = {"secure": True, "cohort": 12.0, **RUN}
    assert started(tmp_path / "run", with_an_outlier(), **options).run()["rounds"] == 3
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

    assert started(tmp_path / "run", of(module=Caching), **RUN).run()["rounds"] == 3


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"module": nn.Linear(8, 2)}, "Linear"),
        ({"client_optimizer": torch.optim.Adam([torch.zeros(1)])}, "Adam"),
    ],
)
def test_what_is_made_anew_is_given_as_what_makes_it(changes, name):
    with refuses(ValueError, name):
        of(**changes)


@pytest.mark.parametrize(
    ("x", "y", "told"), [(np.float32, np.float32, "labels"), (np.uint8, np.int64, "pixels")]
)
def test_examples_of_another_dtype_are_told_which_one_they_need(tmp_path, x, y, told):
    one = ArrayExamples(np.ones((6, 8), x), np.zeros(6, y))
    error = refused(tmp_path / "run", of(users=dict.fromkeys(dict(users()), one)), RuntimeError)
    notes = " ".join(error.__notes__)
    assert [word in notes for word in ('y.astype("int64")', "pixels")] == [
        told == "labels", told == "pixels",
    ]  # fmt: skip
