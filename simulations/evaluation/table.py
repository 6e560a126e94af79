"""Rows and figures of an evaluation as Markdown: values, gains over public-only, shares, users."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fedpriv.measures import grouped
from fedpriv.report.bootstrap import Interval
from simulations.evaluation.evaluate import (
    MEASURES,
    USER_FIGURES,
    Estimate,
    Evaluation,
    ModelFigures,
)
from simulations.evaluation.held_out import MAJORITY
from simulations.reproduction.study import render, table

NONE = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a table.

    Attributes:
        label: Its name.
        models: The model of each column; or of all, where it has no ε.
    """

    label: str
    models: Mapping[str, str] | str

    def model(self, column: str) -> str | None:
        """Return the name of the model of a column; None where it has none."""
        return self.models if isinstance(self.models, str) else self.models.get(column)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which models stand where.

    Attributes:
        columns: Headings by column, one an ε.
        rows: From majority to the best non-private model.
        guarantee: What each ε is: δ, unit, relation and accountant.
    """

    columns: Mapping[str, str]
    rows: Sequence[Row]
    guarantee: str


def markdown(
    evaluation: Evaluation, layout: Layout, differences: tuple[str, str] | None = None
) -> str:
    """Return tables of accuracy, in %: values, gains, shares of the gap, then values of users.

    An interval is the wider of that by thread and that by user.

    Args:
        evaluation: What is shown.
        layout: Which models stand where.
        differences: Title and text of a further table.

    Raises:
        ValueError: If a row names a model that was not measured.
    """
    for row in layout.rows:
        for column in layout.columns:
            name = row.model(column)
            if name is not None and name not in evaluation.models:
                raise ValueError(f"row {row.label!r} names {name!r}, which was not measured")
    best, public_only = evaluation.best_nonprivate, evaluation.public_only
    gap = None if best is None else evaluation.models[best].gains["accuracy"]
    values = {name: model.values["accuracy"].value for name, model in evaluation.models.items()}
    section = partial(_table, layout, evaluation)
    return render(
        "evaluation/page.md.jinja",
        evaluation=evaluation, data=evaluation.data, guarantee=layout.guarantee, grouped=grouped,
        folds=len(evaluation.splits),
        seeds=sorted({model.seeds for model in evaluation.models.values()}),
        accuracy_table=section(lambda model: model.values["accuracy"]),
        gains_table=section(lambda model: model.gains.get("accuracy"), signed=True),
        shares_table=section(lambda model: model.closed_shares.get("accuracy")),
        no_gap=gap is not None and not (gap.excludes_zero and (gap.value or 0.0) > 0),
        gap=percent(gap, signed=True), trivial=values.get(MAJORITY), public=values[public_only],
        measures_table=_model_table(layout, evaluation, MEASURES, of_users=False),
        users_table=_model_table(layout, evaluation, USER_FIGURES, of_users=True),
        differences=differences,
    )  # fmt: skip


def wider(estimate: Estimate) -> Interval | None:
    """Return the wider of the intervals by thread and by user; None unless there are both."""
    if estimate.by_thread is None or estimate.by_user is None:
        return None
    return max(estimate.by_thread, estimate.by_user, key=lambda ends: ends.high - ends.low)


def percent(estimate: Estimate | None, *, signed: bool = False, of_users: bool = False) -> str:
    """Return a share as a cell of a table, in %, with its interval.

    Args:
        estimate: None where there is none.
        signed: Whether to show a plus.
        of_users: Whether it is a figure of users, which is resampled by user alone.
    """
    if estimate is None or estimate.value is None:
        return NONE
    sign = "+" if signed else ""
    text = f"{100 * estimate.value:{sign}.1f}"
    ends = estimate.by_user if of_users else wider(estimate)
    if ends is None:
        return f"{text} (no interval)"
    return f"{text} ({100 * ends.low:{sign}.1f} to {100 * ends.high:{sign}.1f})"


def _table(
    layout: Layout,
    evaluation: Evaluation,
    of: Callable[[ModelFigures], Estimate | None],
    *,
    signed: bool = False,
) -> str:
    """Return one table by ε; rows without any value are left out."""
    rows = []
    for row in layout.rows:
        names = [row.model(column) for column in layout.columns]
        found = [None if name is None else of(evaluation.models[name]) for name in names]
        if any(found):
            rows.append([row.label, *(percent(estimate, signed=signed) for estimate in found)])
    return table(["", *layout.columns.values()], rows)


def _model_table(
    layout: Layout, evaluation: Evaluation, figures: Mapping[str, str], *, of_users: bool
) -> str:
    """Return the other measures, or figures of users, one line a model."""
    labels: dict[str, str] = {}
    for row in layout.rows:
        for column, heading in layout.columns.items():
            name = row.model(column)
            if name is not None:
                one = isinstance(row.models, str)
                labels.setdefault(name, row.label if one else f"{row.label}, {heading}")
    names, rows = [name for name in figures if name != "accuracy"], []
    for model, label in labels.items():
        own = evaluation.models[model]
        found = own.users if of_users else own.values
        rows.append([label, *(percent(found.get(name), of_users=of_users) for name in names)])
    return table(["", *(figures[name] for name in names)], rows)
