"""Fixtures of the data tests."""

import numpy as np
import pytest
from scipy import sparse

from fedpriv.datasets import cache as cache_module
from tests.harness.file_server import server

__all__ = ["no_data", "server"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The cache of one test, empty; not yet a folder."""
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_data(tmp_path, monkeypatch):
    """The working directory: no FEDPRIV_DATA, an empty cache, and no data next to it.

    The checkout that tests run from may have real data next to it.
    """
    work = tmp_path / "top" / "project"
    work.mkdir(parents=True)
    monkeypatch.chdir(work)
    monkeypatch.delenv("FEDPRIV_DATA", raising=False)
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache_module, "__file__", str(work / "fedpriv" / "datasets" / "cache.py"))
    return work


@pytest.fixture(scope="session")
def multi_hot():
    """From examples to their tags as (n, num_tags) of zeros and ones."""

    def multi_hot(examples):
        entries = (np.ones(len(examples.tag_indices)), examples.tag_indices, examples.tag_indptr)
        return sparse.csr_array(entries, shape=(len(examples), examples.num_tags)).toarray()

    return multi_hot
