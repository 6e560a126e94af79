"""DP-NSGD, Figure 3: normalisation needs less tuning than clipping; on images.

    python -m simulations dpnsgd-figure3-mnist

Heat maps of accuracy over learning rate η and r of DP-NSGD, and over η and c of DP-SGD; r and c run
over the same decades. c scales the step as well as the bound, so a third map has η c in place of η:
its rows compare values of c at one length of a step, as those of r are compared. The best setting
of each rule is tuned once more, over η, with the paper's cyclic schedule of the learning rate, or
with those of `-s schedules=step,cyclic`; step falls where that of the paper's Figure 3 does, after
half and three quarters of the steps, whose factors are lost in the text at hand.

The paper's figures are of ResNet-20 on CIFAR-10 for 100 epochs, which a CPU does not do in a day
for so many settings (`dpnsgd-figure3-cifar10`). On MNIST it is a CNN of 26,010 parameters, batches
of 250, 1 epoch, ε = 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from fedpriv.privacy.epsilon import format_delta, rounded_up_to
from simulations.dpnsgd.grid import HEAD, SEEDS, Done, Grid, trained
from simulations.dpnsgd.images import RULES, SETUPS, Images, Rule, Schedule, studies
from simulations.reproduction.items import Split
from simulations.reproduction.page import welch_half
from simulations.reproduction.study import drawing, publish, render, save, table, trained_on

RATES = (0.4, 1.6, 6.4)
DECADES = (1e-2, 1e-1, 1.0, 10.0)
SCHEDULES: tuple[Schedule, ...] = ("cyclic",)
_TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
_LETTERS: Mapping[Rule, str] = {"normalise": "r", "clip": "c"}
_SCHEDULES = {
    "step": "a tenth from half, a hundredth from three quarters of the steps",
    "cyclic": "one triangle",
}


def heat_maps(key: str = "mnist", reduced: bool = False) -> list[Grid]:
    """Return a grid a rule, and that of clipping over η c; reduced, of every second value."""
    setup = SETUPS[key]
    every = {
        "rates": RATES[::2] if reduced else RATES,
        "sizes": DECADES[::2] if reduced else DECADES,
        "reduced": reduced,
    }
    maps = [
        Grid(title=title, letter=_LETTERS[rule], make=partial(_made, setup, rule, reduced), **every)
        for rule, title in RULES.items()
    ]

    def at_one_length(product: float, size: float, split: Split) -> Any:
        return setup.experiment("clip", product / size, size, split, reduced)

    title = f"{RULES['clip']}, by η c"
    return [*maps, Grid(title=title, letter="c", rate="η c", make=at_one_length, **every)]


def _made(
    setup: Images,
    rule: Rule,
    reduced: bool,
    rate: float,
    size: float,
    split: Split,
    schedule: Schedule = "constant",
) -> Any:
    return setup.experiment(rule, rate, size, split, reduced, schedule=schedule)


def scheduled(
    key: str, reduced: bool, maps: Sequence[Grid], schedules: Sequence[Schedule], done: Done
) -> list[Grid]:
    """Return a grid over η for each rule and schedule, at the best r or c of a constant rate.

    Raises:
        ValueError: If a schedule is not known.
    """
    for schedule in schedules:
        if schedule not in _SCHEDULES:
            raise ValueError(f"schedule {schedule!r} is not known; use {', '.join(_SCHEDULES)}")
    return [
        Grid(
            title=f"{RULES[rule]}, {_SCHEDULES[schedule]}",
            letter=_LETTERS[rule],
            make=partial(_made, SETUPS[key], rule, reduced, schedule=schedule),
            rates=grid.rates,
            sizes=(grid.best(done)[1],),
            reduced=reduced,
        )
        for rule, grid in zip(RULES, maps, strict=False)
        for schedule in schedules
    ]


def page(
    key: str,
    maps: Sequence[Grid],
    more: Sequence[Grid],
    done: Done,
    *,
    picture: str,
) -> str:
    """Return the page.

    Args:
        key: Of the setup.
        maps: Heat maps.
        more: Grids of schedules.
        done: Runs by identity.
        picture: Address of the plot.
    """
    first = _first(maps, done)
    tested = (run for run in maps[0].finals(done) if run.identity in done)
    names = [HEAD[0], "best η, or η c", "best r or c", *HEAD[3:]]
    return render(
        "dpnsgd/figure3.md.jinja",
        key=key, title=_TITLES[key], model=SETUPS[key].model, batch=SETUPS[key].batch_size,
        first=first, maps=maps, devices=trained_on(_rows([*maps, *more], done)),
        epsilon=f"{rounded_up_to(first['epsilon'], 3):.3g}", delta=format_delta(first["delta"]),
        reduced=maps[0].reduced, picture=picture, seeds=len(SEEDS),
        tested_steps=next((done[run.identity]["steps"] for run in tested), None),
        stepped=any(_SCHEDULES["step"] in grid.title for grid in more),
        verdict=_verdict(
            *(grid.spread(done) for grid in maps), synthetic=first["synthetic"]
        ),
        best=_best(*(_tested(grid, done) for grid in maps[:2])),
        rows=table(
            [*names, "spread over the decades"],
            [[*grid.cells(done), f"{grid.spread(done):.4f}"] for grid in maps],
        ),
        scheduled=table(names, [grid.cells(done) for grid in more]),
    )  # fmt: skip


def _verdict(over_r: float, over_c: float, at_one_length: float, *, synthetic: bool = False) -> str:
    """Return whether the values agree that DP-NSGD is easier to tune than DP-SGD.

    Args:
        over_r: Spread of DP-NSGD over r.
        over_c: Spread of DP-SGD over c at one η.
        at_one_length: Spread of DP-SGD over c at one η c.
        synthetic: Whether they are of synthetic data, which say nothing of the paper's claim.
    """
    more = "more" if over_c > over_r else "no more"
    so = ", as the paper says" if over_c > over_r else ", where the paper says more"
    so = "" if synthetic else so
    held = "less" if at_one_length < over_r else "no less"
    return (
        f"At one η accuracy depends on c {more} than on r ({over_c:.4f} against {over_r:.4f})"
        f"{so}. At one product η c it depends on c {held} than on r ({at_one_length:.4f} against "
        f"{over_r:.4f})"
        + (": of clipping only that product has to be tuned here." if held == "less" else ".")
    )


def _tested(grid: Grid, done: Done) -> list[float]:
    return [done[run.identity]["accuracy"] for run in grid.finals(done) if run.identity in done]


def _best(normalised: Sequence[float], clipped: Sequence[float]) -> str:
    """Return whether two methods are level on test; "" of fewer than two seeds."""
    if min(len(normalised), len(clipped)) < 2:
        return ""
    apart, half = mean(normalised) - mean(clipped), welch_half(normalised, clipped)
    return (
        f"DP-NSGD less DP-SGD is {100 * apart:+.2f} ± {100 * half:.2f} points (95 % interval, "
        f"Welch's t over the seeds): {'no difference is shown' if abs(apart) <= half else 'not so'}"
    )


def _rows(grids: Sequence[Grid], done: Done) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of grids, those that settings were chosen from first."""
    for grid in grids:
        for run in (*grid.tuning(), *grid.finals(done)):
            if run.identity in done:
                yield done[run.identity]


def _first(maps: Sequence[Grid], done: Done) -> Mapping[str, Any]:
    return done[next(iter(maps[0].tuning())).identity]


def draw_maps(key: str, maps: Sequence[Grid], done: Done, path: Path) -> None:
    """Draw the maps on one scale."""
    found = [grid.accuracies(done) for grid in maps]
    top, low = float(np.nanmax(found)), float(np.nanmin(found))
    figure = drawing(4.6 * len(maps), 4.2)
    panels = figure.subplots(1, len(maps))
    drawn: Any = None
    for panel, grid, accuracies in zip(panels, maps, found, strict=True):
        drawn = panel.imshow(accuracies, vmin=low, vmax=top, origin="lower", aspect="auto")
        panel.set_xticks(range(len(grid.sizes)), [f"{size:g}" for size in grid.sizes])
        panel.set_yticks(range(len(grid.rates)), [f"{rate:g}" for rate in grid.rates])
        panel.set(xlabel=grid.letter, ylabel=grid.rate)
        panel.set_title(grid.title, fontsize=10)
        for (i, j), value in np.ndenumerate(accuracies):
            colour = "w" if value < (low + top) / 2 else "k"
            panel.text(j, i, f"{100 * value:.0f}", ha="center", va="center", color=colour)
    figure.colorbar(drawn, ax=panels, label="accuracy, held-out examples")
    model, synthetic = SETUPS[key].model, _first(maps, done)["synthetic"]
    figure.suptitle(f"{model[0].upper()}{model[1:]}{', SYNTHETIC' if synthetic else ''}")
    save(figure, path)


def reproduce(
    *,
    out: Path | None = None,
    plot: Path = Path("results/dpnsgd-figure3.png"),
    processes: int = 1,
    device: str | None = None,
    data: str = "mnist",
    schedules: tuple[Schedule, ...] = SCHEDULES,
    small: bool = False,
) -> None:
    """Run the grids and the finals, and publish the page and the picture."""
    maps = heat_maps(data, small)
    further = len(RULES) * len(schedules) * (len(maps[0].rates) + len(SEEDS))
    done, more = trained(
        maps, processes=processes, device=device, further=further,
        then=partial(scheduled, data, small, maps, schedules),
    )  # fmt: skip
    draw_maps(data, maps, done, plot)
    publish(page(data, maps, more, done, picture=plot.name), out)


REPRODUCTIONS = studies(3, "heat maps of DP-NSGD and DP-SGD", reproduce, (35, 3), (4_000, 10))
