"""Law: every privatizer adds the noise that it is accounted for, and half of it is noticed.

Of each, what is drawn is compared with its `cost` alone, not with its own formulas:

* Gaussian noise, correlated over rounds or not: of n = 20,000 independent coordinates the empirical
  covariance S of T rounds' noise is taken. The neighbour who moves T rounds' sums by u (of every
  allowed pattern of participation and sign) has a noise multiplier of (uᵀ S⁻¹ u)^(-1/2), and the
  worst one is compared with σ. With the true covariance Σ, n (uᵀ Σ⁻¹ u) / (uᵀ S⁻¹ u) is chi-squared
  with n - T + 1 degrees of freedom; 3 % less noise is noticed.
* Noise of pure ε and density exp(-ε ‖κ‖ / Δ): ‖κ‖ is Δ/ε times a sum of d exponentials, so that
  2 ε / Δ times the sum of ‖κ‖ over n = 200 draws of d = 50 is chi-squared with 2 n d degrees of
  freedom; 10 % less noise is noticed.
* A selection: how often it errs in n = 4,000 draws of two candidates, by an exact binomial test.

The false-alarm rate of each case for a fresh key is below 1e-6; the keys here are fixed.
"""

from __future__ import annotations

import inspect
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fedpriv.mechanisms import gaussian, perturbation, selection
from fedpriv.mechanisms.bounds import Capped
from fedpriv.mechanisms.correlated import noise
from fedpriv.mechanisms.correlated.binary_tree import BinaryTree
from fedpriv.mechanisms.correlated.noise import Correlated
from fedpriv.mechanisms.correlated.optimise import square_root_bands
from fedpriv.mechanisms.correlated.toeplitz import Banded, Buffered
from fedpriv.mechanisms.gaussian import Gaussian, Unprotected
from fedpriv.mechanisms.perturbation import OutputGaussian, Sphere, Unperturbed
from fedpriv.mechanisms.privatizer import Participation, Privatizer
from fedpriv.mechanisms.selection import NoisyMin, PrivateChoice, candidates
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from simulations.linear_models import perturbation as comparators
from simulations.linear_models.perturbation import ObjectiveNoise, SphereRows

ALPHA = 1e-6
N, DRAWS, D, SELECTIONS = 20_000, 200, 50, 4_000
SENSITIVITY = 0.3
KEY = Key.simulation(11).fold("noise")
ROWS = 8
LIMIT = Participation(most=2, min_separation=4, num_rows=ROWS)


def correlated(strategy, limit=LIMIT):
    return Correlated(noise_multiplier=2.5, strategy=strategy, participation=limit)


def blt(limit=LIMIT):
    return correlated(Buffered(outputs=(0.25, 0.125), decays=(0.875, 0.5), num_rows=ROWS), limit)


# A tree answers sums of nodes, of which rounds' noise keeps a part: a neighbour is hidden better.
GAUSSIAN = {
    "independent": (Gaussian(noise_multiplier=1.5), 1.0),
    "output": (OutputGaussian(noise_multiplier=1.5), 1.0),
    "banded": (correlated(square_root_bands(4, ROWS)), 1.0),
    "overlapping bands": (correlated(square_root_bands(6, ROWS)), 1.0),
    "negative band": (correlated(Banded(coefficients=(1.0, -0.5), num_rows=ROWS)), 1.0),
    "blt": (blt(), 1.0),
    "blt, every round": (blt(Participation(most=ROWS, num_rows=ROWS)), 1.0),
    "tree": (correlated(BinaryTree(num_rows=ROWS)), 1.3),
    "vanilla tree": (correlated(BinaryTree(num_rows=ROWS, estimate="vanilla")), 1.5),
    "trees": (correlated(BinaryTree(num_rows=ROWS, restart=3, completion=True)), 1.5),
}
SPHERES = {
    "sphere": Sphere(epsilon=0.7),
    "sphere rows": SphereRows(epsilon=1.4, passes=2),
    "outside an objective": ObjectiveNoise(form="sphere", inside=1.0, shift=0.1, outside=0.7),
    "chosen": PrivateChoice(epsilon=0.7),
}
NONE = {Unprotected, Unperturbed}  # which have no finite ε


def gaussian_rows(privatizer, grid):
    """The noise of T rounds, float64 `(T, N)`; in whole steps of a grid if one is given."""
    template = {"w": np.zeros(N, np.float32)}
    given = {"template": template, "sensitivity": SENSITIVITY}
    if grid is not None:
        given["granularity"] = grid
    if isinstance(privatizer, Correlated):
        drawn = itertools.islice(privatizer.draws(**given, key=KEY), privatizer.strategy.num_rows)
    else:
        drawn = (next(privatizer.draws(**given, key=KEY.fold(row))) for row in range(2))
    return np.stack([row["w"] * (grid or 1.0) for row in drawn])


def neighbours(privatizer, num_rows):
    """How one neighbour may move each round's sum, in units of the sensitivity, `(patterns, T)`."""
    limit = privatizer.participation or Participation(most=1)
    found = []
    for signs in itertools.product((-1.0, 0.0, 1.0), repeat=num_rows):
        at = [row for row, sign in enumerate(signs) if sign]
        apart = all(late - early >= limit.min_separation for early, late in itertools.pairwise(at))
        if 0 < len(at) <= limit.count and apart:
            found.append(signs)
    return np.array(found)


def gaussian_is_right(privatizer, rows, spare=1.0):
    """Whether the worst neighbour's noise multiplier is σ, or up to `spare` times as much."""
    num_rows = len(rows)
    inverse = np.linalg.inv(rows @ rows.T / N)
    moved = neighbours(privatizer, num_rows) * SENSITIVITY
    empirical = np.einsum("pt,ts,ps->p", moved, inverse, moved).max() ** -0.5
    level = ALPHA / 2 / len(moved)  # of all patterns together, below ALPHA
    low, high = stats.chi2.ppf([level, 1 - level], N - num_rows + 1) / N
    ratio = (empirical / privatizer.event.sigma) ** 2
    return low <= ratio <= high * spare**2


# None is float32; a privatizer that draws whole numbers does so on the grid.
KINDS = [(name, None) for name in GAUSSIAN]
KINDS += [(name, SENSITIVITY * 2.0**-24) for name, (one, _) in GAUSSIAN.items() if one.on_grid]


@pytest.mark.parametrize(("name", "grid"), KINDS)
def test_gaussian_noise(name, grid):
    privatizer, spare = GAUSSIAN[name]
    rows = gaussian_rows(privatizer, grid)
    assert gaussian_is_right(privatizer, rows, spare)
    assert not gaussian_is_right(privatizer, 0.5 * rows, spare)
    assert not gaussian_is_right(privatizer, 2.0 * rows, spare)
    if spare == 1.0:
        assert not gaussian_is_right(privatizer, 0.95 * rows)


def sphere_draws(privatizer):
    """Independent draws of a privatizer's noise, float64 `(DRAWS, D)`, and the ε of one of them."""
    template = {"w": np.zeros(D, np.float32)}
    given, keys = {"sensitivity": SENSITIVITY}, [KEY.fold(draw) for draw in range(DRAWS)]
    if isinstance(privatizer, PrivateChoice):
        nothing = PartialSum(total={"w": np.zeros(D)}, num_users=1)
        drawn = (privatizer.perturbed(nothing, **given, key=key) for key in keys)
    elif isinstance(privatizer, SphereRows):
        drawn = itertools.islice(privatizer.draws(**given, template=template, key=KEY), DRAWS)
    else:
        drawn = (next(privatizer.draws(**given, template=template, key=key)) for key in keys)
    found = [row["w"] for row in drawn]
    epsilon = privatizer.event.epsilon
    if isinstance(privatizer, SphereRows):
        epsilon /= privatizer.passes
    if isinstance(privatizer, ObjectiveNoise):
        epsilon -= privatizer.inside + privatizer.shift
    return np.stack(found).astype(np.float64), epsilon


def sphere_is_right(draws, epsilon):
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], 2 * draws.size)
    return low < 2.0 * epsilon / SENSITIVITY * np.linalg.norm(draws, axis=1).sum() < high


@pytest.mark.parametrize("name", SPHERES)
def test_noise_of_pure_epsilon(name):
    draws, epsilon = sphere_draws(SPHERES[name])
    assert sphere_is_right(draws, epsilon)
    for wrong in (0.5, 0.9, 2.0):
        assert not sphere_is_right(wrong * draws, epsilon)


@pytest.mark.parametrize("form", ["sphere", "gaussian"])
def test_noise_within_an_objective(form):
    """The linear term, whose coordinates the loss of an example moves by at most L."""
    privatizer = ObjectiveNoise(form=form, inside=0.7, shift=0.1, outside=0.1)
    given = {"template": {"w": np.zeros(D, np.float32)}, "lipschitz": SENSITIVITY}
    draws = np.stack([
        privatizer.linear_term(**given, key=KEY.fold(draw))["w"] for draw in range(DRAWS)
    ])  # fmt: skip
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], draws.size)
    for share, right in ((1.0, True), (0.5, False)):
        if form == "sphere":
            assert sphere_is_right(share * draws, privatizer.inside) == right
        else:
            scaled = share * draws / (privatizer.inside * SENSITIVITY)
            assert (low < float(np.vdot(scaled, scaled)) < high) == right


@pytest.mark.parametrize("form", ["permute-and-flip", "exponential"])
def test_a_noisy_minimum(form):
    """Of two sums that are one contribution apart the larger is answered as ε' says."""
    bound = Capped(cap=2.0, num_coordinates=2)
    apart = round(bound.most / bound.granularity)
    sums = PartialSum(
        total={"losses": np.array([0, apart], np.int64)},
        num_users=1,
        granularity=bound.granularity,
    )
    odds = math.exp(-1.0)
    share = odds / 2.0 if form == "permute-and-flip" else odds / (1.0 + odds)
    for epsilon, right in ((1.0, True), (2.0, False), (0.5, False)):  # 2 ε' is half the noise
        privatizer = NoisyMin(epsilon=epsilon, form=form)
        wrong = 0
        for draw in range(SELECTIONS):
            bits = next(privatizer.draws(template={}, sensitivity=1.0, key=KEY.fold(draw)))
            wrong += privatizer.release(sums, bits, 1.0)
        assert (stats.binomtest(wrong, SELECTIONS, share).pvalue > ALPHA) == right


def test_a_private_choice():
    """Two candidates that are one mistake apart: the odds of the worse one are exp(-ε)."""
    total = candidates([{"w": np.zeros(1)}] * 2, [0, 1], 1)
    for epsilon, right in ((1.0, True), (2.0, False)):
        choice = PrivateChoice(epsilon=epsilon)
        draws = (selection.ExactDraws(KEY.fold(draw)) for draw in range(SELECTIONS))
        wrong = sum(choice.release(total, drawn, 1.0)[0] for drawn in draws)
        share = math.exp(-1.0) / (1.0 + math.exp(-1.0))
        assert (stats.binomtest(wrong, SELECTIONS, share).pvalue > ALPHA) == right


def test_every_privatizer_is_here():
    every = {
        found
        for module in (gaussian, noise, perturbation, comparators, selection)
        for _, found in inspect.getmembers(module, inspect.isclass)
        if found.__module__ == module.__name__
        and {"event", "draws", "release"} <= set(dir(found))
        and found.draws is not Privatizer.draws  # a base without noise of its own
    }
    for one in every:  # who says so draws on the grid, and who can says so
        assert one.on_grid == ("granularity" in inspect.signature(one.draws).parameters)
    here = {type(one) for one, _ in GAUSSIAN.values()} | {type(one) for one in SPHERES.values()}
    assert every == here | {NoisyMin} | NONE
    assert {one().event.kind for one in NONE} == {"nonprivate"}
