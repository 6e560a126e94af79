"""Each centralised experiment's sums on a device, on the CPU, beside those of its own path.

One row for each method and data set: `table()` has them, and each row is a test.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn
from torch.nn import functional

import fedpriv as fp
from fedpriv import tree
from fedpriv.backends import Backend
from fedpriv.backends.backend import answered
from fedpriv.datasets.dataset import Dataset
from fedpriv.experiments.agd import CentralDescent
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.bolt_on import CentralBoltOn
from fedpriv.experiments.build import build, takes_corpus
from fedpriv.experiments.load import find_experiments
from fedpriv.rng import Key
from fedpriv.runs.backends import serial_on
from fedpriv.runs.loop import rounds
from fedpriv.runs.prepared import start_run
from fedpriv.tasks.dataset_tasks import linear_task, module_task
from fedpriv.training.devices import usable_device
from fedpriv.training.per_example.example_sum import CentralSum
from fedpriv.training.per_example.linear import (
    HuberGradients,
    LogisticGradients,
    SoftmaxGradients,
)
from fedpriv.training.work import as_works
from simulations.adadps.models import TextLSTM
from tests.harness.refusals import refuses
from tests.simulations.photographs.records import write_records

NUM, INPUTS, CLASSES = 60, 30, 3
KEY = Key.simulation(1).fold("examples")
STEPS = 3
SMALL = {"batch-size": 12.0, "epochs": None, "steps": STEPS, "delta": 1e-3}
#: What makes the installed ones small.
INSTALLED = {
    "dp-sgd-conversions": {"log-rows": 200, "buckets": 50},
    "dp-sgd-cifar": {"batch-size": 4.0, "multiplicity": 2},
}


def dataset(kind, classes=2):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2 * NUM, INPUTS)) * (rng.random((2 * NUM, INPUTS)) < 0.4)
    y = rng.integers(0, classes, 2 * NUM)
    given = {
        "sparse": lambda rows: sparse.csr_matrix(rows.astype(np.float32)),
        "dense": lambda rows: (rows / 9.0).astype(np.float32),
        "words": lambda rows: (10 * np.abs(rows[:, :7])).astype(np.int64),
    }[kind]
    return Dataset(
        name="synthetic",
        x_train=given(x[:NUM]),
        y_train=y[:NUM],
        x_test=given(x[NUM : NUM + 20]),
        y_test=y[NUM : NUM + 20],
        x_public=given(x[NUM + 20 :]),
        y_public=y[NUM + 20 :],
        provenance={},
        synthetic=True,
    )


def linear(make, classes=2):
    shapes = {"weight": (INPUTS,), "bias": (1,)}
    if classes > 2:
        shapes = {"kernel": (INPUTS, classes), "bias": (classes,)}
    return lambda experiment: linear_task(dataset("sparse", classes), make, shapes)


TASKS = {
    "logistic": linear(LogisticGradients),
    "huber": linear(HuberGradients),
    "softmax": linear(lambda x, y: SoftmaxGradients(x, y, CLASSES), CLASSES),
    "one-vs-all": linear(lambda x, y: LogisticGradients(x, y, CLASSES), CLASSES),
    "own module": lambda experiment: module_task(
        dataset("dense"),
        lambda: nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2)),
        functional.cross_entropy,
    ),
    "autoencoder": lambda experiment: module_task(
        dataset("dense"),
        lambda: nn.Sequential(nn.Linear(INPUTS, 5), nn.Sigmoid(), nn.Linear(5, INPUTS)),
        functional.mse_loss,
        reconstruct=True,
    ),
    "text": lambda experiment: module_task(
        dataset("words"), lambda: TextLSTM(60, 2, width=4), functional.cross_entropy
    ),
}
LINEAR = ("logistic", "huber", "softmax", "one-vs-all", "dp-sgd-conversions")
AVERAGING = {
    "DP-SGD": {},
    "micro-batches": {"micro-batch": 3},
    "DP-NAdam": {"bound": "normalise", "optimizer": "adam"},
    "AdaDPS": {"preconditioner": "public-rmsprop"},
    "AdaDPS by Adam": {"preconditioner": "public-adam"},
    "PDA-DPMD": {"preconditioner": "mirror-descent"},
    "scaled by past releases": {"preconditioner": "past-releases"},
}


class Row(NamedTuple):
    """An experiment of small synthetic data: of which, by which method, and the two together."""

    data: str
    method: str
    experiment: object


def averaging(task, **options):
    made = CentralExperiment(name="examples", description="", task=task)
    return made.with_options({**SMALL, "noise-multiplier": 1.0, "l2-clip-norm": 0.5, **options})


def by_example():
    """The installed experiments of single examples without a corpus, by name."""
    made = {name: make() for name, make in find_experiments().items()}
    return {n: m for n, m in made.items() if m.unit == "example" and not takes_corpus(m.task)}


def table() -> Iterator[Row]:
    """Yield every installed experiment by example, and each method on each task that takes it."""
    for name, made in sorted(by_example().items()):
        row = made.with_options({**SMALL, **INSTALLED[name]})
        yield Row(data=name, method="as installed", experiment=row)
    for data, task in TASKS.items():
        for method, options in AVERAGING.items():
            yield Row(data=data, method=method, experiment=averaging(task, **options))
        if data in LINEAR:  # their sums are rounded, and those of a module are not
            continue
        agd = CentralDescent(
            name="agd", description="", task=task, target_epsilon=20.0, iterations=3, num_steps=4,
            delta=1e-3,
        )  # fmt: skip
        yield Row(data=data, method="DP-AGD", experiment=agd)


ROWS = {f"{row.data}, {row.method}": row for row in table()}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return str(write_records(tmp_path_factory.mktemp("cifar"), 24, 8))


class Both(Backend):
    """Sums here and on a device, of which the run goes on with the first.

    Args:
        here: Works by name.
        there: The same on a device.
    """

    def __init__(self, here, there):
        self.here, self.there, self.sums = here, there, []

    def sum(self, request, attempt, cohort):
        expected, found = (
            answered(each, None, request, attempt, cohort) for each in (self.here, self.there)
        )
        assert found.num_failed == expected.num_failed == 0
        assert found.granularity == expected.granularity
        self.sums.append((request.work, expected, found))
        return expected


def device_of(work):
    """The device that a work computes on."""
    return (work.gradients if isinstance(work, CentralSum) else work.losses)._device


def compared(row, folder, device):
    """Return the work, the sum on its own path and that on a device, of what a run's steps ask."""
    pictures = {"folder": folder} if row.data == "dp-sgd-cifar" else {}
    experiment = row.experiment.with_options(pictures)
    components = build(experiment)
    there = as_works(experiment.make_trainer(components.task, device=device))
    assert {device_of(work) for work in there.values()} == {usable_device(device)}
    both = Both(as_works(components.trainer), there)
    list(islice(rounds(components, both, KEY, eval_every=10**9), STEPS))
    assert {name for name, _, _ in both.sums} == set(there)
    return both.sums


def relative_gap(found, expected):
    """The l2 norm of the difference of two sums over that of the second."""
    gap = {n: np.asarray(found.total[n] - a, np.float64) for n, a in expected.total.items()}
    return tree.l2_norm(gap) / tree.l2_norm(expected.total)


def assert_same_sums(row, folder, device, *, of_modules=1e-6):
    """To the rounding of float32, which the sums of a linear model here do not have."""
    sums = [(expected, found) for _, expected, found in compared(row, folder, device)]
    nobody = [not tree.l2_norm(expected.total) for expected, _ in sums]  # drew an empty batch
    assert not all(nobody)
    for (expected, found), empty in zip(sums, nobody, strict=True):
        assert not (empty and tree.l2_norm(found.total))
        assert empty or relative_gap(found, expected) <= (
            1e-5 if row.data in LINEAR else of_modules
        )
        if expected.granularity is not None and device == "cpu":
            for tensor, array in expected.total.items():
                assert array.dtype == found.total[tensor].dtype and array.dtype.kind == "i"
                np.testing.assert_array_equal(found.total[tensor], array)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_sum_on_a_device_is_the_sum(row, pictures):
    assert_same_sums(row, pictures, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_sum_on_the_gpu_is_the_sum(row, pictures, device):
    """Of modules to a part in 10^4: float32 sums are taken in another order there."""
    assert_same_sums(row, pictures, device, of_modules=1e-4)


#: Of every method one that a whole run of is compared.
WHOLE = (
    "dp-sgd-conversions, as installed",
    "softmax, micro-batches",
    "logistic, AdaDPS",
    "own module, DP-AGD",
    "own module, DP-SGD",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_a_run_on_a_device_ends_where_a_run_ends(name, tmp_path):
    experiment = ROWS[name].experiment
    summaries, params = [], []
    for place, backend in (("here", {}), ("there", {"make_backend": serial_on("cpu")})):
        prepared = start_run(experiment, None, None, tmp_path / place, **backend)
        summaries.append(prepared.run())
        params.append(fp.load(tmp_path / place).params)
    assert summaries[0]["rounds"] == summaries[1]["rounds"] >= 1
    assert summaries[0]["epsilon"] == summaries[1]["epsilon"]
    gap = {n: params[1][n].astype(np.float64) - a for n, a in params[0].items()}
    assert tree.l2_norm(gap) <= 1e-5 * tree.l2_norm(params[0])


ROUNDED = {
    "exact sum": averaging(TASKS["logistic"], **{"exact-sum": True}),
    "DP-AGD": CentralDescent(
        name="agd", description="", task=TASKS["logistic"], target_epsilon=20.0, iterations=3,
        num_steps=4, delta=1e-3,
    ),
    "Bolt-on": CentralBoltOn(
        name="bolt-on", description="", task=TASKS["logistic"], batch_size=7, passes=2
    ).with_options({"target-epsilon": 1.0}),
}  # fmt: skip


@pytest.mark.parametrize("experiment", ROUNDED.values(), ids=ROUNDED)
def test_what_is_not_computed_on_a_device_is_refused_before_a_charge(tmp_path, experiment):
    with refuses(ValueError, "device", "'cpu'"):
        start_run(experiment, None, None, tmp_path / "run", make_backend=serial_on("cpu"))
    assert not (tmp_path / "run").exists()


def test_a_device_that_is_not_here_is_refused_before_a_run_folder_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in WHOLE:
        with refuses(ValueError, "cuda:0"):
            start_run(
                ROWS[name].experiment, None, None, tmp_path / "r", make_backend=serial_on("cuda:0")
            )
    assert not (tmp_path / "r").exists()


def test_the_table_has_every_installed_experiment_by_example():
    named = set(by_example())
    assert named == set(INSTALLED) and named <= {row.data for row in ROWS.values()}
    assert len(ROWS) == len(list(table()))
