"""Sums of single examples that are rounded once: what one example moves, in whole numbers."""

import numpy as np
import pytest

from fedpriv.mechanisms import Clip, Normalise, Preconditioned, RoundedSum
from fedpriv.mechanisms.bounds import Mixture
from fedpriv.training.per_example.example_sum import CentralSum, SumsApart
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import contributed
from tests.training.per_example.linear.case import Case

NUM = 60
KINDS = ("logistic", "softmax")
LIMIT = 2**48


def inner_bounds(case):
    multiplier = {
        name: np.linspace(0.1, 9.0, shape[0], dtype="f4").reshape(-1, *(1,) * (len(shape) - 1))
        for name, shape in case.shapes.items()
    }
    offset = {n: np.full(s, 0.1, np.float32) for n, s in case.shapes.items()}
    return {
        "clip": Clip(l2_clip_norm=0.3),
        "normalise": Normalise(l2_clip_norm=0.3),
        "preconditioned": Preconditioned(multiplier=multiplier, bound=Clip(l2_clip_norm=0.7)),
        "mixed": Preconditioned(
            multiplier=multiplier,
            bound=Normalise(l2_clip_norm=2.0),
            mixture=Mixture(own=0.4, offset=offset),
        ),
    }


BOUNDS = ("clip", "normalise", "preconditioned", "mixed")


def rounded(made, bound):
    return RoundedSum(
        bound=bound, float_error=made.float_error(), mixed_error=made.float_error(mixed=True)
    )


def whole_sum(case, bound, index):
    work = CentralSum(gradients=case.made, num_examples=NUM)
    done = contributed(work, case.params, ids=index, bound=bound)
    assert done.granularity == bound.l2_bound * 2.0**-24
    assert all(tensor.dtype == np.int64 for tensor in done.total.values())
    return np.concatenate([tensor.reshape(-1) for tensor in done.total.values()])


def squared(difference):
    return sum(int(x) ** 2 for x in difference)


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_example_moves_the_sum_by_at_most_the_bound_in_whole_numbers(kind, name):
    """Every example of the set, joining batches of many sizes; compared without tolerance."""
    case = Case(kind, num=NUM)
    bound = rounded(case.made, inner_bounds(case)[name])
    rng, longest = np.random.default_rng(0), 0
    for joining in range(NUM):
        others = np.setdiff1d(rng.choice(NUM, rng.integers(0, NUM), replace=False), [joining])
        batch = rng.permutation(np.append(others, joining))
        moved = squared(whole_sum(case, bound, batch) - whole_sum(case, bound, others))
        assert moved <= LIMIT
        longest = max(longest, moved)
    if name != "clip":
        assert longest > 0.999 * LIMIT  # the bound is reached, so the test can fail


def test_without_shortening_it_would_be_too_long(monkeypatch):
    """The broken twin: rounded, and not shortened by what rounding adds."""
    case = Case("softmax", num=NUM)
    monkeypatch.setattr(RoundedSum, "bounded_norm", lambda self, norm, num_elements: self.l2_bound)
    bound = rounded(case.made, Normalise(l2_clip_norm=0.3))
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
    assert not isinstance(made, SumsApart)  # a dot product of a batch depends on the batch
    bound = RoundedSum(bound=Clip(l2_clip_norm=1.0), float_error=0.1)
    with pytest.raises(ValueError):
        whole_sum(Case("regression"), bound, [0])


def test_a_bound_that_allows_for_less_than_is_stated_is_refused():
    case = Case("softmax", num=NUM)
    with refuses(ValueError, 0.0):
        whole_sum(case, RoundedSum(bound=Clip(l2_clip_norm=1.0), float_error=0.0), [0])


def test_too_many_examples_or_coordinates_are_refused():
    bound = RoundedSum(bound=Clip(l2_clip_norm=1.0), float_error=0.6)
    with refuses(ValueError, 0.6):
        bound.bounded_norm(1.0, 10)
    bound = RoundedSum(bound=Clip(l2_clip_norm=1.0), float_error=0.0)
    assert bound.bounded_norm(1.0, 10**6) == pytest.approx(1 - 1e3 * 2**-24, abs=1e-9)
    with refuses(ValueError, 10**16):
        bound.bounded_norm(1.0, 10**16)
    with refuses(ValueError, "exact-sum"):
        RoundedSum(bound=bound, float_error=0.0)
