"""AdaDPS, Figure 6: federated; see `simulations.tag_tables`, and its results in docs/results."""

from __future__ import annotations

from fedpriv.reproduction import Script

_OUT = ("--out", "results")

REPRODUCTIONS = (
    Script(
        name="adadps-figure6",
        title="AdaDPS, Figure 6, federated with user-level privacy (OnStartups for StackOverflow)",
        module="simulations.tag_tables",
        calls=(("tune", *_OUT), ("run", *_OUT), ("table", *_OUT)),
        minutes=(90, 90),
    ),
)
