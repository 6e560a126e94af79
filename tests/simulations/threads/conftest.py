"""A tiny encoder, and the corpus's rows of it, in a cache of their own."""

import pytest

from fedpriv.datasets.encoders import Encoder, add_encoder
from fedpriv.datasets.stackexchange.embeddings import make_embeddings
from tests.harness.tiny_bert import write_tiny_bert


@pytest.fixture
def encoder(tiny_corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    added = add_encoder(write_tiny_bert(tmp_path / "tiny"))
    make_embeddings(tiny_corpus, Encoder(added), processes=1)
    return added
