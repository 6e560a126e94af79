"""The product against DP-AGD in plain NumPy, on the product's own draws."""

from functools import partial
from itertools import permutations

import numpy as np
import pytest
from scipy.stats import chisquare

from tests.oracles import dp_agd, product

GIVEN = {"iterations": 12, "gradient_clip": 0.8, "loss_cap": 1.5, "num_steps": 5, "adapt_every": 2}
UNITS = {
    "user": (product.by_user, product.of_user, sorted(product.USERS)),
    "example": (product.by_example, product.of_example, list(range(len(product.TRAIN[1])))),
}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "changes",
    [{}, {"regulariser": 0.01}, {"relation": "replace-one"}, {"selection": "permute-and-flip"}],
    ids=str,
)
def test_dp_agd(unit, changes):
    """What each answer costs decides how many there are, under each relation and choice."""
    make, of, records = UNITS[unit]
    experiment = make(
        method="agd", target_epsilon=10.0, conversion="plain", prices="paper", **changes, **GIVEN
    )
    start, played = product.play(experiment)
    noise = [[-product.flat(z) for z in one.draws] for one in played]  # on sums of -gradients
    omegas, answers = [], iter([index for one in played for index in one.chosen])

    def choose(omega):
        omegas.append(omega)
        return next(answers)

    found = dp_agd.dp_agd(
        product.flat(start), partial(of, product.gradient), partial(of, product.loss), records,
        noise, choose,
        rho=dp_agd.rho_of(10.0, 1e-3), prices=dp_agd.paper_prices(10.0, 1e-3, splits=12), gamma=0.1,
        C=0.8, C_obj=1.5, sizes=5, every=2, reg=changes.get("regulariser", 0.0),
    )  # fmt: skip
    assert len(found) > 2 and max(map(len, noise)) > 1  # some directions were rejected
    # What is under way when the budget ends is not applied.
    product.check(played, [*found, found[-1]][: len(played)])
    product.check_scores(played, omegas)


@pytest.mark.parametrize("law", ["noisy max", "exponential", "product", "product, flipped"])
def test_laws_of_the_choice(law):
    """20,000 draws against exact shares, a false alarm in 10^6.

    Noisy max is permute-and-flip (Ding et al. 2021): in random order, and who is taken is the first
    whom a coin of probability exp(-ε (Ω - min Ω) / C) accepts; the best one's always does.
    """
    scores, cap, epsilon, number = np.array([3.0, 4.0, 3.9, 4.2]), 1.5, 1.5, 20_000
    coins, rng = np.exp(-epsilon / cap * (scores - scores.min())), np.random.default_rng(0)
    shares = coins / coins.sum()
    if law in ("noisy max", "product, flipped"):
        shares = np.zeros(4)
        for order in permutations(range(4)):
            passed = np.cumprod([1.0, *(1 - coins[list(order)])])
            shares[list(order)] += passed[:4] * coins[list(order)] / 24
    found = {
        "noisy max": lambda: [dp_agd.noisy_max(scores, rng.exponential(size=4), cap, epsilon)
                              for _ in range(number)],
        "exponential": lambda: [dp_agd.exponential(scores, rng.gumbel(size=4), cap, epsilon)
                                for _ in range(number)],
        "product": lambda: product.choices("exponential", scores, cap, epsilon, number),
        "product, flipped": lambda: product.choices("permute-and-flip", scores, cap, epsilon,
                                                    number),
    }[law]()  # fmt: skip
    assert chisquare(np.bincount(found, minlength=4), number * shares).pvalue > 1e-6


def test_one_step_of_the_moments_accountant():
    assert dp_agd.moments_epsilon(1e-8) == pytest.approx(0.5756, abs=1e-4)
    assert product.accounted(steps=1, sampling_prob=0.00553, sigma=4.0, delta=1e-8) < 0.02


@pytest.mark.parametrize("epsilon", [0.05, 1.6, 20.0])
def test_budget(epsilon):
    assert dp_agd.rho_of(epsilon, 1e-8) == pytest.approx(product.rho(epsilon, 1e-8), rel=1e-9)


@pytest.mark.parametrize(("relation", "moved"), [("add-remove", 1), ("replace-one", 2)])
def test_prices_of_the_paper(relation, moved):
    """The product's, known numbers, and the noise of the first gradient in 6 runs.

    Its deviation over 90 coordinates is met to a quarter, a false alarm in 10^3.
    """
    known = dp_agd.paper_prices(1.6, 1e-8)
    assert known == pytest.approx((2.383870e-6, 8.888889e-5), rel=1e-6)
    experiment = product.by_example(
        method="agd", target_epsilon=10.0, conversion="plain", prices="paper", relation=relation,
        **GIVEN,
    )  # fmt: skip
    ours = product.prices_of(experiment)
    assert ours == pytest.approx(dp_agd.paper_prices(10.0, 1e-3, splits=12), rel=1e-9)
    drawn = [product.flat(product.play(experiment, seed)[1][0].draws[0]) for seed in range(6)]
    assert np.std(drawn) == pytest.approx(moved * 0.8 / np.sqrt(2 * ours[0]), rel=0.25)


# -- comparators ----------------------------------------------------------------------------------


def test_descent_is_a_pass_of_one_batch():
    """Output perturbation: five full steps, whose Δ is within that of the paper, 3LTη/n."""
    start, [played] = product.play(product.by_example(
        method="bolt-on", passes=5, batch_size=40, step="constant", step_rate=0.3,
        output_noise="gaussian", noise_multiplier=0.01,
    ))  # fmt: skip
    found = dp_agd.descent(
        product.flat(start), product.of_shortened, list(range(40)), alpha=0.3, steps=5
    )
    product.check([played], [found + product.flat(played.draws[-1])])
    stated = dp_agd.descent_sensitivity(1.0, 0.3, 5, 40)
    ours = product.replaced_by_bolt_on(5, 40, 40, 0.5, step="constant", step_rate=0.3)
    assert stated == pytest.approx(0.1125) and ours == pytest.approx(stated * 2 / 3)


def test_noisy_descent():
    experiment = product.comparator(
        "fixed_steps", rho=5.0, delta=1e-3, steps=6, rate=0.5, regulariser=0.1
    )
    start, played = product.play(experiment)
    noise = [-z for z in product.noise_of(played)]
    found = dp_agd.noisy_descent(
        product.flat(start), partial(product.of_example, product.gradient), list(range(40)),
        noise, alpha=0.5, C=0.7, reg=0.1,
    )  # fmt: skip
    product.check(played, found)


@pytest.mark.parametrize("delta", [None, 1e-3])
def test_perturbed_objective(delta):
    """The minimum is found to τ; a part in 10^5 is allowed for it."""
    experiment = product.perturbed_objective(epsilon=2.0, delta=delta, regulariser=0.1)
    start, [played] = product.play(experiment)
    x = np.column_stack([product.TRAIN[0].astype(float), np.ones(40)])
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    y = product.TRAIN[1] == 0
    term, outside = product.flat(played.term), product.flat(played.draws[-1])
    found = dp_agd.perturbed_minimum(
        product.flat(start), lambda w, i: (1 / (1 + np.exp(-x[i] @ w)) - y[i]) * x[i],
        list(range(40)), term, strength=max(4.0, 0.25 / np.expm1(1.0)), smoothness=0.25, steps=200,
    )  # fmt: skip
    assert np.linalg.norm(found) > 0.1
    np.testing.assert_allclose(product.flat(played.params), found + outside, rtol=1e-5, atol=1e-6)
