"""Laws of every split that holds threads out: what is measured was in no training set and count."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from fedpriv.datasets.stackexchange.sentence_store import SentenceStore
from fedpriv.datasets.stackexchange.splits import BY_SENTENCE, NUM_FOLDS, Split, divide
from tests.datasets.corpus.threaded import (
    HELD,
    PUBLIC,
    ROSTER,
    ROSTERED,
    SEED,
    SPLITS,
    THREADS,
    make,
    sentences,
    threads_of,
)
from tests.harness.refusals import refuses

every_split = pytest.mark.parametrize("split", SPLITS, ids=lambda split: split.name)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make(tmp_path_factory.mktemp("threaded") / "c")


def parts(view):
    """From subset to its threads, whoever wrote in them."""
    users = [*view.roster, *view.public_users]
    return {subset: threads_of(view, users, subset) for subset in ("train", "validation", "test")}


def asked_in_public(view):
    """The threads, by the numbers of `sentences`, that public users asked."""
    asked = (row for row in sentences() if row.own_title and row.user_id in view.public_users)
    return {int(row.thread) - 1000 for row in asked}


def counted_threads(corpus, split):
    """The threads that words, tags and side information are counted in."""
    store = SentenceStore(corpus.directory)
    public = corpus.view(split=split).public_users
    division = divide(split, store, ROSTER.ids, public, SEED)
    return {
        int(thread)
        for batch in store.batches(public)
        for thread in batch.threads[division.counted(batch)]
    }


@pytest.mark.slow
@every_split
def test_no_thread_is_on_two_sides_or_counted_where_it_is_held_out(corpus, split):
    view = corpus.view(split=split)
    found = {**parts(view), "counted": counted_threads(corpus, split)}
    for one, other in combinations(("train", "validation", "test"), 2):
        assert not found[one] & found[other], (one, other)
    assert not found["counted"] & (found["validation"] | found["test"])
    assert found["counted"] and found["train"] and found[split.measured_on]
    assert bool(found["validation"]) == (split.measured_on == "validation") and found["test"]
    for user in (*view.roster, *view.public_users):
        sides = [view.num_examples(user, name) for name in ("train", "validation", "test")]
        assert sum(sides) == view.num_examples(user, "all")


@pytest.mark.slow
@every_split
def test_words_and_tags_of_threads_held_out_or_asked_on_the_roster_are_not_known(corpus, split):
    # Every thread has a word, a title word and a tag that no other has.
    view = corpus.view(split=split)
    store = SentenceStore(corpus.directory)
    keys = [int(key) - 1000 for key in store.thread_keys()]
    counted = {keys[thread] for thread in counted_threads(corpus, split)}
    assert {word for word in view.words if word.startswith("word")} == {f"word{n}" for n in counted}
    assert {tag for tag in view.tags if tag.startswith("tag")} == {f"tag{n}" for n in counted}
    assert counted <= asked_in_public(view)
    titles = {int(word.removeprefix("title")) for word in view.words if word.startswith("title")}
    assert titles == counted  # titles are words of their askers, who are public there
    own = [
        row
        for row in sentences()
        if row.user_id in view.public_users and int(row.thread) - 1000 in counted
    ]
    assert view.num_public_examples == len(own)
    assert dict(zip(view.words, view.word_sentences.tolist(), strict=True))["some"] == len(own)


@pytest.mark.slow
@every_split
def test_public_rows_are_of_threads_that_public_users_asked(corpus, split):
    view = corpus.view(split=split)
    store = SentenceStore(corpus.directory)
    keys = list(store.thread_keys())
    askers = {row.thread: row.user_id for row in sentences() if row.own_title}
    for subset in ("train", "validation", "test"):
        every = view.public_rows(subset, of="all-posts").tolist()
        asked = view.public_rows(subset).tolist()
        assert asked == [
            row for row in every if askers[keys[view.threads[row]]] in view.public_users
        ]
    assert len(view.public_rows("all")) < len(view.public_rows("all", of="all-posts"))
    # By thread number, the training rows are exactly what was counted.
    trained = {int(view.threads[row]) for row in view.public_rows("train")}
    assert trained == counted_threads(corpus, split)


def kept(name):
    return [split for split in SPLITS if split.measured_on == "test" and split.kind in name]


@pytest.mark.parametrize("split", kept(("by-thread", "by-time")), ids=lambda split: split.name)
def test_choosing_holds_the_same_test_threads_out_and_validation_joins_training(corpus, split):
    final, choosing = parts(corpus.view(split=split)), parts(corpus.view(split=split.choosing()))
    # Only threads with a label are examples; both views are of the same threads.
    assert choosing["test"] == final["test"]
    assert choosing["train"] | choosing["validation"] == final["train"]
    assert choosing["validation"] and not final["validation"]
    assert counted_threads(corpus, split.choosing()) < counted_threads(corpus, split)


@pytest.mark.parametrize("measured", ["test", "validation"])
def test_five_folds_measure_every_thread_once(corpus, measured):
    views = [corpus.view(split=Split(fold=fold, measured_on=measured)) for fold in range(NUM_FOLDS)]
    tested = Counter(thread for view in views for thread in parts(view)["test"])
    assert tested == dict.fromkeys(range(THREADS), 1)


def held_out(corpus, split):
    """The rostered users that train nothing, though they would by thread."""
    view, by_thread = corpus.view(split=split), corpus.view(split=Split(fold=split.fold))
    return {
        user
        for user in view.roster
        if by_thread.num_examples(user, "train") and not view.num_examples(user, "train")
    }


def of_public(view):
    """How much public users have for each: they are not held out, and are tested on by thread."""
    names = ("train", "validation", "test")
    return [view.num_examples(user, name) for user in view.public_users for name in names]


def check_held(corpus, split, held):
    """What held-out users wrote in threads held out is tested on, what others did not trained on.

    Which threads that are is as by thread; nothing else of anybody on the roster is an example.
    """
    view, by_thread = corpus.view(split=split), corpus.view(split=Split(fold=split.fold))
    assert of_public(view) == of_public(by_thread)
    for user in view.roster:
        side, other = ("test", "train") if user in held else ("train", "test")
        assert view.num_examples(user, side) == by_thread.num_examples(user, side)
        assert view.num_examples(user, other) == 0


def test_held_out_users_train_nothing_and_only_they_are_tested_on(corpus):
    tested = Counter()
    for split in kept("by-user"):
        held = held_out(corpus, split)
        check_held(corpus, split, held)
        choosing = corpus.view(split=split.choosing())
        for name in ("train", "validation"):
            assert not any(choosing.num_examples(user, name) for user in held)
        tested.update(held)
    assert tested == dict.fromkeys(ROSTERED, 1)  # five folds hold everybody out once


@pytest.mark.parametrize("split", kept("as-published"), ids=lambda split: split.name)
def test_as_published_holds_out_whom_the_source_does(corpus, split):
    assert held_out(corpus, split) == set(HELD)
    check_held(corpus, split, HELD)


def test_users_without_training_text_stay_on_the_roster(tmp_path):
    view = make(tmp_path / "whole").view()
    store = SentenceStore(tmp_path / "whole")
    keys = list(store.thread_keys())
    held = {keys[number] for number in parts(view)["test"]}
    # r00 writes only in threads that are held out.
    rows = [row for row in sentences() if row.user_id != "r00" or row.thread in held]
    corpus = make(tmp_path / "less", rows)
    less = corpus.view()
    assert less.roster == (*ROSTERED, "gone") == view.roster
    assert less.roster_sha256 == view.roster_sha256
    assert less.num_examples("r00", "train") == 0 < less.num_examples("r00", "test")
    facts = corpus.manifest["rosters"]["inside"]
    assert facts["users_without_training_examples"] == 2  # and "gone", who wrote nothing
    assert facts["num_users"] == len(ROSTERED) + 1


def test_by_time_tests_on_the_last_threads_and_validates_on_those_before(corpus):
    days = {int(row.thread) - 1000: row.day for row in sentences()}
    keys = [int(key) - 1000 for key in SentenceStore(corpus.directory).thread_keys()]
    found = parts(corpus.view(split=Split(kind="by-time", measured_on="validation")))
    train, validation, test = (
        [days[keys[thread]] for thread in found[name]] for name in ("train", "validation", "test")
    )
    assert max(train) < min(validation) <= max(validation) < min(test)


def test_by_sentence_shares_threads_and_says_so(corpus):
    found = parts(corpus.view(split=BY_SENTENCE))
    assert found["test"] and found["test"] <= found["train"]
    assert BY_SENTENCE.shares_threads
    assert not any(split.shares_threads for split in SPLITS)


def test_without_dates_there_is_no_split_by_time(tmp_path):
    undated = make(tmp_path / "c", (replace(row, day=None) for row in sentences()))
    with refuses(ValueError, "by-time"):
        undated.view(split=Split(kind="by-time"))


SELECTING = [split for split in SPLITS if split.measured_on == "test" and not split.public_users]


@pytest.mark.slow
@pytest.mark.parametrize("split", SELECTING, ids=lambda split: split.name)
def test_rostered_users_train_on_no_thread_that_may_select(corpus, split):
    """And nothing else of the view is another one."""
    whole, view = corpus.view(split=split), corpus.view(split=replace(split, selecting=True))
    asked = asked_in_public(view)
    keys = [int(key) - 1000 for key in SentenceStore(corpus.directory).thread_keys()]
    before, after = (
        {keys[thread] for thread in threads_of(seen, seen.roster, "train")}
        for seen in (whole, view)
    )
    assert before & asked and after == before - asked
    assert (view.words, view.tags, view.roster) == (whole.words, whole.tags, whole.roster)
    for name in ("word_counts", "word_users", "word_sentences", "tag_users"):
        assert np.array_equal(getattr(view, name), getattr(whole, name)), name
    assert view.num_public_examples == whole.num_public_examples
    for users, subsets in ((view.roster, ("validation", "test")), (view.public_users, ("all",))):
        for user in users:
            for subset in subsets:
                left, right = (seen.examples(user, subset) for seen in (whole, view))
                assert all(
                    np.array_equal(getattr(left, part), getattr(right, part))
                    for part in ("indptr", "indices", "counts", "labels", "tag_indices")
                )


@pytest.mark.slow
@pytest.mark.parametrize("split", SELECTING, ids=lambda split: split.name)
def test_one_public_sentence_is_enough_to_keep_its_thread_from_training(tmp_path, split):
    """Each thread has one sentence of a public user, an answer where there is one."""
    last = {}
    for row in sentences():
        asker = row.user_id if row.own_title else row.title_user_id
        if row.user_id in PUBLIC and asker in PUBLIC and (row.own_title or asker != "p2"):
            last[row.thread] = row
    rows = [row for row in sentences() if row.user_id not in PUBLIC] + list(last.values())
    corpus = make(tmp_path / "c", rows)
    whole, view = corpus.view(split=split), corpus.view(split=replace(split, selecting=True))
    public = {int(view.threads[row]) for row in view.public_rows("all")}
    assert any(row.own_title for row in last.values()) and len(view.public_rows("all")) > 9
    assert len(public) == len(view.public_rows("all"))  # and none has more than one
    before, after = (threads_of(seen, seen.roster, "train") for seen in (whole, view))
    assert before & public and after == before - public
