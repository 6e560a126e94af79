"""Dealing users to workers."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.backends.worker import shards_of

SIZES = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 50), max_size=8)


def longest(shards, sizes):
    return max(sum(max(sizes[user], 1) for user in shard) for shard in shards)


@given(SIZES, st.integers(1, 4))
def test_everybody_is_dealt_once(sizes, num_workers):
    shards = shards_of(sizes, num_workers)
    assert len(shards) == num_workers
    assert sorted(itertools.chain(*shards)) == sorted(sizes)


@given(SIZES.filter(bool), st.integers(1, 3))
def test_no_worker_has_more_than_four_thirds_of_the_best_sharding(sizes, num_workers):
    best = min(
        max(
            sum(max(sizes[u], 1) for u, worker in zip(sizes, choice, strict=True) if worker == w)
            for w in range(num_workers)
        )
        for choice in itertools.product(range(num_workers), repeat=len(sizes))
    )
    assert longest(shards_of(sizes, num_workers), sizes) <= best * 4 / 3


@given(SIZES, st.integers(1, 4))
def test_the_longest_come_first(sizes, num_workers):
    for shard in shards_of(sizes, num_workers):
        assert [sizes[u] for u in shard] == sorted((sizes[u] for u in shard), reverse=True)


def test_users_without_examples_are_spread_too():
    assert [len(shard) for shard in shards_of(dict.fromkeys("abcdef", 0), 3)] == [2, 2, 2]


def test_ties_are_dealt_in_order():
    assert shards_of(dict.fromkeys("abcd", 7), 2) == [("a", "c"), ("b", "d")]


@pytest.mark.parametrize("num_workers", [1, 3])
def test_nobody_is_an_empty_shard_for_each(num_workers):
    assert shards_of({}, num_workers) == [()] * num_workers
