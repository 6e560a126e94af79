import numpy as np
import pytest

from fedpriv.datasets.stackexchange.rosters import (
    RosterSpec,
    choose_roster,
    is_public_tenth,
    limit_public,
)
from fedpriv.datasets.stackexchange.splits import Split
from tests.datasets.corpus.threaded import PUBLIC, make
from tests.harness.refusals import refuses

PUBLIC_BELOW_100 = ["15", "33", "43", "44", "50", "53", "55", "60", "82", "83", "86", "87", "89"]
COUNTS = {"b": 5, "a": 5, "d": 9, "c": 1, "e": 7}


def test_most_sentences_breaks_ties_by_id():
    spec = RosterSpec(name="r", rule="most-sentences", size=3)
    assert choose_roster(spec, COUNTS) == ("a", "d", "e")
    assert choose_roster(spec, dict(reversed(COUNTS.items()))) == ("a", "d", "e")


def test_first_sorted_and_the_cut():
    assert choose_roster(RosterSpec(name="r", rule="first-sorted", size=2), COUNTS) == ("a", "b")
    cut = RosterSpec(name="r", rule="first-sorted", size=2, min_sentences=6)
    assert choose_roster(cut, COUNTS) == ("d", "e")
    assert cut.looks_at_data


def test_seeded_draws_depend_on_the_seed_and_on_no_content():
    users = {str(number): 1 for number in range(1000)}
    draws = [
        choose_roster(RosterSpec(name="r", rule="seeded", size=100, seed=seed), users)
        for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]
    busier = choose_roster(
        RosterSpec(name="r", rule="seeded", size=100, seed=1), dict.fromkeys(users, 9)
    )
    assert busier == draws[0]
    assert 2 <= len(set(draws[0]) & set(draws[2])) <= 25  # 10 expected


def test_the_public_tenth_is_a_tenth_and_looks_at_one_id_only():
    users = {str(number): 1 for number in range(5000)}
    everybody = choose_roster(RosterSpec(name="r", rule="all-but-public-tenth"), users)
    assert 4400 < len(everybody) < 4600
    assert set(everybody) == {user for user in users if not is_public_tenth(user)}
    without = {user: 1 for user in users if user != everybody[0]}
    assert (
        choose_roster(RosterSpec(name="r", rule="all-but-public-tenth"), without) == everybody[1:]
    )


def test_the_public_tenth_never_moves():
    # Published rosters hang on this list: a change of salt or rule must fail here.
    assert [user for user in map(str, range(100)) if is_public_tenth(user)] == PUBLIC_BELOW_100


def test_declared_keeps_order_and_absent_users():
    spec = RosterSpec(name="r", rule="declared", ids=["z", "a"], declared="from the paper")
    assert choose_roster(spec, COUNTS) == ("z", "a")
    assert spec.statement() == "from the paper"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"rule": "best"}, "'best'"),
        ({"rule": "first-sorted", "name": "../up"}, "'../up'"),
        ({"rule": "first-sorted", "size": 0}, 0),
        ({"rule": "most-sentences"}, "'most-sentences'"),
        ({"rule": "seeded", "size": 1}, "'seeded'"),
        ({"rule": "first-sorted", "ids": ["a"]}, "'declared'"),
        ({"rule": "declared", "ids": ["a", "a"]}, "ids"),
        ({"rule": "all-but-public-tenth", "size": 3}, "'all-but-public-tenth'"),
    ],
)
def test_parts_that_do_not_fit_are_refused(options, name):
    with refuses(ValueError, name):
        RosterSpec(**{"name": "r", **options})


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
