"""Fewer public users: who they are, and that the others are in nothing."""

import numpy as np
import pytest

from fedpriv.datasets.stackexchange.rosters import limit_public
from fedpriv.datasets.stackexchange.splits import Split
from tests.datasets.corpus.threaded import PUBLIC, make
from tests.harness.refusals import refuses

NAMES = [f"user-{number}" for number in range(50)]


@pytest.fixture
def corpus(tmp_path):
    return make(tmp_path / "c")


def test_fewer_are_among_more_and_their_order_is_no_matter():
    ten = limit_public(NAMES, 10)
    assert len(ten) == 10 and ten == sorted(ten)
    assert set(ten) < set(limit_public(NAMES, 20)) < set(limit_public(NAMES, 50)) == set(NAMES)
    assert limit_public(NAMES[::-1], 10) == ten


def test_the_others_are_in_no_count_and_in_no_public_text(corpus):
    number = len(PUBLIC) - 1
    kept = limit_public(PUBLIC, number)
    (left_out,) = set(PUBLIC) - set(kept)
    whole, fewer = corpus.view(), corpus.view(split=Split(public_users=number))
    assert list(fewer.public_users) == kept and fewer.roster == whole.roster
    with refuses(ValueError, repr(left_out)):
        fewer.num_examples(left_out)
    rows = fewer.public_rows("all", of="all-posts")
    assert len(rows) == sum(fewer.num_examples(user, "all") for user in kept)
    assert fewer.num_public_examples <= whole.num_public_examples
    assert int(np.sum(fewer.word_users.max(initial=0))) <= number


def test_more_than_there_are_and_none_without_counts_are_refused(corpus):
    with refuses(ValueError, "public-users 99", len(PUBLIC)):
        corpus.view(split=Split(public_users=99))
    with refuses(ValueError, 0, "by-sentence"):
        corpus.view(split=Split(public_users=0))
    with refuses(ValueError, "public-users -1"):
        Split(public_users=-1)
