"""AdaDPS, Table 6: without privacy."""

from __future__ import annotations

from dataclasses import replace

from simulations.adadps.setups import imdb, lstm, mnist, pooled_tags
from simulations.adadps.setups.setup import table

_SGD, _ADAM, _PUBLIC = "SGD (not private)", "Adam (not private)", "AdaS, public (not private)"
_PRINTED = (
    (
        imdb.SETUP,
        {_SGD: 0.66, _ADAM: 0.88, _PUBLIC: 0.88, "AdaS, token frequency (not private)": 0.88},
    ),
    (lstm.SETUP, {_SGD: 0.88, _ADAM: 0.88, _PUBLIC: 0.88}),
    (
        pooled_tags.SETUP,
        {_SGD: 0.38, _ADAM: 0.64, _PUBLIC: 0.64, "AdaS, word rank (not private)": 0.64},
    ),
    (mnist.AUTOENCODER, {_SGD: 5.013, _ADAM: 1.151, _PUBLIC: 1.805}),
)

REPRODUCTIONS = tuple(
    replace(
        table(
            "adadps-table6",
            "AdaDPS, Table 6, without privacy",
            setup,
            setup.rows(printed),
            orderings=((_ADAM, _SGD), (_PUBLIC, _SGD)),
        ),
        paper_epsilon="∞, without noise",
    )
    for setup, printed in _PRINTED
)
