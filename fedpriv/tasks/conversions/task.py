"""A logistic model of conversions, whose unit is a click."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpriv.datasets.dataset import Dataset
from fedpriv.measures import ACCURACY, LOSS
from fedpriv.tasks.conversions.auc import AUC_LOSS, auc_total
from fedpriv.tasks.example_task import CentralTask, zeros
from fedpriv.training.evaluate import Metrics
from fedpriv.training.per_example.linear import (
    LogisticGradients,
    linear_class_scores,
    linear_metrics,
)
from fedpriv.tree import Params


def conversion_task(data: Dataset) -> CentralTask:
    """Return the task of logistic regression on a log, started at zero; AUC loss heads it."""
    rows: Any = data.x_test

    def measure(params: Params) -> Metrics:
        found = linear_metrics(params, rows, data.y_test)
        scores = rows @ np.asarray(params["weight"], np.float64).reshape(-1)
        ranked = auc_total(np.asarray(scores), data.y_test)
        return Metrics(
            totals={AUC_LOSS.name: ranked, **found.totals}, num_examples=found.num_examples
        )

    x: Any = data.x_train
    return CentralTask(
        name=data.name,
        train=LogisticGradients(x, data.y_train),
        num_train=data.num_train,
        init=zeros({"weight": (x.shape[1],), "bias": (1,)}),
        measure=measure,
        scores=lambda params: linear_class_scores(params, rows, data.y_test),
        measures=(AUC_LOSS, ACCURACY, LOSS),
        provenance=data.provenance,
        data_sha256=data.sha256,
        synthetic=data.synthetic,
    )
