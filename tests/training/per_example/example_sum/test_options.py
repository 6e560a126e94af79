"""Options of centralised experiments: numbers without sense are refused by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedpriv.experiments.build import build
from fedpriv.mechanisms import Rounded
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import CLIP, contributed
from tests.training.per_example.example_sum.reviews import BASE, KEY, task
from tests.training.per_example.linear.case import at_zero


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


def test_a_grid_is_where_updates_are_exact():
    components = build(BASE)
    params = components.task.init_params(KEY)
    found = contributed(components.trainer, params, ids=[1], bound=Rounded(bound=CLIP))
    assert found.granularity == 2.0**-24 and found.total["weight"].dtype == np.int32
    gradients, params = at_zero("module", np.eye(3, dtype=np.float32), np.zeros(3, np.int64))
    with refuses(ValueError, "ModuleGradients"):
        work = replace(components.trainer, gradients=gradients)
        contributed(work, params, ids=[1], bound=Rounded(bound=CLIP))
