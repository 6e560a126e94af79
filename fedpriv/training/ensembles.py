"""Measuring several models together: aggregates of their outputs, on any backend.

A backend measures params; those of several models are one tree (`checkpoints.outputs.packed`), so
the figures are the same wherever they are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedpriv.checkpoints.aggregates import RULES, Rule, answers, unpacked
from fedpriv.measures import ACCURACY
from fedpriv.training.evaluate import WHOLE, Metrics, Part, Total
from fedpriv.tree import Params

ClassScores = Iterator[tuple[np.ndarray, np.ndarray]]
"""Blocks of examples: probabilities, float64 `(n, classes)`, and labels, int64 `(n,)`."""


@runtime_checkable
class ScoresClasses(Protocol):
    """A task of one label an example, whose model gives each class a probability.

    Aggregates of outputs (OPA, OMV) and the uncertainty of single answers are made of them.
    """

    def class_scores(
        self, params: Params, *, public: bool, part: Part = WHOLE
    ) -> ClassScores | None:
        """Return probabilities and labels of the examples that `evaluate` measures on.

        Blocks are the same whatever the params. None where the model answers with no class.
        """
        ...


def measure_of(task: Any) -> Callable[..., Metrics | None]:
    """Return how a task measures one model or several, from (params, public=, part=)."""
    return partial(measure_models, task)


def measure_models(
    task: Any, params: Params, *, public: bool, part: Part | None = None
) -> Metrics | None:
    """Return the metrics of one model or of several together.

    Args:
        task: Measures one by its `evaluate`, several by its `class_scores`.
        params: Of one model, or of several (`fedpriv.checkpoints.aggregates.packed`), of which
            accuracy alone is measured.
        public: On public examples, or on those held out of rostered users.
        part: Only this share; None for all.

    Raises:
        ValueError: If several models are given, and the task gives classes no probabilities.
    """
    share = {} if part is None else {"part": part}
    together = unpacked(params)
    if together is None:
        return task.evaluate(params, public=public, **share)
    rule, models = together
    blocks = [_scores(task, model, rule, public=public, **share) for model in models]
    right = count = 0
    for found in zip(*blocks, strict=True):
        labels = found[0][1]
        right += int(np.count_nonzero(answers(rule, [p for p, _ in found]) == labels))
        count += len(labels)
    if not count:
        return None
    totals = {ACCURACY.name: Total(sum=right, count=count)}
    return Metrics(totals=totals, num_examples=count)


@runtime_checkable
class AggregatesOutputs(Protocol):
    """An algorithm that may have several models measured together."""

    @property
    def outputs(self) -> Rule | None:
        """By which rule; None for one model."""
        ...


def check_measurable(task: Any, algorithm: Any) -> None:
    """Refuse aggregates of outputs where they could not be measured; nothing is charged yet then.

    Raises:
        ValueError: If a task has no classes, or is headed by another figure than accuracy.
    """
    rule = algorithm.outputs if isinstance(algorithm, AggregatesOutputs) else None
    if rule in RULES:
        head = next(iter(getattr(task, "measures", ())), ACCURACY)
        if head.name != ACCURACY.name:
            raise ValueError(
                f"aggregate {rule!r} is measured by accuracy, and {task.name} is headed by "
                f"{head.label}; give an aggregate of params, ema or upa"
            )
        _scores(task, {}, rule, public=True)


def best_on_public(task: Any, candidates: Mapping[str, Params]) -> str:
    """Return the name of the aggregate that does best on public examples, by the headline measure.

    A choice among aggregates is made of public examples alone here, and so costs no ε. Made of
    rostered users' it is a further private answer: it has to be paid for, as a study's is
    (`fedpriv tune`), or the aggregate has to be named beforehand. On a centralised task's test set
    a choice would make every later figure too good: of such a task the public examples are taken.

    Args:
        task: What measures them.
        candidates: Params by name; of equal ones the first is chosen.

    Raises:
        ValueError: If there are no public examples to choose by, or no candidates.
    """
    if not candidates:
        raise ValueError("there are no aggregates to choose among")
    measured = None
    if hasattr(task, "public_measure"):  # of single examples, whose public ones are apart
        if task.public_measure is not None:
            every = np.arange(task.num_public)
            measured = {n: task.public_measure(params, every) for n, params in candidates.items()}
    else:
        measured = {n: measure_models(task, p, public=True) for n, p in candidates.items()}
    headline = task.measures[0] if task.measures else None
    if headline is None or measured is None or any(m is None for m in measured.values()):
        raise ValueError(
            "there are no public examples to choose among aggregates by, and rostered users' are "
            "not for that: a choice by them is a further private answer. Give the task public "
            "examples, name the aggregate beforehand, or pay for the choice with `fedpriv tune`"
        )
    sign = 1.0 if headline.higher_is_better else -1.0
    figures = {n: sign * float(m.get(headline.name) or 0.0) for n, m in measured.items() if m}
    return max(figures, key=lambda name: figures[name])


def _scores(task: Any, params: Params, rule: Rule, **which: Any) -> Any:
    found = task.class_scores(params, **which) if isinstance(task, ScoresClasses) else None
    if found is None:
        raise ValueError(
            f"aggregate {rule!r} is made of probabilities of classes, which this task does not "
            "give; let it have class_scores (fedpriv.training.ensembles.ScoresClasses), or use "
            "ema or upa"
        )
    return found
