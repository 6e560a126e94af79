"""A split's own rules, and the hash that says which part a thread is in."""

import numpy as np
import pytest

from fedpriv.datasets.stackexchange.splits import (
    KINDS,
    NO_OWNER,
    NUM_FOLDS,
    TEST,
    TRAIN,
    VALIDATION,
    Split,
    choose_bounded,
    hash_examples,
    thread_part,
)
from tests.harness.refusals import refuses

# Worked out apart: fifths of the first eight bytes of SHA-256 of "fedpriv fold of threads SEED",
# a zero byte and the key; validation is fifth 0 of "fedpriv fold of validation SEED".
GOLDEN = {  # (key, seed): the fold that tests on it, and whether it is for validation otherwise
    ("1", 0): (0, True),
    ("1", 7): (3, False),
    ("42", 0): (0, False),
    ("42", 7): (1, True),
    ("31415", 0): (4, False),
    ("31415", 7): (1, False),
    ("t-é", 0): (0, True),
}


@pytest.mark.parametrize(("key", "seed"), GOLDEN)
def test_the_part_of_a_thread_is_what_it_always_was(key, seed):
    tested, validates = GOLDEN[key, seed]
    for fold in range(NUM_FOLDS):
        otherwise = VALIDATION if validates else TRAIN
        assert thread_part(key, fold, seed) == (TEST if fold == tested else otherwise)


def test_names_tell_splits_apart():
    splits = [Split(kind=kind) for kind in KINDS]
    splits += [split.choosing() for split in splits if split.kind != "by-sentence"]
    splits += [Split(kind=kind, fold=3) for kind in ("by-thread", "by-user", "as-published")]
    assert (
        len({split.name for split in splits}) == len({split.describe() for split in splits}) == 12
    )


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"kind": "by-tag"}, "'by-tag'"),
        ({"fold": 5}, 5),
        ({"kind": "by-time", "fold": 1}, "'by-time'"),
        ({"measured_on": "train"}, "measured-on 'train'"),
        ({"kind": "by-sentence", "measured_on": "validation"}, "by-sentence"),
    ],
)
def test_what_there_is_not_is_refused(wrong, name):
    with refuses(ValueError, name):
        Split(**wrong)


def graph(seed, number=300, owners=25):
    """Examples of one or two of 25 owners, some of whom own many, and a hash of each."""
    rng = np.random.default_rng(seed)
    first = rng.zipf(1.5, number) % owners
    second = np.where(rng.random(number) < 0.3, NO_OWNER, rng.integers(owners, size=number))
    second[second == first] = NO_OWNER
    order = rng.integers(2**63, size=number).astype(np.uint64)
    return np.stack([first, second], axis=1), order


def test_no_owner_has_more_and_none_could_be_added(subtests):
    for seed in range(5):
        for most in [1, 3, 10]:
            with subtests.test(seed=seed, most=most):
                owners, order = graph(seed)
                kept = choose_bounded(owners, order, most)
                has = {owner: int((owners[kept] == owner).any(1).sum()) for owner in range(25)}
                assert max(has.values()) == most  # it binds
                for place in np.flatnonzero(~kept):
                    mine = owners[place][owners[place] != NO_OWNER]
                    assert any(has[owner] == most for owner in mine)


def test_with_room_for_all_nothing_is_left_out():
    owners, order = graph(0)
    assert choose_bounded(owners, order, 300).all()
    assert choose_bounded(np.zeros((0, 2), np.int64), np.zeros(0, np.uint64), 1).tolist() == []


@pytest.mark.parametrize("seed", range(5))
def test_where_an_example_stands_does_not_matter_its_hash_does(seed):
    owners, order = graph(seed)
    kept = choose_bounded(owners, order, 3)
    shuffled = np.random.default_rng(seed + 9).permutation(len(order))
    assert (choose_bounded(owners[shuffled], order[shuffled], 3) == kept[shuffled]).all()
    # The first by hash has room for certain; by position it would be the first of the list.
    assert kept[np.argmin(order)]
    assert (choose_bounded(owners, order[::-1].copy(), 3) != kept).any()


def test_one_owner_s_place_is_taken_by_both_of_an_example():
    owners = np.array([[0, 1], [1, NO_OWNER], [0, NO_OWNER], [2, 0]])
    kept = choose_bounded(owners, np.array([0, 1, 2, 3], np.uint64), 1)
    assert kept.tolist() == [True, False, False, False]


def test_fewer_than_one_is_refused():
    with refuses(ValueError, "examples-per-owner 0"):
        choose_bounded(*graph(0), 0)


def test_a_hash_is_of_user_and_ordinal_alone():
    ordinals = np.arange(10_000)
    found = hash_examples("7", ordinals)
    assert len(np.unique(found)) == len(ordinals)
    assert (hash_examples("7", ordinals[500:510]) == found[500:510]).all()
    assert not np.intersect1d(found, hash_examples("8", ordinals)).size
    # Uniform: 16 bins of 625 expected; chi-square of 15 degrees beyond 44 once in 10^4.
    counts = np.bincount((found >> np.uint64(60)).astype(int), minlength=16)
    assert ((counts - 625.0) ** 2 / 625.0).sum() < 44.0
