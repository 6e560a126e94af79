"""Tokens, targets and measures as TensorFlow Federated has them, on cases counted by hand."""

import numpy as np

from fedpriv.datasets.stackexchange.word_view import WordSequences
from fedpriv.models.text import IGNORED
from fedpriv.tasks.next_words import Encoding, count_bigrams, shares_right

# Words 1 to 3, unknown 4, begin 5, end 6.
ENCODING = Encoding(num_words=3, length=4)


def rows(*ranks):
    return WordSequences(
        starts=np.cumsum([0, *map(len, ranks)]),
        words=np.array([rank for row in ranks for rank in row], np.int32),
        kinds=np.zeros(len(ranks), np.uint8),
    )


def test_a_short_sentence_ends_and_is_padded_a_long_one_is_cut():
    x, y = ENCODING(rows([0, 2], [0, -1, 1, 2, 0], [9, 2, 1, 0], [1]))
    assert x.tolist() == [[5, 1, 3, 6], [5, 1, 4, 2], [5, 4, 3, 2], [5, 2, 6, 0]]
    assert y.tolist() == [[1, 3, 6, IGNORED], [1, 4, 2, 3], [4, 3, 2, 1], [2, 6, IGNORED, IGNORED]]


def test_accuracy_leaves_out_padding_unknown_words_and_ends_by_their_targets():
    # Targets: two words, an unknown one, a word, the end, padding. All but one word are "right".
    y = np.array([[1, 2, 4, 3, 6, IGNORED, 0]])
    predicted = np.array([[1, 4, 4, 3, 6, IGNORED, 0]])
    found = {name: (t.sum, t.count) for name, t in shares_right(predicted, y, ENCODING).items()}
    assert found == {
        "accuracy": (2, 3),  # 1 and 3; "unknown" in place of word 2 is a mistake
        "accuracy_no_oov": (3, 4),
        "accuracy_with_oov": (4, 5),
    }


def test_bigrams_count_words_alone_and_ties_go_to_the_lower_number():
    encoded = ENCODING(rows([0, 1, 0, 2], [0, 1], [1, -1, -1], [0, 2]))
    commonest, follows = count_bigrams(*encoded, ENCODING)
    assert commonest == 1  # four of word 1; three of word 2
    # begin: 1 three times, 2 once. 1: 2 twice, 3 twice. 2: 1 once. 3: end, and so nothing.
    assert follows.tolist() == [1, 2, 1, 1, 1, 1, 1]
