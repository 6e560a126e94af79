"""Accounting on the command line: correlated noise, totals of ρ, and the price of rounds."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn

import typer
from rich.table import Table

from fedpriv.api.rounds import Account
from fedpriv.cli.listing import option_group
from fedpriv.cli.output import console, fail, print_json, print_table
from fedpriv.experiments.options import renamed
from fedpriv.measures import grouped
from fedpriv.privacy.accounting import epsilon_bs16, epsilon_of_rho, rho_bs16, rho_of_epsilon
from fedpriv.privacy.epsilon import format_delta, rounded_up, rounded_up_to
from fedpriv.privacy.event import Relation

NoiseName = Annotated[
    str,
    typer.Option(
        help="gaussian (drawn anew every round), or with a memory: tree, banded, blt; of those "
        "sampling earns nothing, and users and cohort are left out."
    ),
]
#: What the API calls numbers to their flags.
FLAGS_OF = {"noise_multiplier": "noise-multiplier", "target_epsilon": "target-epsilon"}
_OF_STREAMS: Mapping[str, tuple[type, str]] = {
    "min_separation": (int, "Noise with a memory: how many rounds apart one user's are at least."),
    "max_participations": (
        int, "Noise with a memory: a user's rounds at most; by default all that fit."
    ),
    "steps_per_tree": (int, "Trees: rounds until one begins anew."),
    "trees": (int, "Trees: how many."),
    "estimate": (str, "Trees: how prefix sums are estimated, efficient or vanilla."),
    "completion": (bool, "Trees: one that ends is completed, to leave one node's noise."),
    "bands": (int, "Banded noise: how many, by default as apart."),
    "coefficients": (str, "Banded noise: optimised or square-root."),
    "buffers": (int, "BLT: how many, 0 to 6; by default 3."),
    "momentum": (
        float, "Bands and BLT: of the server, that coefficients are optimised for, as runs do."
    ),
}  # fmt: skip
#: Gives a command what else a stream is, as its parameter `pattern`.
with_memory = option_group(
    "pattern",
    [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                kind | None,
                typer.Option(*([f"--{name}"] if kind is bool else []), help=text),
            ],
        )
        for name, (kind, text) in _OF_STREAMS.items()
    ],
)


def refuse_sampling(noise: str, given: dict[str, Any]) -> None:
    """Refuse options of drawn cohorts for noise with a memory."""
    others = [name for name, value in given.items() if value not in (None, False, 1, "poisson")]
    if others:
        fail(
            f"--{others[0]} says nothing of {noise} noise, which costs the same whoever else is "
            "drawn; leave it out"
        )


def refuse_memory(pattern: dict[str, Any]) -> None:
    """Refuse options of noise with a memory for noise without one."""
    for name in pattern:
        fail(
            f"--{name.replace('_', '-')} is of noise with a memory; give --noise tree, or leave it"
        )


def price_stream(
    noise: str,
    *,
    noise_multiplier: float | None = None,
    target_epsilon: float | None = None,
    delta: float | None,
    relation: str | None,
    rounds: int | None,
    pattern: dict[str, Any],
    as_json: bool,
) -> None:
    """Print what a stream costs, or how much of it a target ε asks for; and what it comes to."""
    from fedpriv.api.stream_account import account_stream, calibrate_stream

    if delta is None:
        fail("without users there is no default δ; give --delta, such as 1e-6")
    given: dict[str, Any] = {"noise": noise, "delta": delta, "relation": relation or "zero-out"}
    given |= pattern if rounds is None else {"rounds": rounds, **pattern}
    try:
        if target_epsilon is not None:
            found = calibrate_stream(target_epsilon=target_epsilon, **given)
        elif noise_multiplier is None:
            fail("missing option '--noise-multiplier'")
        else:
            found = account_stream(noise_multiplier=noise_multiplier, **given)
    except ValueError as error:
        fail(renamed(str(error), FLAGS_OF))
    if as_json:
        return print_json(found.to_json())
    return console.print(str(found), markup=False, highlight=False, soft_wrap=True)


Rho = Annotated[
    float | None,
    typer.Option(help="A total of zero-concentrated DP, ρ: say its ε at --delta, and leave the "
                 "others out."),
]  # fmt: skip
Zcdp = Annotated[
    bool,
    typer.Option("--zcdp", help="Say the ρ of zero-concentrated DP whose ε at --delta is the "
                 "target, and leave the others out."),
]  # fmt: skip


def account_rho(rho: float, delta: float | None, relation: str | None, as_json: bool) -> None:
    """Print the ε of ρ-zCDP: by every Rényi order, and by the plain conversion."""
    try:
        stated, named = _delta(delta), Relation.of(relation or "add-remove")
        tight, plain = epsilon_of_rho(rho, stated), epsilon_bs16(rho, stated)
    except ValueError as error:
        fail(str(error))
    if as_json:
        return print_json(_facts(stated, named) | {
            "rho": rho, "epsilon": tight, "epsilon_bs16": plain,
        })  # fmt: skip
    _say(
        f"ε = {rounded_up(tight, 4):,.4f} at δ = {format_delta(stated)} ({named.value}, of ρ = "
        f"{rho:g} by RDP over every order; {rounded_up(plain, 4):,.4f} by Bun and Steinke's plain "
        "conversion)"
    )
    return None


def calibrate_rho(epsilon: float, delta: float | None, relation: str | None, as_json: bool) -> None:
    """Print the largest ρ whose ε does not exceed a target, by either conversion."""
    try:
        stated, named = _delta(delta), Relation.of(relation or "add-remove")
        tight, plain = rho_of_epsilon(epsilon, stated), rho_bs16(epsilon, stated)
    except ValueError as error:
        fail(str(error))
    if as_json:
        return print_json(_facts(stated, named) | {
            "epsilon": epsilon, "rho": tight, "rho_bs16": plain,
        })  # fmt: skip
    _say(
        f"ρ = {tight:.6g} keeps ε within {rounded_up_to(epsilon, 6):g} at δ = "
        f"{format_delta(stated)} ({named.value}, by RDP over every order; {plain:.6g} by Bun and "
        "Steinke's plain conversion)"
    )
    return None


def refuse_others(flag: str, given: dict[str, Any]) -> None:
    """Refuse options that say nothing of a total of ρ."""
    others = [name for name, value in given.items() if value not in (None, False, 1, "poisson")]
    if others:
        fail(f"--{others[0]} says nothing of {flag}, a total whatever it is spent on; leave it out")


def required(name: str, value: Any) -> Any:
    """Return the value of an option that must be given."""
    if value is None:
        _missing(name)
    return value


def _missing(name: str) -> NoReturn:
    fail(f"missing option '--{name}'")


def _delta(delta: float | None) -> float:
    if delta is None:
        fail("a ρ is an ε at some δ; give --delta, such as 1e-6")
    return delta


def _facts(delta: float, relation: Relation) -> dict[str, Any]:
    return {"delta": delta, "relation": relation.value, "accountant": "RDP"}


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


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
