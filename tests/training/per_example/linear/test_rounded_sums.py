"""Sums of single examples that are rounded once: what one example moves, in whole numbers."""

import math

import numpy as np
import pytest

from fedpriv.mechanisms import Clip, Normalise, Rounded
from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.training.algorithm import NO_CONTEXT, Context
from fedpriv.training.per_example import example_sum
from fedpriv.training.per_example.example_sum import CentralSum, room_of_sum
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import contributed
from tests.training.per_example.linear.case import Case

NUM = 60
KINDS = ("logistic", "softmax")
LIMIT = 2**48


def asked_of(case):
    """Bounds, and what a round says of each."""
    multiplier = {
        name: np.linspace(0.1, 9.0, shape[0], dtype="f4").reshape(-1, *(1,) * (len(shape) - 1))
        for name, shape in case.shapes.items()
    }
    offset = {n: np.full(s, 0.1, np.float32) for n, s in case.shapes.items()}
    return {
        "clip": (Clip(l2_clip_norm=0.3), NO_CONTEXT),
        "normalise": (Normalise(l2_clip_norm=0.3), NO_CONTEXT),
        "preconditioned": (Clip(l2_clip_norm=0.7), Context(multiplier=multiplier)),
        "mixed": (
            Normalise(l2_clip_norm=2.0),
            Context(multiplier=multiplier, mixture=Mixture(own=0.4, offset=offset)),
        ),
    }


BOUNDS = ("clip", "normalise", "preconditioned", "mixed")


def whole_sum(case, bound, index, context=NO_CONTEXT):
    work = CentralSum(gradients=case.made, num_examples=NUM)
    done = contributed(work, case.params, ids=index, bound=Rounded(bound=bound), context=context)
    assert (done.granularity, done.l2_bound) == (bound.l2_bound * 2.0**-24, bound.l2_bound)
    assert all(tensor.dtype == np.int64 for tensor in done.total.values())
    return np.concatenate([tensor.reshape(-1) for tensor in done.total.values()])


def squared(difference):
    return sum(int(x) ** 2 for x in difference)


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_example_moves_the_sum_by_at_most_the_bound_in_whole_numbers(kind, name):
    """Every example of the set, joining batches of many sizes; compared without tolerance."""
    case = Case(kind, num=NUM)
    bound, context = asked_of(case)[name]
    rng, longest = np.random.default_rng(0), 0
    for joining in range(NUM):
        others = np.setdiff1d(rng.choice(NUM, rng.integers(0, NUM), replace=False), [joining])
        batch = rng.permutation(np.append(others, joining))
        sums = [whole_sum(case, bound, index, context) for index in (batch, others)]
        moved = squared(sums[0] - sums[1])
        assert moved <= LIMIT
        longest = max(longest, moved)
    if name != "clip":
        assert longest > 0.999 * LIMIT  # the bound is reached, so the test can fail


def test_without_shortening_it_would_be_too_long(monkeypatch):
    """The broken twin: rounded, and not shortened by what rounding adds."""
    case = Case("softmax", num=NUM)
    monkeypatch.setattr(example_sum, "room_of_sum", lambda bound, *_: bound.l2_bound)
    monkeypatch.setattr("fedpriv.mechanisms.bounds._ROUNDING", 1.0)
    bound = Normalise(l2_clip_norm=0.3)
    found = [squared(whole_sum(case, bound, [i]) - whole_sum(case, bound, [])) for i in range(NUM)]
    assert max(found) > LIMIT


@pytest.mark.parametrize("kind", KINDS)
def test_what_else_is_in_a_batch_changes_no_bit_of_a_contribution(kind):
    """What `float_error` rests on: residuals and their logits row by row, wherever they stand."""
    case = Case(kind, num=NUM)
    alone = {i: case.made._residuals(case.params, np.array([i])).tobytes() for i in range(NUM)}
    rng = np.random.default_rng(1)
    for size in [*range(1, 34), NUM]:
        chosen = rng.permutation(NUM)[:size]
        together = case.made._residuals(case.params, chosen)
        assert [row.tobytes() for row in together] == [alone[i] for i in chosen.tolist()]


def test_who_has_no_stated_error_is_refused():
    made = Case("regression").made
    assert made.float_error() == math.inf
    with refuses(ValueError, type(made).__name__, "exact-sum"):
        whole_sum(Case("regression"), Clip(l2_clip_norm=1.0), [0])


@pytest.mark.parametrize("name", BOUNDS)
def test_every_sum_leaves_the_room_that_its_gradients_state(name, monkeypatch):
    case, rooms = Case("softmax", num=NUM), []
    bound, context = asked_of(case)[name]
    real = type(case.made).bounded_sum

    def noting(self, *asked, longest, **more):
        rooms.append(longest)
        return real(self, *asked, longest=longest, **more)

    monkeypatch.setattr(type(case.made), "bounded_sum", noting)
    whole_sum(case, bound, [0, 1], context)
    number = sum(array.size for array in case.params.values())
    assert rooms == [room_of_sum(Rounded(bound=bound), case.made, number)]
    stated = case.made.float_error()
    assert stated > 0.0 and rooms[0] < bound.l2_bound * (1 - stated - number**0.5 * 2.0**-24)


def test_too_many_examples_or_coordinates_are_refused(monkeypatch):
    case = Case("softmax", num=NUM)
    grid, made = Rounded(bound=Clip(l2_clip_norm=1.0)), case.made
    monkeypatch.setattr(type(made), "float_error", lambda self: 0.0)
    assert room_of_sum(grid, made, 10**6) == pytest.approx(1 - 1e3 * 2**-24, abs=1e-9)
    with refuses(ValueError, 10**16):
        room_of_sum(grid, made, 10**16)
    monkeypatch.setattr(type(made), "float_error", lambda self: 0.6)
    with refuses(ValueError, 0.6):
        whole_sum(case, grid.bound, [0])
