"""An aggregate is tried on a few rounds before anything is charged, and checked in every round."""

import numpy as np
import pytest

from fedpriv import optimizers
from fedpriv.checkpoints.aggregates import of_last
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.transform import Transform
from tests.harness.refusals import refuses

PARAMS = {"w": np.zeros((2, 3), np.float32)}


def averaging(aggregate):
    return FederatedAveraging(optimizer=optimizers.sgd(1.0), aggregate=aggregate)


def running(change):
    """A running average whose next value is what `change` makes of the params."""
    return Transform(
        init=lambda params: {"average": dict(params)},
        next=lambda params, state: (params, {"average": change(params)}),
    )


def in_place(params):
    params["w"] *= 0.5
    return params


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda params: {"w": params["w"][:1]}, "w [1, 3] float32"),
        (lambda params: {"w": params["w"].astype(np.float64)}, "float64"),
        (lambda params: {}, "w [2, 3] float32"),
        (lambda params: {"w": params["w"] * np.float32(np.nan)}, "'w'"),
        (in_place, "read-only"),
    ],
)
def test_what_is_no_model_of_finite_params_is_refused(change, named):
    with refuses(ValueError, named):
        averaging(running(change)).check_params(PARAMS)


def test_a_function_that_needs_more_checkpoints_than_there_are_raises_its_own_error():
    with pytest.raises(IndexError):
        averaging(of_last(3, lambda models: models[-3])).check_params(PARAMS)


def test_params_that_are_not_finite_are_nobodys_fault():
    state = running(dict).init(PARAMS)
    odd = {"w": np.full((2, 3), np.inf, np.float32)}
    assert averaging(running(dict))._aggregated(odd, state, 1)["average"]["w"][0, 0] == np.inf


def test_the_trial_leaves_the_start_alone():

    def next_(params, state):
        for name, array in params.items():
            state["average"][name] += array
        return params, state

    start = {"w": np.ones((2, 3), np.float32)}
    keeping = Transform(init=lambda params: {"average": dict(params)}, next=next_)
    averaging(keeping).check_params(start)
    assert np.array_equal(start["w"], np.ones((2, 3), np.float32))
