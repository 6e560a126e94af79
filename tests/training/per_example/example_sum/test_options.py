"""Options of centralised experiments: numbers without sense are refused by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedpriv.experiments.build import build
from fedpriv.mechanisms import Rounded
from fedpriv.training.per_example.linear import LinearRegressionGradients
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import CLIP, contributed
from tests.training.per_example.example_sum.reviews import BASE, KEY, task


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"steps": "none"}, (None,)),
        ({"epochs": 2.0, "steps": 20}, (2.0, 20)),
        ({"micro-batch": 21}, ("micro-batch", 21)),
        ({"micro-batch": 2, "relation": "replace-one", "sampling": "fixed"}, ("micro-batch", 2)),
        ({"preconditioner": "public-adam", "public-batch": 21}, (21, 20)),
        ({"preconditioner": "side-information", "side-information": "odd"}, ("odd",)),
        ({"preconditioner": "ideal", "target-epsilon": 2.0}, ("ε",)),
        ({"preconditioner": "delayed", "delay-plain": 0}, (0,)),
    ],
)
def test_what_does_not_fit_is_refused(options, names):
    with refuses(ValueError, *names):
        build(BASE.with_options(options))


def test_guides_that_need_public_examples_say_so():
    bare = replace(task(), public=None, num_public=0)
    with refuses(ValueError, bare.name):
        build(BASE.with_options({"preconditioner": "r-pub"}), task=bare)


def test_a_grid_is_of_the_sum_where_its_error_is_stated():
    components = build(BASE)
    params = components.task.init_params(KEY)
    found = contributed(components.trainer, params, ids=[1], bound=Rounded(bound=CLIP))
    assert found.granularity == 2.0**-24 and found.total["weight"].dtype == np.int64
    work = replace(components.trainer, gradients=LinearRegressionGradients(np.eye(3), np.ones(3)))
    with refuses(ValueError, "LinearRegressionGradients"):
        contributed(work, {"weight": np.zeros(3)}, ids=[1], bound=Rounded(bound=CLIP))
