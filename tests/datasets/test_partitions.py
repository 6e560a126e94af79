"""Partitions: every example is one user's, and a user's labels follow the mixture drawn for it."""

import numpy as np
import pytest

from fedpriv.datasets.partitions import (
    LabelSummary,
    examples_by_user,
    hold_out_public_users,
    split_by_dirichlet,
    split_by_ids,
    split_by_quantity,
    split_by_shards,
    split_uniformly,
    split_users,
)
from fedpriv.rng import Key
from tests.harness.refusals import refuses

KEY = Key.simulation(0)


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


IDS = [f"user-{n % 50}" for n in range(200)]
X, Y = np.arange(400.0).reshape(200, 2), np.arange(200)


@pytest.mark.parametrize("public", [0.3, ["user-3", "user-40"]], ids=["share", "ids"])
def test_a_users_rows_are_all_on_one_side(public):
    users, (x, y) = split_users(IDS, X, Y, public=public)
    theirs = {IDS[row] for row in y}
    assert theirs.isdisjoint(users) and theirs | set(users) == set(IDS)
    assert sorted([*y, *(row for _, own in users.values() for row in own)]) == Y.tolist()
    assert np.array_equal(x, X[y]) and all(np.array_equal(a, X[b]) for a, b in users.values())
    everybody = examples_by_user(X, Y, split_by_ids(IDS))
    held, (same_x, same_y) = hold_out_public_users(everybody, public=public)
    assert list(held) == list(users) and sorted(same_y) == sorted(y)
    assert np.array_equal(same_x, X[same_y])
    if public == 0.3:
        assert 5 <= len(theirs) <= 25  # of 50, by a fixed hash
    else:
        assert theirs == set(public)


@pytest.mark.parametrize("public", [["ann"], ["ann "], [7], 0.1], ids=str)
def test_one_persons_ids_are_one_user_however_they_are_encoded(public):
    """No row of a person under another spelling is on the other side, or another user's."""
    ids = ["ann", "ann ", "Zo\u00e9", " Zoe\u0301", "ann\0", "\u200bann", "bo b", "bo\u00a0 b",
           7, "7"]  # fmt: skip
    users, (_, theirs) = split_users(ids, np.arange(10), np.arange(10), public=public)
    people = {"ann": [0, 1, 4, 5], "Zo\u00e9": [2, 3], "bo b": [6, 7], "7": [8, 9]}
    assert {user: rows.tolist() for user, (_, rows) in users.items()}.items() < people.items()
    assert sorted(theirs) == sorted(n for u in people.keys() - users.keys() for n in people[u])


def test_two_keys_of_a_mapping_that_are_one_name_are_refused():
    users = {"ann": (np.zeros((1, 2)), np.zeros(1)), "ann\0": (np.ones((1, 2)), np.ones(1))}
    with refuses(ValueError, "'ann'"):
        hold_out_public_users({**users, "bob": users["ann"]}, public=["bob"])


def test_nobody_moves_another_user_to_the_other_side():
    _, (_, before) = split_users(IDS, X, Y, public=0.3)
    kept = [row for row, user in enumerate(IDS) if user != "user-7"]
    _, (_, after) = split_users([IDS[r] for r in kept], X[kept], Y[kept], public=0.3)
    assert {IDS[row] for row in before} - {"user-7"} == {IDS[row] for row in after}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"public": 0.0}, 0.0),
        ({"public": 1.0}, 1.0),
        ({"public": 1e-9}, "0 of 50"),
        ({"public": []}, "0 of 50"),
        ({"public": set(IDS)}, "50 of 50"),
        ({"public": ["nobody"]}, "'nobody'"),
        ({"ids": [" ", *IDS[1:]]}, 1),
        ({"ids": [*IDS[1:], None]}, 200),
        ({"ids": [*IDS[1:], float("nan")]}, 200),
        ({"ids": [*range(199), 1.0]}, "float"),
        ({"public": "user-3"}, "'user-3'"),
        ({"y": Y[1:]}, 199),
    ],
)
def test_sides_that_cannot_be_are_refused(given, name):
    with refuses(ValueError, name):
        split_users(**{"ids": IDS, "x": X, "y": Y, "public": 0.3} | given)


LABELS = np.arange(1_000) % 10
SPLITS = {
    "dirichlet": lambda users, key: split_by_dirichlet(LABELS, users, alpha=0.5, key=key),
    "unequal": lambda users, key: split_by_dirichlet(LABELS, users, alpha=1e-3, key=key),
    "equal": lambda users, key: split_by_dirichlet(LABELS, users, alpha=1e6, key=key),
    "shards": lambda users, key: split_by_shards(LABELS, users, shards=3, key=key),
    "uniform": lambda users, key: split_uniformly(1_000, users, key=key),
    "log-normal": lambda users, key: split_by_quantity(1_000, users, skew=1.5, key=key),
    "power-law": lambda users, key: split_by_quantity(1_000, users, law="power-law", key=key),
}


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("users", [1, 7, 333])
def test_every_partition_gives_each_example_to_one_user(name, users):
    partition = SPLITS[name](users, KEY)
    assert sorted(np.concatenate(list(partition.values())).tolist()) == list(range(1_000))
    assert len(partition) == users and list(partition) == sorted(partition)
    assert all(len(rows) and rows.tolist() == sorted(rows) for rows in partition.values())
    if "law" not in name and "normal" not in name:
        sizes = [len(rows) for rows in partition.values()]
        assert max(sizes) - min(sizes) <= (3 if name == "shards" else 1)


@pytest.mark.parametrize("name", SPLITS)
def test_every_partition_is_a_function_of_its_key(name):
    def split(key):
        return [rows.tolist() for rows in SPLITS[name](20, key).values()]

    assert split(KEY) == split(Key.simulation(0)) != split(Key.simulation(1))


def test_shards_are_runs_of_the_sorted_labels():
    summary = LabelSummary.of_partition(LABELS, split_by_shards(LABELS, 100, shards=2, key=KEY))
    assert summary.labels_held.max() == 2 and set(summary.examples) == {10}
    assert set(summary.counts[summary.labels_held == 2].ravel()) == {0, 5}
    few = LabelSummary.of_partition(LABELS, split_by_shards(LABELS, 3, shards=1, key=KEY))
    assert sorted(few.labels_held) == [4, 4, 4]  # of ten labels, with two cut in between


@pytest.mark.slow
def test_sizes_follow_the_law():
    def sizes(**given):
        parts = split_by_quantity(200_000, 2_000, key=KEY, **given).values()
        return np.array([len(rows) for rows in parts], float)

    logs = np.log(sizes(skew=0.8))
    assert logs.std() == pytest.approx(0.8, rel=0.05)
    assert np.mean((logs - logs.mean()) ** 3) / logs.std() ** 3 == pytest.approx(0.0, abs=0.2)
    ranked = np.sort(sizes(law="power-law", skew=0.7, least=0))[::-1]
    assert ranked[0] / ranked[99] == pytest.approx(100**0.7, rel=0.02)
    assert set(sizes(skew=0.0)) == {100.0}
    assert sizes(skew=3.0, least=20).min() == 20
    unsorted = sizes(law="power-law")
    assert abs(np.corrcoef(np.arange(2_000), unsorted)[0, 1]) < 0.1  # ranks are dealt


@pytest.mark.parametrize(
    ("split", "name"),
    [
        (lambda: split_by_dirichlet(LABELS, 2, alpha=0.0, key=KEY), 0.0),
        (lambda: split_by_dirichlet(LABELS, 2, alpha=np.nan, key=KEY), "nan"),
        (lambda: split_by_dirichlet(LABELS, 1_001, alpha=1.0, key=KEY), "1,001"),
        (lambda: split_by_shards(LABELS, 501, key=KEY), 501),
        (lambda: split_by_shards(LABELS, 5, shards=0, key=KEY), 0),
        (lambda: split_uniformly(3, 4, key=KEY), 4),
        (lambda: split_uniformly(3, 0, key=KEY), 0),
        (lambda: split_uniformly(3, 2, key=7), 7),
        (lambda: split_by_quantity(9, 3, skew=-1.0, key=KEY), -1.0),
        (lambda: split_by_quantity(9, 3, skew=np.nan, key=KEY), "nan"),
        (lambda: split_by_quantity(9, 3, least=4, key=KEY), 4),
        (lambda: split_by_quantity(9, 3, law="zipf", key=KEY), "'zipf'"),
    ],
)
def test_partitions_that_cannot_be_are_refused(split, name):
    with refuses(ValueError, name):
        split()


def test_a_summary_counts_labels_and_their_entropy():
    users = {"b": (np.zeros((4, 1)), np.array([7, 7, 7, 7])), "a": (None, np.array([1, 1, 7, 2]))}
    summary = LabelSummary.of_users(users)
    assert summary.users == ("a", "b") and summary.labels == (1, 2, 7)
    assert summary.counts.tolist() == [[2, 1, 1], [0, 0, 4]]
    assert summary.labels_held.tolist() == [3, 1] and summary.entropies.tolist() == [1.5, 0.0]
    assert summary.entropy == pytest.approx(-sum(p * np.log2(p) for p in (2 / 8, 1 / 8, 5 / 8)))
    assert "2 users, 8 examples of 3 labels" in str(summary)
    for users in ({}, {"a": (None, np.ones((2, 2)))}):
        with pytest.raises(ValueError):
            LabelSummary.of_users(users)
