"""What a model does to each tag example: by a dense oracle."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedpriv.datasets.stackexchange.tag_view import TagExamples
from fedpriv.tasks.tag_prediction import score_tags

WORDS, CLASSES = 20, 8


def examples(number, seed, dtype=np.uint16):
    """Random examples; some have no word, or no tag."""
    rng = np.random.default_rng(seed)
    words = [np.sort(rng.choice(WORDS, rng.integers(0, 5), replace=False)) for _ in range(number)]
    tags = [np.sort(rng.choice(CLASSES, rng.integers(0, 8), replace=False)) for _ in range(number)]
    starts = [np.concatenate([[0], np.cumsum([len(x) for x in xs])]) for xs in (words, tags)]
    indices = np.concatenate([*words, []]).astype(np.int32)
    return TagExamples(
        indptr=starts[0].astype(np.int64),
        indices=indices,
        counts=rng.integers(1, 4, len(indices)).astype(dtype),
        num_tokens=np.ones(number, np.int32),
        labels=np.array([rng.choice([*own, 0]) for own in tags], np.int32),
        tag_indptr=starts[1].astype(np.int64),
        tag_indices=np.concatenate([*tags, []]).astype(np.int32),
        num_words=WORDS,
        num_tags=CLASSES,
    )


def model(seed, whole=False):
    """A kernel and a bias; of whole numbers in the bias alone, there are many ties."""
    rng = np.random.default_rng(seed)
    kernel = rng.normal(size=(WORDS, CLASSES)).astype(np.float32)
    bias = rng.normal(size=CLASSES).astype(np.float32)
    return {"kernel": 0 * kernel if whole else kernel, "bias": np.rint(bias) if whole else bias}


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("inputs", ["tff", "unit-norm"])
def test_a_dense_oracle(inputs, whole):
    """Ties go to the lower number; at most five of more tags can be among five."""
    given, params = examples(200, 1, np.float32 if whole else np.uint16), model(2, whole)
    right, found, ndcg, losses = score_tags(params, given, inputs, np.arange(200))
    for n, x in enumerate(given.features(inputs).toarray()):
        logits = x @ params["kernel"].astype(np.float64) + params["bias"]
        order = list(np.argsort(-logits, kind="stable"))
        cross_entropy = np.log(np.exp(logits).sum()) - logits[given.labels[n]]
        assert losses[n] == pytest.approx(cross_entropy, abs=1e-5)
        own = given.tag_indices[given.tag_indptr[n] : given.tag_indptr[n + 1]]
        gains = [1 / math.log2(2 + place) for place in range(5)]
        reached = sum(gain for gain, tag in zip(gains, order, strict=False) if tag in own)
        assert right[n] == (order[0] == given.labels[n])
        assert found[n] == len(set(order[:5]) & set(own))
        assert ndcg[n] == pytest.approx(reached / (sum(gains[: len(own)]) or 1.0), rel=1e-9)


def test_examples_are_in_the_order_asked_for():
    given, params = examples(50, 3), model(4)
    order = np.random.default_rng(5).permutation(50)
    plain = score_tags(params, given, "unit-norm", np.arange(50))
    turned = score_tags(params, given, "unit-norm", order)
    for one_way, other in zip(plain, turned, strict=True):
        np.testing.assert_array_equal(one_way[order], other)
    assert len(np.unique(plain[2])) > 10


@pytest.mark.parametrize("name", ["indices", "labels", "tag_indices"])
@pytest.mark.parametrize("bad", [-1, WORDS])
def test_a_number_outside_the_model_is_refused(name, bad):
    given = examples(50, 3)
    numbers = getattr(given, name).copy()
    numbers[-1] = bad
    with pytest.raises(ValueError):
        score_tags(model(4), replace(given, **{name: numbers}), "tff", np.arange(50))
