"""What rounds cost, as a table in the terminal."""

from __future__ import annotations

from rich.table import Table

from fedpriv.api.account import Account
from fedpriv.cli.terminal.output import print_json, print_table
from fedpriv.measures import grouped


def tell(price: Account, as_json: bool) -> None:
    """Print what rounds cost."""
    if as_json:
        print_json(price.to_json())
        return
    event = price.event
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("privacy", f"[bold]{plain(price.epsilon)}[/]")
    table.add_row("noise multiplier", f"{price.noise_multiplier:.6g}")
    table.add_row("noise on the mean", f"{price.point.shown} thousandths of C")
    drawn = f"{grouped(price.cohort)} of {price.users:,} users, {_KINDS[event.kind]}"
    table.add_row("cohort", drawn + (f", at most {event.cap:,}" if event.cap is not None else ""))
    table.add_row("rounds", f"{price.rounds:,}")
    if price.devices > 1:
        table.add_row("devices", f"{price.devices:,} of one person, each bounded alone")
    if price.trials is not None:
        table.add_row("trials", f"the best of a random number: {price.trials.name}")
    for note in price.notes:
        table.add_row("note", f"[yellow]{plain(note)}[/]")
    print_table(table)


_KINDS = {
    "gaussian": "everybody, no sampling",
    "poisson-gaussian": "drawn independently",
    "truncated-poisson-gaussian": "drawn independently",
    "fixed-size-gaussian": "exactly",
    "poisson-devices-gaussian": "drawn independently",
}


def plain(text: object) -> str:
    """Return text that a table prints as it is."""
    return str(text).replace("[", "\\[")
