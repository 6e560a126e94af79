"""Rows of every strategy: those of the matrix written out, of the variance that is foretold."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest
from scipy import stats

from fedpriv.mechanisms.correlated.noise import Correlated
from fedpriv.mechanisms.correlated.optimise import square_root_bands
from fedpriv.mechanisms.correlated.toeplitz import Banded, Buffered
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.mechanisms.privatizer import Participation
from fedpriv.mechanisms.rounded_gaussian import rounded_gaussian
from fedpriv.rng import Key
from tests.harness.refusals import refuses
from tests.mechanisms.correlated.strategies import ROWS, STRATEGIES, TREES, matrix

EVERY = pytest.mark.parametrize("name", STRATEGIES)
TEMPLATE = {"a": np.zeros((3, 5), np.float32), "b": np.zeros(4, np.float32)}
KEY = Key.simulation(7)
ONCE = Participation(most=1, num_rows=ROWS)


def rows_of(strategy, fresh, bits=None):
    """Return all rows `(T, n)` of a tensor."""
    return np.array([row.reshape(-1) for row in strategy.rows(KEY, fresh, bits=bits)])


def recorded(draw):
    """Return a `fresh` that keeps what it drew by the key's own numbers, and the record."""
    drawn = []

    def fresh(key):
        row = draw(key)
        drawn.append(np.array(row))
        return row

    return fresh, drawn


@EVERY
def test_variances_are_those_of_rows_made_of_unit_vectors(name):
    """Each z alone goes through: the sum of squares of what it becomes is the variance."""
    strategy = STRATEGIES[name]
    keys = []

    def listing(key):
        keys.append(key)
        return np.zeros(1, np.float32)

    rows_of(strategy, listing)
    size = len(set(keys))
    place = {key: number for number, key in enumerate(dict.fromkeys(keys))}

    def unit(key):
        row = np.zeros(size, np.float32)
        row[place[key]] = 1.0
        return row

    weights = rows_of(strategy, unit).astype(np.float64)
    np.testing.assert_allclose(np.sum(weights**2, 1), strategy.row_variance(), rtol=2e-4)
    prefix = np.sum(np.cumsum(weights, 0) ** 2, 1)
    np.testing.assert_allclose(prefix, strategy.prefix_variance(), rtol=2e-4)


@EVERY
def test_whole_rows_follow_from_whole_numbers_alone(name):
    """In exact fractions: each row is what the strategy makes of fresh and earlier whole numbers.

    That is what makes x + row a function of the mechanism's own answers. The shift of a buffered
    strategy's float64 is within the slack that its noise pays for; others have none but rounding.
    """
    strategy, scale = STRATEGIES[name], 2.0**25
    bits = strategy.bits(scale)

    def whole(key):
        return rounded_gaussian(key, (19,), scale * 2.0**bits)

    fresh, drawn = recorded(whole)
    found = rows_of(strategy, fresh, bits=bits)
    assert found.dtype == np.int64
    if name in TREES:
        assert bits == 0 and strategy.slack(scale, bits) == 0.0
        return
    z, c = drawn, [Fraction(float(v)) for v in matrix(strategy)[:, 0]]
    slack = strategy.slack(scale, bits)
    for i in range(19):
        e = [Fraction(int(found[t, i])) for t in range(ROWS)]
        for t in range(ROWS):
            real = Fraction(int(z[t][i]), 2**bits) - sum(c[k] * e[t - k] for k in range(1, t + 1))
            assert abs(e[t] - real) <= Fraction(1, 2) + Fraction(slack), (t, i)


@pytest.mark.parametrize("name", ["tree", "trees", "completed trees"])
def test_whole_estimates_of_nodes_do_not_need_the_sums(name):
    """S + E is a rounding of weighted answers S + K of nodes alone, whatever the sums S are.

    Rows x are added to the whole rows of noise; the same estimates, made of noisy answers of nodes
    with x in them, give the same prefixes to the last bit.
    """
    strategy = STRATEGIES[name]
    x = np.random.default_rng(3).integers(-(2**30), 2**30, (ROWS, 19))

    def noise(own):
        return rounded_gaussian(own, (19,), 2.0**20)

    def answer(tree, height, place):
        """Return a node's estimate by inverse variance, and its variance; no rows are 0."""
        first, stop = place << height, min((place + 1) << height, strategy.steps)
        if first >= strategy.steps:
            return 0, 0.0
        own = noise(KEY.fold(tree).fold(height).fold(place + 1))
        own = own + x[tree * strategy.steps :][first:stop].sum(0)
        if height == 0:
            return own, 1.0
        (left, v), (right, u) = (answer(tree, height - 1, 2 * place + i) for i in (0, 1))
        share = round((v + u) / (1 + v + u) * 2**16)
        both = (share * own + (2**16 - share) * (left + right) + 2**15) >> 16
        return both, (share / 2**16) ** 2 + (1 - share / 2**16) ** 2 * (v + u)

    released, done = np.cumsum(x + rows_of(strategy, noise, bits=0), axis=0), 0
    for t in range(ROWS):
        tree, within = divmod(t, strategy.steps)
        number, here, start = within + 1, 0, 0
        for height in reversed(range(number.bit_length())):
            if number >> height & 1:
                here, start = here + answer(tree, height, start >> height)[0], start + (1 << height)
        np.testing.assert_array_equal(released[t], done + here)
        if number == strategy.steps:
            whole = (number - 1).bit_length(), 0
            done = done + (answer(tree, *whole)[0] if strategy.completion else here)


@pytest.mark.parametrize("name", ["one band", "no buffer"])
def test_one_band_and_no_buffer_are_independent_noise_to_the_bit(name):
    noise = Correlated(noise_multiplier=1.5, strategy=STRATEGIES[name], participation=ONCE)
    key, secret = Key.simulation(4), Key.from_bytes(bytes(range(32)), "secure")
    given, plain = {"template": TEMPLATE, "sensitivity": 2.0}, Gaussian(noise_multiplier=1.5)
    rows = noise.draws(**given, key=key), noise.draws(**given, granularity=2.0**-23, key=secret)
    for row, (found, drawn) in enumerate(islice(zip(*rows, strict=True), 3), 1):
        (alone,) = plain.draws(**given, key=key.fold(row))
        for tensor in TEMPLATE:
            np.testing.assert_array_equal(found[tensor], alone[tensor])
        assert all(array.dtype == np.int64 for array in drawn.values())
    assert noise.event.sigma == noise.one_row == 1.5


@EVERY
def test_rows_of_a_tensor_do_not_hang_on_the_other_tensors(name):
    noise = Correlated(noise_multiplier=1.5, strategy=STRATEGIES[name], participation=ONCE)
    given = {"sensitivity": 2.0, "key": KEY}
    together = islice(noise.draws(template=TEMPLATE, **given), ROWS)
    alone = {n: noise.draws(template={n: TEMPLATE[n]}, **given) for n in TEMPLATE}
    for row in together:
        assert {n: array.shape for n, array in row.items()} == {"a": (3, 5), "b": (4,)}
        for n, array in row.items():
            np.testing.assert_array_equal(array, next(alone[n])[n])


@EVERY
def test_rows_are_gaussian(name):
    """Kolmogorov and Smirnov's test of the last row, 19,000 samples, false alarms 1e-6."""
    noise = Correlated(noise_multiplier=1.0, strategy=STRATEGIES[name], participation=ONCE)
    template = {"w": np.zeros(19_000, np.float32)}
    drawn = noise.draws(template=template, sensitivity=1.0, key=Key.simulation(1))
    row = next(islice(drawn, ROWS - 1, None))
    scale = math.sqrt(noise.strategy.row_variance()[-1])
    assert stats.kstest(row["w"] / scale, "norm").pvalue > 1e-6


def test_whole_rows_that_grow_beyond_whole_numbers_are_refused():
    """1 / (1 - x - x²) is Fibonacci's series: by row 60 sums of bands are beyond 63 bits."""
    limit = Participation(most=2, min_separation=30, num_rows=60)
    key = Key.from_bytes(bytes(range(32)), "secure")

    def drawn(coefficients):
        strategy = Banded(coefficients=coefficients, num_rows=60)
        noise = Correlated(noise_multiplier=1.0, strategy=strategy, participation=limit)
        given = {"template": TEMPLATE, "sensitivity": 1.0, "granularity": 2.0**-20}
        return next(noise.draws(**given, key=key))

    drawn((1.0, 0.5, 0.25))
    with pytest.raises(ValueError):
        drawn((1.0, -1.0, -1.0))


def test_slack_is_of_the_farthest_that_rows_of_buffers_go():
    """Of one short buffer 1 / C(x) is 1 - (1 - d) x + (1 - d)² x² ...: signs that alternate add up.

    Then e is far more than three times the largest z, and so are buffers, of which double precision
    loses the last bits.
    """
    rows, decay, scale = 4000, 2.0**-16, 2.0**25
    strategy = Buffered(outputs=(1.0,), decays=(decay,), num_rows=rows)
    reach = 1.0 + sum((1.0 - decay) ** k for k in range(rows - 1))
    bits = strategy.bits(scale)
    lost = strategy.slack(scale, bits) - 2.0 ** -(bits + 1)
    assert lost >= 2.0**-52 * reach * 38.8 * scale


def test_slack_is_paid_for_where_one_row_of_a_user_is_amplified():
    """Rounding follows one row for bands - 1 rows, and rows may be fewer than as often as many."""
    strategy = square_root_bands(20, 21)
    limit = Participation(most=2, min_separation=20, num_rows=21)
    noise = Correlated(noise_multiplier=1.0, strategy=strategy, participation=limit)
    template, step = {"w": np.zeros(10_000, np.float32)}, 2.0**-24
    stddev, bits = noise._on_grid(template, 1.0, step)
    slack, one = strategy.slack(2.0**25, bits), strategy.one_row(limit)
    assert stddev >= 1.0 + 2.0 * slack * math.sqrt(19 * 10_000) * step / one


@EVERY
def test_there_are_no_more_rows_than_it_was_made_for(name):
    noise = Correlated(noise_multiplier=1.0, strategy=STRATEGIES[name], participation=ONCE)
    rows = noise.draws(template=TEMPLATE, sensitivity=1.0, key=KEY)
    assert len(list(islice(rows, ROWS))) == ROWS
    with refuses(ValueError, ROWS):
        next(rows)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Banded(coefficients=(0.5,), num_rows=4), ["(0.5,)"]),
        (lambda: Banded(coefficients=(1.0, 1 / 3), num_rows=4), [1 / 3]),
        (lambda: Banded(coefficients=(1.0, 1.5), num_rows=4), [1.5]),
        (lambda: Banded(coefficients=(1.0, 0.5), num_rows=1), [2, 1]),
        (lambda: Buffered(outputs=(0.5,), decays=(), num_rows=4), [1, 0]),
        (lambda: Buffered(outputs=(0.5,), decays=(1.0,), num_rows=4), ["decays", 1.0]),
        (lambda: Buffered(outputs=(-0.5,), decays=(0.5,), num_rows=4), ["outputs", -0.5]),
        (lambda: Buffered(outputs=(0.75, 0.5), decays=(0.5, 0.25), num_rows=4), [(0.75, 0.5)]),
    ],
)
def test_what_is_no_strategy_is_refused_by_name(make, named):
    with refuses(ValueError, *named):
        make()
