"""What two sides of a split share, on data small enough to count by hand."""

from dataclasses import replace

import numpy as np
import pytest

from fedpriv.datasets.stackexchange.overlap import (
    Shared,
    Size,
    find_near_duplicates,
    measure_overlap,
)
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.datasets.stackexchange.splits import Split
from tests.datasets.corpus import sentences
from tests.datasets.corpus.sentences import write

ROSTER = RosterSpec(name="inside", rule="declared", ids=["u", "v", "w", "gone"])
BY_TIME = Split(kind="by-time")


def said(user, thread, asker, title, tag, day, number=1):
    own = user == asker
    row = sentences.said(user, "some text", tag, title, own, None if own else asker)
    return [replace(row, thread=thread, day=day)] * number


# The fifth thread that the public user asked is of day 10: what is begun then or later is tested.
ROWS = [
    *said("p", "P0", "p", "one law", "law", 0),
    *said("p", "P1", "p", "two", "money", 1),
    *said("p", "P2", "p", "three", "law", 2),
    *said("p", "P3", "p", "four", "money", 3, 2),
    *said("p", "P4", "p", "five", "law", 10),
    # Training: u asks two, v answers one of them, and so does the public user.
    *said("u", "A", "u", "how to sue", "law", 1),
    *said("v", "A", "u", "how to sue", "law", 1, 2),
    *said("p", "A", "u", "how to sue", "law", 1),
    *said("u", "B", "u", "raise money", "money", 2),
    *said("u", "G", "u", "", "money", 2),
    # Test: eight sentences in four threads.
    *said("v", "C", "v", "how to sue", "law", 10, 2),
    *said("u", "C", "v", "how to sue", "law", 10),
    *said("w", "C", "v", "how to sue", "law", 10),
    *said("u", "D", "u", "raise money now ?", "money", 11),
    *said("w", "E", "w", "", "money", 12),
    *said("u", "F", "u", "raise money", "law", 12, 2),
]


@pytest.fixture
def corpus(tmp_path):
    return write(tmp_path / "c", ROWS, [ROSTER])


def test_shares_and_sizes_are_those_counted_by_hand(corpus):
    titles = {row.thread: " ".join(row.title_tokens) for row in ROWS}
    assert corpus.texts("title") == tuple(titles[key] for key in sorted(titles))
    found = measure_overlap(corpus.view(split=BY_TIME), corpus.texts("title"))
    assert found.split == "by-time"
    assert found.training == Size(users=2, sentences=5, threads=3, tokens=5 + 2 * 5 + 4 + 2)
    assert found.measured == Size(users=3, sentences=8, threads=4, tokens=4 * 5 + 6 + 2 + 2 * 4)
    # The public user's answer stands under a rostered user's title.
    assert found.public == Size(users=1, sentences=5, threads=4, tokens=4 + 3 + 3 + 2 * 3)
    assert (found.users_without_training, found.measured_without_training) == (2, 1)
    assert found.thread == Shared(same_user=0, anyone=0)
    # "how to sue" was in training text of u and v, not of w; "raise money" in that of u.
    assert found.title == Shared(same_user=(2 + 1 + 2) / 8, anyone=(4 + 2) / 8)
    # "raise money" had another label there.
    assert found.label_and_title == Shared(same_user=3 / 8, anyone=4 / 8)
    # C and F have a title of training text, D two words of three; E has none, and shares none.
    assert found.near == {0.8: 2 / 4, 0.6: 3 / 4}


def test_threads_in_common_are_counted_by_user_and_by_anyone(corpus):
    view = corpus.view(split=BY_TIME)
    keys = ["A", "B", "C", "D", "E", "F", "G"]  # and then the public user's
    threads = np.where(view.threads == keys.index("C"), keys.index("A"), view.threads)
    found = measure_overlap(replace(view, threads=threads), corpus.texts("title"))
    assert found.thread == Shared(same_user=3 / 8, anyone=4 / 8)


def test_titles_that_are_not_kept_are_not_invented(tmp_path):
    own = write(tmp_path / "c", ROWS, [ROSTER], own_text_only=True)
    assert own.texts("title") is None and not (tmp_path / "c" / "titles.txt").exists()
    found = measure_overlap(own.view(split=BY_TIME), own.texts("title"))
    assert (found.title, found.label_and_title, found.near) == (None, None, None)
    assert found.thread == Shared(same_user=0, anyone=0)
    assert found.to_json()["title"] is None


class TestNearDuplicates:
    @pytest.mark.parametrize("least", [0.1, 0.3, 0.6, 0.7, 0.8, 1.0])
    def test_looking_at_rare_words_alone_misses_no_pair(self, least):
        rng = np.random.default_rng(int(10 * least))

        def titles(number):
            sizes = rng.integers(0, 12, number)
            drawn = ([f"w{word}" for word in rng.zipf(1.3, size) % 15] for size in sizes)
            return [" ".join([*words, "?"]) for words in drawn]  # signs are no words

        measured, trained = titles(150), titles(150)
        sets = [{*title.split()} - {"?"} for title in trained if title != "?"]
        expected = 0
        for words in ({*title.split()} - {"?"} for title in measured):
            best = max(len(words & other) / len(words | other) for other in sets)
            expected += best >= least
        assert find_near_duplicates(measured, trained, [least]) == {least: expected / 150}
        assert 0 < expected < 150
