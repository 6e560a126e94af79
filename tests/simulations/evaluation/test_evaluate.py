"""From folds to figures: worked out by hand, pooled, and in settings with a known answer."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedpriv.datasets.stackexchange.splits import Split
from fedpriv.report.bootstrap import Interval
from simulations.evaluation.evaluate import (
    MEASURES,
    PERCENTILES,
    USER_FIGURES,
    differences,
    evaluate,
    user_figures,
    user_means,
)  # fmt: skip
from simulations.evaluation.held_out import Fold, pooled
from tests.harness.refusals import refuses
from tests.simulations.evaluation.made import DATA, fold, held, outcomes, random_fold


def rng(seed=0):
    return np.random.default_rng(seed)


def figures(*folds, public_only="public", best="central", **options):
    return evaluate(
        folds,
        public_only=public_only,
        best_nonprivate=best,
        generator=options.pop("generator", rng()),
        replicates=options.pop("replicates", 200),
        **options,
    )


# Users 0, 0, 0, 1, 1, 2 of threads 0, 0, 1, 1, 2, 3; user 2 has no training text.
EXAMPLES = held(
    [0, 0, 1, 1, 2, 3], [0, 0, 0, 1, 1, 2], [1, 1, 1, 1, 1, 0], num_tags=[2, 2, 1, 1, 3, 1]
)
BY_HAND = fold(
    EXAMPLES,
    public=[[1, 0, 0, 0, 0, 0]],
    private=[
        outcomes([1, 1, 1, 0, 1, 0], [2, 1, 0, 0, 3, 1], [1, 1, 0, 0, 1, 0.5]),
        outcomes([1, 0, 0, 0, 0, 1], [1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]),
    ],
    central=[[1, 1, 1, 1, 0, 1]],
)


class TestByHand:
    def test_values(self):
        found = figures(BY_HAND).models["private"]
        assert found.seeds == 2
        assert {name: round(each.value, 6) for name, each in found.values.items()} == {
            "accuracy": round((4 + 2) / 12, 6),
            "recall_at_5": round((7 + 3) / 20, 6),
            "ndcg_at_5": round((3.5 + 1) / 12, 6),
            # By user: (1 + 1/3) / 2, (1/2 + 0) / 2, (0 + 1) / 2.
            "accuracy_per_user": round((2 / 3 + 0.25 + 0.5) / 3, 6),
            "accuracy_with_training_text": round((4 + 1) / 10, 6),
            "accuracy_without_training_text": 0.5,
        }
        assert list(found.values) == list(MEASURES)

    def test_gains_and_shares_of_the_gap(self):
        found = figures(BY_HAND)
        private = found.models["private"]
        assert private.gains["accuracy"].value == pytest.approx(6 / 12 - 1 / 6)
        assert found.models["central"].gains["accuracy"].value == pytest.approx(4 / 6)
        assert private.closed_shares["accuracy"].value == pytest.approx((4 / 12) / (4 / 6))
        assert found.models["public"].gains == {}
        assert found.models["public"].closed_shares == {}
        assert found.models["central"].closed_shares == {}
        alone = figures(BY_HAND, best=None)
        assert alone.models["private"].closed_shares == {}
        assert alone.models["central"].gains["accuracy"].value == pytest.approx(4 / 6)

    def test_users(self):
        found = figures(BY_HAND).models
        # public: 1/3, 0, 0. private: 2/3, 1/4, 1/2. central: 1, 1/2, 1.
        values = {name: each.value for name, each in found["private"].users.items()}
        assert values == {
            "percentile_10": 0.25, "percentile_50": 0.5, "worse_off": 0.0, "better_off": 1.0,
        }  # fmt: skip
        assert list(found["private"].users) == list(USER_FIGURES)
        assert {name: each.value for name, each in found["public"].users.items()} == {
            "percentile_10": 0.0, "percentile_50": 0.0,
        }  # fmt: skip
        assert all(each.by_thread is None for each in found["private"].users.values())

    def test_counts(self):
        found = figures(BY_HAND)
        assert (found.num_examples, found.num_threads, found.num_users) == (6, 4, 3)
        assert (found.num_untrained_examples, found.num_untrained_users) == (1, 1)
        assert found.splits == ("by-thread-0",) and not found.shares_threads
        assert found.data == DATA and found.replicates == 200 and found.confidence == 0.95


def test_threads_and_users_are_different_samples():
    # Threads are all right or all wrong; users are right half of the time, each of them.
    threads, users = np.repeat(np.arange(40), 10), np.tile(np.arange(10), 40)
    one = fold(held(threads, users), public=[threads % 2])
    found = figures(one, best=None).models["public"].values["accuracy"]
    assert found.by_user == Interval(low=0.5, high=0.5)
    # 40 threads: 1.96 * 0.5 / 40^0.5 = 0.155 to either side.
    assert found.by_thread.low == pytest.approx(0.345, abs=0.05)
    assert found.by_thread.high == pytest.approx(0.655, abs=0.05)


class TestFolds:
    def test_pooled_folds_are_one_sample(self):
        models = {"public": (2, 0.3), "private": (2, 0.5), "central": (1, 0.8)}
        two = [random_fold(number, **models) for number in (0, 1)]
        found = figures(*two)
        examples, measured = pooled(two)
        whole = Fold(data=DATA, split=Split(), held=examples, outcomes=measured)
        assert found.models == figures(whole).models
        assert found.splits == ("by-thread-0", "by-thread-1")
        assert found.num_threads == 60 and found.num_users == 12
        assert "folds 0, 1 of 0 to 4" in found.split_said
        right = [np.mean([o.right for o in each.outcomes["private"]]) for each in two]
        sizes = [len(each.held) for each in two]
        assert found.models["private"].values["accuracy"].value == pytest.approx(
            np.average(right, weights=sizes)
        )

    def test_folds_that_do_not_add_up(self):
        models = {"public": (1, 0.3), "central": (1, 0.8)}
        one, other = random_fold(0, **models), random_fold(1, **models)
        few, more = {"public": other.outcomes["public"]}, other.outcomes["central"] * 2
        for changes in (
            {"data": {**DATA, "roster": "other"}}, {"split": Split(kind="by-user")},
            {"split": Split(measured_on="validation")}, {"outcomes": few},
            {"outcomes": {**other.outcomes, "central": more}},
        ):  # fmt: skip
            with pytest.raises(ValueError):
                figures(one, replace(other, **changes))
        figures(one, other)
        with pytest.raises(ValueError):
            figures(one, other, one)

    @pytest.mark.parametrize(
        ("options", "name"),
        [
            ({"public_only": "x"}, "x"),
            ({"best": "x"}, "x"),
            ({"best": "public"}, "public"),
            ({"replicates": 99}, 99),
        ],
    )
    def test_what_is_refused(self, options, name):
        with refuses(ValueError, name):
            figures(BY_HAND, **options)

    def test_no_folds_and_no_seeds(self):
        with pytest.raises(ValueError):
            figures()
        with pytest.raises(ValueError):
            fold(EXAMPLES, public=[])
        with refuses(ValueError, 2, 6):
            fold(EXAMPLES, public=[[1, 0]])


def test_json_is_plain():
    one = random_fold(public=(2, 0.3), central=(1, 0.8), private=(2, 0.5))
    found = figures(one)
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    value = document["models"]["private"]["values"]["accuracy"]
    assert value["value"] == found.models["private"].values["accuracy"].value
    assert (document["splits"], document["confidence"]) == (["by-thread-0"], 0.95)


def test_a_difference_to_public_only_is_the_gain():
    folds = [random_fold(n, public=(2, 0.3), whole=(2, 0.5)) for n in range(2)]
    gain = figures(*folds, best=None)

    def found(*pairs):
        return differences(folds, pairs, generator=rng(), replicates=200)

    one = found(("whole", "public"))["whole", "public"]
    assert one.value == pytest.approx(gain.models["whole"].gains["accuracy"].value)
    assert one.by_thread.low < one.value < one.by_thread.high
    (back,) = found(("public", "whole")).values()
    assert (back.value, back.by_user.low) == (-one.value, -one.by_user.high)


def test_a_users_mean_is_over_its_examples_and_all_seeds():
    users = np.array([7, 2, 7, 7, 2])
    right = np.array([[1, 0], [1, 1], [0, 0], [1, 1], [0, 1]], np.uint8)
    np.testing.assert_array_equal(user_means(users, right), [3 / 4, 3 / 6])


def of_users(users, right, seed=0, replicates=50):
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
    found = of_users(np.arange(number), {"public": means[:, None]})["public"]
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
    found = of_users(users, right)["other"]
    assert found["better_off"].value == pytest.approx(1 / 3)
    assert found["worse_off"].value == 0.0
    assert found["percentile_50"].value == 0.0
    assert set(of_users(users, right)["public"]) == {"percentile_10", "percentile_50"}
