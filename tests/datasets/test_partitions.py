"""Partitions: every example is one user's, and a user's labels follow the mixture drawn for it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.datasets.partitions import (
    examples_by_user,
    split_by_dirichlet,
    split_by_ids,
    split_users,
)
from fedpriv.rng import Key

KEY = Key.simulation(0)


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    users=st.integers(1, 60),
    alpha=st.sampled_from([1e-3, 0.1, 1.0, 1e6]),
    seed=st.integers(0, 9),
)
def test_each_example_is_in_one_users_part_and_parts_are_equal(labels, users, alpha, seed):
    users = min(users, len(labels))
    partition = split_by_dirichlet(np.array(labels), users, alpha=alpha, key=Key.simulation(seed))
    assert sorted(np.concatenate(list(partition.values())).tolist()) == list(range(len(labels)))
    sizes = [len(rows) for rows in partition.values()]
    assert len(sizes) == users and max(sizes) - min(sizes) <= 1
    assert list(partition) == sorted(partition)


def test_the_same_key_gives_the_same_partition_and_another_key_another():
    labels = np.arange(1_000) % 10

    def split(key):
        made = split_by_dirichlet(labels, 20, alpha=0.5, key=key)
        return [rows.tolist() for rows in made.values()]

    assert split(KEY) == split(Key.simulation(0)) != split(Key.simulation(1))


def test_label_mixtures_have_the_variance_of_the_dirichlet():
    classes, users, alpha = 10, 400, 0.3
    labels = np.arange(400 * users) % classes
    # A quarter of the users, so that no class is used up.
    partition = list(split_by_dirichlet(labels, users, alpha=alpha, key=KEY).values())[:100]
    shares = np.array([np.bincount(labels[rows], minlength=classes) / 400 for rows in partition])
    mean = 1 / classes
    variance = mean * (1 - mean) / (classes * alpha + 1)
    assert shares.mean(axis=0) == pytest.approx(mean, abs=0.08)
    assert shares.var() == pytest.approx(variance, rel=0.15)


def test_natural_ids_group_examples_in_order():
    ids = np.array(["zoe", "ann", "zoe", "bob", "ann"])
    partition = split_by_ids(ids)
    assert {user: rows.tolist() for user, rows in partition.items()} == {
        "ann": [1, 4], "bob": [3], "zoe": [0, 2],
    }  # fmt: skip
    x, y = np.arange(10).reshape(5, 2), np.arange(5)
    users = examples_by_user(x, y, partition)
    assert users["zoe"][0].tolist() == [[0, 1], [4, 5]] and users["zoe"][1].tolist() == [0, 2]
    assert split_by_ids([]) == {}


@pytest.mark.parametrize(("alpha", "users"), [(0.0, 2), (float("nan"), 2), (1.0, 0), (1.0, 4)])
def test_what_cannot_be_split_is_refused(alpha, users):
    with pytest.raises(ValueError, match=r"alpha|more than the 3 examples|at least 1"):
        split_by_dirichlet(np.array([0, 1, 1]), users, alpha=alpha, key=KEY)


def test_a_key_is_no_number():
    with pytest.raises(ValueError, match=r"key 0 must be a Key, such as Key\.simulation\(0\)"):
        split_by_dirichlet(np.array([0, 1, 1]), 2, alpha=1.0, key=0)


IDS = [f"user-{n % 50}" for n in range(200)]
X, Y = np.arange(400.0).reshape(200, 2), np.arange(200)


@pytest.mark.parametrize("public", [0.3, ["user-3", "user-40"]], ids=["share", "ids"])
def test_a_users_rows_are_all_on_one_side(public):
    users, (x, y) = split_users(IDS, X, Y, public=public)
    theirs = {IDS[row] for row in y}
    assert theirs.isdisjoint(users) and theirs | set(users) == set(IDS)
    assert sorted([*y, *(row for _, own in users.values() for row in own)]) == Y.tolist()
    assert np.array_equal(x, X[y]) and all(np.array_equal(a, X[b]) for a, b in users.values())
    if public == 0.3:
        assert 5 <= len(theirs) <= 25  # of 50, by a fixed hash
    else:
        assert theirs == set(public)


def test_nobody_moves_another_user_to_the_other_side():
    _, (_, before) = split_users(IDS, X, Y, public=0.3)
    kept = [row for row, user in enumerate(IDS) if user != "user-7"]
    _, (_, after) = split_users([IDS[r] for r in kept], X[kept], Y[kept], public=0.3)
    assert {IDS[row] for row in before} - {"user-7"} == {IDS[row] for row in after}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"public": 0.0}, "not between 0 and 1"),
        ({"public": 1.0}, "not between 0 and 1"),
        ({"public": 1e-9}, "neither side may be empty"),
        ({"public": []}, "neither side may be empty"),
        ({"public": set(IDS)}, "neither side may be empty"),
        ({"public": ["nobody"]}, "'nobody' has no row"),
        ({"public": 0.3, "ids": [" ", *IDS[1:]]}, "user is empty"),
        ({"public": 0.3, "y": Y[1:]}, "200 ids, 200 inputs and 199 labels"),
    ],
)
def test_sides_that_cannot_be_are_refused(given, said):
    with pytest.raises(ValueError, match=said):
        split_users(given.pop("ids", IDS), X, given.pop("y", Y), **given)
