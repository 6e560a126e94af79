"""AdaDPS, Table 8: a warm start on public data instead."""

from __future__ import annotations

from simulations.adadps.setups import imdb, mnist, pooled_tags
from simulations.adadps.setups.setup import table

_WARM, _ADADPS = "DP-SGD, warm start", "AdaDPS, public RMSProp"
_PRINTED = (
    (imdb.SETUP, {"DP-SGD": 0.63, _WARM: 0.73, _ADADPS: 0.80}),
    (pooled_tags.SETUP, {"DP-SGD": 0.28, _WARM: 0.33, _ADADPS: 0.40}),
    (mnist.AUTOENCODER, {"DP-SGD": 5.0, _WARM: 4.9, _ADADPS: 3.6}),
)

REPRODUCTIONS = tuple(
    table(
        "adadps-table8",
        "AdaDPS, Table 8, warm start on public data",
        setup,
        setup.rows(printed),
        orderings=((_WARM, "DP-SGD"), (_ADADPS, _WARM)),
    )
    for setup, printed in _PRINTED
)
