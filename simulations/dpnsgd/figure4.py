r"""DP-NSGD on language: RoBERTa-base on SST-2, its embeddings frozen; clipping next to normalising.

    pip install 'fedpriv[pretrained]'
    fedpriv data fetch sst2
    python -m simulations dpnsgd-figure4-sst2 -s weights=DIR -s methods=dp-nsgd -s rates=0.4 \
        -s sizes=0.01
    python -m simulations dpnsgd-figure4-sst2 -s weights=DIR     # every setting of every method
    python -m simulations dpnsgd-figure4-sst2 --reduced          # minutes, SYNTHETIC sentences

`DIR` holds RoBERTa-base as transformers saves it: `config.json`, `model.safetensors` and a
tokeniser. As in the paper: embeddings frozen, batches of 1000, 10 epochs (680 steps), full
precision. Its ε, δ, σ and grids are lost in the text at hand: ε = 8, 4 or 2 at δ = 1e-5 as RDP
counts it (σ = .6558, .8429, 1.1457) and these grids are ours. Its dropout and schedule are not
known here; nothing is dropped, rates are constant.

One core took 0.24 s an example (16 sentences of 4 to 40 tokens), so about 45 hours a run, and 4
GiB. Settings are judged on a tenth of the training set, held out, which no ε covers.

What ε means here: GLUE's training examples are phrases, and many are cut from one sentence. The
unit is one of these examples, not the sentence, nor who wrote it. That the weights have seen none
of them is an assumption.

Source: Yang, Zhang, Chen and Liu, "Normalized/Clip SGD with Perturbation for Differentially
Private Non-Convex Optimization" (2022, arXiv:2206.13033), Appendix D.1.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.experiment import Experiment
from fedpriv.privacy.epsilon import format_delta, rounded_up_to
from simulations.dpnsgd.grid import HEAD, SEEDS, Done, Grid, trained
from simulations.dpnsgd.images import RULES, bounded
from simulations.dpnsgd.sst2 import SIGMA, Setup, digest, reduced_setup, task
from simulations.reproduction.items import Split, Study
from simulations.reproduction.study import publish, render, table
from simulations.reviews.sst2 import load_sst2

DELTA = 1e-5
CLIPS, REGULARISERS = (0.1, 0.4, 1.6, 6.4, 25.6), (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
SGD_RATES, ADAM_RATES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2), (5e-5, 1e-4, 2e-4, 5e-4, 1e-3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A bound and an optimiser.

    Attributes:
        title: In tables.
        normalise: g / (r + ‖g‖) instead of clipping to c.
        optimizer: Of the noised mean.
        rates: Learning rates of the grid; of clipped gradients they multiply what c bounds.
        reduced_rates: Of the reduced one.
    """

    title: str
    normalise: bool
    optimizer: str
    rates: tuple[float, ...]
    reduced_rates: tuple[float, ...]

    @property
    def sizes(self) -> tuple[float, ...]:
        """Values of r or c."""
        return REGULARISERS if self.normalise else CLIPS


METHODS = {
    name: Method(
        title=title,
        normalise=name.startswith("dp-n"),
        optimizer=optimizer,
        rates=rates,
        reduced_rates=few,
    )
    for name, title, optimizer, rates, few in (
        ("dp-sgd", RULES["clip"], "sgd", SGD_RATES, (0.8, 3.2)),
        ("dp-nsgd", RULES["normalise"], "sgd", SGD_RATES, (0.8, 3.2)),
        ("dp-adam", "DP-Adam, clipped to c", "adam", ADAM_RATES, (0.003, 0.01)),
        ("dp-nadam", "DP-NAdam, g / (r + ‖g‖)", "adam", ADAM_RATES, (0.003, 0.01)),
    )
}


def experiment(setup: Setup, method: str, rate: float, size: float, split: Split) -> Experiment:
    """Return one run.

    Args:
        setup: Of all runs.
        method: A key of `METHODS`.
        rate: η. Of clipped gradients too it multiplies what is bounded by c, as in the paper.
        size: r, or c.
        split: What it is measured on.
    """
    kind = METHODS[method]
    noise: dict[str, Any] = (
        {"target_epsilon": setup.epsilon}
        if setup.reduced
        else {"noise_multiplier": SIGMA[setup.epsilon]}
    )
    return CentralExperiment(
        name=f"{setup.data.name}-roberta-{digest(setup.weights)[:12]}-{setup.length}-tokens",
        description=f"{kind.title}, RoBERTa with frozen embeddings.",
        task=lambda chosen, corpus: task(setup, split),
        batch_size=float(setup.batch),
        steps=setup.steps(split),
        delta=DELTA,
        eval_every=10**9,
    ).with_options(
        {
            "optimizer": kind.optimizer,
            "learning_rate": rate,
            **noise,
            **bounded("normalise" if kind.normalise else "clip", size),
        }
    )


def grid_of(
    setup: Setup, method: str, rates: Sequence[float] = (), sizes: Sequence[float] = ()
) -> Grid:
    """Return the settings of a method; its own grid where none are given."""
    chosen, reduced = METHODS[method], setup.reduced
    return Grid(
        title=chosen.title,
        make=partial(experiment, setup, method),
        rates=rates or (chosen.reduced_rates if reduced else chosen.rates),
        sizes=sizes or (chosen.sizes[1::2] if reduced else chosen.sizes),
        letter="r" if chosen.normalise else "c",
        reduced=reduced,
    )


def page(setup: Setup, grids: Sequence[Grid], done: Done) -> str:
    """Return the results in words and tables."""
    first = done[next(iter(grids[0].finals(done))).identity]
    return render(
        "dpnsgd/figure4.md.jinja",
        setup=setup, first=first, seeds=len(SEEDS),
        epsilon=f"{rounded_up_to(first['epsilon'], 3):.3g}",
        delta=format_delta(first["delta"]), rdp=f"{rounded_up_to(first['epsilon_rdp'], 3):.3g}",
        cells=table(HEAD, [grid.cells(done) for grid in grids]),
        grid_table=partial(_grid_table, done),
        tried=[grid for grid in grids if len(grid.rates) * len(grid.sizes) > 1],
    )  # fmt: skip


def _grid_table(done: Done, grid: Grid) -> str:
    rows = zip(grid.rates, grid.accuracies(done), strict=True)
    cells = [[f"{rate:g}", *(f"{value:.4f}" for value in row)] for rate, row in rows]
    return table(["η", *(f"{size:g}" for size in grid.sizes)], cells, words=0)


def reproduce(
    *,
    out: Path | None = None,
    processes: int = 1,
    weights: str | None = None,
    data: str | None = None,
    methods: tuple[str, ...] = tuple(METHODS),
    rates: tuple[float, ...] = (),
    sizes: tuple[float, ...] = (),
    epsilon: float = 8.0,
    device: str = "cpu",
    small: bool = False,
) -> None:
    """Run grids and finals, and publish the page.

    Args:
        out: Where the page is written.
        processes: Runs at once.
        weights: Folder of RoBERTa-base.
        data: SST-2.zip or its folder; None to look for it.
        methods: Of `METHODS`.
        rates: In place of each method's own.
        sizes: Of r or c, likewise.
        epsilon: 8, 4 or 2.
        device: Of torch.
        small: Of synthetic sentences and a tiny random model.

    Raises:
        ValueError: If there are no weights or sentences, or an option is refused.
    """
    options: dict[str, Any] = {"epsilon": epsilon, "device": device}
    with tempfile.TemporaryDirectory() as folder:
        if small:
            setup = reduced_setup(Path(folder), **options)
        elif weights is None:
            raise ValueError("give -s weights=DIR, or --reduced for synthetic sentences")
        else:
            setup = Setup(weights=Path(weights), data=load_sst2(data), **options)
        grids = [grid_of(setup, name, rates, sizes) for name in methods]
        done, _ = trained(grids, processes=processes)
        publish(page(setup, grids, done), out)


REPRODUCTIONS = (
    Study(
        name="dpnsgd-figure4-sst2",
        title="DP-NSGD, Figure 4, heat maps of DP-NSGD and DP-SGD: RoBERTa-base on SST-2",
        run=reproduce,
        reduced={"small": True},
        minutes=(300_000, 2),
    ),
)
