"""AdaDPS, Table 2: against mirror descent with public data (PDA-DPMD)."""

from __future__ import annotations

from simulations.adadps.setups import imdb, mnist, pooled_tags
from simulations.adadps.setups.setup import table

_PRINTED = (
    (
        imdb.SETUP,
        {"PDA-DPMD": 0.62, "AdaDPS, public RMSProp": 0.80, "AdaDPS, token frequency": 0.75},
    ),
    (
        pooled_tags.SETUP,
        {"PDA-DPMD": 0.33, "AdaDPS, public RMSProp": 0.40, "AdaDPS, word rank": 0.41},
    ),
    (mnist.AUTOENCODER, {"PDA-DPMD": 3.9, "AdaDPS, public RMSProp": 3.6}),
)

REPRODUCTIONS = tuple(
    table(
        "adadps-table2",
        "AdaDPS, Table 2, mirror descent with public data",
        setup,
        setup.rows(printed),
        orderings=(
            ("AdaDPS, public RMSProp", "PDA-DPMD"),
            ("AdaDPS, token frequency", "PDA-DPMD"),
            ("AdaDPS, word rank", "PDA-DPMD"),
        ),
    )
    for setup, printed in _PRINTED
)
