"""Fixtures of the data tests."""

import numpy as np
import pytest
from scipy import sparse


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The cache of one test, empty; not yet a folder."""
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def gather():
    """From (view, users, split) to a copy of their examples, one user after the other."""

    def gather(view, users, split):
        return view.columns.take(view.all_rows(users, split))

    return gather


@pytest.fixture(scope="session")
def multi_hot():
    """From examples to their tags as (n, num_tags) of zeros and ones."""

    def multi_hot(examples):
        entries = (np.ones(len(examples.tag_indices)), examples.tag_indices, examples.tag_indptr)
        return sparse.csr_array(entries, shape=(len(examples), examples.num_tags)).toarray()

    return multi_hot
