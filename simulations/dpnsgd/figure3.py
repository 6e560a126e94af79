"""DP-NSGD, Figure 3: normalisation needs less tuning than clipping; on images.

    fedpriv reproduce dpnsgd-figure3-mnist --results docs/results/dpnsgd.jsonl   # 30 min on 2 cores

Heat maps of accuracy over learning rate and r of DP-NSGD, next to learning rate and c of DP-SGD;
r and c run over the same decades.

The paper's figures are of ResNet-20 on CIFAR-10 for 100 epochs, which a CPU does not do in a day
for 70 settings; `dpnsgd-figure3-cifar10` is for a machine with a GPU. On MNIST it is a CNN of
26,010 parameters, batches of 250, 2 epochs, ε = 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.privacy.epsilon import format_delta, rounded_up_to
from simulations.dpnsgd.grid import Done, Grid, trained
from simulations.dpnsgd.images import RULES, SETUPS, Rule
from simulations.reproduction.items import Split, Study
from simulations.reproduction.study import drawing, render, save, table, write

RATES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
DECADES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
_TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}


def heat_maps(key: str = "mnist", reduced: bool = False) -> list[Grid]:
    """Return a grid a rule; reduced, of every third rate and second decade."""
    setup = SETUPS[key]

    def make(rule: Rule) -> Any:
        def made(rate: float, size: float, split: Split) -> Any:
            return setup.experiment(rule, rate, size, split, reduced)

        return made

    return [
        Grid(
            title=title,
            make=make(rule),
            rates=RATES[2::3] if reduced else RATES,
            sizes=DECADES[::2] if reduced else DECADES,
            letter="r" if rule == "normalise" else "c",
            reduced=reduced,
        )
        for rule, title in RULES.items()
    ]


def spread(grid: Grid, done: Done) -> float:
    """Return how far accuracy moves over the decades at the best learning rate."""
    found = grid.accuracies(done)
    row = found[np.unravel_index(int(np.nanargmax(found)), found.shape)[0]]
    return float(np.nanmax(row) - np.nanmin(row))


def page(key: str, maps: Sequence[Grid], done: Done, picture: str) -> str:
    """Return the results in words and a table; the picture is an address from the page."""
    first = _first(maps, done)
    head = ["", "best η", "best r or c", "held out", "test, mean of seeds",
            "spread over the decades"]  # fmt: skip
    return render(
        "dpnsgd/figure3.md.jinja",
        title=_TITLES[key], model=SETUPS[key].model, reduced=maps[0].reduced, first=first,
        epsilon=f"{rounded_up_to(first['epsilon'], 3):.3g}", delta=format_delta(first["delta"]),
        rows=table(head, [[*grid.cells(done), f"{spread(grid, done):.4f}"] for grid in maps]),
        picture=picture,
    )  # fmt: skip


def _first(maps: Sequence[Grid], done: Done) -> Mapping[str, Any]:
    return done[next(iter(maps[0].tuning())).identity]


def draw_maps(key: str, maps: Sequence[Grid], done: Done, path: Path) -> None:
    """Draw both maps on one scale."""
    found = [grid.accuracies(done) for grid in maps]
    top, low = float(np.nanmax(found)), float(np.nanmin(found))
    figure = drawing(9.5, 4.2)
    panels = figure.subplots(1, 2, sharey=True)
    drawn: Any = None
    for panel, grid, accuracies in zip(panels, maps, found, strict=True):
        drawn = panel.imshow(accuracies, vmin=low, vmax=top, origin="lower", aspect="auto")
        panel.set_xticks(range(len(grid.sizes)), [f"{size:g}" for size in grid.sizes])
        panel.set_yticks(range(len(grid.rates)), [f"{rate:g}" for rate in grid.rates])
        panel.set(xlabel=grid.letter, title=grid.title)
        for (i, j), value in np.ndenumerate(accuracies):
            colour = "w" if value < (low + top) / 2 else "k"
            panel.text(j, i, f"{100 * value:.0f}", ha="center", va="center", color=colour)
    panels[0].set_ylabel("learning rate η")
    figure.colorbar(drawn, ax=panels, label="accuracy, held-out examples")
    model, synthetic = SETUPS[key].model, _first(maps, done)["synthetic"]
    figure.suptitle(f"{model[0].upper()}{model[1:]}{', SYNTHETIC' if synthetic else ''}")
    save(figure, path)


def reproduce(
    *,
    results: Path = Path("results/dpnsgd.jsonl"),
    out: Path | None = None,
    plot: Path | None = None,
    processes: int = 1,
    data: str = "mnist",
    small: bool = False,
) -> None:
    """Run the grid and the finals, and write the page and the picture, next to the results."""
    maps = heat_maps(data, small)
    done = trained(maps, results, processes=processes)
    out = results.with_name(f"dpnsgd-{data}.md") if out is None else out
    plot = out.with_suffix(".png") if plot is None else plot
    draw_maps(data, maps, done, plot)
    write(page(data, maps, done, plot.name), out)


REPRODUCTIONS = tuple(
    Study(
        name=f"dpnsgd-figure3-{key}",
        title=f"DP-NSGD, Figure 3, heat maps of DP-NSGD and DP-SGD: {title}",
        run=reproduce,
        options={"data": key},
        reduced={"small": True},
        minutes=minutes,
    )
    for key, title, minutes in (
        ("mnist", "a CNN on MNIST", (20, 1)),
        ("cifar10", "ResNet-20 on CIFAR-10", (3_000, 6)),
    )
)
