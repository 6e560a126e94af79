"""Recycling checkpoints of tag models of real threads, by user: trains, prints a page and draws.

    fedpriv reproduce recycling-stackoverflow --corpus onstartups --seeds 5
    fedpriv reproduce recycling-pds --corpus onstartups

The paper (Shejwalkar et al., "Recycling Scraps", PoPETs 2025) predicts next words of StackOverflow.
This is another task and a smaller one, of threads of any Stack Exchange site.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedpriv.datasets.importers.locate import resolve_corpus
from fedpriv.experiments.build import build
from fedpriv.runs.progress import Pace
from simulations.checkpoint_recycling.tags import page, shift_page
from simulations.checkpoint_recycling.tags.page import lines_of
from simulations.checkpoint_recycling.tags.runs import NotKeptError, Site
from simulations.checkpoint_recycling.tags.study import (
    FAMILIES,
    TINY,
    Arms,
    Period,
    Size,
    accuracies,
    both_arms,
    case_runs,
    options,
    trained,
    tuned,
    tuning_runs,
)
from simulations.reproduction.items import Study
from simulations.reproduction.study import publish

_TINY_ARMS = Arms(burn_in=2, longest=2, pilots=2, runs=3, k=3, examples=50)


def aggregates(site: Site, *, tiny: bool = False, seeds: int | None = None) -> page.Measured:
    """Return what aggregates bring, by DP-FTRL and by DP-SGD, and how wide scores' intervals are.

    Args:
        site: Whose threads.
        tiny: Whether to run little.
        seeds: Of each method; None for 5, or 2.
    """
    size, arms = _size(tiny, seeds), _TINY_ARMS if tiny else Arms()
    of_arms = len(size.epsilons) * (arms.pilots + arms.runs)
    site.pace = Pace(len(FAMILIES) * (tuning_runs(size) + case_runs(size) + 1) + of_arms)
    every = {name: trained(site, family, size) for name, family in FAMILIES.items()}
    lines = {}
    for name, one in every.items():
        given = options(site, FAMILIES[name], size, size.epsilons[0], 1.0)
        public = site.start(FAMILIES[name].experiment, given)
        lines[name] = {at: lines_of(site, right, public) for at, right in one.right.items()}
    independent = FAMILIES["DP-SGD"]
    scores = []
    for epsilon in size.epsilons:
        with suppress(NotKeptError):
            scores.append(both_arms(site, independent, size, epsilon, arms))
    return page.Measured(
        site=_site_words(site),
        synthetic=site.corpus.synthetic,
        delta=_delta(site, size),
        size=size,
        chosen={name: one.chosen for name, one in every.items()},
        lines=lines,
        arms=arms,
        scores=scores,
    )


def shift(site: Site, *, tiny: bool = False, seeds: int | None = None) -> shift_page.Shifted:
    """Return accuracy over a period of shift, at the first ε.

    Args:
        site: Whose threads.
        tiny: Whether to run little.
        seeds: Of each method; None for 3, or 2.
    """
    size = _size(tiny, None)
    period = Period(halves="questions", rounds=4 if tiny else 20, seeds=seeds or (2 if tiny else 3))
    shifted = len(shift_page.HALVES) * period.seeds
    site.pace = Pace(len(FAMILIES) * (tuning_runs(size) + shifted))
    chosen = {name: tuned(site, family, size).rates for name, family in FAMILIES.items()}
    epsilon = size.epsilons[0]
    accuracy: dict[shift_page.Case, dict[str, np.ndarray]] = {}
    for halves in shift_page.HALVES:
        own = replace(period, halves=halves)
        for name, family in FAMILIES.items():
            with suppress(NotKeptError):
                accuracy[halves, name, epsilon] = accuracies(
                    site, family, size, chosen[name][epsilon], epsilon, own
                )
    return shift_page.Shifted(
        site=_site_words(site),
        synthetic=site.corpus.synthetic,
        delta=_delta(site, size),
        rounds=size.rounds,
        period=period,
        accuracy=accuracy,
    )


def _size(tiny: bool, seeds: int | None) -> Size:
    size = TINY if tiny else Size()
    return size if seeds is None else replace(size, seeds=seeds)


def _site_words(site: Site) -> str:
    view = site.view()
    facts = view.describe()
    rows = sum(view.num_examples(user, view.split.measured_on) for user in view.roster)
    return (
        f"{facts['name']}, roster {facts['roster']}: {len(view.roster):,} users, "
        f"{len(view.words)} words, {len(view.tags)} tags; {rows:,} test sentences. Split: "
        f"{view.split.describe()}."
    )


def _delta(site: Site, size: Size) -> float:
    family = FAMILIES["DP-SGD"]
    given = options(site, family, size, size.epsilons[0], 1.0)
    delta = build(site.experiment(family.experiment, given), site.corpus).plan.delta
    assert delta is not None
    return delta


def reproduce(
    *,
    corpus: str | None = None,
    seeds: int | None = None,
    results: Path = Path("results/recycling"),
    out: Path | None = None,
    plot: Path | None = None,
    what: str = "aggregates",
    roster: str | None = None,
    kept: bool = False,
    tiny: bool = False,
) -> None:
    """Train what is missing and publish the page.

    Args:
        corpus: A prepared corpus, a dump or a name.
        seeds: Of each method; None for 5 of aggregates, and 3 of a shift.
        results: Next to it, in a folder, what is done is kept.
        out: Where the page is written.
        plot: Where it is drawn.
        what: "aggregates", or "shift".
        roster: Of the corpus; None for its own.
        kept: Whether nothing is trained: the page is of what is kept alone.
        tiny: Whether with few runs, short ones.
    """
    site = Site(
        resolve_corpus(corpus, allow_synthetic=False),
        roster,
        results.with_suffix("") / "recycling",
        trains=not kept,
    )
    name = "recycling-stackoverflow" if what == "aggregates" else "recycling-pds"
    given = ("" if seeds is None else f" --seeds {seeds}") + (" --reduced" if tiny else "")
    command = f"fedpriv reproduce {name} --corpus corpus{given}"
    picture = "" if plot is None else plot.name
    if what == "aggregates":
        measured = aggregates(site, tiny=tiny, seeds=seeds)
        text = page.page(measured, command=command, picture=picture)
        if plot is not None:
            page.draw(measured, plot)
    else:
        shifted = shift(site, tiny=tiny, seeds=seeds)
        text = shift_page.page(shifted, command=command, picture=picture)
        if plot is not None:
            shift_page.draw(shifted, plot)
    publish(text, out)


REPRODUCTIONS = (
    Study(
        name="recycling-stackoverflow",
        title="Recycling checkpoints: aggregates and uncertainty, tags of real threads by user",
        run=reproduce,
        reduced={"tiny": True},
        minutes=(60, 1),
    ),
    Study(
        name="recycling-pds",
        title="Recycling checkpoints under periodic shift, tags of real threads by user",
        run=reproduce,
        options={"what": "shift"},
        reduced={"tiny": True},
        minutes=(10, 1),
    ),
)
