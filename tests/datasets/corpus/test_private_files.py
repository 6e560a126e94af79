"""Users' data that were prepared are their owner's: nobody else on the machine reads them."""

from __future__ import annotations

import os
import stat

import numpy as np
import pytest

from fedpriv.datasets.cache import cached_arrays
from fedpriv.datasets.importers.synthetic import Shape, synthesize
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.datasets.stackexchange.splits import BY_THREAD, Split

SHAPE = Shape(
    num_users=20, num_sentences=400, public_users=6, num_words=200, num_tags=12, num_topics=4
)


@pytest.fixture(autouse=True)
def open_umask():
    """As lax as it gets, so that no mode is right by chance."""
    before = os.umask(0)
    yield
    os.umask(before)


def others(folder):
    """Return what somebody else may do something with."""
    found = [folder, *folder.rglob("*")]
    return {
        path.name: oct(path.stat().st_mode)
        for path in found
        if stat.S_IMODE(path.stat().st_mode) & 0o077
    }


def test_a_corpus_its_views_and_later_rosters_are_their_owners(tmp_path):
    corpus = synthesize(tmp_path / "corpus", shape=SHAPE, max_words=40, max_tags=3)
    assert others(tmp_path / "corpus") == {}
    corpus.view(split=BY_THREAD)
    users = list(corpus.view(split=BY_THREAD).roster)
    corpus.add_roster(RosterSpec(name="few", rule="declared", ids=users[:5]))
    corpus.view("few", split=BY_THREAD)
    assert others(tmp_path / "corpus") == {}


def test_views_of_a_corpus_that_cannot_be_written_to_are_too(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("FEDPRIV_CACHE", str(cache))
    corpus = synthesize(tmp_path / "corpus", shape=SHAPE, max_words=40, max_tags=3)
    make, refused = Corpus.make_view, []

    def refusing(self, roster, split, parent, *more, **named):
        if parent.is_relative_to(tmp_path / "corpus"):
            refused.append(parent)
            raise PermissionError(13, "Permission denied", str(parent))
        return make(self, roster, split, parent, *more, **named)

    # root may write to whatever is read-only
    monkeypatch.setattr(Corpus, "make_view", refusing)
    corpus.view(split=Split(kind="by-thread", fold=1))
    assert refused
    private = [path for path in cache.rglob("*.npy")]
    assert private and all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in private)
    assert all(stat.S_IMODE(path.parent.stat().st_mode) == 0o700 for path in private)


def test_arrays_in_the_cache_are_too(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    cached_arrays("texts", {"of": 1}, lambda: {"ids": np.arange(4)})
    (entry,) = (tmp_path / "cache" / "arrays").iterdir()
    assert others(entry) == {}
