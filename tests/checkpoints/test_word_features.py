"""What a vocabulary file keeps of a model's inputs, and that older files are as they were."""

import json

import numpy as np
import pytest

from fedpriv.checkpoints.vocabulary import (
    Vocabulary,
    WordFeatures,
    rarity_weights,
    read_vocabulary,
    vocabulary_bytes,
)
from tests.harness.refusals import refuses

WORDS = {"words": ("a", "b", "c"), "tags": ("x",)}
MADE = WordFeatures(num_words=3, weights=np.float32([0.1, 1 / 3, 2e-7]), num_pairs=5)


def test_weights_by_hand():
    found = rarity_weights(np.array([0, 1, 3, 7]), 7, 1.0)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.log([8.0, 4.0, 2.0, 1.0]), rtol=1e-6)
    np.testing.assert_allclose(
        rarity_weights(np.array([0, 3]), 7, 0.5), np.log([8.0, 2.0]) ** 0.5, rtol=1e-6
    )
    assert rarity_weights(np.array([0, 3, 7]), 7, 0.0).tolist() == [1.0, 1.0, 1.0]
    with refuses(ValueError, "'tf-idf'", "'unit-norm'"):
        rarity_weights(np.array([0]), 0, 1.0)
    for power in (-0.5, float("nan")):
        with refuses(ValueError, power):
            rarity_weights(np.array([0]), 7, power)


@pytest.mark.parametrize("inputs", ["tff", "unit-norm"])
def test_a_file_of_counts_is_as_it_always_was(inputs):
    text = vocabulary_bytes(Vocabulary(**WORDS, inputs=inputs)).decode()
    assert text == (
        f'{{"format": "fedpriv-vocabulary", "version": 1, "inputs": "{inputs}", '
        '"words": ["a", "b", "c"], "tags": ["x"]}'
    )


@pytest.mark.parametrize(
    ("inputs", "made"), [("tf-idf", MADE), ("unit-norm", WordFeatures(num_words=3, num_pairs=4))]
)
def test_what_is_written_is_read_to_the_bit(tmp_path, inputs, made):
    path = tmp_path / "vocabulary.json"
    path.write_bytes(vocabulary_bytes(Vocabulary(**WORDS, inputs=inputs, word_features=made)))
    found = read_vocabulary(path)
    assert found.inputs == inputs and found.num_rows == made.num_rows
    assert found.word_features.weights.tobytes() == made.weights.tobytes()
    assert found.word_features.to_json() == made.to_json()


def test_all_float32_come_back():
    bits = np.random.default_rng(0).integers(0, 0x7F800000, 20_000, dtype=np.uint32)
    made = WordFeatures(num_words=len(bits), weights=bits.view(np.float32))
    found = WordFeatures.from_json(len(bits), json.loads(json.dumps(made.to_json())))
    assert found.weights.tobytes() == made.weights.tobytes()


@pytest.mark.parametrize(
    ("inputs", "made", "name"),
    [
        ("tf-idf", None, "'tf-idf'"),
        ("tf-idf", WordFeatures(num_words=3, num_pairs=4), "'tf-idf'"),
        ("unit-norm", MADE, "'unit-norm'"),
        ("tff", WordFeatures(num_words=3, num_pairs=4), "'tff'"),
        ("tf-idf", WordFeatures(num_words=2, weights=np.ones(2, np.float32)), 2),
    ],
)
def test_what_does_not_belong_together_is_refused(inputs, made, name):
    with refuses(ValueError, name):
        Vocabulary(**WORDS, inputs=inputs, word_features=made)


@pytest.mark.parametrize(
    "change",
    [
        {"weights": [1.0, 2.0]},
        {"weights": [1.0, -1.0, 1.0]},
        {"weights": [1.0, None, 1.0]},
        {"weights": 3},
        {"num_pairs": -1},
        {"num_pairs": 1.5},
        {"pair_weight": 0.0},
        {"most_paired": "all"},
        {"weights": None},
    ],
)
def test_a_damaged_file_is_refused(tmp_path, change):
    path = tmp_path / "vocabulary.json"
    content = json.loads(vocabulary_bytes(Vocabulary(**WORDS, inputs="tf-idf", word_features=MADE)))
    content["word_features"] |= change
    path.write_text(json.dumps(content))
    with refuses(ValueError, path):
        read_vocabulary(path)
