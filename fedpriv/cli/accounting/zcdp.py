"""`fedpriv account --rho` and `fedpriv calibrate --zcdp`: a total of ρ as an ε, and back."""

from __future__ import annotations

from typing import Annotated, Any, NoReturn

import typer

from fedpriv.cli.terminal.output import console, fail, print_json
from fedpriv.privacy.accounting import epsilon_bs16, epsilon_of_rho, rho_bs16, rho_of_epsilon
from fedpriv.privacy.epsilon import format_delta, rounded_up, rounded_up_to
from fedpriv.privacy.event import Relation

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
