"""The privacy loss of one Gaussian answer on a grid, all cells at once; and of many answers.

dp-accounting inverts the privacy loss cell by cell, one Python call each, which is most of what
pricing an event takes; and composing takes longest over where the tails may be cut off.
`GaussianLoss` is their class with that one step in numpy; bounds of the grid, tails, distributions
of the noise and the pessimistic "Connect the Dots" are theirs, as is all that is done with what
comes out. Formulas, edge cases and the order of operations are those of `AdditiveNoisePrivacyLoss`
(0.6.0), so figures are equal to the last bit where numpy's functions answer alike for one number
and for many; tests compare with theirs. Tails are cut where their bound says.

Loading this module loads dp-accounting (a second): import it where it is called.

>>> loss = gaussian_loss(1.0, sampling_prob=0.05, interval=1e-3, relation=Relation.ADD_REMOVE)
>>> loss.get_epsilon_for_delta(1e-5)
1.0327...
"""

# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false
# (it is dp-accounting's classes that are filled here, which bring no stubs and no other way in)

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf
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
    if relation is Relation.REPLACE_ONE:
        replaced = _on_grid(AdjacencyType.REPLACE, sigma, sampling_prob, interval)
        return PrivacyLossDistribution(replaced)
    removed = _on_grid(AdjacencyType.REMOVE, sigma, sampling_prob, interval)
    if sampling_prob == 1.0:
        return PrivacyLossDistribution(removed)
    return PrivacyLossDistribution(
        removed, _on_grid(AdjacencyType.ADD, sigma, sampling_prob, interval)
    )


def capped_gaussian_loss(
    sigma: float,
    *,
    num_users: int,
    sampling_prob: float,
    cap: int,
    interval: float,
    relation: Relation,
) -> PrivacyLossDistribution:
    """Return the privacy loss distribution of one answer about a cohort of at most `cap` users.

    A cohort over the cap keeps `cap` users drawn from it. Where that happens, one user's presence
    decides also whether another is kept: the answer is priced as one in which a user is replaced.

    Args:
        sigma: As for `gaussian_loss`.
        num_users: Size of the roster.
        sampling_prob: q, in (0, 1).
        cap: Largest cohort.
        interval: As for `gaussian_loss`.
        relation: The neighbouring relation.

    Returns:
        What `from_truncated_subsampled_gaussian_mechanism` of dp-accounting returns.

    Raises:
        ValueError: If σ or q is out of range.
    """
    below = gaussian_loss(sigma, sampling_prob=sampling_prob, interval=interval, relation=relation)
    # The probability that the cohort is over the cap, for a user who was drawn.
    over = float(_BINOM.sf(cap - 1, num_users - 1, sampling_prob))
    if over == 0.0:
        return below
    drawn = _BINOM.sf(cap, num_users, sampling_prob) * cap / over / num_users
    above = gaussian_loss(
        sigma / 2, sampling_prob=float(drawn), interval=interval, relation=Relation.REPLACE_ONE
    )
    return above.compute_mixture(below, over)


def devices_gaussian_loss(
    sigma: float, *, sampling_prob: float, devices: int, interval: float, relation: Relation
) -> PrivacyLossDistribution:
    """Return the loss of one answer for a person with several devices, drawn and bounded alone.

    How many of them take part is binomial, and at worst they push the same way: a mixture of
    Gaussians (Choquette-Choo et al. 2023, arXiv:2310.15526, Corollary 4.7).

    Args:
        sigma: Standard deviation of the noise over the largest norm of one device's part, above 0.
        sampling_prob: q, the probability that a device is drawn, in (0, 1].
        devices: How many the person has at most.
        interval: As for `gaussian_loss`.
        relation: Not replace-one: the person is there with all devices, or not.

    Raises:
        ValueError: If a number is out of range.
    """
    if devices == 1 or sampling_prob == 1.0:
        return gaussian_loss(
            sigma / devices, sampling_prob=sampling_prob, interval=interval, relation=relation
        )
    sums, probs = device_sums(devices, sampling_prob)

    def on_grid(adjacency: AdjacencyType) -> pld_pmf.PLDPmf:
        return _discretised(MixtureLoss(sigma, sums, probs, adjacency_type=adjacency), interval)

    return PrivacyLossDistribution(on_grid(AdjacencyType.REMOVE), on_grid(AdjacencyType.ADD))


def objective_loss(
    sigma: float, shift: float, *, interval: float, relation: Relation
) -> PrivacyLossDistribution:
    """Return the loss of a released minimum of an objective with a Gaussian linear term.

    A user who is there or not changes the term that has this minimum by c ∈ [0, L] along a line
    that is the user's own (a linear model whose loss falls with its margin): the loss is at most
    that of Gaussian noise, or 0 where c = 0 costs more than L, and the change of volume, which is
    at most the shift.

    Args:
        sigma: Standard deviation of the term's coordinates over L.
        shift: Loss besides.
        interval: As for `gaussian_loss`.
        relation: Not replace-one: a replaced user changes the term along two lines.

    Raises:
        ValueError: If σ is out of range.
    """
    plain = gaussian_loss(sigma, sampling_prob=1.0, interval=interval, relation=relation)
    cells = plain._pmf_remove.to_dense_pmf()
    below = max(0, min(-cells._lower_loss, cells.size - 1))
    probs = np.array(cells._probs[below:])
    probs[0] += cells._probs[:below].sum()
    lowest = cells._lower_loss + below + math.ceil(shift / interval)
    raised = pld_pmf.DensePLDPmf(
        interval, lowest, probs, cells._infinity_mass, cells._pessimistic_estimate
    )
    return PrivacyLossDistribution(raised)


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
    adjacency: AdjacencyType, sigma: float, sampling_prob: float, interval: float
) -> pld_pmf.PLDPmf:
    loss = GaussianLoss(sigma, sampling_prob=sampling_prob, adjacency_type=adjacency)
    return _discretised(loss, interval)


def _discretised(loss: GaussianLoss | MixtureLoss, interval: float) -> pld_pmf.PLDPmf:
    bounds = loss.connect_dots_bounds()
    assert bounds.epsilon_lower is not None and bounds.epsilon_upper is not None
    lower = math.floor(bounds.epsilon_lower / interval)
    upper = math.ceil(bounds.epsilon_upper / interval)
    at: Any = np.arange(lower, upper + 1) * interval
    deltas: Any = loss.get_delta_for_epsilon(at)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, lower, upper, deltas)


class GaussianLoss(GaussianPrivacyLoss):
    """`GaussianPrivacyLoss` whose δ of many ε is computed at once."""

    def get_delta_for_epsilon(self, epsilon: Any) -> Any:
        """Return δ of one ε, a float, or of many, an array of shape (num_cells,).

        Raises:
            ValueError: If an ε has no inverse: sub-sampling keeps the loss on one side of a limit.
        """
        alone = isinstance(epsilon, numbers.Number)
        losses = np.atleast_1d(np.asarray(epsilon, dtype=float))
        deltas = np.zeros_like(losses)
        # Beyond the limit one distribution is above the other everywhere: δ is 0, or 1 - exp(ε).
        # Replacing has no limit.
        inside = np.full_like(losses, True, dtype=bool)
        if self.sampling_prob < 1.0 and self.adjacency_type is AdjacencyType.ADD:
            inside = losses < -math.log1p(-self.sampling_prob)
        elif self.sampling_prob < 1.0 and self.adjacency_type is AdjacencyType.REMOVE:
            inside = losses > math.log1p(-self.sampling_prob)
            deltas[~inside] = -np.expm1(losses[~inside])
        cutoffs = self._cutoffs(losses[inside])
        deltas[inside] = self.mu_upper_cdf(cutoffs) - np.exp(
            losses[inside] + self.mu_lower_log_cdf(cutoffs)
        )
        deltas = np.clip(deltas, 0, 1)  # rounding leaves it by an ulp
        return float(deltas[0]) if alone else deltas

    def _cutoffs(self, losses: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return `inverse_privacy_loss` of each, shape (num_cells,)."""
        if self.adjacency_type is AdjacencyType.REPLACE:
            return self._cutoffs_of_replacing(losses)
        shift = self.sensitivity if self.adjacency_type is AdjacencyType.ADD else 0.0
        if self.sampling_prob < 1.0:
            losses = self._without_sampling(losses)
        removed = -0.5 * self.sensitivity - losses * self.standard_deviation**2 / self.sensitivity
        return shift + removed

    def _cutoffs_of_replacing(self, losses: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (asinh(-α sinh(ε/2)) - ε/2) σ²/s, α = exp(s²/2σ²) (1 - q)/q, in logarithms."""
        if self.sampling_prob == 1.0:
            return -losses * self.standard_deviation**2 / self.sensitivity / 2
        halves = np.abs(losses) / 2
        log_alpha = (
            0.5 * (self.sensitivity / self.standard_deviation) ** 2
            + math.log1p(-self.sampling_prob)
            - math.log(self.sampling_prob)
        )
        with np.errstate(divide="ignore"):  # the sinh of 0
            log_sinh = halves + np.log1p(-np.exp(-2 * halves)) - math.log(2)
        term = log_alpha + log_sinh
        asinh = -np.sign(losses) * np.logaddexp(0.5 * np.logaddexp(0, 2 * term), term)
        return self.standard_deviation**2 / self.sensitivity * (asinh - losses / 2)

    def _without_sampling(self, losses: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the loss of a user who is always drawn, at the same noise: ±log(1 + (e^±ε - 1)/q).

        It is +∞ at the limit for an added user and -∞ at that for a removed one.
        """
        sign = -1.0 if self.adjacency_type is AdjacencyType.ADD else 1.0
        factor, term = 1 / self.sampling_prob, 1 - 1 / self.sampling_prob
        signed = sign * losses
        limit = math.log(1 - self.sampling_prob)
        # math.isclose, as theirs: numpy's is wider (1e-5 against 1e-9).
        at_limit = np.abs(signed - limit) <= 1e-9 * np.maximum(np.abs(signed), abs(limit))
        wrong = ~at_limit & (signed <= limit)
        if np.any(wrong):
            raise ValueError(
                f"privacy loss {losses[wrong][0]} is beyond {sign * limit}, which sampling with "
                f"probability {self.sampling_prob} never reaches; ask for δ on the other side"
            )
        found = np.full_like(signed, -math.inf)
        raised = signed[~at_limit] + np.log(factor)
        if term < 0.0:
            below = np.log(-term)
            if np.any(below >= raised):
                raise ValueError(
                    f"the privacy losses of σ = {self.standard_deviation} at sampling probability "
                    f"{self.sampling_prob} cannot be distinguished from their limit; raise either"
                )
            raised = raised + np.log1p(-np.exp(below - raised))
        found[~at_limit] = np.where(signed[~at_limit] == 0.0, np.log(factor + term), raised)
        return sign * found


# Log of the p₀ below which 1 - p₀ has not four digits of it.
_LEAST_AWAY = -27.0


class MixtureLoss(MixtureGaussianPrivacyLoss):
    """`MixtureGaussianPrivacyLoss` that inverts the losses of all cells at once.

    A δ that is taken near the true inverse is too small by the square of the distance only.
    """

    def inverse_privacy_losses(
        self, privacy_losses: Any, precision: float = 1e-13
    ) -> NDArray[np.float64]:
        """Return where each loss is reached, shape (num_cells,).

        Of a removed person the loss at x is log Σ pᵢ exp(-sᵢ x/σ² - sᵢ²/2σ²), of an added one minus
        that at -x. Without the devices that stay away (s = 0) it is a convex function of x that
        falls nearly along a line; Newton's steps from its left never pass the root.

        Raises:
            ValueError: If a loss is beyond the limit that sampling sets.
        """
        sign = -1.0 if self.adjacency_type is AdjacencyType.ADD else 1.0
        signed = sign * np.atleast_1d(np.asarray(privacy_losses, dtype=float))
        sums = np.asarray(self.sensitivities, dtype=float)
        away = sums == 0.0
        log_away = float(self._log_sampling_probs[away][0]) if away.any() else -math.inf
        beyond = signed <= log_away
        if beyond.any():
            if log_away > _LEAST_AWAY:
                raise ValueError(
                    f"a privacy loss is beyond {sign * log_away}, which sampling never reaches; "
                    "ask for δ on the other side"
                )
            # dp-accounting takes the limit from 1 - p₀, which has few digits of so small a p₀, and
            # asks beyond it. There the loss is reached at infinity, where δ is what it should be.
            at = np.full_like(signed, math.inf)
            at[~beyond] = sign * self.inverse_privacy_losses(sign * signed[~beyond], precision)
            return sign * at
        # What the devices that take part must add: log(e^loss - p₀).
        target: NDArray[np.float64] = signed + np.log1p(-np.exp(log_away - signed))
        slopes = sums[~away] / self._variance
        offsets = self._log_sampling_probs[~away] - sums[~away] * slopes / 2
        at = np.max((offsets - target[:, None]) / slopes, axis=1)
        for _ in range(100):
            lines = offsets - slopes * at[:, None]
            height: Any = library("scipy.special").logsumexp(lines, axis=1)
            slope = np.exp(lines - height[:, None]) @ slopes
            step = (height - target) / slope
            at += step
            if np.all(np.abs(step) <= precision * (1.0 + np.abs(at))):
                break
        return sign * at
