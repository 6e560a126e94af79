"""The privacy loss of one answer on a grid, all cells at once; and of many answers.

dp-accounting inverts the privacy loss cell by cell, one Python call each, which is most of what
pricing an event takes; and composing takes longest over where the tails may be cut off. `deltas` is
that one step in numpy, for their classes of a Gaussian and of a mixture; bounds of the grid, tails,
distributions of the noise and the pessimistic "Connect the Dots" are theirs, as is all that is done
with what comes out. Tests compare with theirs. Tails are cut where their bound says.

Loading this module loads dp-accounting (a second): import it where it is called.

>>> loss = gaussian_loss(1.0, sampling_prob=0.05, interval=1e-3, relation=Relation.ADD_REMOVE)
>>> loss.get_epsilon_for_delta(1e-5)
1.0327...
"""

# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false
# (it is dp-accounting's classes that are filled here, which bring no stubs and no other way in)

from __future__ import annotations

import math
from typing import Any

import numpy as np
from dp_accounting.pld import common, pld_pmf, privacy_loss_distribution
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.pld.privacy_loss_mechanism import (
    AdjacencyType,
    GaussianPrivacyLoss,
    MixtureGaussianPrivacyLoss,
)
from numpy.typing import NDArray

from fedpriv.libraries import library
from fedpriv.mechanisms.event import Event, Relation, device_sums

_FFT, _BINOM = library("scipy.fft"), library("scipy.stats").binom


def gaussian_loss(
    sigma: float, *, sampling_prob: float, interval: float, relation: Relation
) -> PrivacyLossDistribution:
    """Return the privacy loss distribution of one answer.

    Args:
        sigma: Standard deviation of the noise over the largest norm of a user's part, above 0.
        sampling_prob: q, the probability that a user is drawn, in (0, 1]; 1 for everybody.
        interval: Width of the grid's cells, above 0.
        relation: The neighbouring relation; replacing a user moves the sum by up to twice the norm.

    Returns:
        What `from_gaussian_mechanism` of dp-accounting returns, discretised pessimistically. Under
        add-remove: for an added and a removed user, one distribution for both where q is 1.

    Raises:
        ValueError: If σ or q is out of range.
    """

    def on_grid(adjacency: AdjacencyType) -> pld_pmf.PLDPmf:
        loss = GaussianPrivacyLoss(sigma, sampling_prob=sampling_prob, adjacency_type=adjacency)
        return _on_grid(loss, interval)

    if relation is Relation.REPLACE_ONE:
        return PrivacyLossDistribution(on_grid(AdjacencyType.REPLACE))
    removed = on_grid(AdjacencyType.REMOVE)
    if sampling_prob == 1.0:
        return PrivacyLossDistribution(removed)
    return PrivacyLossDistribution(removed, on_grid(AdjacencyType.ADD))


def pure_loss(event: Event, relation: Relation, interval: float) -> PrivacyLossDistribution:
    """Return the privacy loss distribution of one ε-DP answer; arguments as of `LOSSES`."""
    parameters = common.DifferentialPrivacyParameters(relation.moved * (event.epsilon or 0.0), 0.0)
    return privacy_loss_distribution.from_privacy_parameters(
        parameters, value_discretization_interval=interval
    )


def capped_gaussian_loss(
    event: Event, relation: Relation, interval: float
) -> PrivacyLossDistribution:
    """Return the privacy loss distribution of one answer about a cohort of at most `cap` users.

    A cohort over the cap keeps `cap` users drawn from it. Where that happens, one user's presence
    decides also whether another is kept: the answer is priced as one in which a user is replaced.

    Args:
        event: Of kind "truncated-poisson-gaussian".
        relation: The neighbouring relation.
        interval: As for `gaussian_loss`.

    Returns:
        What `from_truncated_subsampled_gaussian_mechanism` of dp-accounting returns.
    """
    num_users, prob, cap = event.num_users, event.sampling_prob, event.cap
    assert num_users and prob and cap
    below = gaussian_loss(event.sigma, sampling_prob=prob, interval=interval, relation=relation)
    # The probability that the cohort is over the cap, for a user who was drawn.
    over = float(_BINOM.sf(cap - 1, num_users - 1, prob))
    if over == 0.0:
        return below
    drawn = _BINOM.sf(cap, num_users, prob) * cap / over / num_users
    above = gaussian_loss(
        event.sigma / 2,
        sampling_prob=float(drawn),
        interval=interval,
        relation=Relation.REPLACE_ONE,
    )
    return above.compute_mixture(below, over)


def devices_gaussian_loss(
    event: Event, relation: Relation, interval: float
) -> PrivacyLossDistribution:
    """Return the loss of one answer for a person with several devices, drawn and bounded alone.

    How many of them take part is binomial, and at worst they push the same way: a mixture of
    Gaussians (Choquette-Choo et al. 2023, arXiv:2310.15526, Corollary 4.7).

    Args:
        event: Of kind "poisson-devices-gaussian".
        relation: Not replace-one: the person is there with all devices, or not.
        interval: As for `gaussian_loss`.
    """
    sigma, prob, devices = event.sigma, event.sampling_prob, event.devices
    assert prob and devices
    if devices == 1 or prob == 1.0:
        return gaussian_loss(
            sigma / devices, sampling_prob=prob, interval=interval, relation=relation
        )
    sums, probs = device_sums(devices, prob)

    def on_grid(adjacency: AdjacencyType) -> pld_pmf.PLDPmf:
        loss = MixtureGaussianPrivacyLoss(sigma, sums, probs, adjacency_type=adjacency)
        return _on_grid(loss, interval)

    return PrivacyLossDistribution(on_grid(AdjacencyType.REMOVE), on_grid(AdjacencyType.ADD))


def objective_loss(event: Event, relation: Relation, interval: float) -> PrivacyLossDistribution:
    """Return the loss of a released minimum of an objective with a Gaussian linear term.

    A user who is there or not changes the term that has this minimum by c ∈ [0, L] along a line
    that is the user's own (a linear model whose loss falls with its margin): the loss is at most
    that of Gaussian noise, or 0 where c = 0 costs more than L, and the change of volume, which is
    at most the shift.

    Args:
        event: Of kind "objective-gaussian"; σ is the standard deviation of the term's coordinates
            over L, the shift is the loss besides.
        relation: Not replace-one: a replaced user changes the term along two lines.
        interval: As for `gaussian_loss`.
    """
    plain = gaussian_loss(event.sigma, sampling_prob=1.0, interval=interval, relation=relation)
    cells = plain._pmf_remove.to_dense_pmf()
    below = max(0, min(-cells._lower_loss, cells.size - 1))
    probs = np.array(cells._probs[below:])
    probs[0] += cells._probs[:below].sum()
    lowest = cells._lower_loss + below + math.ceil((event.shift or 0.0) / interval)
    raised = pld_pmf.DensePLDPmf(
        interval, lowest, probs, cells._infinity_mass, cells._pessimistic_estimate
    )
    return PrivacyLossDistribution(raised)


LOSSES = {
    "pure": pure_loss,
    "truncated-poisson-gaussian": capped_gaussian_loss,
    "poisson-devices-gaussian": devices_gaussian_loss,
    "objective-gaussian": objective_loss,
}
"""By kind, the loss of one charge from event, relation and interval; of others `gaussian_loss`."""


def grid_interval(event: Event, num_rounds: int, relation: Relation) -> float:
    """Return the width of the PLD grid, from the event, the planned charges and the relation.

    Rounding up costs about 0.4 T h² in ε over T charges. Aim at 2e-5 of that, less when ε itself
    will be small, with h between 1e-4 and 1e-3; then widen until one charge's loss fits 150 000
    cells (a second) and the composed loss a few million (600 MB at most).
    """
    if event.noise_multiplier is None:
        # An ε-DP answer loses no more than Gaussian noise of σ = 2/ε would, for this purpose.
        sigma = min(max(2.0 / (event.epsilon or 1.0), 0.01), 1e5)
    else:
        sigma = event.sigma / (event.devices or 1)  # all of a person's at once
    rounds, prob = num_rounds, event.sampling_prob or 1.0
    if event.devices is not None and prob < 1.0:  # that any of them is drawn
        prob = -math.expm1(event.devices * math.log1p(-prob))
    if event.kind == "gaussian":
        sigma, rounds = sigma / math.sqrt(rounds), 1
    if relation is Relation.REPLACE_ONE:
        sigma /= 2.0
    spread = prob * math.sqrt(rounds * math.expm1(min(sigma**-2.0, 500.0)))
    accurate = min(max(math.sqrt(2e-5 * min(spread, 1.0) / (0.4 * rounds)), 1e-4), 1e-3)
    widest = sigma / 2.0 if event.kind == "truncated-poisson-gaussian" else sigma
    one = 0.5 / widest**2 + 10.0 / widest
    drift = rounds * min(prob * 0.5 / sigma**2, prob**2 * math.expm1(min(sigma**-2.0, 500.0)))
    composed = min(rounds * one, 2.0 * drift + 20.0 * math.sqrt(max(drift, 1e-12)) + one)
    return float(f"{max(accurate, one / 1.5e5, composed / 1e6):.1e}")


def composed(loss: PrivacyLossDistribution, count: int) -> PrivacyLossDistribution:
    """Return what `loss.self_compose(count)` returns, sooner the fewer the cells are."""
    removed = _composed(loss._pmf_remove, count)
    if loss._symmetric:
        return PrivacyLossDistribution(removed)
    return PrivacyLossDistribution(removed, _composed(loss._pmf_add, count))


def _composed(cells: pld_pmf.PLDPmf, count: int) -> pld_pmf.PLDPmf:
    """Return `cells.self_compose(count)`: a power in Fourier space, without its farthest tails."""
    few = isinstance(cells, pld_pmf.SparsePLDPmf)
    if few and cells.size**count <= pld_pmf._MAX_PMF_SPARSE_SIZE:
        return cells.self_compose(count)
    dense = cells.to_dense_pmf()
    probs = np.asarray(dense._probs)
    lower, upper = _kept_range(probs, count)
    length = _FFT.next_fast_len(max(upper - lower + 1, len(probs)))
    power = np.real(_FFT.ifft(_FFT.fft(probs, length) ** count))
    return pld_pmf.DensePLDPmf(
        dense._discretization,
        dense._lower_loss * count + lower,
        np.roll(power, -lower)[: upper - lower + 1],
        _CUT - math.expm1(count * math.log1p(-dense._infinity_mass)),
        dense._pessimistic_estimate,
    )


#: The mass that cutting off may take from a composed loss; it counts as lost to +∞.
_CUT = 1e-15


def _kept_range(probs: NDArray[np.float64], count: int) -> tuple[int, int]:
    """Return the first and the last cell of a sum of `count` draws: beyond are at most `_CUT`.

    Chernoff's bound with the moments E exp(k X / n), |k| up to 20, of X in 0 ... n - 1. No exponent
    is beyond ±20, so the moments are plain sums; dp-accounting adds up logarithms.
    """
    num_cells = len(probs)
    first, last = 0, (num_cells - 1) * count
    for order in np.concatenate((np.arange(-20, 0), np.arange(1, 21))) / num_cells:
        moment = float(np.sum(np.exp(np.arange(num_cells) * order) * probs))
        if not moment > 0.0:
            continue  # rounding left less than nothing of it: it bounds nothing
        bound = (count * math.log(moment) + math.log(2 / _CUT)) / order
        if order > 0:
            last = min(last, math.ceil(bound))
        else:
            first = max(first, math.floor(bound))
    return first, last


def _on_grid(
    loss: GaussianPrivacyLoss | MixtureGaussianPrivacyLoss, interval: float
) -> pld_pmf.PLDPmf:
    """Return a loss on a grid, as dp-accounting discretises it: pessimistically."""
    bounds = loss.connect_dots_bounds()
    assert bounds.epsilon_lower is not None and bounds.epsilon_upper is not None
    lower = math.floor(bounds.epsilon_lower / interval)
    upper = math.ceil(bounds.epsilon_upper / interval)
    at: Any = np.arange(lower, upper + 1) * interval
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, lower, upper, deltas(loss, at)
    )


def deltas(
    loss: GaussianPrivacyLoss | MixtureGaussianPrivacyLoss, losses: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return δ at each ε: `loss.get_delta_for_epsilon(losses)`, without a call for each.

    A cutoff that is taken near the true one makes δ too small by the square of the distance only.

    Args:
        loss: Of a sensitivity of 1, or of a mixture.
        losses: ε, shape (num_cells,).

    Returns:
        float64 in [0, 1], shape (num_cells,).
    """
    if loss.adjacency_type is AdjacencyType.REPLACE:
        assert isinstance(loss, GaussianPrivacyLoss)
        cutoffs = _replaced_cutoffs(loss.standard_deviation, loss.sampling_prob, losses)
    else:
        if isinstance(loss, MixtureGaussianPrivacyLoss):
            sums, probs = loss.sensitivities, loss.sampling_probs
        else:
            sums, probs = device_sums(1, loss.sampling_prob)
        # The loss of an added user at x is minus that of a removed one at -x.
        sign = -1.0 if loss.adjacency_type is AdjacencyType.ADD else 1.0
        cutoffs = sign * _removed_cutoffs(
            loss._standard_deviation, np.asarray(sums), np.log(probs), sign * losses
        )
    found: Any = loss.mu_upper_cdf(cutoffs) - np.exp(losses + loss.mu_lower_log_cdf(cutoffs))
    return np.clip(found, 0.0, 1.0)  # rounding leaves it by an ulp


def _replaced_cutoffs(
    sigma: float, sampling_prob: float, losses: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return (asinh(-α sinh(ε/2)) - ε/2) σ², α = exp(1/2σ²) (1 - q)/q, in logarithms."""
    if sampling_prob == 1.0:
        return -losses * sigma**2 / 2
    halves = np.abs(losses) / 2
    log_alpha = 0.5 * sigma**-2 + math.log1p(-sampling_prob) - math.log(sampling_prob)
    with np.errstate(divide="ignore"):  # the sinh of 0
        log_sinh = halves + np.log1p(-np.exp(-2 * halves)) - math.log(2)
    term = log_alpha + log_sinh
    asinh = -np.sign(losses) * np.logaddexp(0.5 * np.logaddexp(0, 2 * term), term)
    return sigma**2 * (asinh - losses / 2)


def _removed_cutoffs(
    sigma: float,
    sums: NDArray[np.float64],
    log_probs: NDArray[np.float64],
    losses: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return where a removed user's loss is each of these, shape (num_cells,).

    The loss at x is log Σ pᵢ exp(-sᵢ x/σ² - sᵢ²/2σ²). It never falls to log p₀, p₀ being the
    probability of s = 0: there and below the cutoff is infinite. Without that term it is a convex
    function of x that falls nearly along a line; Newton's steps from its left never pass the root,
    and with one term left the first point is the root.
    """
    away = sums == 0.0
    limit = float(log_probs[away][0]) if away.any() else -math.inf
    slopes = sums[~away] / sigma**2
    offsets = log_probs[~away] - sums[~away] * slopes / 2
    cutoffs = np.full_like(losses, math.inf)
    inside = losses > limit
    # What those who take part must add: log(e^loss - p₀).
    target: NDArray[np.float64] = losses[inside] + np.log(-np.expm1(limit - losses[inside]))
    at = np.max((offsets - target[:, None]) / slopes, axis=1)
    for _ in range(0 if len(slopes) == 1 else 100):
        lines = offsets - slopes * at[:, None]
        height: Any = library("scipy.special").logsumexp(lines, axis=1)
        step = (height - target) / (np.exp(lines - height[:, None]) @ slopes)
        at += step
        if np.all(np.abs(step) <= 1e-13 * (1.0 + np.abs(at))):
            break
    cutoffs[inside] = at
    return cutoffs
