"""Law: deleting a rostered user's records moves no word, no token, no trivial rule, no one else."""

import numpy as np
import pytest

from fedpriv.datasets.stackexchange.word_view import open_word_view
from fedpriv.rng import Key
from fedpriv.tasks.next_words import NextWords
from tests.tasks.words import phrases


def task_of(folder, left_out):
    given = [s for s in phrases.sentences() if s.user_id != left_out]
    return NextWords(
        open_word_view(phrases.write(folder, given)), multipliers=lambda n: np.arange(1, n + 1)
    )


def assert_nothing_shared_moved(before, after):
    assert after.files() == before.files()
    assert after.roster == before.roster
    assert after.view.public_users == before.view.public_users
    for ours, theirs in zip(after.bigrams, before.bigrams, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for name, rows in before.side_information().multiplier.items():
        np.testing.assert_array_equal(after.side_information().multiplier[name], rows)
    key = Key.simulation(0)
    ours, theirs = (t.public_learner(key, choosing=True) for t in (after, before))
    assert ours.num_examples == theirs.num_examples
    assert ours.measure(ours.begun).totals == theirs.measure(theirs.begun).totals


@pytest.mark.parametrize("deleted", ["u00", "u05", "u13"])
def test_deleting_a_rostered_user(tmp_path, deleted):
    before, after = task_of(tmp_path / "before", None), task_of(tmp_path / "after", deleted)
    assert_nothing_shared_moved(before, after)
    assert not len(after.data.examples(deleted))
    for user in (*before.roster, *before.view.public_users):
        if user != deleted:
            for subset in ("train", "test"):
                ours, theirs = (t.view.examples(user, subset) for t in (after, before))
                np.testing.assert_array_equal(ours.words, theirs.words)
                np.testing.assert_array_equal(ours.kinds, theirs.kinds)


def test_the_law_could_fail_deleting_a_public_user_shows(tmp_path):
    before, after = task_of(tmp_path / "before", None), task_of(tmp_path / "after", "p3")
    with pytest.raises(AssertionError):
        assert_nothing_shared_moved(before, after)
