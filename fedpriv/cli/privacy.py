"""`fedpriv account`, `fedpriv calibrate` and `fedpriv verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedpriv.cli.output import console, fail, print_json
from fedpriv.experiments.options import renamed
from fedpriv.privacy.accounting import Epsilon, epsilon
from fedpriv.privacy.calibration import calibrate as smallest_noise
from fedpriv.privacy.event import Event, Relation, cohort_event, default_delta
from fedpriv.privacy.ledger.verify import verify_run
from fedpriv.privacy.statement.statement import NO_MEANINGFUL_PROTECTION_ABOVE
from fedpriv.ranges import positive_int, probability

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
Cap = Annotated[int | None, typer.Option(help="Largest poisson cohort; a subset takes part above.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]


#: What an event and an accountant call the options.
_OPTIONS = {
    "num_users": "users",
    "expected_cohort_size": "cohort",
    "num_rounds": "rounds",
    "cohort_cap": "cap",
    "noise_multiplier": "noise-multiplier",
    "target_epsilon": "epsilon",
}


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
        event = cohort_event(
            num_users=users,
            expected_cohort_size=cohort,
            sampling=sampling,
            cohort_cap=cap,
            noise_multiplier=noise_multiplier,
        )
        told = epsilon(
            event,
            positive_int("rounds", rounds),
            delta=default_delta(users) if delta is None else probability("delta", delta),
            relation=_relation(relation, sampling),
        )
    except ValueError as error:
        fail(renamed(str(error), _OPTIONS))
    _tell(told, event, users, cohort, rounds, as_json)


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

    def event_of(noise_multiplier: float) -> Event:
        return cohort_event(
            num_users=users,
            expected_cohort_size=cohort,
            sampling=sampling,
            cohort_cap=cap,
            noise_multiplier=noise_multiplier,
        )

    try:
        related = _relation(relation, sampling)
        at = default_delta(users) if delta is None else probability("delta", delta)
        sigma = smallest_noise(
            event_of,
            positive_int("rounds", rounds),
            target_epsilon=target,
            delta=at,
            relation=related,
        )
        told = epsilon(event_of(sigma), rounds, delta=at, relation=related)
    except ValueError as error:
        fail(renamed(str(error), _OPTIONS))
    _tell(told, event_of(sigma), users, cohort, rounds, as_json)


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
        console.print(table)
        if found.epsilon is not None:
            simulated = (
                "simulated "
                if found.mode == "simulation" and found.epsilon.accountant != "none"
                else ""
            )
            told = found.coverage.beside(f"{simulated}{found.epsilon}")
            console.print(told, markup=False, highlight=False, soft_wrap=True)
    if not found.ok:
        raise typer.Exit(1)


def _relation(name: str | None, sampling: str) -> Relation:
    if name is None:
        return Relation.REPLACE_ONE if sampling == "fixed" else Relation.ADD_REMOVE
    return Relation.of(name)


def _tell(
    told: Epsilon, event: Event, users: int, cohort: float, rounds: int, as_json: bool
) -> None:
    figures: dict[str, Any] = {
        **told.to_json(),
        "noise_multiplier": event.noise_multiplier,
        "users": users,
        "cohort": cohort,
        "rounds": rounds,
        "event": event.to_json(),
    }
    notes = []
    if not told.value <= NO_MEANINGFUL_PROTECTION_ABOVE:
        notes.append(f"no meaningful protection: ε is above {NO_MEANINGFUL_PROTECTION_ABOVE:g}")
    if told.delta * users >= 1.0 - 1e-9:
        notes.append(
            f"δ is not below 1/users = {1.0 / users:.3g}: it allows publishing one user outright"
        )
    if event.cap is not None and event.cap < 2.0 * cohort:
        notes.append(
            f"a cap of {event.cap} is below twice the mean ({2.0 * cohort:g}); a plan "
            "refuses it, because it multiplies ε"
        )
    if as_json:
        print_json({**figures, "notes": notes})
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("privacy", f"[bold]{_plain(told)}[/]")
    table.add_row("noise multiplier", f"{event.noise_multiplier:.6g}")
    drawn = f"{cohort:g} of {users:,} users, {_KINDS[event.kind]}"
    table.add_row("cohort", drawn + (f", at most {event.cap}" if event.cap is not None else ""))
    table.add_row("rounds", f"{rounds:,}")
    for note in notes:
        table.add_row("note", f"[yellow]{_plain(note)}[/]")
    console.print(table)


_KINDS = {
    "gaussian": "everybody, no sampling",
    "poisson-gaussian": "drawn independently",
    "truncated-poisson-gaussian": "drawn independently",
    "fixed-size-gaussian": "exactly",
}


def _plain(text: object) -> str:
    return str(text).replace("[", "\\[")
