"""Rows of all-MiniLM-L6-v2 are those of sentence-transformers; `make encoder` fetches it."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from fedpriv.datasets.cache import cache_dir
from fedpriv.datasets.encoders import Encoder, added_encoders

HERE = Path(__file__).parent
WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def texts(tokenizer, number=1000):
    """Texts of words of the tokeniser's vocabulary, a twentieth of them of 100 to 400 words."""
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha() and word.isascii())
    rng, made = np.random.default_rng(0), []
    for place in range(number):
        length = int(rng.integers(1, 40)) if place % 20 else int(rng.integers(100, 400))
        chosen = [words[i] for i in rng.integers(0, len(words), length)]
        if place % 3 == 0:
            chosen[0] = chosen[0].capitalize() + ","
        made.append(" ".join(chosen) + ("?" if place % 5 == 0 else ""))
    return made


@pytest.fixture(autouse=True)
def cache():
    """The session's cache, which has the encoders of the user's."""


@pytest.mark.slow
def test_rows_are_those_of_sentence_transformers():
    """1,000 texts, 45 of more than 128 tokens; golden: four projections of each, by 6.2.0.

    Sentence-transformers' rows and ours differ by at most 2e-7 a number there.
    """
    if not any(one.weights_sha256 == WEIGHTS for one in added_encoders()):
        pytest.skip(f"all-MiniLM-L6-v2 is not in {cache_dir()}; run `make encoder` once")
    found = next(one for one in added_encoders() if one.weights_sha256 == WEIGHTS)
    tokenizer = Tokenizer.from_file(str(found.folder / "tokenizer.json"))
    rows = Encoder(found).encode(texts(tokenizer))
    onto = np.random.default_rng(1).normal(size=(384, 4)) / np.sqrt(384)
    golden = np.load(HERE / "minilm_projections.npy")
    np.testing.assert_allclose(rows @ onto, golden, atol=1e-6)
    assert np.abs(golden).max() > 0.1
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
