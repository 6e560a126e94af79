"""Every classification is shown beside the accuracy of its commonest class, in either mode."""

import numpy as np

from fedpriv.measures import ACCURACY
from fedpriv.report.head import key_figures
from fedpriv.report.page import references_of
from fedpriv.report.run_record import read_run
from fedpriv.runs.prepared import start_run
from tests.tasks.people import experiment, person, task

# Four of five public labels are 1, three of four held-out ones 0.
PUBLIC = (person(99)[0][:5], np.array([1, 1, 0, 1, 1]))
HELD_OUT = {"u00": (person(98)[0][:4], np.array([0, 0, 1, 0]))}


def run(folder, *, secure=False, **changes):
    made = start_run(experiment(task(**changes)), "own:x", None, folder, secure=secure)
    return made.run()


def remarks_of(folder):
    return {name: " ".join(remarks) for name, _, remarks in key_figures(read_run(folder))}


def test_a_module_has_the_majority_of_what_each_accuracy_is_measured_on(tmp_path):
    summary = run(tmp_path / "run", public=PUBLIC, test=HELD_OUT)
    assert summary["majority_class_accuracy"] == 0.75
    assert summary["majority_class_accuracy_public"] == 0.8
    shown = remarks_of(tmp_path / "run")
    assert "majority class 75.0" in shown["Accuracy"]
    assert "majority class 80.0" in shown["Accuracy, public users"]


def test_a_secure_run_has_that_of_public_labels_alone(tmp_path):
    summary = run(tmp_path / "run", secure=True, public=PUBLIC, test=HELD_OUT)
    assert summary["majority_class_accuracy"] is None
    assert summary["majority_class_accuracy_public"] == 0.8
    assert "majority class 80.0" in remarks_of(tmp_path / "run")["Accuracy"]
    [reference] = references_of(read_run(tmp_path / "run"), ACCURACY)
    assert (reference.label, reference.value) == ("majority class", 0.8)


def test_ignored_targets_are_no_class(tmp_path):
    described = task(public=(PUBLIC[0], np.array([0, -100, -100, -100, 1]))).describe()
    assert described.majority_class_accuracy_public == 0.5


def test_a_regression_has_none():
    x, y = person(0)
    made = task(users={"ann": (x, y * 1.0)}, public=(x[:, :1], x[:, :2]))
    assert made.describe().majority_class_accuracy_public is None
