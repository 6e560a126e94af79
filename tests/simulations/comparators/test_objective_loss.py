"""What a perturbed objective costs: a Gaussian's loss, never below 0, and a shift."""

import math

import numpy as np
import pytest

from fedpriv.privacy.accounting import calibrate, epsilon, epsilon_of, rho_of
from fedpriv.privacy.event import Event, Relation
from fedpriv.privacy.trials import Trials
from tests.harness.exact_gaussian import gaussian_delta
from tests.harness.refusals import refuses


def event(sigma, shift):
    return Event(kind="objective-gaussian", noise_multiplier=sigma, shift=shift)


def told(made, count=1, delta=1e-5, relation="add-remove"):
    return epsilon(made, count, delta=delta, relation=relation)


@pytest.mark.parametrize(("sigma", "shift"), [(50.0, 0.02), (5.0, 0.1), (1.0, 0.5), (0.5, 2.0)])
def test_one_costs_what_a_gaussian_does_and_the_shift(sigma, shift):
    found = told(event(sigma, shift))
    assert gaussian_delta(sigma, found.value - shift) <= 1e-5
    assert gaussian_delta(sigma, found.value - shift - 3e-4) > 1e-5  # the grid rounds up
    assert (found.accountant, found.rdp) == ("PLD", None)
    bare = told(Event(kind="gaussian", noise_multiplier=sigma))
    assert bare.value < found.value <= bare.value + shift + 3e-4


def test_several_cost_the_law_of_their_sum():
    """σ = 2, shift .1, 3 answers, by 400,000 draws of Σ max(0, G) + .3: δ within 5 standard errors.

    A false alarm in 3,500,000; the largest δ is the least that ε is told for.
    """
    sigma, shift, count, draws = 2.0, 0.1, 3, 400_000
    rng = np.random.default_rng(11)
    mean = 0.5 / sigma**2
    losses = np.maximum(0.0, rng.normal(mean, 1.0 / sigma, (draws, count))).sum(axis=1)
    losses += count * shift
    for delta in (0.3, 0.1, 0.01):
        value = told(event(sigma, shift), count, delta=delta).value
        terms = np.maximum(0.0, -np.expm1(value - losses))
        error = terms.std() / math.sqrt(draws)
        assert terms.mean() <= delta + 5 * error
        assert terms.mean() >= 0.98 * delta - 5 * error
    # Sums of G itself, which may fall below 0, would be told for less: no bound on these answers.
    plain = told(Event(kind="gaussian", noise_multiplier=sigma), count, delta=0.01).value
    assert plain + count * shift < told(event(sigma, shift), count, delta=0.01).value


def test_beside_other_answers():
    both = epsilon_of(
        [(event(5.0, 0.1), 1), (Event(kind="gaussian", noise_multiplier=5.0), 2)],
        delta=1e-5,
        relation="add-remove",
    )
    alone = told(Event(kind="gaussian", noise_multiplier=5.0 / math.sqrt(3)))
    assert alone.value + 0.09 < both.value < alone.value + 0.4


def test_calibration_comes_back():
    sigma = calibrate(
        lambda s: event(s, 0.3), 1, target_epsilon=1.0, delta=1e-6, relation="add-remove"
    )
    assert 0.999 < told(event(sigma, 0.3), delta=1e-6).value <= 1.0
    assert gaussian_delta(sigma, 0.7) == pytest.approx(1e-6, rel=5e-3)


def test_refusals():
    with refuses(ValueError, "replace-one"):
        told(event(5.0, 0.1), relation="replace-one")
    with pytest.raises(ValueError):
        rho_of(event(5.0, 0.1), Relation.ADD_REMOVE)
    with pytest.raises(ValueError):
        epsilon(event(5.0, 0.1), 1, delta=1e-5, relation="add-remove", trials=Trials(mean=3))
