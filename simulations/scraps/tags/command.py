r"""Recycling checkpoints of tag models of real threads, by user: trains, prints a page and draws.

    python -m simulations.scraps.tags.command aggregates --corpus onstartups
    python -m simulations.scraps.tags.command shift --corpus onstartups

The paper (Shejwalkar et al., "Recycling Scraps", PoPETs 2025) predicts next words of StackOverflow.
This is another task and a smaller one, of threads of any Stack Exchange site.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedpriv.datasets.stackexchange.locate import resolve_corpus
from fedpriv.runs.progress import Pace
from simulations.reproduction.items import Script
from simulations.reproduction.study import (
    parse_study,
    publish,
    study_parser,
)
from simulations.scraps.tags import page, shift_page
from simulations.scraps.tags.page import lines_of
from simulations.scraps.tags.runs import NotKeptError, Site
from simulations.scraps.tags.study import (
    FAMILIES,
    TINY,
    Arms,
    Period,
    Size,
    accuracies,
    both_arms,
    case_runs,
    found,
    options,
    tuned,
    tuning_runs,
)

_PASSES = ("corpus", "seeds", "results", "out", "plot")
REPRODUCTIONS = (
    Script(
        name="scraps-stackoverflow",
        title="Recycling checkpoints: aggregates and uncertainty, tags of real threads by user",
        module="simulations.scraps.tags.command",
        calls=(("aggregates",),),
        reduced=(("aggregates", "--tiny"),),
        minutes=(60, 1),
        passes=_PASSES,
    ),
    Script(
        name="scraps-pds",
        title="Recycling checkpoints under periodic shift, tags of real threads by user",
        module="simulations.scraps.tags.command",
        calls=(("shift",),),
        reduced=(("shift", "--tiny"),),
        minutes=(10, 1),
        passes=_PASSES,
    ),
)
_TINY_ARMS = Arms(burn_in=2, longest=2, pilots=2, runs=3, k=3, examples=50)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing and print the page."""
    parser = study_parser(
        __doc__,
        "simulations.scraps.tags.command",
        seeds="5 or 3",
        results=Path("results/scraps"),
        tiny="few runs, short ones",
    )
    parser.add_argument("what", choices=("aggregates", "shift"))
    parser.add_argument("--corpus", default=None, help="a prepared corpus, a dump or a name")
    parser.add_argument("--roster", default=None, help="of the corpus; by default its own")
    parser.add_argument("--kept", action="store_true", help="train nothing: of what is kept alone")
    given = parse_study(parser, arguments)
    site = Site(
        resolve_corpus(given.corpus, allow_synthetic=False),
        given.roster,
        given.results.with_suffix("") / "scraps",
        trains=not given.kept,
    )
    picture = "" if given.plot is None else given.plot.name
    if given.what == "aggregates":
        measured = aggregates(site, tiny=given.tiny, seeds=given.seeds)
        text = page.page(measured, command=_command(given, 0), picture=picture)
        if given.plot is not None:
            page.plot(measured, given.plot)
    else:
        shifted = shift(site, tiny=given.tiny, seeds=given.seeds)
        text = shift_page.page(shifted, command=_command(given, 1), picture=picture)
        if given.plot is not None:
            shift_page.plot(shifted, given.plot)
    publish(text, given.out)


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
    every = {name: found(site, family, size) for name, family in FAMILIES.items()}
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
        site=_said(site),
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
    shifted = len(shift_page.SAID) * period.seeds
    site.pace = Pace(len(FAMILIES) * (tuning_runs(size) + shifted))
    chosen = {name: tuned(site, family, size).rates for name, family in FAMILIES.items()}
    epsilon = size.epsilons[0]
    accuracy: dict[shift_page.Case, dict[str, np.ndarray]] = {}
    for halves in shift_page.SAID:
        own = replace(period, halves=halves)
        for name, family in FAMILIES.items():
            with suppress(NotKeptError):
                accuracy[halves, name, epsilon] = accuracies(
                    site, family, size, chosen[name][epsilon], epsilon, own
                )
    return shift_page.Shifted(
        site=_said(site),
        synthetic=site.corpus.synthetic,
        delta=_delta(site, size),
        rounds=size.rounds,
        period=period,
        accuracy=accuracy,
    )


def _size(tiny: bool, seeds: int | None) -> Size:
    size = TINY if tiny else Size()
    return size if seeds is None else replace(size, seeds=seeds)


def _said(site: Site) -> str:
    view = site.view()
    facts = view.describe()
    rows = sum(view.num_examples(user, view.split.measured_on) for user in view.roster)
    return (
        f"{facts['name']}, roster {facts['roster']}: {len(view.roster):,} users, "
        f"{len(view.words)} words, {len(view.tags)} tags; {rows:,} test sentences. Split: "
        f"{view.split.describe()}."
    )


def _delta(site: Site, size: Size) -> float:
    from fedpriv.experiments.build import build

    family = FAMILIES["DP-SGD"]
    given = options(site, family, size, size.epsilons[0], 1.0)
    delta = build(site.experiment(family.experiment, given), site.corpus).plan.delta
    assert delta is not None
    return delta


def _command(given: argparse.Namespace, number: int) -> str:
    reduced = " --reduced" if given.tiny else ""
    seeds = "" if given.seeds is None else f" --seeds {given.seeds}"
    return f"fedpriv reproduce {REPRODUCTIONS[number].name} --corpus corpus{seeds}{reduced}"


if __name__ == "__main__":
    main()
