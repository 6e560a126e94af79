"""Synthetic examples of two classes, centralised."""

import numpy as np
from scipy import sparse

from fedpriv.datasets.dataset import Dataset
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.tasks.dataset_tasks import linear_task
from fedpriv.training.per_example.linear import LogisticGradients


def _data():
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, 120)
    rows = sparse.csr_matrix(rng.normal(size=(120, 4)) + labels[:, None])
    return Dataset(
        name="blobs",
        x_train=rows[:90],
        y_train=labels[:90],
        x_test=rows[90:],
        y_test=labels[90:],
        provenance={},
        synthetic=True,
    )


def _task():
    shapes = {"weight": (4,), "bias": (1,)}
    return linear_task(_data(), lambda x, y: LogisticGradients(x, y), shapes)


blobs = CentralExperiment(
    name="blobs", description="Synthetic.", task=lambda experiment: _task(), steps=5, batch_size=30
).with_options({"noise_multiplier": 1.0})
