"""Examples and micro-batches that are not finite are left out and counted."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from fedpriv.backends import SerialBackend
from fedpriv.experiments.build import build
from fedpriv.mechanisms import AdaptiveClip, Capped, Clip, Normalise
from fedpriv.mechanisms.bounds import Checked, bounded_factors
from fedpriv.runs.loop import rounds
from fedpriv.training.failures import contributes_zero, counted_failures
from fedpriv.training.local.module import module_params
from fedpriv.training.per_example.example_sum import CentralSum
from fedpriv.training.per_example.module import ModuleGradients
from tests.harness.other_components import with_components
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import (
    assert_near,
    contributed,
    cross_entropy,
    example_sum,
    labelled,
)
from tests.training.per_example.example_sum.reviews import BASE, DIM, KEY, task
from tests.training.per_example.linear.case import at_zero


def spoilt(kind, bad):
    """A training set of 30 whose examples 3 and 11 cannot be learnt from, and its zero params."""
    rng = np.random.default_rng(8)
    x, y = rng.normal(size=(30, DIM)).astype(np.float32), rng.integers(0, 2, 30)
    x[[3, 11], 2] = bad
    return at_zero(kind, x, y - 0.5 if kind == "regression" else y)


@pytest.mark.parametrize("kind", ["logistic", "softmax", "regression", "module"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
class TestWhatIsNotFinite:
    def total(self, gradients, params, drawn, num_groups=None):
        summed = CentralSum(gradients=gradients, num_examples=30, num_groups=num_groups)
        return contributed(summed, params, ids=drawn, bound=Clip(l2_clip_norm=0.5), key=KEY)

    def test_an_example_is_left_out_and_counted(self, kind, bad):
        gradients, params = spoilt(kind, bad)
        found = self.total(gradients, params, range(12))
        rest = self.total(gradients, params, [i for i in range(11) if i != 3])
        assert (found.num_users, found.num_failed) == (12, 2)
        assert (rest.num_users, rest.num_failed) == (10, 0)
        for name in params:
            assert np.isfinite(found.total[name]).all() and np.any(found.total[name])
        assert_near(found.total, rest.total, atol=1e-7)

    def test_so_is_a_micro_batch_with_one_in_it(self, kind, bad):
        gradients, params = spoilt(kind, bad)
        found = self.total(gradients, params, range(30), num_groups=8)
        place = KEY.fold("micro-batches").generator().integers(8, size=30)
        spoiled = {int(place[3]), int(place[11])}
        kept = [i for i in range(30) if int(place[i]) not in spoiled]
        rest = self.total(gradients, params, kept, num_groups=8)
        assert (found.num_failed, rest.num_failed) == (len(spoiled), 0)
        assert_near(found.total, rest.total, atol=1e-7)

    def test_when_params_have_diverged_everybody_fails(self, kind, bad):
        gradients, params = spoilt(kind, bad)
        gone = {name: np.full_like(array, np.nan) for name, array in params.items()}
        self.total(gradients, params, (0, 1))  # a module chooses its backend at params it can use
        found = self.total(gradients, gone, range(7))
        assert found.num_failed == 7 and not any(np.any(a) for a in found.total.values())
        assert self.total(gradients, params, (0, 1)).num_failed == 0  # each sum for itself


class TestCountedFailures:
    def test_a_count_is_of_its_own_with_and_thread(self):
        inside, go_on = threading.Event(), threading.Event()

        def other():
            with counted_failures() as failures:
                contributes_zero(ValueError())
                inside.set()
                go_on.wait(60)
                contributes_zero(ValueError())
            return failures.count

        with ThreadPoolExecutor(1) as pool, counted_failures() as mine:
            done = pool.submit(other)
            assert inside.wait(60)
            contributes_zero(ValueError())
            go_on.set()
            assert done.result() == 2
            with counted_failures() as inner:
                contributes_zero(ValueError())
            contributes_zero(ValueError())
        assert (mine.count, inner.count) == (2, 1)
        contributes_zero(ValueError())  # nobody counts
        assert mine.count == 2


def test_a_run_says_how_many_examples_failed():
    gradients, _ = spoilt("logistic", np.nan)
    components = build(
        BASE.with_options({"batch-size": 30, "noise": "none"}),
        task=replace(task(), train=gradients, num_train=30),
    )
    records = [r for r, _ in rounds(components, SerialBackend(trainer=components.trainer), KEY)]
    assert [r.diagnostics.cohort_size for r in records] == [30] * 6
    assert [r.diagnostics.num_failed for r in records] == [2] * 6


class Half(Clip):
    """A user-defined bound, half as long as the one that it is derived from."""

    @property
    def l2_bound(self):
        return self.l2_clip_norm / 2

    def factors(self, norms, clip_norm=None):
        return np.minimum(1.0, self.l2_bound * (1 - 2.0**-20) / np.maximum(norms, 1e-300))


def test_factors_are_those_of_single_norms_to_the_bit():
    rng = np.random.default_rng(0)
    edges = [0.0, 1e-150, 1e-139, np.nextafter(0.7, 0), 0.7, np.nextafter(0.7, 1), 1e300]
    norms = np.concatenate([edges, 0.7 * (1 + 2.0**-22 * rng.normal(size=200)), rng.random(200)])
    bounds = Clip(l2_clip_norm=0.7), Normalise(l2_clip_norm=0.7, regulariser=0.1)
    for bound in (*bounds, Half(l2_clip_norm=0.7)):
        for longest in (math.inf, 0.7 * (1 - 2.0**-20), 0.3):
            found = bounded_factors(bound, norms, longest)
            expected = [bounded_factors(bound, norms[[i]], longest)[0] for i in range(len(norms))]
            assert found.tolist() == expected
            assert (found * norms <= min(bound.l2_bound, longest) * (1 + 2.0**-52)).all()
            if longest > bound.l2_bound:
                assert (found * norms <= bound.l2_bound).all()


@pytest.mark.parametrize("bound", [Checked(l2_bound=1.0), Capped(cap=1.0, num_coordinates=9)])
def test_bounds_of_coordinates_are_refused_before_anything_is_charged(bound):
    def other_bound(made):
        mechanism = replace(made.plan.mechanism, bound=bound)
        return replace(made, plan=replace(made.plan, mechanism=mechanism))

    with refuses(ValueError, type(bound).__name__):
        build(with_components(BASE, other_bound), task=task())


def test_a_clip_norm_that_adapts_is_in_the_context():
    gradients, params = spoilt("logistic", 0.0)
    with pytest.raises(ValueError):
        example_sum(
            gradients, params, np.arange(3), AdaptiveClip(l2_clip_norm=1.0, least=0.1, most=9.0)
        )


def no_class():
    """Gradients of a module on ten examples, of which the fourth has a label that is no class."""
    net = nn.Linear(4, 2)
    examples = labelled(10)
    examples.y[3] = 424242
    return ModuleGradients(net, cross_entropy, examples.x, examples.y), module_params(net)


def test_a_label_that_is_no_class_adds_nothing_to_its_micro_batch():
    gradients, params = no_class()

    def total(*groups):
        with counted_failures() as failures:
            stacks = gradients.stacks(params, [np.array(group) for group in groups], KEY)
            return sum(
                stack.updates["weight"][0].numpy().sum(0) for stack in stacks
            ), failures.count

    spoilt_mean, failed = total([3, 4], [5, 6])
    mean, none = total([4], [5, 6])
    other, _ = total([5, 6])
    assert (failed, none) == (1, 0)
    np.testing.assert_allclose(spoilt_mean - other, (mean - other) / 2, rtol=1e-5, atol=1e-7)


def test_a_label_that_is_no_class_has_no_loss_and_others_have_theirs():
    gradients, params = no_class()
    sizes, index = [0.0, 0.5], np.array([2, 3, 4])
    found = gradients.losses_along(params, params, sizes, index)
    expected = gradients.losses_along(params, params, sizes, index[[0, 2]])
    assert np.isnan(found[1]).all()
    np.testing.assert_allclose(found[[0, 2]], expected, rtol=1e-6)
