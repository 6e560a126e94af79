"""Callbacks of a run: trackers, plots and alarms receive what it releases, round by round.

A callback changes nothing. It is called after a round was released and written down, gets copies,
and an error of its own is logged once and ends no run. What it gets is what `rounds.jsonl` holds;
diagnostics of a simulation, which no ε covers, only where it asks for them, under names that begin
with "diagnostics/".
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fedpriv import json_lines
from fedpriv.measures import figures_of, read_measures
from fedpriv.privacy.statement.coverage import KEY
from fedpriv.privacy.statement.sealed import SealedRun, read_sealed
from fedpriv.runs.folder import RunFolder

_LOG = logging.getLogger(__name__)

DIAGNOSTICS = "diagnostics/"
"""Prefix of the names of what no ε covers."""
_NO_FIGURES = ("round_num", "covered_by_epsilon")
#: Of a summary: what follows from the plan, the ledger and released models alone.
_RELEASED = (
    *("experiment", "label", "mode", "epsilon", "epsilon_rdp", "delta", "relation", "unit"),
    *("accountant", KEY, "noise_multiplier", "target_epsilon", "rounds", "rounds_planned"),
    *("stopped_early", "charges", "budget_used", "users", "synthetic"),
)


class Callback:
    """Base of callbacks; override what you need.

    Attributes:
        diagnostics: Whether it is also given what no ε covers, in simulation only: figures of
            rostered users, cohort sizes and seconds, under names that begin with "diagnostics/".
            A secure run refuses a callback that asks for them.
    """

    diagnostics: bool = False

    def on_start(self, run: SealedRun) -> None:
        """Begin. Called once, before the first round; one that raises here is not called again.

        Args:
            run: What is public of it by then: its `name`, `label`, `mode`, `options` and
                `guaranteed` ε. Above 0, `state.rounds_done` says that it is resumed.
        """

    def on_round(self, released: Mapping[str, Any], round_num: int) -> None:
        """Take what a round released.

        Called once for every line of `rounds.jsonl`, in order. A resumed run first tells the lines
        that it has. The last line is passed again where it was completed: a run that ends without
        notice is evaluated after its last round.

        Args:
            released: The line by name: "epsilon", "delta", what the task measures on public data
                ("accuracy_public"), "update_norm", ...; None for what was not measured.
            round_num: From 1.
        """

    def on_end(self, summary: Mapping[str, Any] | None) -> None:
        """End. Called once, after the last round.

        Args:
            summary: Released figures of the run, as of `Run.summary`; None where the run was
                interrupted or failed.
        """


def describe_run(run: SealedRun) -> dict[str, str | int | float | bool]:
    """Return everything that identifies a run as flat values, for a tracker to show.

    Options are named "options.<path>"; what has no value is "none".
    """
    spent, private = run.guaranteed, run.state.plan.is_private
    given: dict[str, Any] = {
        "experiment": run.name,
        "label": run.label,
        "mode": run.mode,
        "synthetic": run.synthetic,
        "epsilon": spent.value if private and math.isfinite(spent.value) else None,
        "delta": spent.delta if private else None,
        "relation": spent.relation.value,
        "unit": spent.unit,
        "accountant": spent.accountant,
        KEY: "; ".join(spent.not_covered),
        **{f"options.{path}": value for path, value in run.options.items()},
    }
    return {name: "none" if value is None else value for name, value in given.items()}


def numbers(released: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of what a round released: what a tracker draws, by name.

    >>> numbers({"round_num": 3, "attempt": 1, "epsilon": 0.5, "accuracy_public": None})
    {'attempt': 1.0, 'epsilon': 0.5}
    """
    return {
        name: float(value)
        for name, value in released.items()
        if name.removeprefix(DIAGNOSTICS) not in _NO_FIGURES
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
    }


def check_callbacks(callbacks: Iterable[Callback], *, secure: bool) -> tuple[Callback, ...]:
    """Return callbacks, checked before a run is made.

    Raises:
        ValueError: If one is no `Callback`, or asks for diagnostics of a secure run.
    """
    found: list[Callback] = []
    for callback in callbacks:
        given: Any = callback
        if not isinstance(given, Callback):
            raise ValueError(
                f"callbacks: {given!r} is no callback; give an instance of a class that derives "
                "from fedpriv.Callback"
            )
        if secure and given.diagnostics:
            raise ValueError(
                f"{type(given).__name__} asks for diagnostics, and a secure run has none: no ε "
                "covers them; leave diagnostics out, or run a simulation"
            )
        found.append(given)
    return tuple(found)


class Notifier:
    """Calls the callbacks of one run. Used as a context manager around its rounds."""

    def __init__(self, callbacks: Sequence[Callback], folder: RunFolder) -> None:
        """Call nothing yet.

        Args:
            callbacks: All that are called, in this order.
            folder: Of the run; its lines are passed on as they are written.
        """
        self._called, self._folder = list(callbacks), folder
        self._failed: set[int] = set()
        self._ended = False

    def __enter__(self) -> Notifier:
        if not self._called:
            return self
        path = self._folder.path
        run = read_sealed(path)
        self._called = [one for one in self._called if self._call(one, "on_start", run)]
        seen = {line["round_num"]: line for line in json_lines.read(path / "diagnostics.jsonl")}
        for line in json_lines.read(path / "rounds.jsonl"):
            self._row(line, seen.get(line["round_num"]))
        self._folder.on_line = self._row
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.on_line = None
        self._end(None, {})

    def end(self, summary: Mapping[str, Any]) -> None:
        """Tell that the run ended, and the released figures of its summary."""
        figures = figures_of(read_measures(self._folder.document))
        names = (*_RELEASED, *(measure.released_name for measure in figures))
        released = {name: summary[name] for name in names if name in summary}
        rest = {name: value for name, value in summary.items() if name not in released}
        self._end(released, numbers(rest))

    def _end(self, released: Mapping[str, Any] | None, rest: Mapping[str, Any]) -> None:
        if self._ended:
            return
        self._ended = True
        for one in self._called:
            shown = None if released is None else _seen_by(one, released, rest)
            self._call(one, "on_end", shown)

    def _row(self, released: Mapping[str, Any], diagnosed: Mapping[str, Any] | None) -> None:
        round_num, rest = int(released["round_num"]), diagnosed or {}
        rest = {n: v for n, v in rest.items() if n not in (*_NO_FIGURES, "attempt")}
        for one in self._called:
            self._call(one, "on_round", _seen_by(one, released, rest), round_num)

    def _call(self, one: Callback, method: str, *args: Any) -> bool:
        """Call a method and return whether it raised nothing; the first error is logged."""
        try:
            getattr(one, method)(*args)
        except Exception:  # an interrupt is none of these, and ends the run
            if id(one) not in self._failed:
                self._failed.add(id(one))
                _LOG.warning(
                    "the callback %s raised in %s; the run goes on, and further errors of this "
                    "callback are not logged",
                    type(one).__name__,
                    method,
                    exc_info=True,
                )
            return False
        return True


def _seen_by(one: Callback, released: Mapping[str, Any], rest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of what one callback is given."""
    seen = {DIAGNOSTICS + name: value for name, value in rest.items()} if one.diagnostics else {}
    return {**released, **seen}


def make_clock(mode: str) -> Callable[[], float]:
    """Return a function of no arguments: seconds since 1970, which a tracker stamps values with.

    In secure mode all have the time at which the run began: how long a round took depends on who
    was drawn, and no ε covers it.

    Args:
        mode: "simulation" or "secure".
    """
    begun = time.time()
    return time.time if mode == "simulation" else lambda: begun
