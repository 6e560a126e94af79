"""What aggregates bring on real threads: tuned once, then seeds that are paired."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from fedpriv.experiments.composing.options import Option
from simulations.scraps.checkpoints import LAST, Aggregates
from simulations.scraps.tags.runs import NotKeptError, Site

#: No noise, where an ε is meant otherwise.
Epsilon = float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A DP algorithm, but for its ε and its server's rate.

    Attributes:
        label: In tables.
        experiment: Its name.
        options: Of it.
        cohort: Share of the roster, where cohorts are drawn; None for groups that take turns.
        promise: What its ε is.
    """

    label: str
    experiment: str
    options: Mapping[str, Option] = field(repr=False)
    cohort: float | None
    promise: str


FAMILIES: Mapping[str, Family] = {
    "DP-FTRL": Family(
        label="DP-FTRL (optimised bands)",
        experiment="adadps-ftrl-tags",
        options={
            "min-separation": 4,
            "l2-clip-norm": 60.0,
            "local-learning-rate": 30.0,
            "start-factor": 0.5,
        },
        cohort=None,
        promise="zero-out, PLD, one charge a run, no assumption on how cohorts are drawn",
    ),
    "DP-SGD": Family(
        label="DP-SGD by user (independent noise, Poisson cohorts)",
        experiment="adadps-tags",
        options={
            "l2-clip-norm": 30.0,
            "local-learning-rate": 10.0,
            "start-factor": 0.5,
            "aggregate": "none",
        },
        cohort=0.3,
        promise="add-remove, PLD, Poisson cohorts",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is run.

    Attributes:
        rounds: Of every run.
        seeds: Of every method, from 0.
        tuning_seed: Of none of them.
        rates: Of the server, that are tried.
        slower: What the best rate is multiplied by, for a second look.
        faster: The same, for a third.
        epsilons: That are measured.
        which: Aggregates.
    """

    rounds: int = 80
    seeds: int = 5
    tuning_seed: int = 100
    rates: Sequence[float] = (0.25, 0.5, 1.0, 2.0, 4.0)
    slower: float = 0.5
    faster: float = 3.0
    epsilons: Sequence[float] = (8.0, 2.0)
    which: Aggregates = field(default_factory=Aggregates)


TINY = Size(rounds=8, seeds=2, rates=(0.5, 1.0), epsilons=(8.0,),
            which=Aggregates(decays=(0.8,), ks=(3,)))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What validation threads chose, once, by one run each.

    Attributes:
        rates: By ε: the server's, that the last iterate does best with.
        tried: Accuracy of the last iterate on validation threads, by ε and rate.
        aggregate: By kind ("EMA", "UPA", "OPA", "OMV"), that of the best parameter at the first ε.
    """

    rates: Mapping[Epsilon, float]
    tried: Mapping[tuple[Epsilon, float], float]
    aggregate: Mapping[str, str]


Rights = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one family gave on test threads.

    Attributes:
        chosen: Beforehand.
        right: By ε, by what the rate is multiplied by, and by method: uint8 (seeds, n).
    """

    chosen: Chosen
    right: Mapping[tuple[Epsilon, float], Rights]


def tuned(site: Site, family: Family, size: Size) -> Chosen:
    """Return what validation threads choose."""
    tried: dict[tuple[Epsilon, float], float] = {}
    rates: dict[Epsilon, float] = {}
    kinds: dict[str, str] = {}
    for epsilon in (*size.epsilons, None):
        runs = {}
        for rate in size.rates:
            runs[rate] = site.aggregated(
                family.experiment,
                options(site, family, size, epsilon, rate),
                size.tuning_seed,
                size.which,
                validation=True,
            )
            tried[epsilon, rate] = float(runs[rate][LAST].mean())
        rates[epsilon] = max(size.rates, key=lambda rate: tried[epsilon, rate])
        if not kinds:
            own = runs[rates[epsilon]]
            for kind in ("EMA", "UPA", "OPA", "OMV"):
                names = [name for name in own if name.startswith(kind)]
                kinds[kind] = max(names, key=lambda name: float(own[name].mean()))
    return Chosen(rates=rates, tried=tried, aggregate=kinds)


def options(
    site: Site, family: Family, size: Size, epsilon: Epsilon, rate: float
) -> dict[str, Option]:
    """Return a family's options at an ε and a rate of the server."""
    users = len(site.view().roster)
    cohort: dict[str, Option] = {}
    if family.cohort is not None:
        cohort["cohort"] = max(1.0, float(round(family.cohort * users)))
    noise: dict[str, Option] = {"target-epsilon": epsilon}
    if epsilon is None:
        noise["noise"] = "none"
    return {
        "rounds": size.rounds,
        "server-learning-rate": rate,
        **family.options,
        **cohort,
        **noise,
    }


def over(size: Size, aggregate: str, reading: str) -> dict[str, Option]:
    """Return the options of training over an aggregate such as "EMA 0.9", after half of the run."""
    kind, value = aggregate.split()
    own: dict[str, Option] = {"aggregate": kind.lower()}
    own |= {"ema-decay": float(value)} if kind == "EMA" else {"aggregate-k": int(value)}
    return {**own, "aggregate-training": reading, "aggregate-start": size.rounds // 2}


#: Between an aggregate's name and the reading that it is trained at by.
AT = ", trained at, "
READINGS = ("replace", "gradient-only")
_TRAINED_OVER = ("EMA", "UPA")


def case(
    site: Site, family: Family, size: Size, chosen: Chosen, epsilon: Epsilon, by: float
) -> Rights:
    """Return which test examples each method has right, uint8 (seeds, n), of one case.

    Methods that are not kept are left out where nothing is to be trained.

    Args:
        site: Whose threads.
        family: The DP algorithm.
        size: How much.
        chosen: Beforehand.
        epsilon: Of it; None for no noise.
        by: What the chosen rate is multiplied by; up to 1, and with noise, models are trained over
            aggregates, too.
    """
    given = options(site, family, size, epsilon, by * chosen.rates[epsilon])
    one: dict[str, np.ndarray] = {}
    with suppress(NotKeptError):
        runs = [
            site.aggregated(family.experiment, given, seed, size.which)
            for seed in range(size.seeds)
        ]
        one |= {name: np.stack([run[name] for run in runs]) for name in runs[0]}
    for name in (chosen.aggregate[kind] for kind in _trained_over(epsilon, by) if one):
        for reading in READINGS:
            more = {**given, **over(size, name, reading)}
            with suppress(NotKeptError):
                ends = [
                    site.trained_over(family.experiment, more, seed) for seed in range(size.seeds)
                ]
                one[f"{name}{AT}{reading}"] = np.stack(ends)
    return one


def _trained_over(epsilon: Epsilon, by: float) -> Sequence[str]:
    return _TRAINED_OVER if by <= 1.0 and epsilon is not None else ()


def tuning_runs(size: Size) -> int:
    """Return how many runs `tuned` asks for."""
    return (len(size.epsilons) + 1) * len(size.rates)


def case_runs(size: Size) -> int:
    """Return how many runs all cases of a family ask for."""
    each = [1 + len(READINGS) * len(_trained_over(*at)) for at in cases(size)]
    return size.seeds * sum(each)


def found(site: Site, family: Family, size: Size) -> Found:
    """Return what a family does on test threads; every run that is missing is trained."""
    chosen = tuned(site, family, size)
    right = {at: case(site, family, size, chosen, *at) for at in cases(size)}
    return Found(chosen=chosen, right={at: own for at, own in right.items() if own})


def cases(size: Size) -> Iterator[tuple[Epsilon, float]]:
    """Yield the ε and the multiples of the rate that are measured."""
    yield from ((epsilon, 1.0) for epsilon in (*size.epsilons, None))
    yield size.epsilons[0], size.slower
    yield size.epsilons[0], size.faster
