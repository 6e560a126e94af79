"""AdaDPS, Figure 3: the toy regression; see `simulations.adadps.toy`."""

from __future__ import annotations

from simulations.reproduction.items import Script

REPRODUCTIONS = (
    Script(
        name="adadps-figure3",
        title="AdaDPS, Figure 3, regression on frequent and rare features",
        module="simulations.adadps.toy",
        calls=((),),
        reduced=(("--reduced",),),
        minutes=(1, 0.2),
        passes=("out", "plot"),
    ),
)
