"""How far one user moves C x: never further than is said, in every pattern that a limit allows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpriv.mechanisms.correlated.binary_tree import BinaryTree
from fedpriv.mechanisms.correlated.noise import Correlated
from fedpriv.mechanisms.correlated.optimise import (
    optimised_bands,
    optimised_buffers,
    prefix_error,
    square_root_bands,
)
from fedpriv.mechanisms.event import Event
from fedpriv.mechanisms.privatizer import Participation
from fedpriv.privacy.accounting import epsilon
from tests.harness.refusals import refuses
from tests.mechanisms.correlated.strategies import LIMIT, ROWS, STRATEGIES, matrix, worst

LIMITS = [
    Participation(most=1, num_rows=ROWS),
    LIMIT,
    Participation(most=2, min_separation=9, num_rows=ROWS),
    Participation(most=3, min_separation=6, num_rows=ROWS),
    Participation(most=3, min_separation=2, num_rows=ROWS),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_no_pattern_moves_it_further_than_is_said(name, limit):
    strategy = STRATEGIES[name]
    try:
        said = strategy.sensitivity(limit)
    except ValueError:
        assert name == "bands of both signs"
        assert limit.min_separation < strategy.bands and limit.count > 1
        return
    brute = worst(strategy, limit)
    assert brute <= said * (1 + 1e-9)
    last = (limit.count - 1) * limit.min_separation + getattr(strategy, "bands", 1)
    if "completed" not in name and last <= ROWS:  # else a bound: columns are cut off at the end
        assert brute >= said * (1 - 1e-9)
    one = strategy.one_row(limit)
    if one is not None:  # parts of different rows are at right angles
        gram = matrix(strategy).T @ matrix(strategy)
        apart = limit.min_separation if limit.most > 1 else ROWS
        assert np.abs(np.triu(gram, apart)).max() < 1e-12
        assert math.sqrt(gram.diagonal().max()) <= one * (1 + 1e-9)


def test_a_part_of_one_row_is_priced_alone_only_where_a_tree_has_one_row_of_a_user():
    tree = BinaryTree(num_rows=12, restart=4)
    assert tree.one_row(Participation(most=3, min_separation=4, num_rows=12)) == np.sqrt(3)
    assert tree.one_row(Participation(most=3, min_separation=3, num_rows=12)) is None


def test_variances_of_trees():
    heights = [BinaryTree(num_rows=2**h).prefix_variance()[-1] for h in range(6)]
    wanted = [1, 0.666667, 0.571429, 0.533333, 0.516129, 0.507937]
    np.testing.assert_allclose(heights, wanted, atol=2e-6)
    prefixes = [1, 0.666667, 1.666667, 0.571429, 1.571429, 1.238095, 2.238095, 0.533333]
    np.testing.assert_allclose(BinaryTree(num_rows=8).prefix_variance(), prefixes, atol=2e-6)
    vanilla = BinaryTree(num_rows=8, estimate="vanilla").prefix_variance()
    np.testing.assert_allclose(vanilla, [1, 1, 2, 1, 2, 2, 3, 1])


THOUSAND = Participation(most=50, min_separation=20, num_rows=1000)


@pytest.mark.parametrize(
    ("bands", "sensitivity", "error"),
    [(1, 7.0711, 223.6), (20, 10.0396, 64.4), (1000, 40.855, 73.8)],
)
def test_the_table_of_a_thousand_rows(bands, sensitivity, error):
    """1,000 rows, 20 apart, 50 times: figures of another library, made by brute force."""
    strategy = square_root_bands(bands, 1000)
    said = strategy.sensitivity(THOUSAND)
    assert said == pytest.approx(sensitivity, abs=6e-4)
    assert said * math.sqrt(strategy.prefix_variance().max()) == pytest.approx(error, abs=0.06)


def test_optimised_bands_are_as_good_as_theirs():
    """55.3 in units of the sensitivity; ours have the same error to 0.1 %."""
    strategy = optimised_bands(20, THOUSAND)
    said = strategy.sensitivity(THOUSAND)
    assert said * math.sqrt(strategy.prefix_variance().max()) == pytest.approx(55.3, rel=2e-3)
    unit = said / float(np.linalg.norm(strategy.coefficients))
    assert unit == pytest.approx(7.0711, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("bands", "wanted"), [(1, 5.932), (20, 9.530), (1000, 79.9)])
def test_prices_of_square_roots(bands, wanted):
    noise = Correlated(
        noise_multiplier=4.0, strategy=square_root_bands(bands, 1000), participation=THOUSAND
    )
    event = Event(kind="gaussian", noise_multiplier=noise.event.sigma)
    found = epsilon(event, 1, delta=1 / 400, relation="zero-out").value
    assert found == pytest.approx(wanted, rel=1e-3)


def test_a_tree_of_a_thousand_rows_answers_its_complete_nodes_alone():
    """Another library has at least 72.07, of 1,024 leaves: the root of those is never complete."""
    filled = Participation(most=50, min_separation=20, num_rows=1024)
    assert 72.07 <= BinaryTree(num_rows=1024).sensitivity(filled) < 72.6
    assert BinaryTree(num_rows=1000).sensitivity(THOUSAND) == pytest.approx(45.033, abs=1e-3)
    completed = BinaryTree(num_rows=1000, restart=999, completion=True)
    assert completed.sensitivity(THOUSAND) >= 72.07


class TestOptimised:
    def cost(self, coefficients, momentum=0.0):
        column = np.zeros(ROWS)
        column[: len(coefficients)] = coefficients
        return prefix_error(column, momentum) * float(np.linalg.norm(column))

    def test_bands_beat_their_start_and_what_is_near(self):
        found = optimised_bands(6, LIMIT)
        best = self.cost(found.coefficients)
        assert best < self.cost(square_root_bands(6, ROWS).coefficients)
        for k in range(1, 6):
            for step in (-2e-3, 2e-3):
                moved = list(found.coefficients)
                moved[k] += step
                assert best <= self.cost(moved) * (1 + 1e-6)

    def test_buffers_come_near_bands_and_fall(self):
        bands, buffers = optimised_bands(6, LIMIT), optimised_buffers(3, LIMIT)
        column = buffers.column()
        assert (np.diff(column) <= 0).all() and column.min() >= 0

        def cost(one):
            return one.sensitivity(LIMIT) * math.sqrt(one.prefix_variance().mean())

        assert cost(bands) <= cost(buffers) * 1.0001 <= cost(bands) * 1.2
        assert cost(buffers) < 0.8 * cost(square_root_bands(1, ROWS))

    def test_momentum_is_part_of_the_error(self):
        plain, moved = (optimised_bands(6, LIMIT, momentum=beta) for beta in (0.0, 0.9))
        assert self.cost(moved.coefficients, 0.9) < self.cost(plain.coefficients, 0.9)

    def test_bands_that_would_add_up_are_refused(self):
        with refuses(ValueError, 7, 6):
            optimised_bands(7, LIMIT)
        assert optimised_bands(22, Participation(most=1, num_rows=ROWS)).bands == 22

    @pytest.mark.parametrize("value", [-1, 7, 2.0, True])
    def test_numbers_of_buffers(self, value):
        with refuses(ValueError, value, 6):
            optimised_buffers(value, LIMIT)


class TestLimit:
    def test_covers_says_what_is_allowed(self):
        assert LIMIT.covers(LIMIT)
        assert LIMIT.covers(Participation(most=2, min_separation=8, num_rows=ROWS))
        assert LIMIT.covers(Participation(most=1, num_rows=10))
        for most, apart, rows in [(4, 5, ROWS), (5, 6, 30), (4, 6, 23), (4, 6, None)]:
            other = Participation(most=most, min_separation=apart, num_rows=rows)
            assert not LIMIT.covers(other), other

    @pytest.mark.slow
    def test_count_is_what_has_room(self):
        assert Participation(most=9, min_separation=6, num_rows=22).count == 4
        assert Participation(most=9, min_separation=6, num_rows=24).count == 4
        assert Participation(most=9, min_separation=6, num_rows=25).count == 5

    def test_noise_for_other_rows_is_refused(self):
        with refuses(ValueError, 22, 21):
            Correlated(noise_multiplier=1.0, strategy=BinaryTree(num_rows=21), participation=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "apart", "most", "momentum"), [(100, 20, 5, 0.9), (90, 1, 1, 0.99)]
)
def test_buffers_are_found_for_a_server_of_much_momentum(rows, apart, most, momentum):
    """The best first coefficient below the diagonal is then 1, and none may round above it."""
    limit = Participation(most=most, min_separation=apart, num_rows=rows)
    strategy = optimised_buffers(3, limit, momentum=momentum)
    assert 0.9 < sum(strategy.outputs) <= 1.0
    assert strategy.sensitivity(limit) >= math.sqrt(most)
