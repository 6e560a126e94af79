"""ε and σ of drawing users and of drawing their examples: the formulas' values, to 8 digits.

Charles et al. 2024 (arXiv:2407.07737): of a user at most G examples are in the training set, each
is drawn with probability p and bounded by 1, and noise of standard deviation σ is added. With the
user's examples the sum is at worst distributed as P = Σ Binom(G, p)(k) N(k, σ²), without them as
Q = N(0, σ²). Drawing users is G = 1, with p the probability of a user. P and Q change places for a
user who is added; the larger ε counts.

One answer (dP/dQ rises in x): δ(ε) = P(x > t) - e^ε Q(x > t), where ln dP/dQ is ε at t. T answers,
S the sum of T independent losses L = ln dP/dQ of x drawn from P: δ(ε) = E max(0, 1 - e^(ε - S)). As
max(0, 1 - e^-s) is 1/(2πi) ∫ e^(zs) / (z (z + 1)) dz along any line Re z = c > 0,

    δ(ε) = 1/(2πi) ∫ e^(-zε) M(z)^T / (z (z + 1)) dz,    M(z) = E e^(zL),

which rounds no loss to a grid. The values of one answer were found with 40 digits, and checked by
integrating max(0, P - e^ε Q) itself. Those of several are the same to 11 digits with 801 and 2,001
nodes of x; for two and three answers the line's integral was checked against E of one answer's δ at
ε less the other losses.
"""

import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from fedpriv.mechanisms.event import Event, Relation, device_sums
from fedpriv.privacy import gaussian_loss
from fedpriv.privacy.accounting import epsilon
from tests.privacy.costing import cohort_event

#: G, p, σ, answers, δ and ε.
EPSILONS = [
    (1, 0.02, 0.8, 1, 1e-5, 0.96440364),
    (4, 0.05, 2.0, 1, 1e-5, 0.88920331),
    (16, 0.1, 4.0, 1, 1e-5, 2.4868531),
    (1, 0.05, 1.0, 100, 1 / 400, 1.9058840),
    (3, 0.05, 1.0, 100, 1 / 400, 7.6974093),
    (4, 0.05, 2.0, 50, 1e-5, 3.6970521),
    (16, 0.25, 24.0, 80, 1e-5, 7.0591899),
]
DIGITS = 1e-7  # of the values above
#: What rounding losses up to a grid adds to ε at most, of itself (`gaussian_loss.grid_interval`).
ROUNDED_UP = 2e-5
NODES, FREQUENCIES = 801, 2_000


def log_ratio(x, most, prob, sigma):
    """Return ln dP/dQ at x, in units of σ."""
    k = np.arange(most + 1)
    lines = stats.binom.logpmf(k, most, prob) + np.outer(x, k / sigma) - (k / sigma) ** 2 / 2
    return special.logsumexp(lines, axis=1)


def epsilon_of_one(most, prob, sigma, delta, *, added):
    """Return ε of one answer, at the x beyond which δ is what it shall be."""
    k = np.arange(most + 1)
    sign, weights = -1.0 if added else 1.0, stats.binom.pmf(k, most, prob)

    def excess(x):
        p, q = weights @ stats.norm.sf(sign * (x - k / sigma)), stats.norm.sf(sign * x)
        ratio = math.exp(log_ratio([x], most, prob, sigma)[0])
        return (q - p / ratio if added else p - ratio * q) - delta

    x = optimize.brentq(excess, -7.0, most / sigma + 7.0, xtol=1e-14)
    return sign * log_ratio([x], most, prob, sigma)[0]


def delta_of_several(eps, most, prob, sigma, rounds, *, added):
    """Return δ of several answers, by sums over x and over points of the line."""
    x = np.linspace(-14.0, most / sigma + 14.0, NODES)
    loss, weights = log_ratio(x, most, prob, sigma), stats.norm.pdf(x) * (x[1] - x[0])
    loss, weights = (-loss, weights) if added else (loss, weights * np.exp(loss))

    def log_size(c):  # of the integrand where the line crosses the real one
        return rounds * special.logsumexp(c * loss, b=weights) - c * eps - math.log(c * (c + 1.0))

    c = min(np.geomspace(0.05, 200.0, 200), key=log_size)  # from there it falls most quickly
    tilted = weights * np.exp(c * loss - special.logsumexp(c * loss, b=weights))
    mean = tilted @ loss
    width = math.sqrt(rounds * (tilted @ (loss - mean) ** 2) + c**-2 + (c + 1.0) ** -2)
    u = np.arange(FREQUENCIES) * 0.05 / width
    moments = (np.exp(1j * np.outer(u, loss - mean)) @ tilted) ** rounds
    values = moments * np.exp(1j * u * (rounds * mean - eps)) * c * (c + 1.0)
    values = (values / ((c + 1j * u) * (c + 1.0 + 1j * u))).real
    assert np.abs(values[-100:]).max() < 1e-12  # nothing is left behind the last point
    return math.exp(log_size(c)) * (values.sum() - values[0] / 2) * u[1] / math.pi


def larger_delta(*given):
    """Return δ of several answers for the order of the pair that has the larger one."""
    return max(delta_of_several(*given, added=added) for added in (False, True))


def devices_event(most, prob, sigma):
    return Event(
        kind="poisson-devices-gaussian", noise_multiplier=sigma, sampling_prob=prob, devices=most
    )


def is_golden(bound, golden, above):
    """Return whether an upper bound is no smaller than a golden value, and hardly larger."""
    return golden * (1.0 - DIGITS) <= bound <= golden * (1.0 + DIGITS + above)


@pytest.mark.parametrize(("most", "prob", "sigma", "rounds", "delta", "golden"), EPSILONS)
def test_epsilon_is_golden(most, prob, sigma, rounds, delta, golden):
    event = cohort_event(
        num_users=400 * most, expected_cohort_size=400 * most * prob, noise_multiplier=sigma,
        devices=most,
    )  # fmt: skip
    found = epsilon(event, rounds, delta=delta, relation=Relation.ADD_REMOVE).value
    assert is_golden(found, golden, ROUNDED_UP)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda most, prob: device_sums(most, 1.001 * prob),
        lambda most, prob: device_sums(most, 0.999 * prob),
        lambda most, prob: ([0.0, float(most)], [1.0 - prob, prob]),
        lambda most, prob: device_sums(most - 1, prob),
    ],
    ids=["larger p", "smaller p", "all or none", "one fewer"],
)
def test_another_mixture_is_seen(wrong, monkeypatch):
    most, prob, sigma, _, delta, golden = EPSILONS[1]

    def found():
        event = devices_event(most, prob, sigma)
        loss = gaussian_loss.devices_gaussian_loss(event, Relation.ADD_REMOVE, 1e-3)
        return loss.get_epsilon_for_delta(delta)

    assert is_golden(found(), golden, ROUNDED_UP)
    monkeypatch.setattr(gaussian_loss, "device_sums", wrong)
    assert not is_golden(found(), golden, ROUNDED_UP)


@pytest.mark.slow
@pytest.mark.parametrize(("most", "prob", "sigma", "rounds", "delta", "golden"), EPSILONS)
def test_golden_values_are_the_formulas(most, prob, sigma, rounds, delta, golden):
    if rounds == 1:
        found = [epsilon_of_one(most, prob, sigma, delta, added=added) for added in (False, True)]
        assert max(found) == pytest.approx(golden, rel=DIGITS)
    else:  # δ falls in ε
        below, above = (golden * (1.0 + sign * DIGITS) for sign in (-1, 1))
        assert larger_delta(above, most, prob, sigma, rounds) < delta
        assert larger_delta(below, most, prob, sigma, rounds) > delta


@pytest.mark.slow
@pytest.mark.parametrize(("most", "prob"), [(64, 0.4165), (64, 0.42), (32, 0.7)])
def test_where_hardly_any_draw_is_empty(most, prob):
    """(1 - p)^G is 1e-15 to 1e-17: the limit that this sets to a loss has no digits left.

    ε lies between those of the median number of examples and of more than are ever drawn.
    """
    found = gaussian_loss.devices_gaussian_loss(
        devices_event(most, prob, 1.0), Relation.ADD_REMOVE, 1e-2
    ).get_epsilon_for_delta(1e-5)
    few, many = (
        gaussian_loss.gaussian_loss(
            1.0 / stats.binom.ppf(share, most, prob), sampling_prob=1.0, interval=1e-2,
            relation=Relation.ADD_REMOVE,
        ).get_epsilon_for_delta(1e-5)
        for share in (0.5, 1 - 1e-7)
    )  # fmt: skip
    assert few < found < many
