"""What a model does to each example: by hand, by a dense oracle, and by the compiled totals."""

import math

import numpy as np
import pytest

from fedpriv.kernels.tag_scores import measure

WORDS, CLASSES = 20, 8


def examples(number, seed, dtype=np.uint16):
    """Columns of random examples, in the order of the kernels' arguments; some have no word."""
    rng = np.random.default_rng(seed)
    words = [np.sort(rng.choice(WORDS, rng.integers(0, 5), replace=False)) for _ in range(number)]
    tags = [np.sort(rng.choice(CLASSES, rng.integers(1, 8), replace=False)) for _ in range(number)]
    starts = [np.concatenate([[0], np.cumsum([len(x) for x in xs])]) for xs in (words, tags)]
    indices = np.concatenate([*words, []]).astype(np.int32)
    return (
        starts[0].astype(np.int64),
        indices,
        rng.integers(1, 4, len(indices)).astype(dtype),
        np.array([rng.choice(own) for own in tags], np.int32),
        starts[1].astype(np.int64),
        np.concatenate([*tags, []]).astype(np.int32),
    )


def model(seed, whole=False):
    """A kernel and a bias; of whole numbers, there are many ties."""
    rng = np.random.default_rng(seed)
    kernel = rng.normal(size=(WORDS, CLASSES)).astype(np.float32)
    bias = rng.normal(size=CLASSES).astype(np.float32)
    return (np.rint(kernel), np.rint(bias)) if whole else (kernel, bias)


def one(scores, tags, label):
    """What scores do to one example without words."""
    columns = (
        np.zeros(2, np.int64),
        np.empty(0, np.int32),
        np.empty(0, np.uint8),
        np.array([label], np.int32),
        np.array([0, len(tags)], np.int64),
        np.array(tags, np.int32),
    )
    kernel = np.zeros((0, len(scores)), np.float32)
    found = measure(*columns, np.arange(1), False, kernel, np.array(scores, np.float32))
    return tuple(array[0] for array in found[:3])


@pytest.mark.parametrize(
    ("scores", "tags", "label", "right", "found", "ndcg"),
    [
        # Ranks of tags 0 to 6 are 1 to 7.
        ([7, 6, 5, 4, 3, 2, 1], [0], 0, 1, 1, 1.0),
        ([7, 6, 5, 4, 3, 2, 1], [1], 1, 0, 1, 1 / math.log2(3)),
        ([7, 6, 5, 4, 3, 2, 1], [5], 5, 0, 0, 0.0),
        ([7, 6, 5, 4, 3, 2, 1], [0, 2], 2, 0, 2, 1.5 / (1 + 1 / math.log2(3))),
        ([7, 6, 5, 4, 3, 2, 1], [4, 6], 6, 0, 1, 1 / math.log2(6) / (1 + 1 / math.log2(3))),
        # Six tags: at most five of them can be among five, and a perfect ranking has 1.
        ([7, 6, 5, 4, 3, 2, 1], [0, 1, 2, 3, 4, 5], 0, 1, 5, 1.0),
        # Ties go to the lower number.
        ([1, 1, 1], [0], 0, 1, 1, 1.0),
        ([1, 1, 1], [2], 2, 0, 1, 0.5),
        ([3, 2, 1], [], 0, 1, 0, 0.0),
    ],
)
def test_by_hand(scores, tags, label, right, found, ndcg):
    assert one(scores, tags, label) == (right, found, pytest.approx(ndcg, rel=1e-12))


@pytest.mark.parametrize("unit_norm", [False, True])
def test_a_dense_oracle(unit_norm):
    columns, (kernel, bias) = examples(200, 1), model(2)
    indptr, indices, counts, labels, tag_indptr, tags = columns
    right, found, ndcg, losses = measure(*columns, np.arange(200), unit_norm, kernel, bias)
    for n in range(200):
        x = np.zeros(WORDS)
        x[indices[indptr[n] : indptr[n + 1]]] = counts[indptr[n] : indptr[n + 1]]
        x /= (np.sqrt((x**2).sum()) if unit_norm else x.sum()) or 1.0
        logits = x @ kernel + bias
        order = list(np.argsort(-logits, kind="stable"))
        cross_entropy = np.log(np.exp(logits).sum()) - logits[labels[n]]
        assert losses[n] == pytest.approx(cross_entropy, abs=1e-5)
        own = tags[tag_indptr[n] : tag_indptr[n + 1]]
        gains = [1 / math.log2(2 + place) for place in range(5)]
        reached = sum(gain for gain, tag in zip(gains, order, strict=False) if tag in own)
        assert right[n] == (order[0] == labels[n])
        assert found[n] == len(set(order[:5]) & set(own))
        assert ndcg[n] == pytest.approx(reached / sum(gains[: len(own)]), rel=1e-9)


def test_examples_are_in_the_order_asked_for():
    columns, (kernel, bias) = examples(50, 3), model(4)
    order = np.random.default_rng(5).permutation(50)
    plain = measure(*columns, np.arange(50), True, kernel, bias)
    turned = measure(*columns, order, True, kernel, bias)
    for one_way, other in zip(plain, turned, strict=True):
        np.testing.assert_array_equal(one_way[order], other)
    assert len(np.unique(plain[2])) > 10
