"""AdaDPS, Figure 4: test accuracy over the steps, with public data; the methods of Table 1."""

from __future__ import annotations

from simulations.adadps.setups import imdb, mnist, pooled_tags
from simulations.adadps.setups.setup import figure

REPRODUCTIONS = tuple(
    figure(
        "adadps-figure4",
        "AdaDPS, Figure 4, public data",
        setup,
        ("DP-SGD", "DP-Adam", "DP-RMSProp", "AdaDPS, public RMSProp", "AdaDPS, public Adam"),
    )
    for setup in (imdb.SETUP, pooled_tags.SETUP, mnist.AUTOENCODER)
)
