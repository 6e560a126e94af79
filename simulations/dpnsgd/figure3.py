"""DP-NSGD, Figure 3: normalisation needs less tuning than clipping; on images.

    python -m simulations.dpnsgd.figure3 run  --results results/dpnsgd.jsonl   # 30 min on 2 cores
    python -m simulations.dpnsgd.figure3 run  --reduced                        # a minute
    python -m simulations.dpnsgd.figure3 page --results results/dpnsgd.jsonl --out docs/results
    python -m simulations.dpnsgd.figure3 run  --data cifar10                   # two days on 2 cores

The paper's figures are of ResNet-20 on CIFAR-10 for 100 epochs, which a CPU does not do in a day
for 70 settings; `--data cifar10` is for a machine with a GPU. By default a CNN of 26,010 parameters
on MNIST, batches of 250, 2 epochs, ε = 4.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from simulations.dpnsgd.heat_maps import SEEDS, HeatMaps, page, plot, trained
from simulations.dpnsgd.images import RULES, SETUPS
from simulations.reproduction.items import Script
from simulations.reproduction.runs import read

RATES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
DECADES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


def heat_maps(key: str = "mnist", reduced: bool = False) -> HeatMaps:
    """Return the maps of a setup; reduced, of every third rate and second decade."""
    setup = SETUPS[key]
    return HeatMaps(
        title=f"DP-NSGD and DP-SGD on {'MNIST' if key == 'mnist' else 'CIFAR-10'}",
        model=setup.model,
        make=setup.experiment,
        rates=RATES[2::3] if reduced else RATES,
        decades=DECADES[::2] if reduced else DECADES,
        reduced=reduced,
    )


def _script(key: str, title: str, minutes: tuple[float, float]) -> Script:
    stages = (("run", "--data", key), ("page", "--data", key))
    return Script(
        name=f"dpnsgd-figure3-{key}",
        title=f"DP-NSGD, Figure 3, heat maps of DP-NSGD and DP-SGD: {title}",
        module="simulations.dpnsgd.figure3",
        calls=stages,
        reduced=tuple((*stage, "--reduced") for stage in stages),
        minutes=minutes,
    )


REPRODUCTIONS = (
    _script("mnist", "a CNN on MNIST", (20, 1)),
    _script("cifar10", "ResNet-20 on CIFAR-10", (3_000, 6)),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the grid and the finals, or write the page."""
    parser = argparse.ArgumentParser(description="DP-NSGD and DP-SGD, Figure 3.")
    parser.add_argument("stage", choices=("run", "page"))
    parser.add_argument("--data", choices=tuple(SETUPS), default="mnist")
    parser.add_argument("--results", type=Path, default=Path("results/dpnsgd.jsonl"))
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--reduced", action="store_true")
    given = parser.parse_args(arguments)
    maps = heat_maps(given.data, given.reduced)
    if given.stage == "run":
        finals = len(RULES) * len(SEEDS)
        trained(maps.grid(), maps.finals, finals, given.results, processes=given.processes)
        return
    done = read(given.results)
    given.out.mkdir(parents=True, exist_ok=True)
    name = f"dpnsgd-{given.data}"
    plot(maps, done, given.out / f"{name}.png")
    (given.out / f"{name}.md").write_text(page(maps, done, f"{name}.png"), "utf-8")


if __name__ == "__main__":
    main()
