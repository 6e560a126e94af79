"""Fixtures of corpora."""

import pytest

from fedpriv.datasets.stackexchange.splits import BY_SENTENCE
from tests.datasets.corpus.sentences import write


@pytest.fixture
def corpus(tmp_path):
    made = write(tmp_path / "corpus")
    made.view(split=BY_SENTENCE)  # views are made when they are first asked for
    return made
