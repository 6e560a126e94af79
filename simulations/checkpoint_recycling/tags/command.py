"""Recycling checkpoints of tag models of real threads, by user: trains, prints a page and draws.

    python -m simulations recycling-stackoverflow --seeds 5
    python -m simulations recycling-stackoverflow -s families=tree -s epsilons=8
    python -m simulations recycling-pds
    python -m simulations recycling-uncertainty

Without `--corpus` it is *Answers on Startups* with 200 words and 20 tags (4,020 parameters), so
that hundreds of runs fit on two cores; `--reduced` is a few rounds of a small SYNTHETIC corpus.

The paper (Shejwalkar et al., "Recycling Scraps", PoPETs 2025) predicts next words of StackOverflow
(`recycling-words`). This is another task and a smaller one, of threads of any Stack Exchange site.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from fedpriv.experiments.build import build
from fedpriv.runs.progress import Pace
from simulations.checkpoint_recycling.corpora import small_corpus
from simulations.checkpoint_recycling.tags import page
from simulations.checkpoint_recycling.tags.runs import Site
from simulations.checkpoint_recycling.tags.study import (
    FAMILIES,
    TINY,
    Arms,
    Epsilon,
    Halves,
    Period,
    Shifted,
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
from simulations.reproduction.study import publish

_TINY_ARMS = Arms(burn_in=2, spacing=2, runs=3, k=3, examples=50)
_EPSILONS: tuple[Epsilon, ...] = (8.0, 2.0, None)
_ALL = tuple(FAMILIES)

Place = TypeVar("Place")
Found = TypeVar("Found")


def recycle(
    *,
    corpus: str | None = None,
    seeds: int | None = None,
    out: Path | None = None,
    plot: Path | None = None,
    roster: str | None = None,
    families: tuple[str, ...] = _ALL,
    epsilons: tuple[Epsilon, ...] = _EPSILONS,
    tiny: bool = False,
) -> None:
    """Train aggregates at inference and over them, and publish the page.

    Args:
        corpus: A prepared corpus, a dump or a name; see `small_corpus`.
        seeds: Of each method; None for 5.
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
    site = Site(small_corpus(corpus, tiny=tiny), roster)
    asked = list(settings(epsilons, families))
    site.pace = Pace(len(asked) * case_runs(size) + 1)
    levels = site.levels("adadps-tags", options(site, FAMILIES["dp-sgd"], size, 8.0, 1.0))
    found = {place: case(site, FAMILIES[place[0]], size, place[1]) for place in asked}
    made = page.Recycled(
        setting=_setting(site, size),
        cases=found,
        lines={place: page.lines_of(one, levels) for place, one in found.items()},
    )
    command = _command("recycling-stackoverflow", size.seeds, tiny)
    if plot is not None:
        page.draw(made, plot)
    publish(page.page(made, command=command, picture="" if plot is None else plot.name), out)


def shift(
    *,
    corpus: str | None = None,
    seeds: int | None = None,
    out: Path | None = None,
    plot: Path | None = None,
    roster: str | None = None,
    families: tuple[str, ...] = _ALL,
    epsilons: tuple[Epsilon, ...] = (8.0,),
    tuning_seeds: tuple[int, ...] = (100,),
    tiny: bool = False,
) -> None:
    """Train under a periodic shift, and publish the page.

    Args:
        corpus: As of `recycle`, and so are the others.
        seeds: Of each method; None for 3.
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
    site = Site(small_corpus(corpus, tiny=tiny), roster)
    asked = list(settings(epsilons, families))
    site.pace = Pace(len(asked) * len(page.HALVES) * shifted_runs(size, period))
    found: dict[tuple[Halves, str, Epsilon], Shifted] = {
        (halves, name, e): shifted(site, FAMILIES[name], size, e, replace(period, halves=halves))
        for name, e in asked
        for halves in page.HALVES
    }
    made = page.AllShifted(setting=_setting(site, size), period=period, cases=found)
    if plot is not None:
        page.draw_shift(made, plot)
    command = _command("recycling-pds", number, tiny)
    publish(page.shift_page(made, command=command, picture="" if plot is None else plot.name), out)


def uncertainty(
    *,
    corpus: str | None = None,
    out: Path | None = None,
    roster: str | None = None,
    families: tuple[str, ...] = ("tree", "dp-sgd"),
    epsilons: tuple[float, ...] = (8.0, 2.0),
    tiny: bool = False,
) -> None:
    """Train checkpoints against independent runs, and publish the page.

    Args:
        corpus: As of `recycle`, and so are the others.
        out: Where the page is written.
        roster: Of the corpus; None for its own.
        families: That are trained.
        epsilons: At which.
        tiny: Whether with few runs, short ones.

    Raises:
        ValueError: If a family is not known, or there is no such corpus.
    """
    size, arms = _size(tiny, None), _TINY_ARMS if tiny else Arms()
    site = Site(small_corpus(corpus, tiny=tiny), roster)
    asked = list(settings(epsilons, families))
    site.pace = Pace(len(asked) * arms.runs)
    found = {place: widths(site, FAMILIES[place[0]], size, place[1], arms) for place in asked}
    made = page.AllWidths(
        setting=_setting(site, replace(size, rounds=arms.rounds)), arms=arms, cases=found
    )
    publish(page.uncertainty_page(made, command=_command("recycling-uncertainty", None, tiny)), out)


def _size(tiny: bool, seeds: int | None) -> Size:
    size = TINY if tiny else Size()
    return size if seeds is None else replace(size, seeds=seeds)


def _setting(site: Site, size: Size) -> page.Setting:
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
        size=size,
    )


def _command(name: str, seeds: int | None, tiny: bool) -> str:
    given = "" if seeds is None else f" --seeds {seeds}"
    return f"python -m simulations {name}{given}{' --reduced' if tiny else ''}"


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
