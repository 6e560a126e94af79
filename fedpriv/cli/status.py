"""`fedpriv status`: the state of a run, in use or not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpriv.cli.output import errors, print_json, print_line
from fedpriv.privacy.epsilon import Epsilon, privacy_line, rounded_up
from fedpriv.untrusted_text import plain

if TYPE_CHECKING:
    from fedpriv.runs.status import RunStatus


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(status)


def status(
    run: Annotated[Path, typer.Argument(help="A run folder, in use or not.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve round, ε, nodes and times to Prometheus; on loopback without HOST.",
        ),
    ] = None,
) -> None:
    """Show the state of a run: round, ε, who holds it, nodes, last error. Changes nothing.

    Ends with status 1 if the server's last attempt ended in an error or was killed.
    """
    from fedpriv.runs.status import run_status

    if metrics is not None:
        from fedpriv.deploy.metrics import read_place, serve

        serve(run, read_place(metrics), lambda address: print_line(f"serving {address}", errors))
        return
    found = run_status(run)
    if as_json:
        print_json(found.to_json())
    else:
        for name, text in _lines(found):
            shown = f"{name:<11} {plain(text)}"
            print_line(shown)
    if found.failed:
        raise typer.Exit(1)


def _lines(found: RunStatus) -> list[tuple[str, str]]:
    held = "a process holds it" if found.held else "no process holds it"
    planned = "" if found.rounds_planned is None else f" of {found.rounds_planned:,}"
    number = found.lost_attempts
    lost = f", {number:,} lost attempt{'' if number == 1 else 's'} (spent)" if number else ""
    named = found.experiment or "a training of your own"
    lines = [
        ("run", f"{found.run_dir} ({f'{found.label}, ' if found.label else ''}{named})"),
        ("state", f"{found.state}; {held}"),
        ("round", f"{found.round_num:,}{planned}{lost}"),
    ]
    if found.spent is None or found.guaranteed is None:
        lines.append(("spent", "no privacy (ε = ∞)"))
    else:
        lines.append(("spent", _epsilon(found.spent, found.mode)))
        left = "" if found.left is None else f"; {_left(found)} of it is left"
        lines.append(("plan", f"{_epsilon(found.guaranteed, found.mode)}{left}"))
        if missing := found.guaranteed.not_covered:
            lines.append(("", f"does NOT cover: {'; '.join(missing)}"))
    if found.nodes is not None:
        users = "" if found.users is None else f", with {found.users:,} rostered users"
        online = f"{found.nodes_online:,} of " if found.nodes_online is not None else ""
        which = " registered nodes are online" if online else ""
        lines.append(("nodes", f"{online}{found.nodes:,}{which}{users}"))
    lines.append(("last round", found.last_round_ended or "none ended yet"))
    if found.last_error is not None:
        when = "" if found.last_error_at is None else f"{found.last_error_at}: "
        lines.append(("last error", when + found.last_error))
    if found.refused is not None:
        lines.append(("refused", f"{found.refused_at}: {found.refused}"))
    return lines


def _epsilon(spent: Epsilon, mode: str) -> str:
    return privacy_line(
        value=spent.value, delta=spent.delta, unit=spent.unit,
        relation=spent.relation.value, accountant=spent.accountant, mode=mode,
    )  # fmt: skip


def _left(found: RunStatus) -> str:
    """Return what is left between the two ε that are shown."""
    if found.spent is None or found.guaranteed is None or not math.isfinite(found.spent.value):
        return "∞"
    both = rounded_up(found.guaranteed.value, 3), rounded_up(found.spent.value, 3)
    return f"{max(0.0, both[0] - both[1]):.3f}"
