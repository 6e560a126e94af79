"""The rows of AdaDPS' Tables 1, 3 and 7, for models other than IMDB's logistic regression."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from fedpriv.central_experiment import CentralExperiment
from fedpriv.options import Option
from fedpriv.reproduction import Cell, Reproduction, Row, Settings, Split

Column = Literal["paper", "right"]

COLUMNS: Mapping[str, str] = {"paper": "as the paper ran it", "right": "done right"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One row.

    Attributes:
        label: What it is called.
        options: Of the experiment, but for clip norm and learning rate.
        paper: What the paper printed.
        table5: Clip norm and learning rate of the paper's Table 5.
        grid: Clip norms and learning rates of the column done right.
    """

    label: str
    options: Mapping[str, Option] = field(default_factory=dict)
    paper: float
    table5: tuple[float, float]
    grid: tuple[tuple[float, ...], tuple[float, ...]]


Make = Callable[[Column, Split, bool], CentralExperiment]


def rows(methods: tuple[Method, ...], make: Make) -> tuple[Row, ...]:
    """Return table rows: Table 5's settings in the one column, a searched grid in the other."""
    return tuple(_row(method, make) for method in methods)


def _row(method: Method, make: Make) -> Row:
    clip, rate = method.table5
    given: Settings = {"l2-clip-norm": clip, "learning-rate": rate}
    clips, rates = method.grid
    searched = tuple({"l2-clip-norm": c, "learning-rate": r} for c in clips for r in rates)
    return Row(
        label=method.label,
        paper=method.paper,
        cells={
            "paper": Cell(make=partial(_made, method, make, "paper"), grid=(given,)),
            "right": Cell(make=partial(_made, method, make, "right"), grid=searched),
        },
    )


def _made(
    method: Method, make: Make, column: Column, split: Split, reduced: bool
) -> CentralExperiment:
    return make(column, split, reduced).with_options(method.options)


def public_adadps(kind: str, batch: int) -> Mapping[str, Option]:
    """Return AdaDPS with statistics of public data, renewed every epoch as its authors' code."""
    return {"guide": f"public-{kind}", "public-batch": batch, "refresh": "epoch"}


def five(
    *,
    name: str,
    title: str,
    make: Make,
    metric: Literal["accuracy", "loss"],
    scale: float = 1.0,
    printed: tuple[float, ...],
    table5: tuple[tuple[float, float], ...],
    grids: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...],
    public_batch: int,
    paper_epsilon: str,
    minutes: tuple[float, float],
    notes: tuple[str, ...],
) -> Reproduction:
    """Return a table of DP-SGD, DP-Adam, DP-RMSProp and AdaDPS with two kinds of statistics."""
    kinds: tuple[tuple[str, Mapping[str, Option]], ...] = (
        ("DP-SGD", {}),
        ("DP-Adam", {"optimizer": "adam"}),
        ("DP-RMSProp", {"optimizer": "rmsprop"}),
        ("AdaDPS, public RMSProp", public_adadps("rmsprop", public_batch)),
        ("AdaDPS, public Adam", public_adadps("adam", public_batch)),
    )
    methods = tuple(
        Method(label=label, options=options, paper=paper, table5=given, grid=grid)
        for (label, options), paper, given, grid in zip(kinds, printed, table5, grids, strict=True)
    )
    return Reproduction(
        name=name,
        title=title,
        metric=metric,
        scale=scale,
        columns=COLUMNS,
        rows=rows(methods, make),
        paper_epsilon=paper_epsilon,
        orderings=(
            ("AdaDPS, public RMSProp", "DP-RMSProp"),
            ("AdaDPS, public RMSProp", "DP-Adam"),
            ("AdaDPS, public Adam", "DP-Adam"),
            ("DP-Adam", "DP-SGD"),
        ),
        minutes=minutes,
        notes=notes,
    )
