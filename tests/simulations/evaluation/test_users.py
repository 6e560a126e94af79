"""Figures of users: each of them once, and percentiles drawn anew as by copying users."""

import numpy as np
import pytest

from simulations.evaluation.evaluate import PERCENTILES, user_figures, user_means


def test_a_users_mean_is_over_its_examples_and_all_seeds():
    users = np.array([7, 2, 7, 7, 2])
    right = np.array([[1, 0], [1, 1], [0, 0], [1, 1], [0, 1]], np.uint8)
    np.testing.assert_array_equal(user_means(users, right), [3 / 4, 3 / 6])


def figures(users, right, seed=0, replicates=50):
    return user_figures(
        users,
        right,
        public_only="public",
        generator=np.random.default_rng(seed),
        replicates=replicates,
    )


@pytest.mark.parametrize("number", [9, 10, 11, 40])
def test_percentiles_are_those_of_copied_users(number):
    means = np.random.default_rng(1).random(number)
    found = figures(np.arange(number), {"public": means[:, None]})["public"]
    again = np.random.default_rng(0)
    again.integers(0, number, (50, number))  # the shares of users come first
    drawn = means[again.integers(0, number, (50, number))]
    for percent in PERCENTILES:
        one = found[f"percentile_{percent}"]
        rule = {"q": percent / 100, "method": "inverted_cdf"}
        assert one.value == np.quantile(means, **rule)
        np.testing.assert_array_equal(one.draws, np.quantile(drawn, axis=1, **rule))
        assert len(np.unique(one.draws)) > 1


def test_a_user_of_many_examples_counts_once():
    users = np.repeat([0, 1, 2], [1, 1, 98])
    right = {"public": np.zeros((100, 1)), "other": (users == 2)[:, None]}
    found = figures(users, right)["other"]
    assert found["better_off"].value == pytest.approx(1 / 3)
    assert found["worse_off"].value == 0.0
    assert found["percentile_50"].value == 0.0
    assert set(figures(users, right)["public"]) == {"percentile_10", "percentile_50"}
