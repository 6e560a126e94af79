"""Aggregates of outputs: models as one tree, and refusals; values are in `tests/oracles`."""

import numpy as np
import pytest

from fedpriv.checkpoints.aggregates import answers, mean_probabilities, packed, unpacked, votes
from tests.harness.refusals import refuses


def test_models_are_packed_and_unpacked() -> None:
    trees = [{"kernel": np.full((2, 3), i, np.float32), "a.b": np.ones(i + 1)} for i in range(12)]
    rule, found = unpacked(packed("omv", trees)) or ("", [])
    assert rule == "omv" and len(found) == 12
    for tree, own in zip(trees, found, strict=True):  # in order, also from the tenth on
        assert set(tree) == set(own) and all(np.array_equal(tree[n], own[n]) for n in tree)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: answers("mean", [np.ones((1, 1))]), ("'mean'", "opa", "omv")),
        (lambda: answers("opa", []), ("[]",)),
        (lambda: votes([np.zeros((2, 3)), np.zeros((3, 3))]), ("[[2, 3], [3, 3]]",)),
        (lambda: mean_probabilities([np.zeros(3)]), ("[[3]]",)),
        (lambda: packed("opa", []), (0, "'opa'")),
    ],
)
def test_what_cannot_be_aggregated_is_refused(call, names) -> None:
    with refuses(ValueError, *names):
        call()
