"""Gain of aggregates on real threads: tuned once, then paired seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from fedpriv.checkpoints.aggregates import ema, upa
from fedpriv.checkpoints.uncertainty import lag_autocorrelation, uncertainty
from fedpriv.datasets.stackexchange.sentence_store import OWN, SentenceStore
from fedpriv.experiments.options import Option
from fedpriv.training.periodic_shift import Shift
from fedpriv.transform import State, Transform
from fedpriv.tree import Params
from simulations.checkpoint_recycling.checkpoints import (
    LAST,
    Aggregates,
    chance_within_two,
    decorrelated,
    states,
    within_two,
)
from simulations.checkpoint_recycling.tags.runs import NotKeptError, Options, Site, right_of, scored

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
        guarantee: What its ε is.
    """

    label: str
    experiment: str
    options: Mapping[str, Option] = field(repr=False)
    cohort: float | None
    guarantee: str


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
        guarantee="zero-out, PLD, one charge a run, no assumption on how cohorts are drawn",
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
        guarantee="add-remove, PLD, Poisson cohorts",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of the study.

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
    """Settings that validation threads chose, once, by one run each.

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
    """Results of one family on test threads.

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


def trained(site: Site, family: Family, size: Size) -> Found:
    """Return what a family does on test threads; every run that is missing is trained."""
    chosen = tuned(site, family, size)
    right = {at: case(site, family, size, chosen, *at) for at in cases(size)}
    return Found(chosen=chosen, right={at: own for at, own in right.items() if own})


def cases(size: Size) -> Iterator[tuple[Epsilon, float]]:
    """Yield the ε and the multiples of the rate that are measured."""
    yield from ((epsilon, 1.0) for epsilon in (*size.epsilons, None))
    yield size.epsilons[0], size.slower
    yield size.epsilons[0], size.faster


#: What alternates: text in threads that its writer asked against the rest, or two halves of tags.
Halves = Literal["questions", "tags"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Kind and period of a shift.

    Attributes:
        halves: What alternates.
        rounds: Of a period; the first half of it has one of the two alone.
        seeds: From 0.
        decays: Of moving averages, at inference.
    """

    halves: Halves
    rounds: int = 20
    seeds: int = 3
    decays: Sequence[float] = (0.9, 0.95)


def one_half(site: Site, halves: Halves) -> np.ndarray:
    """Return which rows of a site's training text are of the first of two halves, bool (rows,).

    "questions": who wrote a sentence asked its thread, too. "tags": its tag has an even number.
    """
    view = site.view()
    if halves == "tags":
        return np.asarray(view.columns.labels) % 2 == 0
    own: set[tuple[str, int]] = set()
    for batch in SentenceStore(site.corpus.directory).batches(view.roster):
        asked = np.flatnonzero(batch.askers == OWN)
        own |= {(view.roster[batch.users[i]], int(batch.threads[i])) for i in asked}
    found = np.zeros(len(view.columns.labels), bool)
    threads = np.asarray(view.threads)
    for user in view.roster:
        rows = view.all_rows([user], "train")
        found[rows] = [(user, int(thread)) in own for thread in threads[rows]]
    return found


def accuracies(
    site: Site, family: Family, size: Size, rate: float, epsilon: Epsilon, period: Period
) -> dict[str, np.ndarray]:
    """Return accuracy on test threads of all kinds after every round of the last period.

    Returns:
        By aggregate, float64 (seeds, rounds of a period).
    """
    given = options(site, family, size, epsilon, rate)
    found = [_run(site, family, given, seed, period) for seed in range(period.seeds)]
    return {name: np.stack([one[name] for one in found]) for name in found[0]}


def _run(site: Site, family: Family, given: Any, seed: int, period: Period) -> dict[str, Any]:
    experiment = site.experiment(family.experiment, given, seed=seed)

    def make() -> dict[str, np.ndarray]:
        made = site.components(experiment, period.halves, lambda: one_half(site, period.halves))
        shift = Shift(kind="blocks", period=period.rounds)
        algorithm: Any = made.algorithm
        made = replace(made, algorithm=replace(algorithm, tensors=shift.tensors))
        ways = _ways(period)
        held: dict[str, State] = {}
        seen: dict[str, list[float]] = {name: [] for name in (LAST, *ways)}
        total = int(experiment.options()["rounds"])  # type: ignore[arg-type]
        for state in states(experiment, made, seed):
            params: Params = state.params
            models = {LAST: params}
            for name, way in ways.items():
                if state.round_num == 0:
                    held[name] = way.init(params)
                else:
                    _, held[name] = way.next(dict(params), held[name])
                models[name] = held[name]["average"]
            if state.round_num > total - period.rounds:
                for name, model in models.items():
                    seen[name].append(float(right_of(made.task, model).mean()))
        return {name: np.array(values) for name, values in seen.items()}

    facts = {
        "shift": period.halves,
        "of": "halves",
        "period": period.rounds,
        **experiment.options(),
    }
    facts |= {"decays": list(period.decays)}
    found = site.cached(facts, make)
    return {name: found[name] for name in (LAST, *_ways(period))}


def _ways(period: Period) -> dict[str, Transform]:
    emas = {f"EMA {decay:g}": ema(decay) for decay in period.decays}
    return {**emas, **{f"UPA {k}": upa(k) for k in (period.rounds // 2, period.rounds)}}


_SEEDS = 1000  # from here on, so that no other study has the same runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """Size of both arms.

    Attributes:
        rate: Of the server at every ε; one at which the last iterate is steady at all of them.
        burn_in: t_1, rounds.
        longest: Spacing that is tried at most.
        pilots: Runs by which the spacing is measured.
        runs: Independent ones; each is a chain of checkpoints, too.
        k: Checkpoints at the spacing; T = t_1 + k t_2.
        examples: Test examples, evenly spread.
    """

    rate: float = 2.0
    burn_in: int = 40
    longest: int = 40
    pilots: int = 2
    runs: int = 10
    k: int = 10
    examples: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Widths by k checkpoints of one run over widths by independent runs.

    Attributes:
        k: Checkpoints.
        spacing: Rounds between them.
        within_two: Share of examples and chains with a ratio between 1/2 and 2.
        chains: The same of each chain.
        below: Share with a ratio below 1.
        ratio: The median.
        corrected_within_two: The first with the lag-1 correction of the checkpoints' variance.
        corrected_ratio: Its median.
        chance: What two samples of one normal law have for the first.
        medians: Width by checkpoints and by runs, of a probability.
        correlation: Lag-1, as the checkpoints have it, mean over chains.
    """

    k: int
    spacing: int
    within_two: float
    chains: Sequence[float]
    below: float
    ratio: float
    corrected_within_two: float
    corrected_ratio: float
    chance: float
    medians: tuple[float, float]
    correlation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Both arms at one ε.

    Attributes:
        epsilon: Of each run.
        spacing: t_2 that was measured.
        correlation: Of scores that far apart, by the pilots.
        rounds: T.
        widths: By k.
    """

    epsilon: float
    spacing: int
    correlation: float
    rounds: int
    widths: Sequence[Widths]


def both_arms(site: Site, family: Family, size: Size, epsilon: float, arms: Arms) -> Scores:
    """Return both arms at one ε; their runs have one σ, of T rounds."""
    spacing, correlation = _spacing(site, family, size, epsilon, arms)
    total = arms.burn_in + arms.k * spacing
    half = max(1, spacing // 2)
    at = sorted({*range(total, arms.burn_in, -spacing), *range(total - 19 * half, total + 1, half)})
    at = [number for number in at if number > 0]
    given = {**options(site, family, size, epsilon, arms.rate), "rounds": total}
    chains = np.stack([
        _seen(site, family, given, _SEEDS + run, at, arms.examples) for run in range(arms.runs)
    ])  # (runs, times, examples, classes)  # fmt: skip
    widths = [
        _widths(chains, at, k, spacing if k <= arms.k else half)
        for k in (3, 5, 10, 20)
        if k <= len(at)
    ]
    return Scores(
        epsilon=epsilon, spacing=spacing, correlation=correlation, rounds=total, widths=widths
    )


def _spacing(
    site: Site, family: Family, size: Size, epsilon: float, arms: Arms
) -> tuple[int, float]:
    """Return the shortest lag at which scores correlate by at most .05, or the longest tried."""
    total = arms.burn_in + 6 * arms.longest
    given = {**options(site, family, size, epsilon, arms.rate), "rounds": total}
    at = list(range(arms.burn_in + 1, total + 1))
    few = min(200, arms.examples)
    seen = np.stack(
        [_seen(site, family, given, 2 * _SEEDS + run, at, few) for run in range(arms.pilots)]
    )
    scores = _of_answers(seen, seen.mean(axis=(0, 1)))
    return decorrelated(scores.swapaxes(0, 1), arms.longest)


def _of_answers(seen: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Return the probability of each example's answer: the likeliest class of `by`."""
    answer = by.argmax(axis=-1)
    return np.take_along_axis(
        seen, answer.reshape((1,) * (seen.ndim - 2) + (-1, 1)), axis=-1
    )[..., 0].astype(np.float64)  # fmt: skip


def _widths(chains: np.ndarray, at: Sequence[int], k: int, spacing: int) -> Widths:
    places = [at.index(at[-1] - i * spacing) for i in range(k - 1, -1, -1)]
    ratios, corrected, mine, theirs, lags = [], [], [], [], []
    for chain in chains:
        own = chain[places]
        mean = own.mean(axis=0)
        one = uncertainty(_of_answers(own, mean))
        many = uncertainty(_of_answers(chains[:, -1], mean))
        of_runs = np.maximum(many.draw_half_width, 1e-12)
        scale = np.sqrt(one.corrected_variance / np.maximum(one.variance, 1e-300))
        ratios.append(one.draw_half_width / of_runs)
        corrected.append(ratios[-1] * scale)
        mine.append(2 * one.draw_half_width)
        theirs.append(2 * of_runs)
        lags.append(lag_autocorrelation(_of_answers(own, mean)))
    ratio, mended = np.stack(ratios), np.stack(corrected)
    return Widths(
        k=k,
        spacing=spacing,
        within_two=within_two(ratio),
        chains=[within_two(one) for one in ratio],
        below=float((ratio < 1).mean()),
        ratio=float(np.median(ratio)),
        corrected_within_two=within_two(mended),
        corrected_ratio=float(np.median(mended)),
        chance=chance_within_two(k, len(chains)),
        medians=(float(np.median(mine)), float(np.median(theirs))),
        correlation=float(np.nanmean(lags)) if k > 3 else float("nan"),
    )


def _seen(
    site: Site, family: Family, given: Options, seed: int, at: Sequence[int], examples: int
) -> np.ndarray:
    """Return probabilities of test examples after some rounds, float32 (times, examples, classes).

    Examples are evenly spread over those held out.
    """
    experiment = site.experiment(family.experiment, given, seed=seed)

    def make() -> dict[str, np.ndarray]:
        made, wanted, found = site.components(experiment), set(at), []
        for state in states(experiment, made, seed):
            if state.round_num in wanted:
                scores = scored(made.task, state.params)
                few = np.linspace(0, len(scores) - 1, min(examples, len(scores))).astype(int)
                found.append(scores[few])
        return {"scores": np.stack(found).astype(np.float32)}

    facts = {"scores": family.experiment, **experiment.options()}
    facts |= {"at": list(at), "examples": examples}
    return site.cached(facts, make)["scores"]
