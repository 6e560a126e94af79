"""Fixtures of corpora."""

import pytest

from tests.data.corpus.sentences import write


@pytest.fixture
def corpus(tmp_path):
    return write(tmp_path / "corpus")
