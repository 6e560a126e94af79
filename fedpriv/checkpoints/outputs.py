"""Aggregates of what the last k models answer, of single examples (inference only).

*Output prediction averaging* (OPA) answers with the class of the largest mean probability, *output
majority vote* (OMV) with the class that most models answer with. Ties go to the lowest class, of
votes and of one model's probabilities alike. Both need all k models and make no one model of them,
so nothing can be trained at them. Source: Shejwalkar et al., "Recycling Scraps" (PoPETs 2025); the
two names and the vote's equation are remembered, the rule for ties is ours.

The k models travel as one tree of tensors (`packed`), by which every backend measures them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np

#: "opa" averages probabilities, "omv" counts votes.
Rule = Literal["opa", "omv"]
RULES: tuple[Rule, ...] = get_args(Rule)

Tensors = Mapping[str, np.ndarray]


def mean_probabilities(probabilities: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean over models, float64 `(n, classes)`.

    Args:
        probabilities: Of each model, `(n, classes)`.

    Raises:
        ValueError: If there is no model, or they are of different shapes.
    """
    arrays = _alike(probabilities)
    total = np.zeros(arrays[0].shape)
    for array in arrays:
        total += array
    return total / len(arrays)


def votes(probabilities: Sequence[np.ndarray]) -> np.ndarray:
    """Return how many models answer with each class, int64 `(n, classes)`.

    A model answers with its likeliest class, of equals the lowest.

    Raises:
        ValueError: As `mean_probabilities`.
    """
    arrays = _alike(probabilities)
    counts = np.zeros(arrays[0].shape, np.int64)
    rows = np.arange(len(counts))
    for array in arrays:
        np.add.at(counts, (rows, array.argmax(axis=1)), 1)
    return counts


def answers(rule: Rule, probabilities: Sequence[np.ndarray]) -> np.ndarray:
    """Return the class that several models answer with together, int64 `(n,)`.

    Args:
        rule: "opa" or "omv".
        probabilities: Of each model, `(n, classes)`.

    Guarantees:
        Ties go to the lowest class. One model gives its own answers.

    Raises:
        ValueError: If the rule is unknown, or as `mean_probabilities`.

    >>> models = [np.array([[0.51, 0.49, 0]]), np.array([[0.51, 0.49, 0]]), np.array([[0, 1, 0]])]
    >>> answers("opa", models).tolist(), answers("omv", models).tolist()
    ([1], [0])
    """
    if rule not in RULES:
        raise ValueError(f"rule {rule!r} is not known; use one of {', '.join(RULES)}")
    found = mean_probabilities(probabilities) if rule == "opa" else votes(probabilities)
    return found.argmax(axis=1).astype(np.int64)


def packed(rule: Rule, models: Sequence[Tensors]) -> dict[str, np.ndarray]:
    """Return models and the rule as one tree, with names such as "opa/0/kernel".

    Raises:
        ValueError: If there is no model, or the rule is unknown.
    """
    if rule not in RULES or not models:
        raise ValueError(f"{len(models)} models under rule {rule!r}; give some, and opa or omv")
    return {f"{rule}/{i}/{name}": array for i, m in enumerate(models) for name, array in m.items()}


def unpacked(params: Tensors) -> tuple[Rule, list[dict[str, np.ndarray]]] | None:
    """Return what `packed` put together; None of one model's params."""
    found: list[Rule] = [
        rule for rule in RULES if all(name.startswith(f"{rule}/") for name in params)
    ]
    if not found or not params:
        return None
    models: dict[int, dict[str, np.ndarray]] = {}
    for name, array in params.items():
        _, number, own = name.split("/", 2)
        models.setdefault(int(number), {})[own] = array
    return found[0], [models[number] for number in sorted(models)]


def _alike(probabilities: Sequence[np.ndarray]) -> list[np.ndarray]:
    arrays = [np.asarray(array) for array in probabilities]
    if not arrays or any(a.ndim != 2 or a.shape != arrays[0].shape for a in arrays):
        raise ValueError(
            f"probabilities of shapes {[list(a.shape) for a in arrays]}; give at least one "
            "model's, all (examples, classes)"
        )
    return arrays
