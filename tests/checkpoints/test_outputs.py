"""Aggregates of outputs: the vectors of the notes, the rule for ties, and models as one tree."""

import numpy as np
import pytest

from fedpriv.checkpoints.aggregates import answers, mean_probabilities, packed, unpacked, votes
from tests.harness.refusals import refuses


def models(*rows: list[float]) -> list[np.ndarray]:
    return [np.array([row]) for row in rows]


def test_a_tied_vote_goes_to_the_lowest_class() -> None:
    given = models([0.40, 0.35, 0.25], [0.30, 0.45, 0.25], [0.45, 0.05, 0.50])
    assert np.allclose(mean_probabilities(given), [[0.383333, 0.283333, 0.333333]], atol=1e-6)
    assert votes(given).tolist() == [[1, 1, 1]]
    assert answers("opa", given).tolist() == [0] == answers("omv", given).tolist()
    # Neither the newest model nor the most certain one decides.
    swapped = models([0.2, 0.1, 0.7], [0.1, 0.8, 0.1])
    assert votes(swapped).tolist() == [[0, 1, 1]] and answers("omv", swapped).tolist() == [1]


def test_models_are_packed_and_unpacked() -> None:
    trees = [{"kernel": np.full((2, 3), i, np.float32), "a.b": np.ones(i + 1)} for i in range(12)]
    rule, found = unpacked(packed("omv", trees)) or ("", [])
    assert rule == "omv" and len(found) == 12
    for tree, own in zip(trees, found, strict=True):  # in order, also from the tenth on
        assert set(tree) == set(own) and all(np.array_equal(tree[n], own[n]) for n in tree)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: answers("mean", models([1.0])), ("'mean'", "opa", "omv")),
        (lambda: answers("opa", []), ("[]",)),
        (lambda: votes([np.zeros((2, 3)), np.zeros((3, 3))]), ("[[2, 3], [3, 3]]",)),
        (lambda: mean_probabilities([np.zeros(3)]), ("[[3]]",)),
        (lambda: packed("opa", []), (0, "'opa'")),
    ],
)
def test_what_cannot_be_aggregated_is_refused(call, names) -> None:
    with refuses(ValueError, *names):
        call()
