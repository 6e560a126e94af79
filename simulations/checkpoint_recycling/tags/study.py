"""Gain of aggregates on real threads: rates and parameters from validation threads, paired seeds.

The last iterate, each kind of aggregate at inference and each reading of training over aggregates
has a learning rate of its own, which validation threads choose: a gain over a last iterate at
another method's rate would be one of not having tuned it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from fedpriv.checkpoints.aggregates import Average, Uniform
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
    states,
    within_two,
)
from simulations.checkpoint_recycling.tags.runs import Options, Site, right_of, scored
from simulations.reproduction.study import Row

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


_FTRL: Mapping[str, Option] = {
    "min-separation": 4,
    "l2-clip-norm": 60.0,
    "local-learning-rate": 30.0,
    "start-factor": 0.5,
}
_ZERO_OUT = "zero-out, PLD, one charge a run, no assumption on how cohorts are drawn"

FAMILIES: Mapping[str, Family] = {
    "tree": Family(
        label="DP-FTRL, tree",
        experiment="adadps-ftrl-tags",
        options={**_FTRL, "noise": "tree"},
        cohort=None,
        guarantee=_ZERO_OUT,
    ),
    "bands": Family(
        label="DP-FTRL, bands",
        experiment="adadps-ftrl-tags",
        options={**_FTRL, "noise": "banded"},
        cohort=None,
        guarantee=_ZERO_OUT,
    ),
    "dp-sgd": Family(
        label="DP-SGD",
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
        tuning_seeds: Whose mean on validation threads chooses; none of them is reported.
        rates: Of the server, that are tried.
        around: Multiples of the aggregate's rate at inference that training over it tries.
        which: Aggregates.
    """

    rounds: int = 80
    seeds: int = 5
    tuning_seeds: Sequence[int] = (100, 101)
    rates: Sequence[float] = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    around: Sequence[float] = (0.5, 1.0, 2.0)
    which: Aggregates = field(default_factory=Aggregates)


TINY = Size(rounds=8, seeds=2, tuning_seeds=(100,), rates=(0.5, 1.0), around=(1.0, 2.0),
            which=Aggregates(decays=(0.8,), ks=(3,)))  # fmt: skip

#: Kinds of aggregates at inference; those of params are trained over, too.
KINDS = ("EMA", "UPA", "OPA", "OMV")
_TRAINED_OVER = ("EMA", "UPA")
READINGS = ("replace", "gradient-only")
#: Between an aggregate's name and the reading that it is trained at by.
AT = ", trained at, "


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A method with the rate and parameter that validation threads chose.

    Attributes:
        name: "last", an aggregate with its parameter, or one with `AT` and a reading.
        rate: Of the server.
        on_edge: Whether the rate is the least or the most that was tried.
        accuracy: On validation threads, mean of the tuning seeds.
    """

    name: str
    rate: float
    on_edge: bool
    accuracy: float


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


def accuracy_of(row: Row, name: str) -> float:
    """Return the accuracy of a method in a row of counts; -∞ of a run that diverged."""
    if name not in row["right"]:
        return -math.inf
    return sum(row["right"][name]) / sum(row["examples"])


def validation_accuracies(
    site: Site, family: Family, size: Size, epsilon: Epsilon
) -> dict[float, dict[str, float]]:
    """Return accuracies on validation threads by rate and method, mean of the tuning seeds."""
    found: dict[float, dict[str, float]] = {}
    for rate in size.rates:
        given = options(site, family, size, epsilon, rate)
        rows = [
            site.aggregated(family.experiment, given, seed, size.which, validation=True)
            for seed in size.tuning_seeds
        ]
        names = {name for row in rows for name in row["right"]} or {LAST}
        found[rate] = {
            name: float(np.mean([accuracy_of(row, name) for row in rows])) for name in names
        }
    return found


def choose(site: Site, family: Family, size: Size, epsilon: Epsilon) -> dict[str, Choice]:
    """Return what validation threads choose, by "last", kind, and kind with `AT` and reading.

    Of equals the lowest rate, and of one rate the first name in alphabetical order.
    """
    reached, chosen = validation_accuracies(site, family, size, epsilon), {}
    for kind in (LAST, *KINDS):
        missed, rate, name = min(
            (-accuracy, rate, name)
            for rate, own in reached.items()
            for name, accuracy in own.items()
            if name.startswith(kind)
        )
        chosen[kind] = Choice(
            name=name, rate=rate, accuracy=-missed,
            on_edge=rate in (min(size.rates), max(size.rates)),
        )  # fmt: skip
    for kind in _TRAINED_OVER:
        for reading in READINGS:
            chosen[kind + AT + reading] = _trained_at(
                site, family, size, epsilon, chosen[kind], reading
            )
    return chosen


def _trained_at(
    site: Site, family: Family, size: Size, epsilon: Epsilon, at: Choice, reading: str
) -> Choice:
    """Return the choice of training over an aggregate, at rates around that of inference."""
    reached = {}
    for by in size.around:
        given = options(site, family, size, epsilon, by * at.rate)
        given |= over(size, at.name, reading)
        rows = [
            site.trained_over(family.experiment, given, seed, validation=True)
            for seed in size.tuning_seeds
        ]
        reached[by] = float(np.mean([accuracy_of(row, "released") for row in rows]))
    by = max(size.around, key=lambda one: reached[one])
    return Choice(
        name=at.name + AT + reading, rate=by * at.rate, accuracy=reached[by],
        on_edge=by in (min(size.around), max(size.around)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A family at an ε, on test threads.

    Attributes:
        chosen: By what `choose` calls it.
        right: By the same names, and by kind for its aggregate at the last iterate's rate with
            `AT_LASTS`: right answers by group and seed, int64 (groups, seeds).
        examples: Of each group, int64 (groups,).
    """

    chosen: Mapping[str, Choice]
    right: Mapping[str, np.ndarray]
    examples: np.ndarray


#: Behind the kind of an aggregate that is made at the last iterate's rate, not at its own.
AT_LASTS = ", at the last iterate's rate"


def case(site: Site, family: Family, size: Size, epsilon: Epsilon) -> Case:
    """Return what the chosen methods do on test threads; every run is trained."""
    chosen = choose(site, family, size, epsilon)
    by_rate: dict[float, list[Row]] = {}
    for kind in (LAST, *KINDS):
        rate = chosen[kind].rate
        if rate in by_rate:  # counted like a run, so that who plans them needs no choice
            site.pace.keep(size.seeds)
            continue
        given = options(site, family, size, epsilon, rate)
        by_rate[rate] = [
            site.aggregated(family.experiment, given, seed, size.which)
            for seed in range(size.seeds)
        ]
    right = {}
    for kind in (LAST, *KINDS):
        own = chosen[kind]
        right[kind] = _right(by_rate[own.rate], own.name)
        if own.rate != chosen[LAST].rate:
            right[kind + AT_LASTS] = _right(by_rate[chosen[LAST].rate], own.name)
    for kind in _TRAINED_OVER:
        for reading in READINGS:
            own = chosen[kind + AT + reading]
            given = options(site, family, size, epsilon, own.rate)
            given |= over(size, own.name.split(AT)[0], reading)
            rows = [site.trained_over(family.experiment, given, seed) for seed in range(size.seeds)]
            right[kind + AT + reading] = _right(rows, "released")
    examples = np.array(by_rate[chosen[LAST].rate][0]["examples"])
    return Case(chosen=chosen, right=right, examples=examples)


def _right(rows: Sequence[Row], name: str) -> np.ndarray:
    """Return right answers by group and seed; none of a run that diverged."""
    none = [0] * len(rows[0]["examples"])
    return np.array([row["right"].get(name, none) for row in rows]).T


def case_runs(size: Size) -> int:
    """Return how many runs a case asks for."""
    trained = len(_TRAINED_OVER) * len(READINGS)
    tuning = len(size.tuning_seeds) * (len(size.rates) + trained * len(size.around))
    return tuning + size.seeds * (1 + len(KINDS) + trained)


#: What alternates: text in threads that its writer asked against the rest, or two halves of tags.
Halves = Literal["questions", "tags"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Kind and period of a shift.

    Attributes:
        halves: What alternates.
        rounds: Of a period; the first half of it has one of the two alone.
        seeds: From 0.
        tuning_seeds: Whose mean on validation threads chooses rates.
        decays: Of moving averages, at inference.
    """

    halves: Halves
    rounds: int = 20
    seeds: int = 3
    tuning_seeds: Sequence[int] = (100,)
    decays: Sequence[float] = (0.9, 0.95)

    @property
    def aggregates(self) -> dict[str, Transform]:
        """Aggregates by name: moving averages, and means of half a period and of a whole one."""
        emas = {f"EMA {decay:g}": Average(ema_decay=decay) for decay in self.decays}
        return {**emas, **{f"UPA {k}": Uniform(k=k) for k in (self.rounds // 2, self.rounds)}}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shifted:
    """A family under one shift.

    Attributes:
        chosen: By the last iterate and aggregate, with the rate that validation threads chose.
        accuracy: By the same, on test threads of all kinds after every round of the last period,
            each at its own rate, float64 (seeds, rounds of a period).
    """

    chosen: Mapping[str, Choice]
    accuracy: Mapping[str, np.ndarray]


def shifted(site: Site, family: Family, size: Size, epsilon: Epsilon, period: Period) -> Shifted:
    """Return what a family does under a shift; rates are chosen under the same shift.

    By the mean accuracy over the last period on validation threads, of `period.tuning_seeds`.
    """
    names = (LAST, *period.aggregates)
    reached: dict[float, dict[str, float]] = {}
    for rate in size.rates:
        rows = [
            _shifted_run(site, family, size, epsilon, rate, period, seed, validation=True)
            for seed in period.tuning_seeds
        ]
        reached[rate] = {
            name: float(np.mean([row["over"][name] for row in rows])) for name in names
        }
    chosen = {}
    for name in names:
        rate = max(size.rates, key=lambda rate, name=name: reached[rate][name])
        chosen[name] = Choice(
            name=name, rate=rate, accuracy=reached[rate][name],
            on_edge=rate in (min(size.rates), max(size.rates)),
        )  # fmt: skip
    by_rate: dict[float, list[Row]] = {}
    for name in names:
        rate = chosen[name].rate
        if rate in by_rate:
            site.pace.keep(period.seeds)
            continue
        by_rate[rate] = [
            _shifted_run(site, family, size, epsilon, rate, period, seed)
            for seed in range(period.seeds)
        ]
    return Shifted(
        chosen=chosen,
        accuracy={
            name: np.array([row["over"][name] for row in by_rate[chosen[name].rate]])
            for name in names
        },
    )


def shifted_runs(size: Size, period: Period) -> int:
    """Return how many runs `shifted` asks for."""
    tuning = len(period.tuning_seeds) * len(size.rates)
    return tuning + period.seeds * (1 + len(period.aggregates))


def _shifted_run(
    site: Site,
    family: Family,
    size: Size,
    epsilon: Epsilon,
    rate: float,
    period: Period,
    seed: int,
    *,
    validation: bool = False,
) -> Row:
    given = options(site, family, size, epsilon, rate)
    experiment = site.experiment(family.experiment, given, seed=seed, validation=validation)

    def make() -> Row:
        made = site.components(experiment, period.halves, lambda: one_half(site, period.halves))
        shift = Shift(kind="blocks", period=period.rounds)
        algorithm: Any = made.algorithm
        made = replace(made, algorithm=replace(algorithm, extra=shift.extra))
        ways = period.aggregates
        held: dict[str, State] = {}
        seen: dict[str, list[float]] = {name: [] for name in (LAST, *ways)}
        for state in states(experiment, made, seed):
            params: Params = state.params
            models = {LAST: params}
            for name, way in ways.items():
                if state.round_num == 0:
                    held[name] = way.init(params)
                else:
                    _, held[name] = way.next(dict(params), held[name])
                models[name] = held[name]["average"]
            if state.round_num > size.rounds - period.rounds:
                for name, model in models.items():
                    seen[name].append(round(float(right_of(made.task, model).mean()), 6))
        return {"synthetic": site.corpus.synthetic, "over": seen}

    return site.row(f"shift {period.halves} of {family.experiment}", experiment, make)


_SEEDS = 1000  # from here on, so that no other study has the same runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """Size of both arms: checkpoints of one run, and independent runs.

    Attributes:
        rate: Of the server at every ε; one at which the last iterate is steady at all of them.
        burn_in: t_1, rounds.
        spacing: t_2, rounds between checkpoints.
        runs: Independent ones; each is a chain of checkpoints, too.
        k: Checkpoints at the spacing; T = t_1 + k t_2.
        examples: Test examples, evenly spread.
    """

    rate: float = 2.0
    burn_in: int = 40
    spacing: int = 40
    runs: int = 10
    k: int = 10
    examples: int = 200

    @property
    def rounds(self) -> int:
        """T."""
        return self.burn_in + self.k * self.spacing

    @property
    def measured_at(self) -> list[int]:
        """Rounds after which scores are kept: k at the spacing, and 20 half as far apart."""
        total, half = self.rounds, max(1, self.spacing // 2)
        at = {
            *range(total, self.burn_in, -self.spacing),
            *range(total - 19 * half, total + 1, half),
        }
        return sorted(number for number in at if number > 0)


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


def widths(site: Site, family: Family, size: Size, epsilon: Epsilon, arms: Arms) -> list[Widths]:
    """Return both arms at one ε, by k; all have one σ, of T rounds.

    The score is the probability of the class that the first run's last checkpoint predicts.
    """
    given = {**options(site, family, size, epsilon, arms.rate), "rounds": arms.rounds}
    rows: list[Row] = []
    for run in range(arms.runs):
        answers = rows[0]["answers"] if rows else None
        rows.append(_scores(site, family, given, _SEEDS + run, arms, answers))
    chains = np.array([row["scores"] for row in rows])  # (runs, times, examples)
    at, half = arms.measured_at, max(1, arms.spacing // 2)
    return [
        widths_of(chains, at, k, arms.spacing if k <= arms.k else half)
        for k in (3, 5, 10, 20)
        if k <= len(at)
    ]


def widths_of(chains: np.ndarray, at: Sequence[int], k: int, spacing: int) -> Widths:
    """Return widths by k checkpoints against those by runs.

    Args:
        chains: Scores, float64 (runs, times, examples).
        at: Rounds after which they were seen.
        k: Checkpoints, the last ones.
        spacing: Rounds between them.
    """
    places = [at.index(at[-1] - i * spacing) for i in range(k - 1, -1, -1)]
    many = uncertainty(chains[:, -1])
    of_runs = np.maximum(many.draw_half_width, 1e-12)
    ratios, corrected, mine, lags = [], [], [], []
    for chain in chains:
        one = uncertainty(chain[places])
        scale = np.sqrt(one.corrected_variance / np.maximum(one.variance, 1e-300))
        ratios.append(one.draw_half_width / of_runs)
        corrected.append(ratios[-1] * scale)
        mine.append(2 * one.draw_half_width)
        lags.append(lag_autocorrelation(chain[places]))
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
        medians=(float(np.median(mine)), float(np.median(2 * of_runs))),
        correlation=float(np.nanmean(lags)) if k > 3 else float("nan"),
    )


def _scores(
    site: Site,
    family: Family,
    given: Options,
    seed: int,
    arms: Arms,
    answers: Sequence[int] | None,
) -> Row:
    """Return the probabilities of the answers after some rounds, to four digits.

    The first run, without answers, takes its last checkpoint's. Examples are evenly spread over
    those held out.
    """
    experiment = site.experiment(family.experiment, given, seed=seed)

    def make() -> Row:
        made, wanted, seen = site.components(experiment), set(arms.measured_at), []
        for state in states(experiment, made, seed):
            if state.round_num in wanted:
                scores = scored(made.task, state.params)
                few = np.linspace(0, len(scores) - 1, min(arms.examples, len(scores))).astype(int)
                seen.append(scores[few])
        own = np.argmax(seen[-1], axis=1) if answers is None else np.asarray(answers)
        of = np.stack(seen)[:, np.arange(len(own)), own]  # (times, examples)
        return {
            "synthetic": site.corpus.synthetic,
            "answers": own.tolist(),
            "scores": [[float(f"{value:.4g}") for value in row] for row in of],
        }

    return site.row(f"scores {family.experiment}", experiment, make)


def settings(epsilons: Sequence[Epsilon], families: Sequence[str]) -> Iterator[tuple[str, Epsilon]]:
    """Yield cases, the first ε of all families first; bands without noise are the tree without.

    Raises:
        ValueError: If a family is not known.
    """
    for name in families:
        if name not in FAMILIES:
            raise ValueError(f"family {name!r} is not known; choose of {', '.join(FAMILIES)}")
    for epsilon in epsilons:
        if epsilon is None:
            yield from ((n, None) for n in dict.fromkeys(families) if n != "bands")
            if "bands" in families and "tree" not in families:
                yield "tree", None
        else:
            yield from ((name, float(epsilon)) for name in families)
