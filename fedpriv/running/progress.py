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
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from fedpriv.measures import Measure
from fedpriv.privacy.epsilon import rounded_up, shown_delta
from fedpriv.privacy.plans.promise import Used
from fedpriv.privacy.statement.coverage import Coverage, coverage_of
from fedpriv.privacy.unit_words import words_of
from fedpriv.running.announcement import announcement

# torch takes seconds to import; who calls this has loaded it.
if TYPE_CHECKING:
    from fedpriv.running.prepared import PreparedRun
    from fedpriv.running.records import RoundRecord

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
        untried=prepared.untried,
        noticed=prepared.noticed,
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
        TextColumn("[progress.download]{task.fields[done]}"),
        TextColumn("{task.fields[figure]}ε {task.fields[epsilon]}"),
        TimeRemainingColumn(),
    )
    plan, headline = prepared.components.plan, _headline(prepared)
    with Progress(*columns, console=console) as bar:
        line = bar.add_task(
            escape(_label(prepared)),
            total=_used(prepared).total,
            done=_done(prepared, prepared.ledger.state.rounds_done),
            figure="" if headline is None else f"{escape(headline.label)} –  ",
            epsilon="–" if plan.is_private else "∞",
        )
        bar.update(line, completed=_used(prepared).amount)

        def show(record: RoundRecord) -> None:
            figure, spent = _figure(headline, record), record.released.epsilon
            if figure is not None:
                bar.update(line, figure=f"{escape(figure)}  ")
            if spent is not None:  # accounted where a round is evaluated
                bar.update(line, epsilon=_spent(spent, covers))
            released = record.released.round_num
            bar.update(line, completed=_used(prepared).amount, done=_done(prepared, released))

        yield show


@contextmanager
def _lines(
    prepared: PreparedRun, covers: Coverage, console: Console
) -> Iterator[Callable[[RoundRecord], None]]:
    """Print about ten lines, at rounds that state an ε where there are enough of them."""
    plan, headline = prepared.components.plan, _headline(prepared)
    planned, used = plan.planned_rounds, _used(prepared)
    every = used.total / _NUM_LINES if planned is None else max(1, planned // _NUM_LINES)
    due = used.amount + every

    def show(record: RoundRecord) -> None:
        nonlocal due
        amount, last = _used(prepared).amount, not prepared.ledger.pays_for_more
        if amount < due and not last:
            return
        due = amount + every
        said = [f"{_label(prepared)}: {_turns(prepared, record.released.round_num)}"]
        figure, released = _figure(headline, record), record.released
        if figure is not None:
            said.append(figure)
        if released.epsilon is not None and released.delta is not None:
            at = shown_delta(released.delta)
            said.append(f"ε {_spent(released.epsilon, covers)} at δ = {at}")
        console.print(", ".join(said), markup=False, highlight=False, soft_wrap=True)

    yield show


def _used(prepared: PreparedRun) -> Used:
    return prepared.ledger.state.used


def _done(prepared: PreparedRun, round_num: int) -> str:
    """Return how far a run is, short: of its planned rounds, or of ρ."""
    used = _used(prepared)
    if prepared.components.plan.planned_rounds is None:
        return f"{round_num or '–'}  ρ {used.amount:.3g}/{used.total:g}"
    total = f"{used.total:.0f}"
    return f"{used.amount:{len(total)}.0f}/{total}"


def _turns(prepared: PreparedRun, round_num: int) -> str:
    plan, used = prepared.components.plan, _used(prepared)
    turn = words_of(plan.unit).turn
    if plan.planned_rounds is None:
        return f"{turn} {round_num:,}, {used.text}"
    return f"{turn} {used.amount:,.0f} of {plan.planned_rounds:,}"


def _label(prepared: PreparedRun) -> str:
    return prepared.experiment.name + (" (synthetic)" if prepared.synthetic else "")


def _headline(prepared: PreparedRun) -> Measure | None:
    return next(iter(prepared.components.task.measures), None)


def _figure(headline: Measure | None, record: RoundRecord) -> str | None:
    """Return the headline figure, of rostered users where there is one, or else the released."""
    if headline is None or (value := record.figure(headline.name)) is None:
        return None
    seen = None if record.diagnostics is None else record.diagnostics.measured.get(headline.name)
    mark = "" if seen is None else " (not covered by ε)"
    return f"{headline.label} {headline.text(value)}{mark}"


def _spent(value: float, covers: Coverage) -> str:
    gap = " (does NOT cover all)" if covers.mark else ""
    return f"{rounded_up(value, 2):.2f}{gap}"
