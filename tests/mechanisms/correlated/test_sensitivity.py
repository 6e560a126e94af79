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
from fedpriv.mechanisms.privatizer import Participation
from fedpriv.privacy.accounting import epsilon
from fedpriv.privacy.event import Event
from tests.mechanisms.correlated.strategies import LIMIT, ROWS, STRATEGIES, matrix, patterns

LIMITS = [
    Participation(most=1, num_rows=ROWS),
    LIMIT,
    Participation(most=2, min_separation=9, num_rows=ROWS),
    Participation(most=3, min_separation=6, num_rows=ROWS),
    Participation(most=3, min_separation=2, num_rows=ROWS),
]


def worst(strategy, limit):
    """Return the largest ‖C u‖ over patterns, every contribution the same unit vector."""
    made = matrix(strategy)
    return max(np.linalg.norm(made[:, list(rows)].sum(1)) for rows in patterns(limit))


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_no_pattern_moves_it_further_than_is_said(name, subtests):
    for limit in LIMITS:
        with subtests.test(limit=limit):
            check_sensitivity(name, limit)


def check_sensitivity(name, limit):
    strategy = STRATEGIES[name]
    try:
        said = strategy.sensitivity(limit)
    except ValueError as error:
        assert name == "bands of both signs" and "never rise" in str(error)
        assert limit.min_separation < strategy.bands and limit.count > 1
        return
    brute = worst(strategy, limit)
    assert brute <= said * (1 + 1e-9)
    last = (limit.count - 1) * limit.min_separation + getattr(strategy, "bands", 1)
    if "completed" not in name and last <= ROWS:  # else a bound: columns are cut off at the end
        assert brute >= said * (1 - 1e-9)
    one = strategy.one_row(limit)
    if one is not None:  # parts of different rows are at right angles
        made, cross = matrix(strategy), 0.0
        for rows in patterns(limit):
            gram = made[:, list(rows)].T @ made[:, list(rows)]
            cross = max(cross, float(np.abs(gram - np.diag(np.diag(gram))).max()))
        assert cross < 1e-12
        assert np.linalg.norm(made, axis=0).max() <= one * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_contributions_of_any_direction_move_it_no_further(name):
    """2,000 random users: unit vectors or shorter, of random directions, in random patterns."""
    strategy, random = STRATEGIES[name], np.random.default_rng(5)
    if name == "bands of both signs":
        limit = Participation(most=4, min_separation=6, num_rows=ROWS)
    else:
        limit = Participation(most=4, min_separation=3, num_rows=ROWS)
    made, said = matrix(strategy), strategy.sensitivity(limit)
    for _ in range(2_000):
        rows, at = [], int(random.integers(0, 4))
        while at < ROWS and len(rows) < limit.most:
            rows.append(at)
            at += limit.min_separation + int(random.integers(0, 3))
        u = random.normal(size=(len(rows), 3))
        u /= np.linalg.norm(u, axis=1, keepdims=True) / random.uniform(0.5, 1.0, (len(rows), 1))
        assert np.linalg.norm(made[:, rows] @ u) <= said * (1 + 1e-9)


@pytest.mark.parametrize(
    ("most", "apart", "rows", "squared"),
    [(1, 1, 8, 4), (2, 4, 8, 10), (2, 3, 8, 12), (2, 1, 8, 14), (3, 3, 10, 20), (3, 2, 10, 20)],
)
def test_vectors_of_trees(most, apart, rows, squared):
    limit = Participation(most=most, min_separation=apart, num_rows=rows)
    assert BinaryTree(num_rows=rows).sensitivity(limit) ** 2 == pytest.approx(squared)


def test_a_trees_bound_is_not_always_reached():
    limit = Participation(most=4, min_separation=3, num_rows=13)
    tree = BinaryTree(num_rows=13, estimate="vanilla")
    assert tree.sensitivity(limit) == 5.0
    assert worst(tree, limit) == pytest.approx(23**0.5)


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
    ("make", "sensitivity", "error"),
    [
        (lambda: square_root_bands(1, 1000), 7.0711, 223.6),
        (lambda: square_root_bands(20, 1000), 10.0396, 64.4),
        (lambda: square_root_bands(1000, 1000), 40.855, 73.8),
    ],
)
def test_the_table_of_a_thousand_rows(make, sensitivity, error):
    """1,000 rows, 20 apart, 50 times: figures of another library, made by brute force."""
    strategy = make()
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
@pytest.mark.parametrize(
    ("bands", "z", "wanted"),
    [(1, 4.0, 5.932), (20, 4.0, 9.530),
     (1000, 4.0, 79.9)],
)  # fmt: skip
def test_prices_of_square_roots(bands, z, wanted):
    noise = Correlated(
        noise_multiplier=z, strategy=square_root_bands(bands, 1000), participation=THOUSAND
    )
    event = Event(kind="gaussian", noise_multiplier=noise.cost.value)
    found = epsilon(event, 1, delta=1 / 400, relation="zero-out").value
    assert found == pytest.approx(wanted, rel=1e-3)


def test_a_tree_of_a_thousand_rows_answers_its_complete_nodes_alone():
    """Another library has at least 72.07, of 1,024 leaves: the root of those is never complete."""
    filled = Participation(most=50, min_separation=20, num_rows=1024)
    assert 72.07 <= BinaryTree(num_rows=1024).sensitivity(filled) < 72.6
    assert BinaryTree(num_rows=1000).sensitivity(THOUSAND) == pytest.approx(45.033, abs=1e-3)
    completed = BinaryTree(num_rows=1000, restart=999, completion=True)
    assert completed.sensitivity(THOUSAND) >= 72.07


def test_a_single_participation_is_not_to_be_had_in_a_run_of_several():
    """The sensitivity of one row, 3.2 of a tree, would be a fourteenth of the noise it takes."""
    tree = BinaryTree(num_rows=1000)
    once = tree.sensitivity(Participation(most=1, num_rows=1000))
    assert once == pytest.approx(math.sqrt(10))
    assert tree.sensitivity(THOUSAND) > 14 * once


class TestOptimised:
    def test_bands_beat_their_start_and_what_is_near(self):
        found = optimised_bands(6, LIMIT)
        length = float(np.linalg.norm(found.coefficients))

        def cost(coefficients):
            column = np.zeros(ROWS)
            column[: len(coefficients)] = coefficients
            return prefix_error(column) * float(np.linalg.norm(column))

        best = cost(found.coefficients)
        assert best < cost(square_root_bands(6, ROWS).coefficients)
        for k in range(1, 6):
            for step in (-2e-3, 2e-3):
                moved = list(found.coefficients)
                moved[k] += step
                assert best <= cost(moved) * (1 + 1e-6)
        assert length > 1.0

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
        columns = []
        for one in (plain, moved):
            column = np.zeros(ROWS)
            column[:6] = one.coefficients
            columns.append(column / np.linalg.norm(column))

        def normal(column):
            return column / column[0], float(1.0 / column[0])

        first, second = (normal(column) for column in columns)
        assert prefix_error(second[0], 0.9) * second[1] < prefix_error(first[0], 0.9) * first[1]

    def test_bands_that_would_add_up_are_refused(self):
        with pytest.raises(ValueError, match="7 bands overlap where one user's rows are 6 apart"):
            optimised_bands(7, LIMIT)
        assert optimised_bands(22, Participation(most=1, num_rows=ROWS)).bands == 22

    @pytest.mark.parametrize("value", [-1, 7, 2.0, True])
    def test_numbers_of_buffers(self, value):
        with pytest.raises(ValueError, match="whole number, 0 to 6"):
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
        assert len(list(patterns(Participation(most=9, min_separation=21, num_rows=22)))) == 23

    def test_noise_for_other_rows_is_refused(self):
        with pytest.raises(ValueError, match="limited for 22 rows and the strategy has 21"):
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
