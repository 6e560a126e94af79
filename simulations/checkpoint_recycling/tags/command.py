"""Recycling checkpoints of tag models of real threads, by user: trains, prints a page and draws.

    fedpriv reproduce recycling-stackoverflow --seeds 5 --results docs/results/runs.jsonl
    fedpriv reproduce recycling-stackoverflow -s families=tree -s epsilons=8
    fedpriv reproduce recycling-pds
    fedpriv reproduce recycling-uncertainty

Without `--corpus` it is *Answers on Startups* with 200 words and 20 tags (4,020 parameters), so
that hundreds of runs fit on two cores; `--reduced` is a few rounds of a small SYNTHETIC corpus. A
page shows every case that is complete in the store, whichever of them this command trained, and
names the others as not run.

The paper (Shejwalkar et al., "Recycling Scraps", PoPETs 2025) predicts next words of StackOverflow
(`recycling-words`). This is another task and a smaller one, of threads of any Stack Exchange site.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from fedpriv.experiments.build import build
from fedpriv.runs.progress import Pace
from simulations.checkpoint_recycling.corpora import small_corpus
from simulations.checkpoint_recycling.tags import page
from simulations.checkpoint_recycling.tags.runs import NotKeptError, Site
from simulations.checkpoint_recycling.tags.study import (
    FAMILIES,
    TINY,
    Arms,
    Epsilon,
    Halves,
    Period,
    Size,
    case,
    case_runs,
    options,
    settings,
    shifted,
    shifted_runs,
    widths,
)
from simulations.reproduction.items import Study
from simulations.reproduction.study import Store, publish, results_of

_TINY_ARMS = Arms(burn_in=2, spacing=2, runs=3, k=3, examples=50)
_EPSILONS: tuple[Epsilon, ...] = (8.0, 2.0, None)
_ALL = tuple(FAMILIES)

Place = TypeVar("Place")
Found = TypeVar("Found")


def recycle(
    *,
    corpus: str | None = None,
    seeds: int | None = None,
    results: Path = Path("results/reproductions.jsonl"),
    out: Path | None = None,
    plot: Path | None = None,
    roster: str | None = None,
    families: tuple[str, ...] = _ALL,
    epsilons: tuple[Epsilon, ...] = _EPSILONS,
    tiny: bool = False,
) -> None:
    """Train what is missing of aggregates at inference and over them, and publish the page.

    Args:
        corpus: A prepared corpus, a dump or a name; see `small_corpus`.
        seeds: Of each method; None for 5.
        results: Next to it, in `recycling-` of its name, runs are kept.
        out: Where the page is written.
        plot: Where it is drawn.
        roster: Of the corpus; None for its own.
        families: Of `FAMILIES`, that are trained.
        epsilons: At which they are trained; none for no noise.
        tiny: Whether with few runs, short ones.

    Raises:
        ValueError: If a family is not known, or there is no such corpus.
    """
    size = _size(tiny, seeds)
    site = _site(corpus, roster, results, tiny)
    asked = list(settings(epsilons, families))
    site.pace = Pace(len(asked) * case_runs(size) + 1)
    levels = site.levels("adadps-tags", options(site, FAMILIES["dp-sgd"], size, 8.0, 1.0))
    found = _every(
        site, asked, settings((8.0,) if tiny else _EPSILONS, _ALL),
        lambda place: case(site, FAMILIES[place[0]], size, place[1]),
    )  # fmt: skip
    made = page.Recycled(
        setting=_setting(
            site, size,
            {page.place_words(place): case_runs(size) for place, one in found.items() if not one},
            [one.seconds for one in found.values() if one],
        ),
        cases={place: one for place, one in found.items() if one},
        lines={place: page.lines_of(one, levels) for place, one in found.items() if one},
    )  # fmt: skip
    command = _command("recycling-stackoverflow", size.seeds, tiny)
    if plot is not None:
        page.draw(made, plot)
    publish(page.page(made, command=command, picture="" if plot is None else plot.name), out)


def shift(
    *,
    corpus: str | None = None,
    seeds: int | None = None,
    results: Path = Path("results/reproductions.jsonl"),
    out: Path | None = None,
    plot: Path | None = None,
    roster: str | None = None,
    families: tuple[str, ...] = _ALL,
    epsilons: tuple[Epsilon, ...] = (8.0,),
    tuning_seeds: tuple[int, ...] = (100,),
    tiny: bool = False,
) -> None:
    """Train what is missing under a periodic shift, and publish the page.

    Args:
        corpus: As of `recycle`, and so are the others.
        seeds: Of each method; None for 3.
        results: Next to it runs are kept.
        out: Where the page is written.
        plot: Where it is drawn.
        roster: Of the corpus; None for its own.
        families: That are trained.
        epsilons: At which.
        tuning_seeds: Whose mean on validation threads chooses rates.
        tiny: Whether with few runs, short ones.

    Raises:
        ValueError: If a family is not known, or there is no such corpus.
    """
    size = _size(tiny, seeds)
    number = (2 if tiny else 3) if seeds is None else size.seeds
    period = Period(
        halves="questions",
        rounds=4 if tiny else 20,
        seeds=number,
        tuning_seeds=tuning_seeds,
    )
    site = _site(corpus, roster, results, tiny)
    asked, every = _with_halves(epsilons, families), _with_halves((8.0,), _ALL)
    runs = shifted_runs(size, period)
    site.pace = Pace(len(asked) * runs)
    found = _every(
        site, asked, every,
        lambda place: shifted(
            site, FAMILIES[place[1]], size, place[2], replace(period, halves=place[0])
        ),
    )  # fmt: skip
    made = page.AllShifted(
        setting=_setting(
            site, size,
            {
                f"{place[0]}: {page.place_words(place[1:])}": runs
                for place, one in found.items() if not one
            },
            [one.seconds for one in found.values() if one],
        ),
        period=period,
        cases={place: one for place, one in found.items() if one},
    )  # fmt: skip
    if plot is not None:
        page.draw_shift(made, plot)
    command = _command("recycling-pds", number, tiny)
    publish(page.shift_page(made, command=command, picture="" if plot is None else plot.name), out)


def _with_halves(
    epsilons: Sequence[Epsilon], families: Sequence[str]
) -> list[tuple[Halves, str, Epsilon]]:
    return [
        (halves, name, epsilon)
        for name, epsilon in settings(epsilons, families)
        for halves in page.HALVES
    ]


def uncertainty(
    *,
    corpus: str | None = None,
    results: Path = Path("results/reproductions.jsonl"),
    out: Path | None = None,
    roster: str | None = None,
    families: tuple[str, ...] = ("tree", "dp-sgd"),
    epsilons: tuple[float, ...] = (8.0, 2.0),
    tiny: bool = False,
) -> None:
    """Train what is missing of checkpoints against independent runs, and publish the page.

    Args:
        corpus: As of `recycle`, and so are the others.
        results: Next to it runs are kept.
        out: Where the page is written.
        roster: Of the corpus; None for its own.
        families: That are trained.
        epsilons: At which.
        tiny: Whether with few runs, short ones.

    Raises:
        ValueError: If a family is not known, or there is no such corpus.
    """
    size, arms = _size(tiny, None), _TINY_ARMS if tiny else Arms()
    site = _site(corpus, roster, results, tiny)
    asked = list(settings(epsilons, families))
    site.pace = Pace(len(asked) * arms.runs)
    found = _every(
        site, asked, settings((8.0,) if tiny else (8.0, 2.0), ("tree", "dp-sgd")),
        lambda place: widths(site, FAMILIES[place[0]], size, place[1], arms),
    )  # fmt: skip
    made = page.AllWidths(
        setting=_setting(
            site, replace(size, rounds=arms.rounds),
            {page.place_words(place): arms.runs for place, one in found.items() if not one},
            [one[1] for one in found.values() if one],
        ),
        arms=arms,
        cases={place: one[0] for place, one in found.items() if one},
    )  # fmt: skip
    publish(page.uncertainty_page(made, command=_command("recycling-uncertainty", None, tiny)), out)


def _every(
    site: Site,
    asked: Sequence[Place],
    shown: Iterable[Place],
    make: Callable[[Place], Found],
) -> dict[Place, Found | None]:
    """Return what was found by place: the asked ones trained, others if they are in the store."""
    trained = {place: make(place) for place in asked}
    site.trains, site.pace = False, Pace(0)
    found: dict[Place, Found | None] = {}
    for place in dict.fromkeys([*shown, *trained]):
        try:
            found[place] = trained[place] if place in trained else make(place)
        except NotKeptError:
            found[place] = None
    return found


def _size(tiny: bool, seeds: int | None) -> Size:
    size = TINY if tiny else Size()
    return size if seeds is None else replace(size, seeds=seeds)


def _site(corpus: str | None, roster: str | None, results: Path, tiny: bool) -> Site:
    store = Store.at(results_of("recycling", results))
    return Site(small_corpus(corpus, tiny=tiny), roster, store)


def _setting(
    site: Site, size: Size, missing: Mapping[str, int], seconds: Sequence[float]
) -> page.Setting:
    view = site.view()
    facts = view.describe()
    rows = sum(view.num_examples(user, view.split.measured_on) for user in view.roster)
    family = FAMILIES["dp-sgd"]
    given = options(site, family, size, 8.0, 1.0)
    delta = build(site.experiment(family.experiment, given), site.corpus).plan.delta
    assert delta is not None
    return page.Setting(
        site=f"{facts['name']}, roster {facts['roster']}: {len(view.roster):,} users, "
        f"{len(view.words)} words, {len(view.tags)} tags; {rows:,} test sentences. Split: "
        f"{view.split.describe()}.",
        synthetic=site.corpus.synthetic,
        delta=delta,
        file="" if site.store.path is None else site.store.path.name,
        size=size,
        missing=missing,
        seconds=float(np.mean(seconds)) if seconds else math.nan,
    )


def _command(name: str, seeds: int | None, tiny: bool) -> str:
    given = "" if seeds is None else f" --seeds {seeds}"
    return f"fedpriv reproduce {name}{given}{' --reduced' if tiny else ''}"


REPRODUCTIONS = tuple(
    Study(
        name=f"recycling-{name}",
        title=f"{title}, tags of real threads by user",
        run=run,
        reduced={"tiny": True, "epsilons": (8.0,)},
        minutes=minutes,
    )
    for name, title, run, minutes in (
        ("stackoverflow", "Recycling checkpoints: aggregates", recycle, (90, 1)),
        ("pds", "Recycling checkpoints under periodic shift", shift, (25, 1)),
        ("uncertainty", "Checkpoints of one run against independent runs", uncertainty, (20, 1)),
    )
)
