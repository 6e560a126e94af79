"""How wide scores' intervals are by checkpoints of one run, and by runs of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.checkpoints.uncertainty import lag_autocorrelation, uncertainty
from simulations.scraps.checkpoints import states
from simulations.scraps.tags.runs import Options, Site, scored
from simulations.scraps.tags.study import Family, Size, options

_SEEDS = 1000  # from here on, so that no other study has the same runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """How much of both arms is run.

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
    found = 1.0
    scores = _of_answers(seen, seen.mean(axis=(0, 1)))
    away = scores - scores.mean(axis=(0, 1), keepdims=True)
    total_square = float(np.square(away).mean())
    lag = 1
    for lag in range(1, arms.longest + 1):
        found = float((away[:, lag:] * away[:, :-lag]).mean()) / total_square
        if found <= 0.05:
            break
    return lag, found


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
    rng = np.random.default_rng(3)
    drawn = [rng.normal(size=(n, 100_000)).std(axis=0, ddof=1) for n in (k, len(chains))]
    chance = drawn[0] * _quantile(k) / (drawn[1] * _quantile(len(chains)))
    return Widths(
        k=k,
        spacing=spacing,
        within_two=_within(ratio),
        chains=[_within(one) for one in ratio],
        below=float((ratio < 1).mean()),
        ratio=float(np.median(ratio)),
        corrected_within_two=_within(mended),
        corrected_ratio=float(np.median(mended)),
        chance=_within(chance),
        medians=(float(np.median(mine)), float(np.median(theirs))),
        correlation=float(np.nanmean(lags)) if k > 3 else float("nan"),
    )


def _within(ratio: np.ndarray) -> float:
    return float(((ratio >= 0.5) & (ratio <= 2)).mean())


def _quantile(k: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(k - 1, 0.975))


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
    return site.found(facts, make)["scores"]
