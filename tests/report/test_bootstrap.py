"""The clustered bootstrap, against copying rows, by hand, and in settings with a known answer."""

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.report.bootstrap import Interval, Ratio, Resampled, cluster_weights, resampled
from tests.harness.refusals import refuses

R = 300


def rng(seed=0):
    return np.random.default_rng(seed)


def mean(values):
    """A plain mean; values (n,) or (n, seeds)."""
    values = np.asarray(values, np.float64)
    values = values[:, None] if values.ndim == 1 else values
    return Ratio(values=values, counts=np.ones(len(values)))


def draw(clusters, generator=None, replicates=R, **ratios):
    generator = rng() if generator is None else generator
    return resampled(
        np.asarray(clusters), ratios.items(), generator=generator, replicates=replicates
    )


def known(value, draws):
    return Resampled(value=value, draws=np.asarray(draws, np.float64))


class TestDraws:
    def test_clusters_are_copied_whole(self):
        clusters = np.array([7, 7, 3, 9, 3, 7, 9, 9, 1])
        values = rng(2).normal(size=9)
        found = draw(clusters, a=mean(values))["a"].draws
        names = np.unique(clusters)
        for picks, got in zip(rng().integers(0, 4, (R, 4)), found, strict=True):
            rows = np.concatenate([np.flatnonzero(clusters == names[pick]) for pick in picks])
            assert got == pytest.approx(values[rows].mean(), rel=1e-12)

    @pytest.mark.slow
    def test_weights_are_multinomial_in_every_block(self):
        blocks = list(cluster_weights(rng(), (1 << 22) // 3, 8))
        assert [len(block) for block in blocks] == [3, 3, 2]
        for block in blocks:
            assert (block.sum(axis=1) == block.shape[1]).all()
        # Poisson of mean 1 nearly: 0.368 of a million are not drawn; sd 0.0005.
        assert (blocks[0][0] == 0).mean() == pytest.approx(np.exp(-1), abs=0.003)
        assert not np.array_equal(blocks[0][0], blocks[0][1])

    @given(seed=st.integers(0, 10**6))
    def test_the_order_of_examples_does_not_matter(self, seed):
        clusters = rng(seed).integers(0, 6, 30)
        values = rng(seed + 1).integers(0, 9, (30, 2)).astype(float)
        order = rng(seed + 2).permutation(30)
        one = draw(clusters, a=mean(values))["a"]
        other = draw(clusters[order], a=mean(values[order]))["a"]
        assert one.value == other.value
        np.testing.assert_array_equal(one.draws, other.draws)

    def test_examples_of_weight_none_give_no_value(self):
        nothing = Ratio(values=np.zeros((4, 1)), counts=np.zeros(4))
        found = draw([0, 0, 1, 1], a=nothing)["a"]
        assert found.value is None and found.interval() is None
        # A replicate may miss the only cluster that has a weight: no interval either.
        rare = Ratio(values=np.eye(4)[:, :1], counts=np.eye(4)[0])
        found = draw(np.arange(4), a=rare)["a"]
        assert found.value == 1.0 and np.isnan(found.draws).any() and found.interval() is None

    @pytest.mark.parametrize(
        ("make", "said"),
        [
            (lambda: draw([], a=mean([])), ()),
            (lambda: draw([0, 1], a=mean([1.0])), (1, 2)),
            (lambda: mean(np.zeros((3, 0))), ()),
            (lambda: Ratio(values=np.zeros((3, 1)), counts=np.zeros(2)), ()),
            (lambda: list(cluster_weights(rng(), 3, 0)), (1,)),
        ],
    )
    def test_what_is_refused(self, make, said):
        with refuses(ValueError, *said):
            make()


def test_one_cluster_says_nothing():
    found = draw([5, 5, 5], a=mean([0.0, 1.0, 1.0]))["a"]
    assert found.value == pytest.approx(2 / 3) and found.interval() is None


def test_their_variance_is_that_of_a_mean_of_so_many():
    """Draws of S - 1 seeds: the variance of the mean is s² / S, and not (S - 1) / S of it."""
    seeds = np.array([0.0, 1.0, 2.0, 5.0, 7.0])
    # Examples do not differ, so that only seeds do.
    found = draw([0, 1], a=mean(np.tile(seeds, (2, 1))), replicates=40_000)["a"]
    assert found.value == seeds.mean()
    # A variance of 40,000 draws: 0.7 % a standard deviation; 20 % apart from the other rule.
    assert found.draws.var() == pytest.approx(seeds.var(ddof=1) / 5, rel=0.04)


def test_seeds_of_one_number_stay_together():
    values = rng(4).normal(size=(30, 5))
    found = draw(np.arange(30), a=mean(values), b=mean(values + 1.0))
    np.testing.assert_allclose((found["b"] - found["a"]).draws, 1.0, rtol=1e-12)


def test_identical_models_differ_by_exactly_nothing():
    values = rng(6).random((50, 3))
    found = draw(np.arange(50) // 4, a=mean(values), b=mean(values.copy()))
    apart = found["a"] - found["b"]
    assert apart.value == 0.0 and apart.interval() == Interval(low=0.0, high=0.0)
    assert found["a"].interval() != Interval(low=found["a"].value, high=found["a"].value)


def test_a_share_of_the_gap_by_hand():
    low, high = known(0.2, [0.2, 0.1, 0.3]), known(0.6, [0.6, 0.5, 0.5])
    share = known(0.5, [0.5, 0.2, 0.5]).share_of(low, high)
    assert share.value == pytest.approx(0.75)
    np.testing.assert_allclose(share.draws, [0.75, 0.25, 1.0])


def test_no_gap_no_share():
    a, b = known(0.3, [0.3, 0.3]), known(0.2, [0.2, 0.2])
    assert b.share_of(a, b).value is None and b.share_of(a, b).interval() is None
    assert a.share_of(a, a).value is None


def test_a_share_has_an_interval_where_the_gap_has_one_above_nothing():
    draws = np.linspace(1.0, 2.0, 1000)
    zero = known(0.0, np.zeros(1000))
    gain = known(0.5, draws / 2)
    for bad in range(0, 60):
        ends = draws.copy()
        ends[:bad] = -0.1
        gap = known(1.0, ends)
        share, told = gain.share_of(zero, gap).interval(), gap.interval().low > 0
        assert (share is not None) == told, bad
    assert not told and bad == 59


class TestCoverage:
    """400 data sets of 200 threads of 1 to 40 sentences, and of models of 5 seeds.

    A share of 400 that is 0.95 in truth has a standard deviation of 0.011: below 0.91 for one seed
    of this test in 6,000.
    """

    SETS, THREADS, SEEDS = 400, 200, 5
    TRUTH: ClassVar = 0.05

    def covered(self, *, seed_sd, by="thread", levels="both", sets=SETS):
        """Return how often an interval of a difference of two models holds the true one."""
        hits = 0
        for number in range(sets):
            draws = rng([11, number])
            sizes = np.minimum(draws.geometric(0.12, self.THREADS), 40)
            threads = np.repeat(np.arange(self.THREADS), sizes)
            hard = draws.normal(size=self.THREADS)[threads]  # common to both models
            apart = draws.normal(self.TRUTH, 0.5, self.THREADS)[threads]
            seeds = draws.normal(0.0, seed_sd, (2, self.SEEDS))
            noise = draws.normal(0.0, 0.5, (2, len(threads), self.SEEDS))
            a = hard[:, None] + seeds[0] + noise[0]
            b = (hard + apart)[:, None] + seeds[1] + noise[1]
            if levels == "clusters":
                a, b = a.mean(axis=1), b.mean(axis=1)
            clusters = threads if by == "thread" else np.arange(len(threads))
            found = draw(clusters, draws, 200, a=mean(a), b=mean(b))
            ends = (found["b"] - found["a"]).interval()
            hits += ends.low <= self.TRUTH <= ends.high
        return hits / sets

    @pytest.mark.slow
    def test_where_threads_differ_more_than_seeds(self):
        assert 0.91 < self.covered(seed_sd=0.01) < 0.99

    @pytest.mark.slow
    def test_where_seeds_matter_as_much(self):
        assert 0.89 < self.covered(seed_sd=0.08) < 0.99
        # 0.83 with seeds as they are; 0.89 is 3.2 standard deviations off.
        assert self.covered(seed_sd=0.08, levels="clusters") < 0.89
