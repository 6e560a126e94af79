"""DP-NSGD, Figure 2: normalised against clipped SGD, without noise.

A normalised step does not shrink where gradients vanish, so with a small r training goes on jumping
about the minimum, where clipped SGD settles. How much is measured: the mean distance of a point of
the second half of a curve from the middle of its neighbours. What the figure shows is remembered,
not read; here it is of a CNN on MNIST.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.experiment import Experiment
from fedpriv.measures import LOSS
from simulations.dpnsgd.images import MNIST, Rule, bounded
from simulations.reproduction.items import Cell, Row, Split, Table

_SIZES: Mapping[str, tuple[Rule, float]] = {
    "normalised, r = 0.01 (not private)": ("normalise", 0.01),
    "normalised, r = 1 (not private)": ("normalise", 1.0),
    "clipped to 1 (not private)": ("clip", 1.0),
}


def _make(rule: Rule, size: float, split: Split, reduced: bool) -> Experiment:
    return CentralExperiment(
        name=f"{MNIST.data().name}-dpnsgd-plain",
        description="Normalised or clipped SGD, without noise.",
        task=lambda chosen, corpus: MNIST.task(split),
        batch_size=MNIST.batch_size,
        epochs=0.2 if reduced else 4.0,
        eval_every=10**9,
    ).with_options({"noise": "none", "learning_rate": 1.6, **bounded(rule, size)})


REPRODUCTIONS = (
    Table(
        name="dpnsgd-figure2-mnist",
        title="DP-NSGD, Figure 2, normalised and clipped SGD without noise",
        measure=LOSS,
        columns={"plain": "MNIST, learning rate 1.6, batches of 250"},
        rows=tuple(
            Row(label=label, paper=None, cells={"plain": Cell(make=partial(_make, rule, size))})
            for label, (rule, size) in _SIZES.items()
        ),
        points=48,
        minutes=(8, 1),
        notes=("That the paper's figure shows this is remembered, not read.",),
    ),
)
