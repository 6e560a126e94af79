"""The sum on the device is the integers, or the floats, of the plain one."""

import itertools
import math

import numpy as np
import pytest
import torch

from fedpriv import tree
from fedpriv.training.device_sum import DeviceStack, DeviceSum
from tests.harness.toys_of_training import assert_near, assert_same

SHAPES = {"kernel": (31, 7), "bias": (7,), "conv": (3, 2, 3, 3)}


def random_updates(users, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return {
        name: (scale * rng.normal(size=(users, *shape))).astype(np.float32)
        for name, shape in SHAPES.items()
    }


def template():
    return {name: torch.zeros(shape) for name, shape in SHAPES.items()}


def tensors(updates):
    return {name: torch.from_numpy(array) for name, array in updates.items()}


def summed(updates, factors, granularity, cuts=()):
    running = DeviceSum(template(), granularity)
    edges = [0, *cuts, len(factors)]
    for first, last in itertools.pairwise(edges):
        part = {name: array[first:last] for name, array in updates.items()}
        running.add(tensors(part), factors[first:last])
    return running.result()


def whole_oracle(updates, factors, granularity):
    return {
        name: sum(
            np.rint(array[u].astype(np.float64) * (factor / granularity)).astype(np.int64)
            for u, factor in enumerate(factors)
        )
        for name, array in updates.items()
    }


class TestOnTheGrid:
    @pytest.mark.parametrize("granularity", [2.0**-24, 0.3 * 2.0**-24, 1e-3])
    @pytest.mark.parametrize("users", [1, 5, 130])
    def test_equals_the_integers_of_numpy(self, users, granularity):
        updates = random_updates(users, scale=0.1)
        factors = np.random.default_rng(1).uniform(0.01, 0.15, users).tolist()  # 2^24 steps at most
        expected = whole_oracle(updates, factors, granularity)
        assert max(np.abs(a).max() for a in expected.values()) > 10
        for cuts in ((), (users // 2,), tuple(range(1, users, 3))):
            found = summed(updates, factors, granularity, cuts)
            assert_same(found, expected)

    def test_the_largest_coordinates_fit(self):
        for users, kind in ((127, np.int32), (128, np.int64), (300, np.int64)):
            for sign in (1, -1):
                running = DeviceSum({"w": torch.zeros(2)}, granularity=2.0**-24)
                largest = torch.ones(users, 2) * torch.tensor([sign, 0.0])
                assert running.add({"w": largest}, [1.0] * users) == []
                total = running.result()["w"]
                assert total.dtype == kind
                assert total.tolist() == [sign * users * 2**24, 0]

    @pytest.mark.parametrize("longer", [(2**24, 1), (2**24 + 2, 0), (math.nan, 0), (math.inf, 0)])
    def test_a_user_beyond_the_bound_adds_nothing(self, longer):
        running = DeviceSum({"v": torch.zeros(1), "w": torch.zeros(1)}, granularity=1.0)
        long = {"v": [longer[0], 2**24, 5.0], "w": [longer[1], 0.0, 3.0]}
        found = running.add({n: torch.tensor(a)[:, None] for n, a in long.items()}, [1.0] * 3)
        assert found == [0]
        total = running.result()
        assert (total["v"].tolist(), total["w"].tolist()) == ([2**24 + 5], [3])


class TestWithoutAGrid:
    def test_equals_float64(self):
        updates = random_updates(20)
        factors = np.random.default_rng(1).uniform(0.01, 1.0, 20).tolist()
        found = summed(updates, factors, None, cuts=(3, 11))
        for name, array in updates.items():
            expected = np.einsum("u...,u->...", array.astype(np.float64), np.asarray(factors))
            assert found[name].dtype == np.float64
            np.testing.assert_allclose(found[name], expected, rtol=1e-12, atol=1e-14)

    @pytest.mark.parametrize("granularity", [None, 1e-6])
    @pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
    def test_a_user_with_factor_zero_is_left_out_whatever_it_holds(self, bad, granularity):
        updates = random_updates(4)
        expected = summed(
            {n: a[[0, 2, 3]] for n, a in updates.items()}, [0.5, 0.1, 1.0], granularity
        )
        for array in updates.values():
            array[1] = bad
        found = summed(updates, [0.5, 0.0, 0.1, 1.0], granularity)
        assert_near(found, expected, rtol=1e-12, atol=0.0)


class TestNorms:
    @pytest.mark.parametrize("scale", [1.0, 1e-40, 1e37])
    def test_are_of_all_tensors(self, scale):
        updates = random_updates(6, scale=scale)
        updates["kernel"][2] = 0
        updates["conv"][2], updates["bias"][2] = 0, 0
        expected = [tree.l2_norm({n: a[user] for n, a in updates.items()}) for user in range(6)]
        found = DeviceStack(tensors(updates)).norms()
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        assert found[2] == 0.0

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_what_is_not_finite_stays_so_for_that_user_alone(self, bad):
        updates = random_updates(3)
        updates["bias"][1, 2] = bad
        norms = DeviceStack(tensors(updates)).norms()
        assert [math.isfinite(norm) for norm in norms] == [True, False, True]
