"""AdaDPS, Table 3: public data from elsewhere: Amazon's reviews, and the first four users."""

from __future__ import annotations

from dataclasses import replace

from simulations.adadps.setups import imdb, pooled_tags
from simulations.adadps.setups.setup import Setup, table
from simulations.reproduction.items import Row

ELSEWHERE, HERE = "AdaDPS, public data from elsewhere", "AdaDPS, public data of its own"


def _rows(here: Setup, elsewhere: Setup, figures: tuple[float, float, float]) -> tuple[Row, ...]:
    label, (without, out, own) = "AdaDPS, public RMSProp", figures
    return (
        here.row("DP-SGD", without),
        replace(elsewhere.row(label, out), label=ELSEWHERE),
        replace(here.row(label, own), label=HERE),
    )


_ORDERINGS = ((ELSEWHERE, "DP-SGD"), (HERE, "DP-SGD"), (HERE, ELSEWHERE))

REPRODUCTIONS = (
    table(
        "adadps-table3",
        "AdaDPS, Table 3, public data from elsewhere (Amazon's reviews)",
        imdb.SETUP,
        _rows(imdb.SETUP, imdb.with_public("amazon"), (0.63, 0.79, 0.80)),
        orderings=_ORDERINGS,
        notes=(
            "Amazon's reviews have to be downloaded; without them the table ends with an error "
            "that says how. Nothing of IMDB is public in that row, so its vocabulary, done right, "
            "is Amazon's too.",
        ),
    ),
    table(
        "adadps-table3",
        "AdaDPS, Table 3, public data from elsewhere (the first four users)",
        pooled_tags.SETUP,
        _rows(pooled_tags.SETUP, pooled_tags.with_public("first users"), (0.28, 0.40, 0.40)),
        orderings=_ORDERINGS,
        notes=("In the row of public data from elsewhere the pool is of the other 396 users.",),
    ),
)
