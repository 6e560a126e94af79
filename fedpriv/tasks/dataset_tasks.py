"""Centralised tasks of a `Dataset`: linear classifiers, modules, conversion rates by AUC loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import rankdata
from torch import Tensor, nn

from fedpriv.checkpoints.tensor_files import frozen_file
from fedpriv.datasets.dataset import Dataset
from fedpriv.datasets.projection import projection_files
from fedpriv.measures import ACCURACY, LOSS, Measure
from fedpriv.mechanisms import SideInformation
from fedpriv.tasks.central import CentralTask, zeros
from fedpriv.training.evaluate import Metrics, Total
from fedpriv.training.local.module import load_params, module_params
from fedpriv.training.local.module_measures import (
    ModuleMeasure,
    classifies,
    commonest_share,
    counted_places,
    fitting_measures,
    module_class_scores,
    module_metrics,
    with_loss,
)
from fedpriv.training.local.module_state import SameFrozen, made_from
from fedpriv.training.per_example.example_sum import ExampleGradients
from fedpriv.training.per_example.linear import (
    LogisticGradients,
    linear_class_scores,
    linear_metrics,
)
from fedpriv.training.per_example.losses import check_loss
from fedpriv.training.per_example.module import ModuleGradients
from fedpriv.tree import Params

# Test examples that say what a module's outputs look like.
_LOOKED_AT = 2


def linear_task(
    data: Dataset,
    gradients: Callable[[Any, np.ndarray], ExampleGradients],
    shapes: Mapping[str, tuple[int, ...]],
    side: Mapping[str, Callable[[], SideInformation]] | None = None,
) -> CentralTask:
    """Return the task of a linear classifier on rows, started at zero.

    Args:
        data: Sparse rows and labels; its public part is the task's. Of projected rows the
            projection goes with the model.
        gradients: From rows and labels to the model on them.
        shapes: Of the params, by name.
        side: Side information by kind.
    """
    rows: Any = data.x_test
    x: Any = data.x_public
    y, public = data.y_public, dict[str, Any]()
    if y is not None:
        public = {
            "public": gradients(x, y),
            "num_public": data.num_public,
            "public_measure": lambda params, index: linear_metrics(params, x[index], y[index]),
        }
    return CentralTask(
        name=data.name,
        train=gradients(data.x_train, data.y_train),
        num_train=data.num_train,
        init=zeros(shapes),
        measure=lambda params: linear_metrics(params, rows, data.y_test),
        measures=(ACCURACY, LOSS),
        scores=lambda params: linear_class_scores(params, rows, data.y_test),
        side={} if side is None else side,
        provenance=data.provenance,
        data_sha256=data.sha256,
        synthetic=data.synthetic,
        files=lambda: projection_files(data),
        majority=commonest_share(data.y_test),
        **public,
    )


def module_task(
    data: Dataset,
    make: Callable[[], nn.Module],
    loss: Callable[[Tensor, Tensor], Tensor],
    inputs: Callable[[Any], np.ndarray] = np.asarray,
    *,
    reconstruct: bool = False,
    measures: Sequence[ModuleMeasure] | None = None,
) -> CentralTask:
    """Return the task of any module, started as it starts itself, from the run's key.

    Args:
        data: Arrays and labels; its public part is the task's.
        make: Makes the module.
        loss: From (outputs, targets) to the mean loss of a batch.
        inputs: From the data set's inputs `(n, ...)` to the module's, row by row.
        reconstruct: Targets are the module's own inputs instead of the labels.
        measures: What it is measured by; None for what fits its outputs and targets, and for the
            loss alone where it reconstructs. The loss comes last where it is not among them.
    """

    def arrays(x: Any, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        given = inputs(x)
        return given, given if reconstruct else np.asarray(y)

    (x, y), make = arrays(data.x_test, data.y_test), SameFrozen(make)
    some = counted_places(y)[:_LOOKED_AT]
    few, looked = (np.asarray(x[some]), np.asarray(y[some])), make()
    if measures is None and not reconstruct:
        measures = fitting_measures(looked, *few)
    taken = with_loss(measures or (), loss)
    check_loss(looked, loss, *few)

    def model(params: Params) -> nn.Module:
        return load_params(make(), params).eval()

    more: dict[str, Any] = {}
    if classifies(taken):
        more["scores"] = lambda params: module_class_scores(model(params), x, y)
        more["majority"] = commonest_share(y)
    if data.y_public is not None:
        own, targets = arrays(data.x_public, data.y_public)
        more["public"] = ModuleGradients(make(), loss, own, targets)
        more["num_public"] = data.num_public
        more["public_measure"] = lambda params, index: module_metrics(
            model(params), taken, own[index], targets[index]
        )
    return CentralTask(
        name=data.name,
        train=ModuleGradients(make(), loss, *arrays(data.x_train, data.y_train)),
        num_train=data.num_train,
        init=lambda key: module_params(made_from(key, make)),
        measure=lambda params: module_metrics(model(params), taken, x, y),
        measures=tuple(one.measure for one in taken),
        files=lambda: frozen_file(make.frozen),
        provenance=data.provenance,
        data_sha256=data.sha256,
        synthetic=data.synthetic,
        untrained=lambda: make.brought,
        **more,
    )


AUC_LOSS = Measure(name="auc_loss", label="AUC loss", higher_is_better=False)


def auc_total(scores: np.ndarray, labels: np.ndarray) -> Total:
    """Return 1 - AUC as a total over pairs of examples of different classes; ties count half.

    It counts pairs, so totals of two sets do not add up to that of both: measure a set whole.

    Args:
        scores: `(n,)`, the higher the likelier class 1.
        labels: 0 and 1 `(n,)`.

    Raises:
        ValueError: If a class has no example, or a score is NaN.
    """
    positive = labels == 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        raise ValueError(f"{ones} examples of class 1 and {zeros} of class 0; AUC needs both")
    if np.isnan(scores).any():
        raise ValueError("a score is NaN: the model diverged; lower its learning rate")
    ranks = rankdata(scores)
    ordered = float(ranks[positive].sum()) - ones * (ones + 1) / 2
    return Total(sum=ones * zeros - ordered, count=ones * zeros)


def conversion_task(data: Dataset) -> CentralTask:
    """Return the task of logistic regression on a log, started at zero; AUC loss heads it."""
    rows: Any = data.x_test

    def measure(params: Params) -> Metrics:
        found = linear_metrics(params, rows, data.y_test)
        scores = rows @ np.asarray(params["weight"], np.float64).reshape(-1)
        ranked = auc_total(np.asarray(scores), data.y_test)
        return replace(found, totals={AUC_LOSS.name: ranked, **found.totals})

    shapes = {"weight": (rows.shape[1],), "bias": (1,)}
    linear = linear_task(data, LogisticGradients, shapes)
    return replace(linear, measure=measure, measures=(AUC_LOSS, ACCURACY, LOSS))
