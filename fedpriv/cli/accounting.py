"""`fedpriv account` and `fedpriv calibrate`: ε of rounds, and the noise for an ε."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedpriv.api import rounds as api
from fedpriv.cli.listing import option_group
from fedpriv.cli.output import counting, errors, fail, print_json, print_line, print_table
from fedpriv.measures import grouped
from fedpriv.mechanisms.event import Relation
from fedpriv.privacy.accounting import epsilon_bs16, epsilon_of_rho, rho_bs16, rho_of_epsilon
from fedpriv.privacy.epsilon import format_delta, rounded_up, rounded_up_to
from fedpriv.privacy.noise_grid import NoiseGrid, NoisePoint

AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]
NoiseName = Annotated[
    str,
    typer.Option(
        help="gaussian (independent every round), or correlated over rounds: tree, banded, blt; of "
        "those sampling earns nothing, and users and cohort are left out."
    ),
]
Rho = Annotated[
    float | None,
    typer.Option(
        help="A total of zero-concentrated DP, ρ: its ε at --delta, and the others are left out."
    ),
]
Zcdp = Annotated[
    bool,
    typer.Option(
        "--zcdp",
        help="The ρ of zero-concentrated DP whose ε at --delta is the target; the others are left "
        "out.",
    ),
]
_OF_COHORTS: Mapping[str, tuple[type, str]] = {
    "users": (int, "Users on the roster."),
    "cohort": (float, "Expected cohort (poisson) or its size (fixed)."),
    "rounds": (int, "Rounds, each charged once."),
    "delta": (float, "δ; by default users^-1.1."),
    "sampling": (
        str, "poisson (the default; each user drawn independently) or fixed (exact size)."
    ),
    "relation": (
        str,
        "add-remove or replace-one; by default add-remove for poisson, replace-one for fixed.",
    ),
    "cap": (int, "Largest poisson cohort, at least twice the mean; a subset takes part above."),
    "devices": (
        int,
        "Devices of one person among the users, each drawn and bounded alone; ε is per person.",
    ),
    "trials": (
        float,
        "ε of a study that keeps the best of a random number of such runs, this many on average, "
        "and never says how many.",
    ),
    "shape": (
        float,
        "Of the law of that number, a truncated negative binomial: 1 (the default) is geometric, "
        "inf is Poisson.",
    ),
}  # fmt: skip
_OF_STREAMS: Mapping[str, tuple[type, str]] = {
    "min_separation": (int, "Correlated noise: how many rounds apart one user's are at least."),
    "max_participations": (
        int, "Correlated noise: a user's rounds at most; by default all that fit."
    ),
    "steps_per_tree": (int, "Trees: rounds until one restarts."),
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


def _group(name: str, options: Mapping[str, tuple[type, str]]) -> Callable[..., Any]:
    """Return a decorator that gives a command options, the typed ones as one dictionary."""
    return option_group(
        name,
        [
            inspect.Parameter(
                option,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[
                    kind | None,
                    typer.Option(*([f"--{option}"] if kind is bool else []), help=text),
                ],
            )
            for option, (kind, text) in options.items()
        ],
    )


_with_cohorts = _group("cohorts", _OF_COHORTS)
_with_correlation = _group("pattern", _OF_STREAMS)
GridCohorts = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Cohorts of the grid, such as 350,1000; by default doublings from a twentieth of the "
        "roster, at most 250, to 4,000.",
    ),
]
GridRounds = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="Rounds of the grid; by default 25,50,100,200,400."),
]
PlotFile = Annotated[
    Path | None, typer.Option(help="Plot the grid into this file: .svg, .png or .html.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(account)
    app.command()(calibrate)


@_with_correlation
@_with_cohorts
def account(
    *,
    cohorts: dict[str, Any],
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise stddev on the sum, over the bound of one user.")
    ] = None,
    rho: Rho = None,
    noise: NoiseName = "gaussian",
    pattern: dict[str, Any],
    as_json: AsJson = False,
) -> None:
    """Say what a number of rounds costs: ε at δ, per user.

    For example: fedpriv account --users 400 --cohort 20 --rounds 100 --noise-multiplier 1
    or fedpriv account --noise tree --steps-per-tree 20 --trees 50 --noise-multiplier 4 --delta 1e-3
    """
    given = cohorts | _typed(noise_multiplier=noise_multiplier, rho=rho)
    if noise != "gaussian":
        return _price_stream(noise, given, pattern, as_json)
    _refuse_others(pattern, set(), "is of correlated noise, such as --noise tree")
    if rho is not None:
        return _account_rho(given, as_json)
    _require(given, "users", "cohort", "rounds", "noise_multiplier")
    price = api.Rounds(**cohorts).account(given["noise_multiplier"])
    return _print_price(price, as_json)


@_with_correlation
@_with_cohorts
def calibrate(
    *,
    target_epsilon: Annotated[float, typer.Option(help="The ε not to be exceeded.")],
    cohorts: dict[str, Any],
    zcdp: Zcdp = False,
    noise: NoiseName = "gaussian",
    pattern: dict[str, Any],
    grid: Annotated[
        bool, typer.Option(help="Say the noise on the mean for other cohorts and rounds too.")
    ] = True,
    grid_cohorts: GridCohorts = None,
    grid_rounds: GridRounds = None,
    out: PlotFile = None,
    as_json: AsJson = False,
) -> None:
    """Find the least noise that keeps ε within a target; the answer never overshoots.

    Then the noise on the mean for other cohorts and rounds at the same ε, and the cohort beyond
    which a larger one hardly lowers it.

    For example: fedpriv calibrate --users 400 --cohort 20 --rounds 100 --target-epsilon 2
    """
    given = {**cohorts, "target_epsilon": target_epsilon}
    of_grid = _typed(out=out, grid_cohorts=grid_cohorts, grid_rounds=grid_rounds)
    if noise != "gaussian":
        return _price_stream(noise, given | of_grid | _typed(zcdp=zcdp), pattern, as_json)
    _refuse_others(pattern, set(), "is of correlated noise, such as --noise tree")
    if zcdp:
        return _calibrate_rho(given | of_grid, as_json)
    _require(given, "users", "cohort", "rounds")
    if not grid and of_grid:
        fail("--no-grid leaves nothing to plot or to choose; leave it or the others out")
    check_plot(out)
    listed = {
        "cohorts": cohorts_of(grid_cohorts),
        "rounds": whole_numbers(grid_rounds, "--grid-rounds"),
    }
    found = None
    asked = api.Rounds(**cohorts)
    price = asked.calibrate(target_epsilon)
    if grid:
        with counting("calibrating cohorts and rounds", quiet=as_json) as progress:
            found = asked.noise_grid(target_epsilon, **listed, progress=progress)
    if as_json:
        print_json(price.to_json() | ({} if found is None else {"grid": found.to_json()}))
    else:
        _print_price(price, as_json=False)
        if found is not None:
            print_line(f"\n{found}")
    return plot(found, out, price.point)


def _typed(**options: Any) -> dict[str, Any]:
    """Return the options that were typed."""
    return {
        name: value for name, value in options.items() if value is not None and value is not False
    }


def _require(given: Mapping[str, Any], *names: str) -> None:
    """End with a line if an option is missing."""
    for name in names:
        if name not in given:
            fail(f"missing option '--{name.replace('_', '-')}'")


def _refuse_others(given: Mapping[str, Any], allowed: set[str], why: str) -> None:
    """Refuse options that have no meaning here."""
    for name in given:
        if name not in allowed:
            fail(f"--{name.replace('_', '-')} {why}; leave it out")


def _price_stream(
    noise: str, given: Mapping[str, Any], pattern: Mapping[str, Any], as_json: bool
) -> None:
    """Print what correlated noise costs, or how much of it a target ε asks for."""
    from fedpriv.api.stream_account import account_stream, calibrate_stream

    allowed = {"rounds", "delta", "relation", "noise_multiplier", "target_epsilon"}
    why = f"says nothing of {noise} noise, which costs the same no matter who else is drawn"
    _refuse_others(given, allowed, why)
    if "delta" not in given:
        fail("without users there is no default δ; give --delta, such as 1e-6")
    asked = {"noise": noise, "relation": "zero-out", **given, **pattern}
    if "target_epsilon" in given:
        found = calibrate_stream(**asked)
    else:
        _require(given, "noise_multiplier")
        found = account_stream(**asked)
    if as_json:
        return print_json(found.to_json())
    return print_line(found)


def _account_rho(given: Mapping[str, Any], as_json: bool) -> None:
    """Print the ε of ρ-zCDP: by every Rényi order, and by the plain conversion."""
    rho, stated, named = given["rho"], *_delta_and_relation("--rho", given, "rho")
    tight, plain = epsilon_of_rho(rho, stated), epsilon_bs16(rho, stated)
    if as_json:
        return print_json(_facts(stated, named) | {
            "rho": rho, "epsilon": tight, "epsilon_bs16": plain,
        })  # fmt: skip
    print_line(
        f"ε = {rounded_up(tight, 4):,.4f} at δ = {format_delta(stated)} ({named.value}, of ρ = "
        f"{rho:g} by RDP over every order; {rounded_up(plain, 4):,.4f} by Bun and Steinke's plain "
        "conversion)"
    )
    return None


def _calibrate_rho(given: Mapping[str, Any], as_json: bool) -> None:
    """Print the largest ρ whose ε does not exceed a target, by either conversion."""
    epsilon = given["target_epsilon"]
    stated, named = _delta_and_relation("--zcdp", given, "target_epsilon")
    tight, plain = rho_of_epsilon(epsilon, stated), rho_bs16(epsilon, stated)
    if as_json:
        return print_json(_facts(stated, named) | {
            "epsilon": epsilon, "rho": tight, "rho_bs16": plain,
        })  # fmt: skip
    print_line(
        f"ρ = {tight:.6g} keeps ε within {rounded_up_to(epsilon, 6):g} at δ = "
        f"{format_delta(stated)} ({named.value}, by RDP over every order; {plain:.6g} by Bun and "
        "Steinke's plain conversion)"
    )
    return None


def _delta_and_relation(flag: str, given: Mapping[str, Any], total: str) -> tuple[float, Relation]:
    """Return δ and the neighbouring relation of a total of ρ; of nothing else it asks."""
    why = f"says nothing of {flag}, a total whatever it is spent on"
    _refuse_others(given, {total, "delta", "relation"}, why)
    if "delta" not in given:
        fail("a ρ is an ε at some δ; give --delta, such as 1e-6")
    return given["delta"], Relation.of(given.get("relation", "add-remove"))


def _facts(delta: float, relation: Relation) -> dict[str, Any]:
    return {"delta": delta, "relation": relation.value, "accountant": "RDP"}


def _print_price(price: api.Account, as_json: bool) -> None:
    """Print what rounds cost."""
    if as_json:
        print_json(price.to_json())
        return
    event = price.event
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("privacy", f"[bold]{plain(price.epsilon)}[/]")
    table.add_row("noise multiplier", f"{price.noise_multiplier:.6g}")
    table.add_row("noise on the mean", f"{price.point.text} thousandths of C")
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


def cohorts_of(text: str | None) -> tuple[float, ...] | None:
    """Return the cohorts of a grid, or None."""
    try:
        return None if text is None else tuple(map(float, text.split(",")))
    except ValueError:
        fail(f"--grid-cohorts {text!r} is no list of numbers; give one such as 350,1000,2000")


def whole_numbers(text: str | None, flag: str) -> tuple[int, ...] | None:
    """Return the numbers of a flag, or None."""
    try:
        return None if text is None else tuple(map(int, text.split(",")))
    except ValueError:
        fail(f"{flag} {text!r} is no list of whole numbers; give one such as 25,50,100")


def check_plot(out: Path | None) -> None:
    """End with a line if no plot can be written there."""
    if out is not None:
        from fedpriv.report.noise_plot import KINDS
        from fedpriv.report.theme import check_plot_file

        check_plot_file(out, KINDS)


def plot(grid: NoiseGrid | None, out: Path | None, planned: NoisePoint | None) -> None:
    """Write a grid as a plot, where one is asked for."""
    if out is None or grid is None:
        return
    from fedpriv.report.noise_plot import write_noise_plot

    write_noise_plot(grid, out, planned)
    print_line(f"plot: {out}", errors)
