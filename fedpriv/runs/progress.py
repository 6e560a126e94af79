"""Progress of a run: what is printed before, during and after it.

A line that is rewritten in a terminal and in a notebook, lines now and then where neither is.
"""

from __future__ import annotations

import importlib.util
import math
import shlex
import sys
import threading
import time
from collections.abc import Callable, Generator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.text import Text

from fedpriv.measures import PUBLIC_ONLY, Measure
from fedpriv.privacy.epsilon import format_delta, privacy_line, rounded_up
from fedpriv.privacy.plan import AnyPlan, unit_words
from fedpriv.privacy.statement.coverage import Coverage, coverage_of
from fedpriv.privacy.statement.stated import round_values, stopped_early
from fedpriv.privacy.statement.statement import NO_MEANINGFUL_PROTECTION_ABOVE, name_data
from fedpriv.runs.loop import accounted_charges
from fedpriv.tree import num_elements
from fedpriv.untrusted_text import plain

if TYPE_CHECKING:
    from fedpriv.privacy.ledger.ledger import Ledger
    from fedpriv.privacy.ledger.state import LedgerState
    from fedpriv.runs.prepared import PreparedRun
    from fedpriv.runs.records import RoundRecord


# torch takes seconds to import; who calls this has loaded it.

ShowProgress = Literal["auto"] | bool
"""Whether progress is shown. "auto": in a terminal and in a notebook, and elsewhere what to beware
of alone; True: elsewhere too, as lines, which a log can keep; False: nothing is printed."""

_WIDGETS = ("IPython", "ipywidgets")
_NOT_COVERED = " (not covered by ε)"

_Made = TypeVar("_Made")


def follow(
    prepared: PreparedRun,
    *,
    console: Console,
    shown: ShowProgress = "auto",
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Run to the end and show how far it is: round, headline figure, ε so far, time left.

    Before the first round the plan's ε is printed, and what to beware of: cautions are also where
    no progress is shown, unless `shown` is False.

    Args:
        prepared: The run.
        console: Where to show it.
        shown: Whether.
        clock: Seconds, by which lines keep their distance.

    Returns:
        The run's summary.
    """
    watched = is_watched(console, shown)
    if shown is not False:
        facts, cautions = announce(prepared)
        colored = [f"[yellow]{escape(caution)}[/]" for caution in cautions]
        for line in [*map(escape, facts if watched else ()), *colored]:
            console.print(line, highlight=False, soft_wrap=True)
    if not watched:
        return prepared.run()
    line = _RunLine(prepared, clock)
    with status_line(console, clock=clock) as tell:
        tell(str(line))

        def on_round(record: RoundRecord) -> None:
            line.take(record)
            tell(str(line))

        summary = prepared.run(on_round=on_round, tell=lambda doing: tell(f"{line}; {doing}"))
        tell(str(line))
    return summary


def moves(console: Console) -> bool:
    """Return whether a console is a terminal in which a line can be rewritten."""
    return console.is_terminal and not console.is_dumb_terminal


class PlainLines:
    """Progress of long work as plain lines every few seconds, where none can be rewritten.

    What is said first is printed at once, what is said last at the end; between two lines lie five
    seconds, in long work a hundredth of its time, but at most a minute. While nothing new is said
    the last line is printed again, with the time. Used as a context manager.
    """

    def __init__(
        self, say: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Say nothing yet.

        Args:
            say: Prints a line; may be called from a thread of ours.
            clock: Seconds.
        """
        self._say, self._clock = say, clock
        self._started = self._said_at = clock()
        self._news = self._said = ""
        self._lock, self._over = threading.Lock(), threading.Event()
        self._pulse: threading.Thread | None = None

    def __enter__(self) -> PlainLines:
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._pulse is not None:
            self._pulse.join()
        if self._news != self._said:
            self._say(self._news)

    def __call__(self, text: str) -> None:
        """Take news, and say them if it is time."""
        with self._lock:
            self._news = text
            if self._pulse is None:
                self._pulse = threading.Thread(target=self._beat, daemon=True)
                self._pulse.start()
                self._print(text)
            elif text != self._said and self._is_time():
                self._print(text)

    def remind(self) -> None:
        """Print the latest progress, with the elapsed time, if a line is due."""
        with self._lock:
            if self._is_time():
                passed = ""
                if self._news == self._said:
                    passed = f" ({minutes(self._clock() - self._started)} so far)"
                self._print(self._news, passed)

    def _is_time(self) -> bool:
        now = self._clock()
        return now - self._said_at >= min(60.0, max(5.0, (now - self._started) / 100))

    def _print(self, text: str, passed: str = "") -> None:
        self._said, self._said_at = text, self._clock()
        self._say(text + passed)

    def _beat(self) -> None:
        while not self._over.wait(1.0):
            self.remind()


class Pace:
    """Progress of counted work: how much is done, and the time left at the pace so far.

    >>> times = iter([0.0, 80.0])
    >>> pace = Pace(12, clock=lambda: next(times))
    >>> pace.done = 3
    >>> str(pace)
    '3 of 12 runs, 1:20 min so far, about 4:00 min left'

    Attributes:
        done: Runs that are done.
        kept: Those among them that took no time, as they were done before.
    """

    def __init__(
        self,
        total: int,
        *,
        of: str = "runs",
        rows: Sized | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin.

        Args:
            total: How many runs there are.
            of: What is counted, where it is not runs.
            rows: Of finished work, where each run adds to them: one that does not is kept.
            clock: Seconds.
        """
        self._total, self._of, self._rows = total, of, rows
        self._clock, self._started = clock, clock()
        self.done = self.kept = 0

    def work(self, what: str, make: Callable[[], _Made], *, counts: int = 1) -> _Made:
        """Print what begins, run it, count it, and return its result.

        Args:
            what: It is.
            make: Makes it.
            counts: As so many runs.
        """
        self.say(what)
        before = None if self._rows is None else len(self._rows)
        made = make()
        self.done += counts
        if self._rows is not None and len(self._rows) == before:
            self.kept += counts
        return made

    def keep(self, number: int = 1) -> None:
        """Count runs that were done before."""
        self.done += number
        self.kept += number

    def say(self, what: str) -> None:
        """Print on stderr what is done, and how far it is."""
        print(f"{what} ({self})", file=sys.stderr, flush=True)

    def __str__(self) -> str:
        said, passed = f"{self.done:,} of {self._total:,} {self._of}", self._clock() - self._started
        left = self._left(passed)
        return f"{said}, {minutes(passed)} so far, {left}" if left else said

    @property
    def left(self) -> str:
        """The estimated time left; "" before the first run and after the last."""
        return self._left(self._clock() - self._started)

    def _left(self, passed: float) -> str:
        worked = self.done - self.kept
        if worked <= 0 or self.done >= self._total:
            return ""
        return f"about {minutes(passed / worked * (self._total - self.done))} left"


def minutes(seconds: float) -> str:
    """Return a time as it is said of long work.

    >>> minutes(7), minutes(80.4), minutes(1.5e6)
    ('7 s', '1:20 min', '17 days')
    """
    number, rest = divmod(round(seconds), 60)
    if number == 0:
        return f"{rest} s"
    return f"{number:,}:{rest:02} min" if number < 2880 else f"{seconds / 86400:,.0f} days"


def plain_lines(console: Console, *, clock: Callable[[], float] = time.monotonic) -> PlainLines:
    """Return lines to a console: as they are, without markup, wrapping or control characters."""

    def say(line: str) -> None:
        text = plain(line).replace("\n", " ")
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    return PlainLines(say, clock=clock)


@contextmanager
def status_line(
    console: Console, *, clock: Callable[[], float] = time.monotonic
) -> Generator[Callable[[str], None]]:
    """Give a function that shows how far long work is.

    A line that is rewritten, and stays as it was last, where a console can do that; else lines as
    of `PlainLines`. Nothing is shown before its first call.
    """
    if not _rewrites(console):
        with plain_lines(console, clock=clock) as say:
            yield say
        return
    spinner = Spinner("dots")
    live = Live(spinner, console=console, refresh_per_second=12.5)

    def tell(text: str) -> None:
        if str(spinner.text) != (said := plain(text)):
            live.start()
            spinner.update(text=Text(said))
            live.refresh()

    try:
        yield tell
        live.update(spinner.text)
    finally:
        live.stop()


def is_watched(console: Console, shown: ShowProgress) -> bool:
    """Return whether anything is printed on this console.

    Raises:
        ValueError: If `shown` is no such value.
    """
    if shown is not True and shown is not False and shown != "auto":
        raise ValueError(f"progress {shown!r} is not known; use 'auto', True or False")
    return bool(shown) and (shown is True or console.is_jupyter or moves(console))


def _rewrites(console: Console) -> bool:
    if console.is_jupyter:  # without its widgets rich warns, and shows nothing
        return all(importlib.util.find_spec(name) is not None for name in _WIDGETS)
    return moves(console)


class _RunLine:
    """Where a run is, in a line: round, ε so far, time left, headline figure, public-only."""

    def __init__(self, prepared: PreparedRun, clock: Callable[[], float]) -> None:
        """Begin at the last released round.

        Args:
            prepared: The run.
            clock: Seconds.
        """
        self._plan, self._ledger = prepared.components.plan, prepared.ledger
        document = prepared.folder.document
        self._label = document.get("label") or prepared.experiment.name
        self._label += " (synthetic)" if document["corpus"]["synthetic"] else ""
        self._gap = " (does NOT cover all)" if coverage_of(document).mark else ""
        self._headline = next(iter(prepared.components.task.measures), None)
        self._round = self._ledger.state.rounds_done
        self._pace = Pace(self._plan.planned_rounds or 0, clock=clock)
        # Lost attempts have used up a round's charge.
        self._pace.keep(int(self._ledger.state.used.amount))
        # As that of rounds is stated, so that a resumed run shows no smaller ε than before.
        every, charges = prepared.experiment.eval_every, self._ledger.charges
        counted = accounted_charges(self._plan, every, charges)
        self._epsilon: float | None = round_values(self._plan, counted)["epsilon"]
        self._seen = self._public = ""
        self._seen_at: int | None = None  # of no round yet
        if self._headline is not None:
            value = document.get("baseline", {}).get(f"{self._headline.name}{PUBLIC_ONLY}")
            if value is not None:
                self._public = f"public-only {self._headline.text(value)}"
                mark = _NOT_COVERED if self._ledger.mode == "simulation" else ""
                self._seen = f"{self._headline.label} –, {self._public}{mark}"

    def take(self, record: RoundRecord) -> None:
        """Note a round's released ε and figure."""
        self._round, self._epsilon = record.released.round_num, record.released.epsilon
        headline = self._headline
        if headline is None or (value := record.figure(headline.name)) is None:
            return
        figures = [f"{headline.label} {headline.text(value)}", *filter(None, [self._public])]
        diagnosed = record.diagnostics is not None and (
            record.diagnostics.measured.get(headline.name) is not None
        )
        self._seen = ", ".join(figures) + (_NOT_COVERED if diagnosed else "")
        self._seen_at = self._round

    def __str__(self) -> str:
        plan, used = self._plan, self._ledger.state.used
        said = f"{self._label}: {unit_words(plan.unit).turn} {self._round:,}"
        if plan.planned_rounds is None:
            said += f", {used.text}"
        else:
            lost = "" if used.amount == self._round else f" ({used.text})"
            said += f" of {plan.planned_rounds:,}{lost}"
        if self._epsilon is not None and plan.delta is not None:
            spent = f"{rounded_up(self._epsilon, 2):,.2f}{self._gap}"
            said += f", ε ≤ {spent} at δ = {format_delta(plan.delta)}"
        if plan.planned_rounds is not None:
            self._pace.done = int(used.amount)
            said += f", {self._pace.left}" if self._pace.left else ""
        if not self._seen:
            return said
        # What was measured of an earlier round is not said of a later one.
        if self._seen_at in (None, self._round):
            return f"{said}, {self._seen}"
        return f"{said}; round {self._seen_at:,}: {self._seen}"


def announce(prepared: PreparedRun) -> tuple[tuple[str, str, str], list[str]]:
    """Return what is said before a run's first round; values are the plan's, whatever its name.

    Returns:
        The experiment's name and description, how many params are trained on what, and the ε of the
        whole plan; and what to beware of.
    """
    name, description = prepared.experiment.name, prepared.experiment.description
    plan, document = prepared.components.plan, prepared.folder.document
    if label := document.get("label"):
        name = f"{label} ({name})"
    covers = coverage_of(document)
    guarantee, cautions = describe_plan(plan, covers, prepared.ledger.mode)
    cautions += prepared.cautions
    number, data = num_elements(prepared.begun.params), name_data(document["corpus"], plan.unit)
    return (
        f"{name}: {description}" if description else name,
        f"training {number:,} params on {data}",
        guarantee,
    ), cautions


def describe_plan(plan: AnyPlan, covers: Coverage, mode: str) -> tuple[str, list[str]]:
    """Return the guarantee of a plan in a line, and what to beware of.

    Args:
        plan: The plan.
        covers: What its ε covers.
        mode: "simulation" or "secure".
    """
    affordable, turn = plan.affordable_rounds, unit_words(plan.unit).turn
    whole = covers.explained(plan.guaranteed())
    paid = (
        f"for {plan.budget}, however much of it is spent"
        if affordable is None
        else f"after {affordable:,} {turn}{'' if affordable == 1 else 's'}"
    )
    if math.isinf(whole.value) and not plan.is_private:
        said = f"no privacy (ε = ∞): {whole.reason}"
    else:
        line = privacy_line(
            value=whole.value,
            delta=whole.delta,
            unit=whole.unit,
            relation=whole.relation.value,
            accountant=whole.accountant,
            mode=mode,
        )
        said = f"{line} {paid}"
    cautions: list[str] = []
    if plan.is_private:
        if not whole.value <= NO_MEANINGFUL_PROTECTION_ABOVE:
            cautions.append(
                f"no meaningful protection: ε is above {NO_MEANINGFUL_PROTECTION_ABOVE:g}; read "
                "the run as a comparison of methods, not as a safeguard"
            )
        cautions += plan.warnings
    planned, target = plan.planned_rounds, plan.target_epsilon
    if planned is not None and affordable is not None and affordable < planned:
        cautions.append(
            f"the target ε of {target:g} pays for {affordable:,} of the {planned:,} planned "
            f"{turn}s, and the run stops there"
        )
    if covers.mark:
        cautions.append(f"ε {covers.mark}")
    return f"plan: {said}", cautions


def round_line(record: RoundRecord, ledger: Ledger, headline: Measure | None = None) -> str:
    """Return a round in a line for a log: ε so far, and the headline figure if it was measured.

    Args:
        record: The round's.
        ledger: Of the run, whose charges so far are priced.
        headline: The measure that is shown.
    """
    released = record.released
    line = f"round {released.round_num}: no privacy, epsilon is infinite"
    if released.delta is not None:
        line = (
            f"round {released.round_num}: epsilon <= {rounded_up(ledger.epsilon().value, 3):.3f} "
            f"at delta {format_delta(released.delta)}"
        )
    value = None if headline is None else released.measured.get(headline.name)
    if headline is None or value is None:
        return line
    return f"{line}, {headline.label} on public users {headline.text(value, 2)}"


def describe_beginning(path: Path, ledger: Ledger, round_num: int) -> str:
    """Return where a run is kept, and where it goes on if it was begun before.

    Args:
        path: The run folder.
        ledger: Its ledger.
        round_num: Of the last released round.
    """
    where = ""
    if ledger.charges and not ledger.pays_for_more:
        where = f", at its end: {round_num} rounds are released, and nothing is left to charge"
    elif ledger.charges:
        lost = len(ledger.state.lost)
        spent = f" ({lost} lost attempt{'' if lost == 1 else 's'} spent)" if lost else ""
        where = f", going on at round {round_num + 1}{spent}"
    return f"run folder: {path}{where}"


def describe_folder(path: Path) -> str:
    """Return where a run is kept, and the command that checks it."""
    return f"run folder: {path}; check it with: fedpriv verify {shlex.quote(str(path))}"


def describe_early_end(state: LedgerState) -> str:
    """Return how many rounds a finished run released, and why they are fewer than were planned.

    "" where they are not. Where none were planned: what of the budget it has used.
    """
    plan = state.plan
    why = {
        "target-epsilon": f"one more would exceed the target ε of {plan.target_epsilon or 0:g}",
        "lost-attempts": "interrupted attempts used up the others' charges",
        "nothing-left": "the algorithm had nothing left to ask",
    }.get(stopped_early(state) or "")
    if why is not None:
        return f"{state.rounds_done} rounds; {plan.planned_rounds} were planned, and {why}"
    return (
        "" if plan.planned_rounds is not None else f"{state.rounds_done} rounds; {state.used.text}"
    )
