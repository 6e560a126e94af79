"""A task that lacks something is refused in one line, before there is a run folder."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from fedpriv import cli
from fedpriv.measures import ACCURACY, LOSS, Measure, check_measures
from tests.harness.refusals import refuses

#: What is said before a task is tried.
PREPARING = "preparing own in run: its data, model and plan\n"

SOURCE = """
import numpy as np
from fedpriv.experiments import FederatedExperiment, GaussianNoise
from fedpriv.experiments.preconditioning import InSteps, OwnMultipliers
from fedpriv.measures import Measure
from fedpriv.tasks.task import Task, TaskDescription
from fedpriv.training.evaluate import Metrics
from fedpriv.training.work import UserTrainer


class Descent(UserTrainer):
    def train(self, params, context, examples, key):
        return {"w": examples.mean(axis=0) - params["w"]}


class People:
    known = {f"u{n}": np.full((4, 3), n, np.float32) for n in range(10)}

    def examples(self, user_id):
        return self.known[user_id]

    def num_examples(self, user_id):
        return len(self.known[user_id])


class Mine(Task):
    roster = tuple(f"u{n}" for n in range(10))
    data = People()
    measures = (Measure(name="distance", label="distance", higher_is_better=False),)

    def init_params(self, key):
        return {"w": np.zeros(3, np.float32)}

    def trainer(self, schedule, multiplier, device="cpu"):
        return Descent()

    def synthetic_batch(self):
        return np.ones((2, 3), np.float32)

    def evaluate(self, params, *, public, part=(0, 1)):
        if not public:
            return None
        return Metrics.of(4, distance=float(abs(params["w"]).sum()))

    def describe(self):
        return TaskDescription(name="mine", synthetic=True, roster="all",
                               num_users=len(self.roster), num_public_users=3)


def task(experiment):
    return Mine()


def experiment():
    return FederatedExperiment(
        name="own", description="Mine.",
        noise=GaussianNoise(multiplier=1.0), cohort=5.0,
        delta=0.01, rounds=2,
        task=task,
    )
"""

CENTRAL = """
import numpy as np
from scipy import sparse
from fedpriv.experiments import CentralExperiment, GaussianNoise
from fedpriv.experiments.preconditioning import BothAverages
from fedpriv.tasks.central import CentralTask, zeros
from fedpriv.training.evaluate import Metrics
from fedpriv.training.per_example.linear import LogisticGradients

X = sparse.csr_matrix(np.eye(20, 5, dtype=np.float32))


def task(experiment):
    return CentralTask(
        name="central", synthetic=True, train=LogisticGradients(X, np.arange(20) % 2),
        num_train=20, init=zeros({"weight": (5,), "bias": (1,)}),
        measure=lambda params: Metrics.of(2, accuracy=0.5,
                                          loss=float(sum(abs(p).sum() for p in params.values()))),
    )


def experiment():
    return CentralExperiment(
        name="own", description="Mine.",
        noise=GaussianNoise(multiplier=1.0), batch_size=5,
        delta=0.01, steps=2, task=task,
    )
"""


@pytest.fixture
def fedpriv(tmp_path, monkeypatch, capsys):
    """Runs the installed command on a file `mine.py`, with a run folder: (status, what it said)."""

    def run(source, *arguments):
        (tmp_path / "mine.py").write_text(source, "utf-8")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        sys.modules.pop("mine", None)
        given = ["fedpriv", "run", "mine:experiment", "--out", "run", *arguments]
        monkeypatch.setattr(sys, "argv", given)
        with pytest.raises(SystemExit) as left:
            cli.main()
        return left.value.code, capsys.readouterr().err.removeprefix(PREPARING)

    yield run
    sys.modules.pop("mine", None)


RANK, OWN = "precondition=InSteps()", "precondition=InSteps(side_information=OwnMultipliers())"
TUPLE, TWICE = 'tuple(f"u{n}" for', 'tuple(f"u{n // 2}" for'
FILES = 'def files(self):\n        return {"ledger.jsonl": b""}\n\n    def describe(self)'
CHANGED = {
    "describe returns a dict": (
        "return TaskDescription(name",
        "return dict(name",
        ["Mine", "dict"],
    ),
    "describe counts others": ("num_users=len(self.roster)", "num_users=9", ["Mine", 9, 10]),
    "public users unmeasured": ("if not public:\n            ", "", ["describe()", 3]),
    "describe without a name": ('name="mine"', 'name=""', ["''"]),
    "an empty roster": ("for n in range(10))", "for n in range(0))", ["own"]),
    "a list as roster": ("tuple(f", "list(f", ["own", "['u0'"]),
    "numbers as ids": (TUPLE, "tuple(n for", ["own", "(0"]),
    "a user twice": (TUPLE, TWICE, ["own", "u0"]),
    "a user without data": ("for n in range(10)}", "for n in range(1, 10)}", ["u0"]),
    "data without examples": ("def num_examples", "def number", ["People", "num_examples"]),
    "words as measures": ("(Measure(name=", "(dict(name=", ["Mine", "dict"]),
    "a measure named as a column": ('name="distance"', 'name="epsilon"', ["epsilon"]),
    "evaluate returns a dict": ("return Metrics.of(4, ", "return dict(", ["evaluate()", "dict"]),
    "evaluate measures another": ("of(4, distance", "of(4, far", ["evaluate()", "far"]),
    "files of ours": ("def describe(self)", FILES, ["ledger.jsonl"]),
    "no multipliers": ("task=task", f"task=task, {RANK}", ["side-information", "rank"]),
    "no multipliers of its own": ("task=task", f"task=task, {OWN}", ["side-information", "own"]),
    "another's task": ("return Mine()", "return 3", ["fedpriv.tasks.task.Task", "int"]),
}
CENTRAL_CHANGED = {
    "another's task": ("return CentralTask(", "return dict(", ["dict"]),
    "no public examples": ("steps=2", "steps=2, preconditioner=BothAverages()", ["central"]),
    "other figures": ("accuracy=0.5", "share=0.5", ["evaluate()", "share"]),
    "no name": ('name="central"', 'name=""', ["''"]),
}
EVERY = [
    pytest.param(source, *changed, id=f"{kind}: {name}")
    for kind, source, table in (("users", SOURCE, CHANGED), ("central", CENTRAL, CENTRAL_CHANGED))
    for name, changed in table.items()
]


def check_refused(fedpriv, tmp_path, source, *names):
    """One line says what is wrong, and there is no run folder."""
    status, shown = fedpriv(source)
    assert status == 2, shown
    assert shown.startswith("error: ") and shown.count("\n") == 1
    assert all(str(name) in shown for name in names), shown
    assert not (tmp_path / "run").exists()


class TestRefused:
    @pytest.mark.parametrize("source", [SOURCE, CENTRAL], ids=["users", "central"])
    def test_what_is_changed_below_runs(self, fedpriv, tmp_path, source):
        assert fedpriv(source)[0] == 0
        assert (tmp_path / "run" / "summary.json").exists()

    @pytest.mark.parametrize("member", ["trainer", "describe"])
    def test_a_missing_method_is_named(self, fedpriv, tmp_path, member):
        status, said = fedpriv(SOURCE.replace(f"def {member}(", f"def other_{member}("))
        assert status == 1 and "abstract class Mine" in said and member in said
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("name", ["roster", "data"])
    def test_a_missing_attribute_is_named_and_one_set_as_it_is_made_is_taken(
        self, fedpriv, tmp_path, name
    ):
        gone = SOURCE.replace(f"    {name} = ", f"    other_{name} = ")
        check_refused(fedpriv, tmp_path, gone, "Mine", name)
        made = f"    def __init__(self):\n        self.{name} = self.other_{name}\n\n"
        status, said = fedpriv(gone.replace("    def init_params", made + "    def init_params"))
        assert status == 0, said

    @pytest.mark.parametrize(("source", "old", "new", "names"), EVERY)
    def test_what_does_not_fit_is_one_line(self, fedpriv, tmp_path, source, old, new, names):
        assert old in source
        check_refused(fedpriv, tmp_path, source.replace(old, new), *names)

    def test_an_error_in_its_own_method_is_its_own(self, fedpriv, tmp_path):
        faulty = SOURCE.replace("return TaskDescription(", "return self.gone(")
        status, shown = fedpriv(faulty)
        assert status == 1 and "has no attribute 'gone'" in shown and "/fedpriv/" not in shown
        assert not (tmp_path / "run").exists()


def test_multipliers_of_its_own_are_used(fedpriv, tmp_path):
    source = SOURCE.replace("task=task", f"task=task, {OWN}")
    source = source.replace(
        "    def describe(self)",
        "    def side_information(self):\n"
        "        from fedpriv.mechanisms import SideInformation\n"
        '        return SideInformation(multiplier={"w": np.ones(3, np.float32)},\n'
        '                               source="public", description="ones")\n\n'
        "    def describe(self)",
    )
    status, shown = fedpriv(source)
    assert status == 0, shown
    assert '"description": "ones"' in (tmp_path / "run" / "experiment.json").read_text("utf-8")


class TestMeasures:
    @pytest.mark.parametrize("name", ["", "Two Words", "accuracy_public", "seconds", "a-b"])
    def test_a_name_that_cannot_stand_in_json(self, name):
        with refuses(ValueError, repr(name)):
            Measure(name=name, label="x")

    def test_they_can_stand_side_by_side(self):
        assert check_measures((ACCURACY, LOSS)) == (ACCURACY, LOSS)
        with refuses(ValueError, 2, "accuracy"):
            check_measures((ACCURACY, LOSS, ACCURACY))
        with refuses(ValueError, "loss"):
            check_measures((LOSS, ACCURACY))


class TestModuleMeasures:
    def fitting(self, outputs, y):
        from fedpriv.training.local.module_measures import fitting_measures

        class Fixed(torch.nn.Module):
            def forward(self, x):
                return outputs

        found = fitting_measures(Fixed(), np.zeros((len(y), 1)), y)
        return [own.measure.name for own in found]

    @pytest.mark.parametrize(
        ("targets", "said"), [(np.eye(3)[[0, 2, 1, 1]], 1), (np.ones((4, 3)), 0), (np.eye(4), 0)]
    )
    def test_targets_that_are_one_hot_are_said_to_be_taken_for_numbers(self, targets, said, caplog):
        assert "accuracy" not in self.fitting(torch.zeros(4, 3), targets)
        assert ["argmax" in line for line in caplog.messages] == [True] * said

    def test_outputs_and_targets_say_what_fits(self):
        whole, real = np.zeros(4, int), np.zeros(4)
        words = np.zeros((4, 7), int)
        errors = ["mean_squared_error", "mean_absolute_error"]
        tokens = ["perplexity", "token_accuracy"]
        assert self.fitting(torch.zeros(4, 3), whole) == ["accuracy"]
        assert self.fitting(torch.zeros(4, 1), real) == errors
        assert self.fitting(torch.zeros(4), real) == errors
        assert self.fitting(torch.zeros(4, 3), real) == []
        assert self.fitting(torch.zeros(4, 1), whole) == []  # one logit is not a class score
        assert self.fitting(torch.zeros(4, 7, 5), words) == tokens
        assert self.fitting(torch.zeros(4, 5, 7), words) == tokens
        assert self.fitting((torch.zeros(4, 3), None), whole) == []
        with pytest.raises(ValueError):
            self.fitting(torch.zeros(4, 7, 7), words)

    def test_a_bare_function_is_refused_with_what_it_lacks(self):
        from fedpriv.training.local.module_measures import with_loss

        def top_3(outputs, targets):
            return outputs

        with refuses(ValueError, "top_3"):
            with_loss([top_3], torch.nn.functional.cross_entropy)

    @pytest.mark.parametrize("classes", ["last", "middle"])
    def test_tokens_are_counted_but_for_those_ignored(self, classes):
        from fedpriv.training.evaluate import combined
        from fedpriv.training.local.module_measures import module_metrics, next_token

        rng = np.random.default_rng(0)
        scores = torch.from_numpy(rng.normal(size=(3000, 6, 4)).astype(np.float32))
        y = rng.integers(0, 4, (3000, 6))
        y[rng.random(y.shape) < 0.3] = -100
        given = scores if classes == "last" else scores.transpose(1, 2)

        class Rows(torch.nn.Module):
            def forward(self, x):
                return given[x]

        x = np.arange(3000)
        own = next_token(classes)
        whole = module_metrics(Rows(), own, x, y)
        counted = y != -100
        right = (scores.numpy().argmax(-1) == y)[counted]
        assert whole.get("token_accuracy") == right.sum() / counted.sum()
        logs = torch.log_softmax(scores.double(), -1).numpy()[counted]
        expected = np.exp(-np.mean(logs[np.arange(len(logs)), y[counted]]))
        assert whole.get("perplexity") == pytest.approx(expected, rel=1e-5)
        parts = combined(module_metrics(Rows(), own, x, y, (part, 2)) for part in range(2))
        assert parts.get("token_accuracy") == whole.get("token_accuracy")
        assert parts.get("perplexity") == pytest.approx(whole.get("perplexity"), rel=1e-9)

    def test_what_a_measure_of_one_s_own_may_return(self):
        from fedpriv.training.local.module_measures import ModuleMeasure

        outputs, targets = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 2.0, 3.0])
        for compute in (
            lambda o, t: o == t,
            lambda o, t: ((o == t).sum(), 3),
            lambda o, t: (o == t).double().mean(),
            lambda o, t: 2 / 3,
        ):
            own = ModuleMeasure(measure=ACCURACY, compute=compute)
            assert own.total(outputs, targets).value == pytest.approx(2 / 3)
        with refuses(ValueError, "accuracy", "str"):
            ModuleMeasure(measure=ACCURACY, compute=lambda o, t: "good").total(outputs, targets)
