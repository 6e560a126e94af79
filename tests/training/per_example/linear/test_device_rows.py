"""Rows on a device give what compiled loops give, and each alone what it gives in a batch."""

import numpy as np
import pytest
import torch
from scipy import sparse

from fedpriv.training.per_example import device_rows
from fedpriv.training.per_example.device_rows import (
    DeviceRows,
    folded,
    keeps_rows_apart,
    product_width,
)
from fedpriv.training.per_example.sparse_sums import SparseRows

ROWS, INPUTS, CLASSES = 40, 90, 5
NONE = np.zeros((0, 0), np.float32)
EVERY = np.arange(ROWS)


@pytest.fixture(params=["blocks", "few blocks", "pairs", "few pairs"])
def both(request, monkeypatch):
    """The same rows for loops and on a device, of lengths 0 to 90, and further operands."""
    if "few" in request.param:
        monkeypatch.setattr(device_rows, "bytes_at_once", lambda device: 1)
    if "pairs" in request.param:
        monkeypatch.setattr(device_rows, "_MOST_COLUMNS", 0)
    return some_rows("cpu")


def some_rows(device):
    rng = np.random.default_rng(0)
    kept = rng.random((ROWS, INPUTS)) < rng.permutation(np.linspace(0.0, 1.0, ROWS))[:, None]
    here = SparseRows.of(sparse.csr_matrix(rng.normal(size=(ROWS, INPUTS)) * kept))
    lengths = np.diff(here.indptr)
    assert lengths.min() == 0 and lengths.max() == INPUTS
    return here, DeviceRows.on(torch.device(device), here), rng


def assert_near(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())


def added(add, *asked):
    total = np.ones((INPUTS, CLASSES))
    add(*asked, total)
    return total


def multipliers(rng):
    yield NONE
    for columns in (1, CLASSES):
        yield rng.uniform(0.1, 9.0, (INPUTS, columns)).astype(np.float32)


def test_logits(both):
    here, there, rng = both
    chosen = rng.permutation(ROWS)[:23]
    for columns in (1, CLASSES):
        kernel = rng.normal(size=(INPUTS, columns)).astype(np.float32)
        bias = rng.normal(size=columns).astype(np.float32)
        assert_near(there.logits(chosen, kernel, bias), here.logits(chosen, kernel, bias))


def test_norms_and_sums_of_rows(both):
    here, there, rng = both
    chosen, own = rng.permutation(ROWS)[:23], rng.normal(size=(23, CLASSES))
    for multiplier in multipliers(rng):
        asked = chosen, own, multiplier
        assert_near(there.squared_norms(*asked), here.squared_norms(*asked))
        assert_near(added(there.add_outer, *asked), added(here.add_outer, *asked))


def test_norms_and_sums_of_groups(both):
    here, there, rng = both
    chosen, own = rng.permutation(ROWS)[:23], rng.normal(size=(23, CLASSES))
    starts = np.array([0, 1, 7, 9, 10, 23])
    factors = np.array([0.5, 0.0, 2.0, 1e-3, 1.0])
    offset = rng.normal(size=(INPUTS, CLASSES)).astype(np.float32)
    for multiplier in multipliers(rng):
        for public in (NONE, offset):
            energy = np.square(1.0 * offset * (multiplier if multiplier.size else 1.0)).sum()
            # Squares of everything: of rows that nobody touches there is the offset's own.
            squares = [
                whole + (energy - touched if public.size else 0.0)
                for whole, touched in (
                    rows.group_squared_norms(chosen, starts, own, public, multiplier)
                    for rows in (here, there)
                )
            ]
            np.testing.assert_allclose(squares[1], squares[0], rtol=1e-6)
        asked = chosen, starts, own, factors, multiplier
        assert_near(added(there.add_groups, *asked), added(here.add_groups, *asked))


def test_a_batch_multiplies_as_a_matrix_does(both):
    here, there, rng = both
    x = sparse.csr_matrix((here.values, here.indices, here.indptr), shape=(ROWS, INPUTS))
    chosen = rng.permutation(ROWS)[:9]
    kernel, weighed = rng.normal(size=(INPUTS, CLASSES)), rng.normal(size=(9, CLASSES))
    assert_near(there[chosen] @ kernel, x[chosen] @ kernel)
    assert_near(there[chosen].T @ weighed, x[chosen].T @ weighed)
    assert_near(there[chosen].T.T @ kernel, x[chosen] @ kernel)


def test_nobody_is_nothing(both):
    _, there, _ = both
    nobody, total = np.zeros(0, np.int64), np.ones((INPUTS, CLASSES))
    own = np.zeros((0, CLASSES))
    assert there.logits(nobody, total.astype(np.float32), np.zeros(CLASSES)).shape == (0, CLASSES)
    assert there.squared_norms(nobody, own, NONE).shape == (0,)
    there.add_outer(nobody, own, NONE, total)
    there.add_groups(nobody, np.zeros(1, np.int64), own, np.zeros(0), NONE, total)
    assert np.array_equal(total, np.ones((INPUTS, CLASSES)))


@pytest.mark.slow
def test_what_else_is_in_a_batch_changes_no_bit(both):
    assert_each_alone(*both[1:])


@pytest.mark.gpu
def test_what_else_is_in_a_batch_changes_no_bit_on_the_gpu(device):
    assert_each_alone(*some_rows(device)[1:])


def assert_each_alone(there, rng):
    """Of logits and norms, of rows and of groups: what the others contribute is the same.

    200 batches of random sizes and orders, in which rows are padded to many lengths.
    """
    kernel = rng.normal(size=(INPUTS, CLASSES)).astype(np.float32)
    bias = rng.normal(size=CLASSES).astype(np.float32)
    own = rng.normal(size=(ROWS, CLASSES))
    multiplier = rng.uniform(0.1, 9.0, (INPUTS, CLASSES)).astype(np.float32)
    offset = rng.normal(size=(INPUTS, CLASSES)).astype(np.float32)

    def of_rows(chosen):
        logits = there.logits(chosen, kernel, bias)
        return np.column_stack([logits, there.squared_norms(chosen, own[chosen], multiplier)])

    def of_groups(groups):
        chosen, starts = np.concatenate(groups), np.cumsum([0, *map(len, groups)])
        return there.group_squared_norms(chosen, starts, own[chosen], offset, multiplier)[0]

    alone = {i: of_rows(np.array([i])).tobytes() for i in range(ROWS)}
    groups = np.array_split(rng.permutation(ROWS), 9)
    each = [float(of_groups([group])[0]) for group in groups]
    for size in rng.integers(1, ROWS + 1, 200):
        chosen = rng.permutation(ROWS)[:size]
        assert [row.tobytes() for row in of_rows(chosen)] == [alone[i] for i in chosen.tolist()]
        some = rng.permutation(9)[: rng.integers(1, 10)]
        assert of_groups([groups[i] for i in some]).tolist() == [each[i] for i in some]


def test_zeros_at_the_end_change_no_bit():
    rng = np.random.default_rng(1)
    for length in range(1, 40):
        parts = torch.from_numpy(rng.normal(size=(3, length, 2)))
        expected = folded(parts)
        torch.testing.assert_close(expected, parts.sum(1), rtol=0.0, atol=1e-13)
        for more in (1, 2, 7, 100):
            padded = torch.cat([parts, torch.zeros(3, more, 2, dtype=torch.float64)], dim=1)
            assert torch.equal(folded(padded), expected)


@pytest.fixture
def blocks_product(monkeypatch):
    """Puts another product in the place of that of a block, which is then tried anew."""

    def put(product):
        monkeypatch.setattr(device_rows, "blocks_product", product)
        product_width.cache_clear()

    yield put
    product_width.cache_clear()


def backwards_in_places(places):
    """A product that adds up the columns of rows in some places from the last to the first."""

    def product(rows, table, block):
        products = rows[:, :, None] * table
        backwards = places(torch.arange(len(rows)) % block, table.shape[1])
        return torch.where(backwards[:, None], folded(products.flip(1)), folded(products))

    return product


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 1, 31, -1])
def test_a_product_that_depends_on_the_place_is_found_out(blocks_product, place):
    """And then rows are added by pairs, so that each is what it is alone."""
    blocks_product(backwards_in_places(lambda at, columns: at == (place % 128)))
    assert product_width(torch.device("cpu"), 128, INPUTS, CLASSES, 1) is None
    _, there, rng = some_rows("cpu")
    assert_each_alone(there, rng)


@pytest.mark.slow
def test_a_matrix_is_padded_to_columns_that_keep_rows_apart(blocks_product):
    blocks_product(backwards_in_places(lambda at, columns: (at == 5) & (columns % 4 > 0)))
    widths = [product_width(torch.device("cpu"), 128, INPUTS, n, 1) for n in (1, 3, 4, 5, 8)]
    assert widths == [4, 4, 4, 8, 8]
    here, there, rng = some_rows("cpu")
    kernel, bias = rng.normal(size=(INPUTS, CLASSES)).astype(np.float32), np.zeros(CLASSES)
    assert_near(there.logits(EVERY, kernel, bias), here.logits(EVERY, kernel, bias.astype("f4")))
    assert_each_alone(there, rng)


def test_a_product_that_depends_on_the_neighbours_is_found_out():
    rng = np.random.default_rng(2)
    rows, table = (torch.from_numpy(rng.normal(size=size)) for size in ((64, 30), (30, 5)))

    def alone(rows):
        return folded(rows[:, :, None] * table)

    assert keeps_rows_apart(alone, rows)
    assert not keeps_rows_apart(lambda rows: alone(rows) + 1e-9 * rows.sum(), rows)
    assert not keeps_rows_apart(lambda rows: alone(rows) + 0.0 * rows.sum(), rows)
    some = lambda rows: 1e-9 * float((rows == 0.0).all(dim=1).any())  # noqa: E731
    assert not keeps_rows_apart(lambda rows: alone(rows) + some(rows), rows)
