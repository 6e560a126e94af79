"""AdaDPS, Table 4: no public data; what is known of words alone."""

from __future__ import annotations

from simulations.adadps.setups import imdb
from simulations.adadps.setups.setup import table

REPRODUCTIONS = (
    table(
        "adadps-table4",
        "AdaDPS, Table 4, no public data",
        imdb.SETUP,
        imdb.SETUP.rows(
            {
                "DP-SGD": 0.62,
                "DP-Adam": 0.68,
                "AdaDPS, token frequency": 0.75,
                "AdaDPS, TF-IDF": 0.80,
                "AdaDPS, mean magnitude": None,
                "ideal (not private)": 0.82,
            }
        ),
        orderings=(
            ("AdaDPS, token frequency", "DP-Adam"),
            ("ideal (not private)", "AdaDPS, token frequency"),
        ),
        notes=(
            "In the column done right the side information comes from the 250 public reviews, not "
            "from private ones; the paper's row of TF-IDF is its run on TF-IDF features.",
        ),
    ),
)
