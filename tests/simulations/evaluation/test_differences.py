"""Differences of two models' accuracy: what they are, and that they are paired."""

import numpy as np
import pytest

from simulations.evaluation.evaluate import differences, evaluate
from tests.simulations.evaluation.made import random_fold


def found(folds, pairs, seed=0):
    return differences(folds, pairs, generator=np.random.default_rng(seed), replicates=200)


@pytest.fixture(scope="module")
def folds():
    return [random_fold(n, public=(2, 0.3), whole=(2, 0.5), less=(2, 0.4)) for n in range(2)]


def test_a_difference_to_public_only_is_the_gain(folds):
    gain = evaluate(folds, public_only="public", generator=np.random.default_rng(0), replicates=200)
    one = found(folds, [("whole", "public")])["whole", "public"]
    assert one.value == pytest.approx(gain.models["whole"].gains["accuracy"].value)
    assert one.by_thread.low < one.value < one.by_thread.high
    (back,) = found(folds, [("public", "whole")]).values()
    assert (back.value, back.by_user.low) == (-one.value, -one.by_user.high)
