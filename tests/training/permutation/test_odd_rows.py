"""Rows that somebody odd may bring: none moves a result past the bound, and none stops it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from fedpriv.mechanisms import Unbounded
from fedpriv.mechanisms.selection import PrivateChoice
from fedpriv.rng import Key
from fedpriv.training.bolt_on import Mistakes, Tuned
from fedpriv.training.per_example.linear import LogisticGradients
from fedpriv.training.permutation_sgd import (
    Passes,
    loss_constants,
    shortened,
)
from fedpriv.training.step_schedules import ConstantStep
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import assert_same, contributed, linear_sgd, zeros
from tests.training.per_example.linear.case import logistic_residual, softmax_residual

KEY = Key.simulation(5)
PASSES = Passes(passes=2, batch_size=2, schedule=ConstantStep(rate=0.1))
ODD = [np.nan, np.inf, -np.inf]


def repeated(times, believed=False):
    """One word said so many times, as CSR has it that was made from lists of words."""
    row = sparse.csr_matrix(
        (np.ones(times), np.zeros(times, np.int32), [0, times, times]), shape=(2, 3)
    )
    if believed:
        row.has_canonical_format = True
    return row


@pytest.mark.parametrize("believed", [False, True])
def test_an_entry_that_is_stored_many_times_is_shortened_as_their_sum(believed):
    given = repeated(400, believed)
    found = shortened(given)
    assert 1.0 - 2.0**-39 <= np.linalg.norm(found.toarray()[0]) <= 1.0
    assert found.nnz == 1  # whoever adds its entries one by one sees no others
    assert given.nnz == 400  # and what was given stays as it is
    cancelling = sparse.csr_matrix(([np.inf, -np.inf, 1.0], [0, 0, 1], [0, 3]), shape=(1, 3))
    assert (shortened(cancelling).toarray() == 0).all()


@pytest.mark.parametrize("believed", [False, True])
def test_so_it_is_where_linear_models_are_trained(believed):
    x = repeated(400, believed).astype(np.float32)
    passes = replace(PASSES, batch_size=1)
    sgd = LogisticGradients(x, np.array([1, 0])).permutation_sgd(passes, regulariser=0.0)
    start = at_zero(3) | {"weight": np.float32([-1e3, 0, 0])}
    moved = sgd.trained(start, KEY)["weight"][0] + 1e3
    assert 0 < moved <= passes.sensitivity(loss_constants("logistic"), 2)


def made(x, y, **changes):
    given = {"name": "weight", "residual": logistic_residual, "passes": PASSES}
    return linear_sgd(x, y, **{**given, "constants": loss_constants("logistic"), **changes})


def at_zero(d, k=1):
    return zeros(weight=d if k == 1 else (d, k), bias=k)


def people(number=8, width=3):
    rng = np.random.default_rng(0)
    return rng.normal(size=(number, width)).astype(np.float32), rng.integers(0, 2, number)


FORMS = {"dense": np.asarray, "sparse": sparse.csr_matrix}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("odd", ODD)
class TestNotFinite:
    def test_a_row_counts_as_one_that_is_not_there(self, form, odd):
        x, y = people()
        x[3, 1], x[6] = odd, odd
        for k, residual, name in (
            (1, logistic_residual, "logistic"),
            (2, softmax_residual, "softmax"),
        ):
            constants = loss_constants(name)
            sgd = made(FORMS[form](x), y, residual=residual, constants=constants)
            clean = np.where(np.isfinite(x).all(axis=1)[:, None], x, 0)
            gone = ~np.isin(np.arange(len(y)), (3, 6))
            without = made(FORMS[form](clean), y, residual=residual, constants=constants,
                           there=gone)  # fmt: skip
            found, expected = (one.trained(at_zero(3, k), KEY) for one in (sgd, without))
            assert all(np.isfinite(array).all() for array in found.values())
            assert_same(found, expected)

    def test_so_it_does_of_private_tuning(self, form, odd):
        x, y = people(number=9)
        x[3, 1] = odd
        sgd = made(FORMS[form](x), y)
        tuned = Tuned(choices=(sgd, replace(sgd, passes=replace(PASSES, passes=1))),
                      choice=PrivateChoice(epsilon=1.0))  # fmt: skip
        asked = {"ids": (3, 0, 1, 2), "bound": Unbounded(), "key": KEY}
        found = contributed(replace(sgd, part_size=4), at_zero(3), **asked).total
        assert all(np.isfinite(array).all() for array in found.values())
        assert tuned.part_size == 3
        with refuses(ValueError, 4, 3):  # as many as are not a part
            contributed(tuned.works()["candidate-0"], at_zero(3), **asked)
        clean = x.copy()
        clean[3] = 0
        ones = at_zero(3) | {"weight": np.ones(3)}
        count, other = (
            contributed(Mistakes(sgd=one), ones, **asked).total["mistakes"][0]
            for one in (sgd, made(FORMS[form](clean), y))
        )
        assert abs(count - other) <= 1


@pytest.mark.parametrize("form", FORMS)
def test_norms_are_of_float64(form):
    """(1 + 2^-12) 2^12, whose square float32 rounds; 1e20, whose square it has not."""
    for value, kept in ((np.float32(4097.0), 1.0), (np.float32(1e20), 1.0), (np.float32(0.5), 0.0)):
        x = np.zeros((4, 8), np.float32)
        x[0, 0] = value
        row = sparse.csr_matrix(made(FORMS[form](x), np.zeros(4)).rows[0])
        norm = np.linalg.norm(row.toarray())
        assert norm <= 1.0 - 2.0**-41
        assert norm >= kept * (1.0 - 2.0**-39)
