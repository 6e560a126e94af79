"""AdaDPS, Figure 3: the toy regression; see `simulations.by_example.toy`."""

from __future__ import annotations

from fedpriv.reproduction import Script

_PLOT = ("--plot", "results/adadps-figure3.png")

REPRODUCTIONS = (
    Script(
        name="adadps-figure3",
        title="AdaDPS, Figure 3, regression on frequent and rare features",
        module="simulations.by_example.toy",
        calls=(_PLOT,),
        reduced=(("--reduced", *_PLOT),),
        minutes=(1, 0.2),
    ),
)
