"""Bounds of the papers' theorems, printed.

python -m simulations theory-bias -s regulariser=0.01
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from simulations.reproduction.items import Study
from simulations.reproduction.study import publish, table
from simulations.theory.bounds import FORMULAS, Values


def _printed(title: str, bound: Callable[..., Values]) -> Callable[..., None]:
    """Return what prints a bound, with the options that it has."""

    @wraps(bound)
    def run(**given: float | None) -> None:
        rows = [[name, f"{value:.6g}"] for name, value in bound(**given).items()]
        publish(f"# {title}\n\n{table(['', 'value'], rows)}\n", None)

    return run


REPRODUCTIONS = tuple(
    Study(name=f"theory-{name}", title=title, run=_printed(title, bound), minutes=(0.1,))
    for name, (title, bound) in FORMULAS.items()
)
