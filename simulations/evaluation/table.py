"""Rows and figures of an evaluation as Markdown: values, gains over public-only, shares, users."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedpriv.measures import grouped
from simulations.evaluation.bootstrap import Interval
from simulations.evaluation.evaluate import (
    MEASURES,
    USER_FIGURES,
    Estimate,
    Evaluation,
    ModelFigures,
)
from simulations.evaluation.held_out import MAJORITY
from simulations.reproduction.study import table as lines_of

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
        promise: What each ε is: δ, unit, relation and accountant.
    """

    columns: Mapping[str, str]
    rows: Sequence[Row]
    promise: str


def markdown(evaluation: Evaluation, layout: Layout) -> str:
    """Return tables of accuracy, in %: values, gains, shares of the gap, then values of users.

    An interval is the wider of that by thread and that by user.

    Raises:
        ValueError: If a row names a model that was not measured.
    """
    for row in layout.rows:
        for column in layout.columns:
            name = row.model(column)
            if name is not None and name not in evaluation.models:
                raise ValueError(f"row {row.label!r} names {name!r}, which was not measured")
    lines = list(_head(evaluation, layout))
    lines += _section("Held-out accuracy, %", layout, evaluation, lambda m: m.values["accuracy"])
    title = f"Gain in accuracy over {evaluation.public_only}, percentage points"
    lines += _section(title, layout, evaluation, lambda m: m.gains.get("accuracy"), signed=True)
    if evaluation.best_nonprivate is not None:
        title = (
            f"Share closed of the gap in accuracy from {evaluation.public_only} to "
            f"{evaluation.best_nonprivate}, %"
        )
        lines += _gap_words(evaluation)
        lines += _section(title, layout, evaluation, lambda m: m.closed_shares.get("accuracy"))
    return "\n".join([*lines, *_other_figures(evaluation, layout)]) + "\n"


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


def _head(evaluation: Evaluation, layout: Layout) -> Iterator[str]:
    data = evaluation.data
    if data.get("synthetic"):
        yield "**Synthetic data: a generator made the text; these figures say nothing of people.**"
        yield ""
    folds = len(evaluation.splits)
    yield (
        f"{data.get('name')}, roster {data.get('roster')}: {grouped(evaluation.num_examples)} "
        f"held-out sentences of {grouped(evaluation.num_threads)} threads and "
        f"{grouped(evaluation.num_users)} users, {folds} fold{'s' if folds > 1 else ''} pooled. "
        f"Split: {evaluation.split_said}."
    )
    yield ""
    seeds = sorted({model.seeds for model in evaluation.models.values()})
    yield (
        f"In brackets {100 * evaluation.confidence:g} % intervals: the wider of a paired bootstrap "
        f"by thread and one by user, {grouped(evaluation.replicates)} replicates, seeds drawn too "
        f"({' or '.join(map(str, seeds))} a model; of one seed they are not). {layout.promise} "
        "Figures are measured on rostered users' held-out text and are not covered by ε."
    )


def _gap_words(evaluation: Evaluation) -> Iterator[str]:
    best = evaluation.best_nonprivate
    assert best is not None
    gap = evaluation.models[best].gains["accuracy"]
    if not gap.excludes_zero or gap.value is None or gap.value <= 0:
        yield ""
        yield (
            f"**The data are too few to tell {best} from {evaluation.public_only} (a gap of "
            f"{percent(gap, signed=True)} points), so they cannot say what private training is "
            "worth.**"
        )
    values = {name: model.values["accuracy"].value for name, model in evaluation.models.items()}
    trivial, public = values.get(MAJORITY), values[evaluation.public_only]
    if trivial is not None and public is not None and public < trivial:
        yield ""
        yield (
            f"**{evaluation.public_only} is below the class that most training examples of all "
            f"users have ({100 * public:.1f} against {100 * trivial:.1f}): with so little public "
            "text a gain over it may be less than a trivial rule has.**"
        )


def _section(
    title: str,
    layout: Layout,
    evaluation: Evaluation,
    of: Callable[[ModelFigures], Estimate | None],
    *,
    signed: bool = False,
) -> Iterator[str]:
    """Yield one table; rows without any value are left out."""
    rows = []
    for row in layout.rows:
        names = [row.model(column) for column in layout.columns]
        found = [None if name is None else of(evaluation.models[name]) for name in names]
        if any(found):
            rows.append([row.label, *(percent(estimate, signed=signed) for estimate in found)])
    yield from ("", f"### {title}", "", lines_of(["", *layout.columns.values()], rows))


def _other_figures(evaluation: Evaluation, layout: Layout) -> Iterator[str]:
    """Yield the other measures and figures of users, one line a model."""
    labels: dict[str, str] = {}
    for row in layout.rows:
        for column, heading in layout.columns.items():
            name = row.model(column)
            if name is not None:
                one = isinstance(row.models, str)
                labels.setdefault(name, row.label if one else f"{row.label}, {heading}")
    for title, figures in (("Other measures, %", MEASURES), ("User by user, %", USER_FIGURES)):
        of_users = figures is USER_FIGURES
        names = [name for name in figures if name != "accuracy"]
        rows = []
        for model, label in labels.items():
            own = evaluation.models[model]
            found = own.users if of_users else own.values
            rows.append([label, *(percent(found.get(name), of_users=of_users) for name in names)])
        head = ["", *(figures[name] for name in names)]
        yield from ("", f"### {title}", "", lines_of(head, rows))
    untrained, sentences = evaluation.num_untrained_users, evaluation.num_untrained_examples
    yield ""
    yield (
        f"{grouped(untrained)} users ({grouped(sentences)} sentences) have no training text in a "
        "fold that measures them; they are on the roster."
    )
