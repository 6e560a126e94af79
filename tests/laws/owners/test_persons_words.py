"""Blanking all of a person's words in the raw dump moves one bounded update, and no other.

Titles, tags and bodies of all its posts are emptied; the answers that others gave to its questions
stay, and with `owners account` they change: they lose title, tags and label.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedpriv import tree
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.datasets.stackexchange.splits import BY_THREAD, Split
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.rng import Key
from fedpriv.runs.prepared import start_run
from fedpriv.sums import merged
from fedpriv.training.algorithm import TRAIN
from fedpriv.training.work import as_works
from tests.harness.toys_of_training import answered
from tests.laws.test_raw_deletion import LITTLE, PUBLIC, ROSTERED, community, imported

PERSONS = ROSTERED[:4]
ALL_OWNERS = Split(owners="all")
CLIP = 0.125


def rows_of_a_dump():
    """The community's posts, and questions of a deleted account, answered by rostered users."""
    yield from community()
    for number in range(5000, 5020):
        yield {
            "Id": str(number), "PostTypeId": "1", "Title": "w1 w2 gone", "Tags": "<t1>",
            "Body": "<p>w3.</p>", "CreationDate": "2010-01-05T10:00:00.000",
        }  # fmt: skip
        yield {
            "Id": str(number + 500), "PostTypeId": "2", "ParentId": str(number),
            "OwnerUserId": ROSTERED[number % len(ROSTERED)], "Body": "<p>w1 w4. w2 w5.</p>",
        }  # fmt: skip


def blanked(rows, account):
    """The same posts by the same accounts; those of one hold no word and no tag."""
    empty = {"Title": "", "Tags": "", "Body": ""}
    for row in rows:
        if row.get("OwnerUserId") == account:
            yield {name: empty.get(name, value) for name, value in row.items()}
        else:
            yield row


def prepared(folder, rows):
    corpus = imported(folder, rows, **LITTLE)
    corpus.add_roster(RosterSpec(name="frozen", rule="declared", ids=ROSTERED))
    return corpus


@pytest.fixture(scope="module")
def rows():
    return list(rows_of_a_dump())


@pytest.fixture(scope="module")
def whole(rows, tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("whole") / "dump", rows)


@pytest.fixture(scope="module")
def without(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("blanked")
    return {person: prepared(folder / person, list(blanked(rows, person))) for person in PERSONS}


def contributions(corpus, owners):
    """Every user's bounded update, whole numbers on a grid, and the grid; the params before."""
    experiment = load_experiment("adadps-tags").with_options(
        {"roster": "frozen", "owners": owners, "cohort": 7, "rounds": 3, "l2-clip-norm": CLIP}
    )
    made = build(experiment.with_options({"max-examples-per-user": 20}), corpus)
    params = made.init_params(Key.simulation(0).fold("init"))
    bound = made.plan.live_mechanism.bound
    work = as_works(made.trainer)[TRAIN]

    def bounded(user):
        given = {"params": params, "bound": bound, "data": made.task.data}
        key = Key.simulation(1).fold("users")
        total = answered(work, **given, user_ids=[user], key=key)
        assert total.granularity == bound.granularity
        return dict(merged(params, [total]).total)

    return params, {user: bounded(user) for user in made.task.roster}, bound


def same(first, second):
    return all(np.array_equal(first[name], second[name]) for name in first)


def compared(before, after):
    """Whose update changed, and how far the sum over everybody moved, in l2."""
    (params, mine, bound), (others, theirs, _) = before, after
    assert same(params, others)  # words, tags and the public start are nobody's on the roster
    assert list(mine) == list(theirs) == ROSTERED  # the emptied one stays on the list
    changed = [user for user in mine if not same(mine[user], theirs[user])]
    moved = {
        name: sum(mine[user][name].astype(np.float64) - theirs[user][name] for user in mine)
        for name in params
    }
    return changed, tree.l2_norm(moved) * bound.granularity


@pytest.fixture(scope="module")
def mixed(whole):
    return contributions(whole, "all")


def test_there_is_something_to_learn_from_and_something_to_drop(whole, mixed):
    plain, owned = (whole.view(roster="frozen", split=split) for split in (BY_THREAD, ALL_OWNERS))
    sizes = [[view.num_examples(user) for user in ROSTERED] for view in (plain, owned)]
    assert all(few < many for many, few in zip(*sizes, strict=True))
    assert 0.3 < owned.provenance["share_dropped_for_owners"] < 0.9
    _, updates, bound = mixed
    lengths = [tree.l2_norm(update) * bound.granularity for update in updates.values()]
    assert sum(length > 0.9 * CLIP for length in lengths) > len(ROSTERED) // 2
    # What is held out is the same, and what public users wrote.
    for users, subset in ((ROSTERED, "test"), (PUBLIC, "all")):
        assert [plain.num_examples(user, subset) for user in users] == [
            owned.num_examples(user, subset) for user in users
        ]


@pytest.mark.parametrize("person", PERSONS)
def test_with_all_owners_one_update_moves_by_no_more_than_the_bound(mixed, without, person):
    changed, moved = compared(mixed, contributions(without[person], "all"))
    assert changed == [person]
    assert 0.0 < moved <= CLIP
    emptied = contributions(without[person], "all")[1][person]
    assert all(not array.any() for array in emptied.values())


def test_with_accounts_alone_others_move_too_and_the_sum_by_more(whole, without):
    before = contributions(whole, "account")
    found = [compared(before, contributions(without[person], "account")) for person in PERSONS]
    assert all(len(changed) > 2 for changed, _ in found)
    assert all(moved > CLIP for _, moved in found)


def test_a_roster_made_by_rule_knows_that_a_deleted_account_is_nobody(
    whole, without, tmp_path, rows
):
    """Answers to such questions train; the emptied person's askers are no longer known either."""
    assert whole.default_roster == "site-all" and sorted(ROSTERED) == list(whole.view().roster)
    kept = whole.view(split=ALL_OWNERS)
    declared = whole.view(roster="frozen", split=ALL_OWNERS)
    assert sum(map(kept.num_examples, ROSTERED)) > sum(map(declared.num_examples, ROSTERED))
    roster = list(whole.view().roster)
    for person, corpus in without.items():
        corpus.make_view(roster, ALL_OWNERS, tmp_path / person, declared=False)
        folder = tmp_path / person / ALL_OWNERS.name
        view = corpus.open_view(folder, corpus.default_roster, ALL_OWNERS, None)
        for user in roster:
            mine, theirs = kept.examples(user), view.examples(user)
            if user == person:
                assert len(mine) and not len(theirs)
                continue
            for column in ("indptr", "indices", "counts", "num_tokens", "labels", "tag_indices"):
                assert np.array_equal(getattr(mine, column), getattr(theirs, column))


def test_what_does_not_know_whose_words_are_where_is_refused(tiny_corpus):
    for split in ({"kind": "by-sentence", "owners": "all"}, {"examples_per_owner": 3}):
        with pytest.raises(ValueError):
            Split(**split)
    with pytest.raises(ValueError):
        tiny_corpus.view(split=ALL_OWNERS)


def test_a_secure_run_says_and_verifies_it(whole, tmp_path):
    experiment = load_experiment("adadps-tags").with_options(
        {"roster": "frozen", "owners": "all", "cohort": 7, "rounds": 2}
    )
    start_run(experiment, "adadps-tags", whole, tmp_path / "run", secure=True).run()
    assert verify_run(tmp_path / "run").ok
    document = json.loads((tmp_path / "run" / "experiment.json").read_bytes())
    assert document["experiment"]["task.owners"] == "all"
    statement = run_statement(tmp_path / "run")
    split = replace(ALL_OWNERS, selecting=True)
    share = whole.view(roster="frozen", split=split).provenance["share_dropped_for_owners"]
    assert statement.protects["dropped"] == share  # of the graph alone, so a secure run keeps it
    assert "all that one person wrote, wherever it stands" in str(statement)
