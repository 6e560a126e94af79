"""`fedpriv account`, `fedpriv calibrate` and `fedpriv verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedpriv.api import account as api
from fedpriv.cli.output import console, fail, print_json, print_table
from fedpriv.experiments.parts.options import renamed
from fedpriv.measures import grouped
from fedpriv.privacy.statement.verify import verify_run

Users = Annotated[int, typer.Option(help="Users on the roster.")]
Cohort = Annotated[float, typer.Option(help="Expected cohort (poisson) or its size (fixed).")]
Rounds = Annotated[int, typer.Option(help="Rounds, each charged once.")]
Delta = Annotated[float | None, typer.Option(help="δ; by default users^-1.1.")]
Sampling = Annotated[
    str, typer.Option(help="poisson (each user drawn independently) or fixed (exact size).")
]
RelationName = Annotated[
    str | None,
    typer.Option(
        help="add-remove or replace-one; by default add-remove for poisson, replace-one for fixed."
    ),
]
Cap = Annotated[
    int | None,
    typer.Option(
        help="Largest poisson cohort, at least twice the mean; a subset takes part above."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(account)
    app.command()(calibrate)
    app.command()(verify)


def account(
    users: Users,
    cohort: Cohort,
    rounds: Rounds,
    noise_multiplier: Annotated[
        float, typer.Option(help="Noise stddev on the sum, over the bound of one user.")
    ],
    delta: Delta = None,
    sampling: Sampling = "poisson",
    relation: RelationName = None,
    cap: Cap = None,
    as_json: AsJson = False,
) -> None:
    """Say what a number of rounds costs: ε at δ, per user.

    For example: fedpriv account --users 400 --cohort 20 --rounds 100 --noise-multiplier 1
    """
    try:
        price = api.account(
            users=users,
            cohort=cohort,
            rounds=rounds,
            noise_multiplier=noise_multiplier,
            delta=delta,
            sampling=sampling,
            relation=relation,
            cap=cap,
        )
    except ValueError as error:
        fail(renamed(str(error), {"noise_multiplier": "noise-multiplier"}))
    _tell(price, as_json)


def calibrate(
    users: Users,
    cohort: Cohort,
    rounds: Rounds,
    target: Annotated[float, typer.Option("--epsilon", help="The ε not to be exceeded.")],
    delta: Delta = None,
    sampling: Sampling = "poisson",
    relation: RelationName = None,
    cap: Cap = None,
    as_json: AsJson = False,
) -> None:
    """Find the least noise that keeps ε within a target; the answer never overshoots.

    For example: fedpriv calibrate --users 400 --cohort 20 --rounds 100 --epsilon 2
    """
    try:
        price = api.calibrate(
            users=users,
            cohort=cohort,
            rounds=rounds,
            epsilon=target,
            delta=delta,
            sampling=sampling,
            relation=relation,
            cap=cap,
        )
    except ValueError as error:
        fail(renamed(str(error), {"noise_multiplier": "noise-multiplier"}))
    _tell(price, as_json)


def verify(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    as_json: AsJson = False,
) -> None:
    """Check a run's ledger and files, and recompute its ε; exits with 1 if anything is wrong."""
    try:
        found = verify_run(run)
    except ValueError as error:
        fail(str(error))
    if as_json:
        print_json(found.to_json())
    else:
        table = Table(box=None, show_header=False, pad_edge=False)
        for check in found.checks:
            mark = "[green]ok[/]" if check.ok else "[bold red]WRONG[/]"
            table.add_row(mark, check.name, _plain(check.text))
        print_table(table)
        if found.epsilon is not None:
            simulated = (
                "simulated "
                if found.mode == "simulation" and found.epsilon.accountant != "none"
                else ""
            )
            line = found.coverage.beside(f"{simulated}{found.epsilon}")
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not found.ok:
        raise typer.Exit(1)


def _tell(price: api.Account, as_json: bool) -> None:
    if as_json:
        print_json(price.to_json())
        return
    event = price.event
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("privacy", f"[bold]{_plain(price.epsilon)}[/]")
    table.add_row("noise multiplier", f"{price.noise_multiplier:.6g}")
    drawn = f"{grouped(price.cohort)} of {price.users:,} users, {_KINDS[event.kind]}"
    table.add_row("cohort", drawn + (f", at most {event.cap:,}" if event.cap is not None else ""))
    table.add_row("rounds", f"{price.rounds:,}")
    for note in price.notes:
        table.add_row("note", f"[yellow]{_plain(note)}[/]")
    print_table(table)


_KINDS = {
    "gaussian": "everybody, no sampling",
    "poisson-gaussian": "drawn independently",
    "truncated-poisson-gaussian": "drawn independently",
    "fixed-size-gaussian": "exactly",
}


def _plain(text: object) -> str:
    return str(text).replace("[", "\\[")
