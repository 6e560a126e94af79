"""What a model does to each example: by hand, by a dense oracle, and by the compiled totals."""

import math

import numpy as np
import pytest

from fedpriv.kernels.tag_scores import measure

WORDS, CLASSES = 20, 8


def examples(number, seed, dtype=np.uint16):
    """Columns of random examples, as the kernel takes them; some have no word, or no tag."""
    rng = np.random.default_rng(seed)
    words = [np.sort(rng.choice(WORDS, rng.integers(0, 5), replace=False)) for _ in range(number)]
    tags = [np.sort(rng.choice(CLASSES, rng.integers(0, 8), replace=False)) for _ in range(number)]
    starts = [np.concatenate([[0], np.cumsum([len(x) for x in xs])]) for xs in (words, tags)]
    indices = np.concatenate([*words, []]).astype(np.int32)
    return (
        starts[0].astype(np.int64),
        indices,
        rng.integers(1, 4, len(indices)).astype(dtype),
        np.array([rng.choice([*own, 0]) for own in tags], np.int32),
        starts[1].astype(np.int64),
        np.concatenate([*tags, []]).astype(np.int32),
    )


def model(seed, whole=False):
    """A kernel and a bias; of whole numbers in the bias alone, there are many ties."""
    rng = np.random.default_rng(seed)
    kernel = rng.normal(size=(WORDS, CLASSES)).astype(np.float32)
    bias = rng.normal(size=CLASSES).astype(np.float32)
    return (0 * kernel, np.rint(bias)) if whole else (kernel, bias)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("unit_norm", [False, True])
def test_a_dense_oracle(unit_norm, whole):
    """Ties go to the lower number; at most five of more tags can be among five."""
    columns, (kernel, bias) = examples(200, 1, np.float32 if whole else np.uint16), model(2, whole)
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
        assert ndcg[n] == pytest.approx(reached / (sum(gains[: len(own)]) or 1.0), rel=1e-9)


def test_examples_are_in_the_order_asked_for():
    columns, (kernel, bias) = examples(50, 3), model(4)
    order = np.random.default_rng(5).permutation(50)
    plain = measure(*columns, np.arange(50), True, kernel, bias)
    turned = measure(*columns, order, True, kernel, bias)
    for one_way, other in zip(plain, turned, strict=True):
        np.testing.assert_array_equal(one_way[order], other)
    assert len(np.unique(plain[2])) > 10
