"""AdaDPS, Figure 5: test accuracy over the steps, without public data; the methods of Table 4."""

from __future__ import annotations

from simulations.adadps.setups import imdb, pooled_tags
from simulations.adadps.setups.setup import figure

REPRODUCTIONS = (
    figure(
        "adadps-figure5",
        "AdaDPS, Figure 5, no public data",
        imdb.SETUP,
        ("DP-SGD", "DP-Adam", "AdaDPS, token frequency", "AdaDPS, TF-IDF", "ideal (not private)"),
    ),
    figure(
        "adadps-figure5",
        "AdaDPS, Figure 5, no public data",
        pooled_tags.SETUP,
        ("DP-SGD", "DP-Adam", "AdaDPS, word rank", "ideal (not private)"),
    ),
)
