"""Prices of correlated noise: golden values, and what is said before a run."""

import math
from itertools import islice

import numpy as np
import pytest

from fedpriv.api.stream_account import account_stream, calibrate_stream, stream
from fedpriv.mechanisms import Clip
from fedpriv.mechanisms.event import Relation
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import SeparatedSampler
from fedpriv.rng import Key
from tests.harness.refusals import refuses

#: σ, steps a tree, trees, δ; RDP and the exact Gaussian, by dp-accounting's events of trees.
TREES = [
    (1.0, 20, 1, 1 / 400, 9.1153, 8.1351),
    (1.0, 20, 50, 1 / 400, 177.2540, 168.4634),
    (1.0, 1, 100, 1 / 400, 82.6307, 77.1906),
    (2.0, 20, 1, 1 / 400, 3.7319, 3.2689),
    (2.0, 20, 50, 1 / 400, 56.6347, 52.5881),
    (2.0, 1, 100, 1 / 400, 28.1639, 25.7453),
    (4.0, 20, 1, 1 / 400, 1.5942, 1.3703),
    (4.0, 20, 50, 1 / 400, 20.0062, 18.1573),
    (4.0, 1, 100, 1 / 400, 10.5851, 9.4782),
    (2.0, 4, 1, 1e-5, 4.011, 3.709),
    (2.0, 8, 1, 1e-5, 4.729, 4.377),
    (10.0, 100, 5, 1e-5, 2.611, 2.407),
    (5.0, 20, 5, 1e-3, 3.537, 3.139),
]


@pytest.mark.slow
def test_golden_trees(subtests):
    for sigma, steps, trees, delta, rdp, exact in TREES:
        with subtests.test(
            sigma=sigma, steps=steps, trees=trees, delta=delta, rdp=rdp, exact=exact
        ):
            found = account_stream(
                noise="tree", noise_multiplier=sigma, steps_per_tree=steps, trees=trees, delta=delta
            )
            assert found.epsilon.value == pytest.approx(exact, abs=6e-4, rel=1e-5)
            assert found.epsilon.rdp == pytest.approx(rdp, abs=6e-4, rel=1e-5)
            assert found.epsilon.value < found.epsilon.rdp
            assert found.epsilon.relation.value == "zero-out"


@pytest.mark.parametrize(
    ("sigma", "published", "exact"), [(1.13, 19.736, 17.667), (8.83, 2.045, 1.649)]
)
def test_published_bounds_of_dp_ftrl(sigma, published, exact):
    """1,600 rounds, δ 1e-6: what is published is Bun and Steinke's conversion."""
    found = account_stream(noise="tree", noise_multiplier=sigma, steps_per_tree=1600, delta=1e-6)
    assert found.epsilon_bs16 == pytest.approx(published, abs=1e-3)
    assert found.epsilon.value == pytest.approx(exact, abs=1e-3)


@pytest.mark.parametrize("noise", ["tree", "banded"])
def test_a_plan_of_it_has_the_same_epsilon_by_the_same_accountant(noise):
    found = account_stream(
        noise=noise, rounds=40, min_separation=10, noise_multiplier=2.0, delta=1e-3
    )
    sampler = SeparatedSampler(num_users=200, size=20, min_separation=10, max_participations=4)
    mechanism = Mechanism(sampler=sampler, bound=Clip(l2_clip_norm=1.0), privatizer=found.noise)
    plan = Plan(mechanism=mechanism, num_rounds=40, relation=Relation.ZERO_OUT, delta=1e-3)
    assert plan.total() == found.epsilon


@pytest.mark.parametrize(("wanted", "sigma"), [(18.9, 1.121), (8.2, 2.238)])
def test_noise_for_a_target_by_the_conversion_of_papers(wanted, sigma):
    """One tree of 1,600 rows, δ 1e-6: the noise that gives these ε."""
    found = account_stream(noise="tree", noise_multiplier=sigma, steps_per_tree=1600, delta=1e-6)
    assert found.epsilon.rdp == pytest.approx(wanted, rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize(
    "pattern",
    [
        {"noise": "tree", "rounds": 40, "min_separation": 10},
        {"noise": "banded", "rounds": 40, "min_separation": 10},
        {"noise": "blt", "rounds": 40, "min_separation": 10, "buffers": 2},
    ],
    ids=lambda pattern: pattern["noise"],
)
def test_it_is_calibrated_from_below(epsilon, pattern):
    found = calibrate_stream(target_epsilon=epsilon, delta=1e-3, **pattern)
    assert epsilon * (1 - 1e-4) <= found.epsilon.value <= epsilon
    sigma = found.noise.noise_multiplier
    again = account_stream(noise_multiplier=sigma, delta=1e-3, **pattern)
    assert again.epsilon == found.epsilon
    replaced = account_stream(
        noise_multiplier=2 * sigma, delta=1e-3, relation="replace-one", **pattern
    )
    assert replaced.epsilon.value == pytest.approx(found.epsilon.value, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["tree", "banded", "blt"])
def test_the_error_that_is_foretold_is_the_one_that_is_measured(noise):
    """20,000 numbers a row: of a root mean square over 30 rows the spread is below 0.3 %."""
    found = calibrate_stream(
        noise=noise, rounds=30, min_separation=6, target_epsilon=4.0, delta=1e-3
    )
    template, key = {"w": np.zeros(20_000, np.float32)}, Key.simulation(3)
    drawn = islice(found.noise.draws(template=template, sensitivity=1.0, key=key), 30)
    rows = [row["w"].astype(np.float64) for row in drawn]
    measured = math.sqrt(float(np.mean(np.square(rows))))
    assert measured == pytest.approx(found.noise.row_rmse(), rel=0.02)
    prefixes = math.sqrt(float(np.mean(np.square(np.cumsum(rows, 0)))))
    assert prefixes == pytest.approx(found.noise.prefix_rmse(), rel=0.02)
    assert f"{found.noise.prefix_rmse():.4g} in the sum" in str(found)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"noise": "oak"}, ("oak",)),
        ({"noise": "blt", "min_separation": 3}, ()),
        ({"noise": "tree"}, ("steps-per-tree",)),
        ({"noise": "blt", "rounds": 9}, ("min-separation",)),
        ({"noise": "blt", "rounds": 9, "min_separation": 3, "bands": 2}, ("bands", 2)),
        ({"noise": "banded", "rounds": 9, "min_separation": 3, "bands": 4}, (4,)),
        ({"noise": "banded", "rounds": 9, "min_separation": 0}, ("min-separation", 0)),
        ({"noise": "tree", "rounds": 9, "steps_per_tree": 3, "trees": 4}, (9,)),
    ],
)
def test_what_is_missing_or_does_not_fit_is_named(given, message):
    with refuses(ValueError, *message):
        stream(**given)


def test_other_relations_are_refused():
    with refuses(ValueError, "zero-out"):
        account_stream(
            noise="tree", noise_multiplier=1.0, rounds=8, min_separation=8, delta=1e-3,
            relation="add-remove",
        )  # fmt: skip
