"""AdaDPS, Table 1: statistics of public data against methods without."""

from __future__ import annotations

from simulations.adadps.setups import imdb, lstm, mnist, pooled_tags
from simulations.adadps.setups.setup import Setup, table

_FIVE = ("DP-SGD", "DP-Adam", "DP-RMSProp", "AdaDPS, public RMSProp", "AdaDPS, public Adam")
_PRINTED = (
    (imdb.SETUP, (0.63, 0.69, 0.67, 0.80, 0.80)),
    (lstm.SETUP, (0.70, 0.69, 0.69, 0.73, 0.73)),
    (pooled_tags.SETUP, (0.28, 0.30, 0.31, 0.40, 0.40)),
    (mnist.AUTOENCODER, (5.013, 3.697, 3.636, 3.566, 3.443)),
)
#: Methods that the paper has not got, on the setup where a run takes seconds.
_BEYOND = (
    "DP-AdaGrad",
    "AdaDPS, public AdaGrad",
    "DP-NSGD",
    "DP-NAdam",
    "DP²",
    "Scale, then privatise",
)
ORDERINGS = (
    ("AdaDPS, public RMSProp", "DP-RMSProp"),
    ("AdaDPS, public RMSProp", "DP-Adam"),
    ("AdaDPS, public Adam", "DP-Adam"),
    ("DP-Adam", "DP-SGD"),
    ("DP-RMSProp", "DP-SGD"),
)


def printed(figures: tuple[float, ...]) -> dict[str, float | None]:
    """Return the five methods' figures by label."""
    return dict(zip(_FIVE, figures, strict=True))


def _rows(setup: Setup, figures: tuple[float, ...]) -> dict[str, float | None]:
    beyond = dict.fromkeys(_BEYOND) if setup is imdb.SETUP else {}
    return {**printed(figures), **beyond}


REPRODUCTIONS = tuple(
    table(
        "adadps-table1",
        "AdaDPS, Table 1, public data",
        setup,
        setup.rows(_rows(setup, figures)),
        orderings=ORDERINGS,
    )
    for setup, figures in _PRINTED
)
