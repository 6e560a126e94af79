"""AdaDPS, Figure 1: what adaptivity gains without privacy, it loses with the noise.

That the figure shows this is remembered, not read.
"""

from __future__ import annotations

from simulations.adadps.setups import imdb
from simulations.adadps.setups.setup import figure

REPRODUCTIONS = (
    figure(
        "adadps-figure1",
        "AdaDPS, Figure 1, adaptivity with and without privacy",
        imdb.SETUP,
        ("SGD (not private)", "Adam (not private)", "DP-SGD", "DP-Adam"),
    ),
)
