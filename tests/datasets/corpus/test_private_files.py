"""Users' data that were prepared are their owner's: nobody else on the machine reads them."""

import os
import stat

import numpy as np
import pytest

from fedpriv.datasets.cache import cached_arrays
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.datasets.stackexchange.splits import BY_THREAD
from tests.datasets.corpus import threaded


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
    corpus = threaded.make(tmp_path / "corpus")
    assert others(tmp_path / "corpus") == {}
    corpus.view(split=BY_THREAD)
    users = list(corpus.view(split=BY_THREAD).roster)
    corpus.add_roster(RosterSpec(name="few", rule="declared", ids=users[:5]))
    corpus.view("few", split=BY_THREAD)
    assert others(tmp_path / "corpus") == {}


def test_arrays_in_the_cache_are_too(tmp_path):
    cached_arrays("texts", {"of": 1}, lambda: {"ids": np.arange(4)})
    (entry,) = (tmp_path / "cache" / "arrays").iterdir()
    assert others(entry) == {}
