"""AdaDPS, Table 9: dividing by public statistics after the noise instead of before the bound."""

from __future__ import annotations

from simulations.adadps.setups import imdb, mnist, pooled_tags
from simulations.adadps.setups.setup import table

_AFTER, _ADADPS = "DP-Adam-Pub", "AdaDPS, public RMSProp"
_PRINTED = (
    (imdb.SETUP, {_AFTER: 0.74, "DP-R-Pub": None, _ADADPS: 0.80}),
    (pooled_tags.SETUP, {_AFTER: 0.31, "DP-R-Pub": None, _ADADPS: 0.40}),
    (mnist.AUTOENCODER, {_AFTER: 6.4, "DP-R-Pub": None, _ADADPS: 3.6}),
)

REPRODUCTIONS = tuple(
    table(
        "adadps-table9",
        "AdaDPS, Table 9, public statistics after the noise",
        setup,
        setup.rows(printed),
        orderings=((_ADADPS, _AFTER),),
    )
    for setup, printed in _PRINTED
)
