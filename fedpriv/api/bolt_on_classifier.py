"""`fedpriv.bolt_on_classifier`: scikit-learn's SGDClassifier, perturbed once.

Nothing of scikit-learn is imported: the classifier that is given says everything. It is not
changed; a copy of it is trained through `partial_fit`, a pass at a time, with classes that are
stated, so that neither a class that no row has nor a stopping rule looks at the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpriv.api.bolt_on import Perturbed, bolt_on
from fedpriv.libraries import library
from fedpriv.ranges import positive_float, positive_int
from fedpriv.training.permutation_sgd import (
    Constants,
    StepSchedule,
    constants_of_loss,
    joint_constants,
    shortened,
)
from fedpriv.training.wrapped_sgd import Walk

_SPARSE = library("scipy.sparse")
#: Every parameter that is known, and how those that no proof covers are refused.
_FREE = frozenset({
    "loss", "penalty", "alpha", "l1_ratio", "max_iter", "shuffle", "epsilon", "n_jobs",
    "random_state", "learning_rate", "eta0", "power_t", "validation_fraction", "n_iter_no_change",
    "average",
})  # fmt: skip
_REFUSED: dict[str, tuple[Any, str]] = {
    "tol": (None, "it stops when the loss on these rows says so; give tol=None"),
    "early_stopping": (False, "it stops when the loss on these rows says so; give False"),
    "class_weight": (None, "it makes some rows' losses steeper than the bound says; give None"),
    "fit_intercept": (
        False,
        "the intercept is not regularised, and rows are not shortened with it; give False, and "
        "rows a constant column",
    ),
    "warm_start": (False, "where training starts must not depend on these rows; give False"),
    "verbose": (0, "it prints losses and norms of private training; give 0"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateClassifier:
    """A classifier with released weights.

    Attributes:
        classifier: Of the class that was given, fitted; all of its weights are released ones.
        released: The release: ε, Δ₂, folder.
    """

    classifier: Any
    released: Perturbed

    def __repr__(self) -> str:
        return repr(self.released)


def bolt_on_classifier(
    classifier: Any,
    x: Any,
    y: Any,
    *,
    classes: Sequence[Any],
    target_epsilon: float,
    delta: float | None = None,
    inputs: float = 1.0,
    sample_weight: Any = None,
    **options: Any,
) -> PrivateClassifier:
    """Fit scikit-learn's SGDClassifier, perturb its weights once, and return it with those.

    Args:
        classifier: An SGDClassifier with loss "log_loss" or "modified_huber", penalty "l2" or
            None, learning_rate "constant" or "invscaling", fit_intercept=False and tol=None. Its
            alpha is λ, its max_iter k. It is not changed.
        x: Rows (m, d), dense or sparse. Those beyond `inputs` are shortened, which turns no
            prediction; one that is not finite, or whose label is no class, counts as empty.
        y: Labels (m,).
        classes: All labels there may be; public, and not looked for among the rows.
        target_epsilon: ε of the release, of all classes together.
        delta: As of `bolt_on`.
        inputs: r, which rows are shortened to.
        sample_weight: Refused: a row's weight is its share of everything.
        options: As of `bolt_on`: relation, unit, out, secure, seed, anchor, anchor_command.

    Raises:
        ValueError: If a parameter cannot be bounded, by its name; or as `bolt_on`.
    """
    if sample_weight is not None:
        raise ValueError("sample_weight cannot be bounded: a row may weigh anything; leave it out")
    given = _parameters(classifier)
    labels = np.asarray(classes)
    if len(np.unique(labels)) != len(labels) or len(labels) < 2:
        raise ValueError(f"classes {classes!r} must be two or more different labels")
    labels = np.sort(labels)
    models = 1 if len(labels) == 2 else len(labels)
    rows, targets = _rows(x, y, labels, inputs)
    shape = (models, int(rows.shape[1]))
    passes = positive_int("max_iter", given["max_iter"])

    def train(walk: Walk) -> dict[str, np.ndarray]:
        fitted = _copied(classifier, given, walk.seed)
        for _ in range(passes):
            fitted.partial_fit(rows, targets, classes=labels)
        return {"weights": np.array(fitted.coef_, np.float64)}

    released = bolt_on(
        train,
        _constants(given, models, inputs),
        passes,
        _schedule(given),
        num_rows=len(targets),
        params={"weights": np.zeros(shape, np.float32)},
        target_epsilon=target_epsilon,
        delta=delta,
        average=given["average"] is True,
        **options,
    )
    made = _copied(classifier, given, 0)
    empty = np.zeros((1, shape[1]))  # no row of anybody: it makes the attributes
    made.partial_fit(empty, labels[:1], classes=labels)
    made.coef_ = np.array(released.params["weights"], np.float64)
    made.intercept_ = np.zeros(models)
    return PrivateClassifier(classifier=made, released=released)


def _parameters(classifier: Any) -> dict[str, Any]:
    """Return a classifier's parameters.

    Raises:
        ValueError: If it is of another class, was fitted before, or one of them is not covered.
    """
    if type(classifier).__name__ != "SGDClassifier" or not hasattr(classifier, "get_params"):
        raise ValueError(
            f"{type(classifier).__name__} is not scikit-learn's SGDClassifier; wrap a training of "
            "another kind by fedpriv.bolt_on, with constants of its loss"
        )
    given = dict(classifier.get_params(deep=False))
    missing = sorted((_FREE | _REFUSED.keys()) - given.keys())
    unknown = sorted(given.keys() - _FREE - _REFUSED.keys())
    if missing or unknown:
        raise ValueError(
            f"parameters {', '.join(missing + unknown)} are not those that are known of an "
            "SGDClassifier: it is of another version"
        )
    if getattr(classifier, "coef_", None) is not None:
        raise ValueError(
            "the classifier is fitted already: training on from there (partial_fit) starts where "
            "these rows led; give a fresh one"
        )
    for name, (allowed, why) in _REFUSED.items():
        if given[name] is not allowed and not (name == "verbose" and given[name] == 0):
            raise ValueError(f"{name}={given[name]!r} cannot be bounded: {why}")
    if given["penalty"] not in ("l2", None):
        raise ValueError(
            f"penalty={given['penalty']!r} cannot be bounded: it is not smooth; give 'l2' or None"
        )
    if given["average"] not in (False, True) or not isinstance(given["average"], bool):
        raise ValueError(
            f"average={given['average']!r}: only the mean of all iterates (True) is bounded, or "
            "the last one (False)"
        )
    return given


def _constants(given: dict[str, Any], models: int, inputs: float) -> Constants:
    if given["loss"] not in ("log_loss", "modified_huber"):
        constants_of_loss(given["loss"])  # says why, of those that are known
        raise ValueError(f"loss={given['loss']!r}: give 'log_loss' or 'modified_huber'")
    penalty = 0.0 if given["penalty"] is None else given["alpha"]
    one = constants_of_loss(given["loss"], regulariser=penalty, inputs=inputs)
    return one if models == 1 else joint_constants(one, models)


def _schedule(given: dict[str, Any]) -> StepSchedule:
    match given["learning_rate"]:
        case "constant":
            return StepSchedule(rate=given["eta0"])
        case "invscaling":
            return StepSchedule(name="power", rate=given["eta0"], exponent=given["power_t"])
        case "adaptive":
            why = "its steps hang on the loss on these rows"
        case "optimal":
            why = "its first step is alpha^-1/4, beyond 1/β for most alpha"
        case _:
            why = "nothing bounds its steps"
    raise ValueError(
        f"learning_rate={given['learning_rate']!r} cannot be bounded: {why}; give 'constant' or "
        "'invscaling'"
    )


def _rows(x: Any, y: Any, labels: np.ndarray, inputs: float) -> tuple[Any, np.ndarray]:
    """Return rows within the ball and labels that are classes; a row of another label is empty."""
    rows = shortened(x, positive_float("inputs", inputs))
    targets = np.asarray(y)
    if rows.ndim != 2 or targets.shape != (rows.shape[0],):
        raise ValueError(f"x of shape {rows.shape} and y of shape {targets.shape} do not fit")
    strange = ~np.isin(targets, labels)
    if strange.any():
        kept = (~strange).astype(np.float64)
        if _SPARSE.issparse(rows):
            rows = _SPARSE.csr_matrix(_SPARSE.diags(kept) @ rows)
        else:
            rows = rows * kept[:, None]
        targets = np.where(strange, labels[0], targets)
    return rows, targets


def _copied(classifier: Any, given: dict[str, Any], seed: int) -> Any:
    """Return a fresh classifier with the same parameters, and an order of its own seed."""
    return type(classifier)(**{**given, "random_state": seed})
