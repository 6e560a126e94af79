"""AdaDPS, Figure 3: the toy regression; see `simulations.by_example.toy`."""

from __future__ import annotations

from fedpriv.reproduction import Script

REPRODUCTIONS = (
    Script(
        name="adadps-figure3",
        title="AdaDPS, Figure 3, regression on frequent and rare features",
        module="simulations.by_example.toy",
        calls=((),),
        reduced=(("--reduced",),),
        minutes=(1, 0.2),
        passes=("out", "plot"),
    ),
)
