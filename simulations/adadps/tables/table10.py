"""AdaDPS, Table 10: how much public data it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simulations.adadps.setups import imdb, pooled_tags
from simulations.adadps.setups.setup import Setup, table
from simulations.reproduction.items import Row

_LABEL, _LESS = "AdaDPS, public RMSProp", ("AdaDPS, a fifth of it", "AdaDPS, a 25th of it")


def _rows(
    setup: Setup,
    with_public: Callable[[int], Setup],
    size: int,
    figures: tuple[float, float, float, float],
) -> tuple[Row, ...]:
    upper, own, fifth, least = figures

    def fewer(share: int, label: str, paper: float) -> Row:
        left = max(1, size // share)
        less = replace(
            with_public(left), public={"public-batch": min(20, left), "refresh": "epoch"}
        )
        return replace(less.row(_LABEL, paper), label=label)

    return (
        setup.row("ideal (not private)", upper),
        setup.row(_LABEL, own),
        fewer(5, _LESS[0], fifth),
        fewer(25, _LESS[1], least),
    )


_ORDERINGS = ((_LABEL, _LESS[1]), (_LESS[0], _LESS[1]), ("ideal (not private)", _LABEL))
_NOTES = (
    "With less of it public the rest is thrown away, not made private, so that the rows share one "
    "private set, and, done right, one vocabulary.",
)

REPRODUCTIONS = (
    table(
        "adadps-table10",
        "AdaDPS, Table 10, size of the public data",
        imdb.SETUP,
        _rows(imdb.SETUP, imdb.with_public, 250, (0.82, 0.80, 0.80, 0.75)),
        orderings=_ORDERINGS,
        notes=_NOTES,
    ),
    table(
        "adadps-table10",
        "AdaDPS, Table 10, size of the public data",
        pooled_tags.SETUP,
        _rows(pooled_tags.SETUP, pooled_tags.with_public, 500, (0.41, 0.40, 0.40, 0.39)),
        orderings=_ORDERINGS,
        notes=_NOTES,
    ),
)
