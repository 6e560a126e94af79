"""Settings of federated tag prediction from the data's size: a pure function of public facts.

Everything hangs on s, the noise on the mean of one release of everybody's updates, with all of ε
spent on it, for each unit of the clip norm: s = σ₁ / n, σ₁ the noise multiplier of one Gaussian
release at (ε, δ). T rounds share the same ε, so each has about s √T of noise, and after T steps
every parameter has noise of standard deviation

    τ = s T C,

whatever the cohort is, as long as it is beyond the knee (below). Rows of inputs have unit l2 norm,
so τ is also the standard deviation of the noise on each logit (√2 τ with the bias), and depends
neither on the number of words nor of tags. Signal and noise both grow with T C, the furthest that
training can travel; τ says how far it may go.

All constants are of `docs/results/defaults-fitting.jsonl`, runs on synthetic corpora of 100 to
10,000 users, and a few on validation threads of Answers on Startups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedpriv.privacy.calibration import calibrate
from fedpriv.privacy.event import Relation, cohort_event

LOGIT_NOISE = 0.7
"""τ. 0.5 to 1 was best in every cell of the fitting corpora, and flat between; what was tuned by
hand on Answers on Startups has 0.52, 0.84, 0.63 and 0.49 at ε = 1, 2, 4 and 8. Where the noise of
one full release is longer than one update, s √d > 1, it is divided by that: of what was trained
there, shrinking back towards the start by as much was best."""

CLIP_SHARE, MOST_SHARE = 0.35, 0.5
"""C over u, the median norm of a local update: below, almost every update has the same length, and
more, shorter steps neither help nor hurt; by hand 0.16 to 0.47. And the most where rounds are at
their most: of 10,000 users at ε = 8, C = 0.95 u was 1.3 points worse than C = 0.5 u on one corpus,
and C = 0.35 u 1.1 points worse on another."""

FEWEST_ROUNDS, MOST_ROUNDS = 20, 250
"""Of T. Fewer steps of longer updates were worse at small n; more cost time and gain nothing."""

KNEE = 0.05
"""By how much noise on the mean may be above that of full cohorts."""

SMALL_RUN = 20_000
"""Local trainings that nobody minds: up to this many, everybody takes part in every round."""

LITTLE_NOISE, FACTOR_OF_LITTLE_NOISE = 0.2, 0.25
"""Where s √d is at most the first, only so much of the public start is kept: it has overfitted the
public users, and private training learns again what is true of it. At ε = 8 that was worth 0.7,
0.7, 1.0, -0.5, 0 and 0 points on synthetic corpora of 1,000 to 10,000 users, and 1.2 on Answers on
Startups; with more noise what the public search chose was up to 2.4 points better."""

LOCAL_LEARNING_RATE = 10.0
"""Of unit-norm rows: most users have one batch, so their updates are proportional to it and the
clip norm takes it back. 10 is small enough for users of several batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What the rule chose.

    Attributes:
        rounds: T.
        l2_clip_norm: C.
        cohort: Expected, q n.
        local_learning_rate: Of local steps.
        start_factor: What is kept of the public model; None for what the public search chose.
        single: s, the noise on the mean of one full release over C.
        logit_noise: τ that the rounds and the clip norm come to.
    """

    rounds: int
    l2_clip_norm: float
    cohort: float
    local_learning_rate: float
    start_factor: float | None
    single: float
    logit_noise: float


def single_release(num_users: int, epsilon: float, delta: float) -> float:
    """Return σ₁, the noise multiplier of one release of everybody at (ε, δ)."""
    return calibrate(
        lambda sigma: cohort_event(
            num_users=num_users, expected_cohort_size=num_users, noise_multiplier=sigma
        ),
        1,
        target_epsilon=epsilon,
        delta=delta,
        relation=Relation.ADD_REMOVE,
    )


def settings(
    *,
    num_users: int,
    epsilon: float,
    delta: float,
    num_params: int,
    update_length: float,
    logit_noise: float | None = None,
    clip_share: float = CLIP_SHARE,
    most_rounds: int = MOST_ROUNDS,
) -> Chosen:
    """Return cohort, rounds and clip norm.

    Args:
        num_users: n, of the frozen roster.
        epsilon: Target.
        delta: δ.
        num_params: d.
        update_length: u, the median l2 norm of a local update at `LOCAL_LEARNING_RATE`, of public
            users at starts that were not trained on them.
        logit_noise: τ aimed at; None for `LOGIT_NOISE`, less where noise is long.
        clip_share: C over u aimed at.
        most_rounds: The largest T.
    """
    sigma = single_release(num_users, epsilon, delta)
    single = sigma / num_users
    length = single * math.sqrt(num_params)
    if logit_noise is None:
        logit_noise = LOGIT_NOISE / max(1.0, length)
    wanted = math.ceil(logit_noise / (single * clip_share * update_length))
    rounds = min(max(wanted, FEWEST_ROUNDS), most_rounds)
    norm = min(logit_noise / (single * rounds), max(clip_share, MOST_SHARE) * update_length)
    q = min(1.0, max(knee(sigma, rounds), SMALL_RUN / (num_users * rounds)))
    return Chosen(
        rounds=rounds,
        l2_clip_norm=norm,
        cohort=float(max(1, round(q * num_users))),
        local_learning_rate=LOCAL_LEARNING_RATE,
        start_factor=FACTOR_OF_LITTLE_NOISE if length <= LITTLE_NOISE else None,
        single=single,
        logit_noise=single * rounds * norm,
    )


def knee(sigma: float, rounds: int, excess: float = KNEE) -> float:
    """Return the share of the roster beyond which noise on the mean hardly falls.

    By the central limit of Poisson sampling (Dong, Roth and Su 2022), T rounds of rate q and σ are
    one release of μ = q √(T (exp(1/σ²) - 1)); with μ = 1/σ₁ noise on the mean is that of full
    cohorts times √(x / log(1 + x)), x = 1 / (σ₁² q² T), about 1 + x/4. It only chooses q: the ε of
    a run is its plan's.
    """
    return 1.0 / (sigma * math.sqrt(4.0 * excess * rounds))


LONGEST_NOISE = 1.5
"""Of `Forecast.noise_length`. Of 34 fitting cells five that gained more than a point are above
(1.3 to 2.1, and 15.7 where public-only is below the majority class), and one is below that gained
0.6. Answers on Startups has 0.7 at ε = 1."""

FEWEST_PUBLIC_EXAMPLES = 50
"""With fewer neither u nor what public examples alone reach can be known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Whether private training has more to say than public examples alone.

    Attributes:
        noise_length: s √d, the l2 norm of one full release's noise over the clip norm: how many
            users of one mind the mean must hold to be heard.
        gains: Whether a gain is to be expected.
    """

    noise_length: float
    gains: bool


def forecast(*, num_params: int, num_public_examples: int, single: float) -> Forecast:
    """Return whether to expect a gain over public examples alone, before any ε is spent.

    Args:
        num_params: d.
        num_public_examples: That the start is trained on.
        single: s.
    """
    length = single * math.sqrt(num_params)
    return Forecast(
        noise_length=length,
        gains=length <= LONGEST_NOISE and num_public_examples >= FEWEST_PUBLIC_EXAMPLES,
    )
