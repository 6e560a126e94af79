"""How a run is followed: a bar in a terminal and in a notebook, lines where neither is."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from fedpriv.measures import Measure
from fedpriv.privacy.accounting import rounded_up
from fedpriv.privacy.statement.coverage import Coverage, coverage_of
from fedpriv.running.announcement import announcement

# torch takes seconds to import; who calls this has loaded it.
if TYPE_CHECKING:
    from fedpriv.running.loop import RoundRecord
    from fedpriv.running.prepared import PreparedRun

Shown = Literal["auto"] | bool
"""Whether progress is shown. "auto": in a terminal and in a notebook; True: elsewhere too, as
lines, which a log can keep; False: nothing is printed."""

_NUM_LINES = 10
_WIDGETS = ("IPython", "ipywidgets")


def follow(
    prepared: PreparedRun, *, console: Console, shown: Shown = "auto", head: bool = True
) -> dict[str, Any]:
    """Run to the end and show how far it is: round, headline figure, ε so far, time left.

    Args:
        prepared: The run.
        console: Where to show it.
        shown: Whether.
        head: Whether to say beforehand what is promised.

    Returns:
        The run's summary.
    """
    way = _way(console, shown)
    if way == "nothing":
        return prepared.run()
    covers = coverage_of(prepared.folder.document)
    if head:
        for line in head_lines(prepared, covers):
            console.print(line, highlight=False, soft_wrap=True)
    show = _bar if way == "bar" else _lines
    with show(prepared, covers, console) as on_round:
        return prepared.run(on_round=on_round)


def is_watched(console: Console, shown: Shown) -> bool:
    """Return whether anything is printed on this console."""
    return _way(console, shown) != "nothing"


def _way(console: Console, shown: Shown) -> Literal["bar", "lines", "nothing"]:
    if shown is not True and shown is not False and shown != "auto":
        raise ValueError(f"progress {shown!r} is not known; use 'auto', True or False")
    if shown is False:
        return "nothing"
    if console.is_jupyter:  # without its widgets rich warns, and shows nothing
        found = all(importlib.util.find_spec(name) is not None for name in _WIDGETS)
        return "bar" if found else "lines"
    if console.is_terminal and not console.is_dumb_terminal:
        return "bar"
    return "lines" if shown is True else "nothing"


def head_lines(prepared: PreparedRun, covers: Coverage) -> Iterator[str]:
    """Yield what is said before the first round, as markup: what is promised, and its cautions."""
    experiment = prepared.experiment
    head = announcement(
        experiment.name,
        experiment.description,
        prepared.components.plan,
        mode=prepared.ledger.mode,
        covers=covers,
    )
    yield from (escape(head.title), escape(head.promise))
    for caution in head.cautions:
        yield f"[yellow]{escape(caution)}[/]"


@contextmanager
def _bar(
    prepared: PreparedRun, covers: Coverage, console: Console
) -> Iterator[Callable[[RoundRecord], None]]:
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figure]}ε {task.fields[epsilon]}"),
        TimeRemainingColumn(),
    )
    plan, headline = prepared.components.plan, _headline(prepared)
    with Progress(*columns, console=console) as bar:
        line = bar.add_task(
            escape(_label(prepared)),
            total=plan.num_rounds,
            completed=prepared.ledger.rows or prepared.ledger.charges,
            figure="" if headline is None else f"{escape(headline.label)} –  ",
            epsilon="–" if plan.is_private else "∞",
        )

        def show(record: RoundRecord) -> None:
            figure, spent = _figure(headline, record), record.released.epsilon
            if figure is not None:
                bar.update(line, figure=f"{escape(figure)}  ")
            if spent is not None:  # accounted where a round is evaluated
                bar.update(line, epsilon=_spent(spent, covers))
            bar.update(line, completed=prepared.ledger.rows or prepared.ledger.charges)

        yield show


@contextmanager
def _lines(
    prepared: PreparedRun, covers: Coverage, console: Console
) -> Iterator[Callable[[RoundRecord], None]]:
    """Print about ten lines, at rounds that state an ε where there are enough of them."""
    plan, headline = prepared.components.plan, _headline(prepared)
    turn = "step" if plan.unit == "example" else "round"
    every = max(1, plan.num_rounds // _NUM_LINES)
    due = (prepared.ledger.rows or prepared.ledger.charges) + every

    def show(record: RoundRecord) -> None:
        nonlocal due
        charges, last = (
            prepared.ledger.rows or prepared.ledger.charges,
            not prepared.ledger.pays_for_more,
        )
        if charges < due and not last:
            return
        due = charges + every
        said = [f"{_label(prepared)}: {turn} {charges:,} of {plan.num_rounds:,}"]
        figure, spent = _figure(headline, record), record.released.epsilon
        if figure is not None:
            said.append(figure)
        if spent is not None:
            said.append(f"ε {_spent(spent, covers)} at δ = {record.released.delta:.2g}")
        console.print(", ".join(said), markup=False, highlight=False, soft_wrap=True)

    yield show


def _label(prepared: PreparedRun) -> str:
    return prepared.experiment.name + (" (synthetic)" if prepared.synthetic else "")


def _headline(prepared: PreparedRun) -> Measure | None:
    return next(iter(prepared.components.task.measures), None)


def _figure(headline: Measure | None, record: RoundRecord) -> str | None:
    """Return the headline figure, of rostered users where there is one, or else the released."""
    value = None if headline is None else record.figure(headline.name)
    return None if value is None or headline is None else f"{headline.label} {headline.text(value)}"


def _spent(value: float, covers: Coverage) -> str:
    gap = " (does NOT cover all)" if covers.mark else ""
    return f"{rounded_up(value, 2):.2f}{gap}"
