"""Law: deleting a rostered user's records changes nothing that is shared, and nobody else.

What must not move: the roster, the vocabulary, the tag order, every count that side information
is made from, and every other user's examples, labels and split.
"""

import numpy as np
import pytest

from fedpriv.datasets.importers.writer import CorpusDescription, Sentence, write_corpus
from fedpriv.datasets.stackexchange.rosters import RosterSpec

COUNTS = ("word_counts", "word_users", "word_sentences", "tag_users")


def write(directory, sentences, ids, dropped=0):
    """A corpus of few words and tags, with a roster of given ids."""
    about = CorpusDescription(
        name="law", synthetic=True, source={}, licence="CC0-1.0", credit="them",
        max_words=25, max_tags=6,
    )  # fmt: skip
    spec = RosterSpec(name="inside", rule="declared", ids=ids)
    counts = {"posts without a sentence": dropped}
    return write_corpus(directory, about, sentences, [spec], "inside", dropped=counts)


def without(sentences, user):
    return [sentence for sentence in sentences if sentence.user_id != user]


def small_corpus(seed):
    """About 30 users who write on few words and tags, so that every user could tip an order."""
    rng = np.random.default_rng(seed)
    users = [f"u{number}" for number in range(30)]
    found = []
    for _ in range(250):
        user, author = rng.choice(users, 2)
        own = bool(rng.random() < 0.4)
        found.append(
            Sentence(
                user_id=str(user),
                tokens=[f"w{word}" for word in rng.integers(40, size=rng.integers(1, 6))],
                title_tokens=[f"w{word}" for word in rng.integers(40, size=rng.integers(0, 4))],
                tags=[f"t{tag}" for tag in rng.integers(10, size=rng.integers(0, 3))],
                own_title=own,
                title_user_id=None if own else str(author),
            )
        )
    return found


def assert_same_but_for(deleted, before, after, users):
    assert after.roster == before.roster
    assert after.roster_sha256 == before.roster_sha256
    assert after.public_users == before.public_users
    assert after.words == before.words
    assert after.tags == before.tags
    assert after.num_public_examples == before.num_public_examples
    for name in COUNTS:
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name), err_msg=name)
    assert len(after.examples(deleted, "all")) == 0
    for user in users:
        if user == deleted:
            continue
        for split in ("train", "test"):
            ours, theirs = after.examples(user, split), before.examples(user, split)
            for name in ("indptr", "indices", "counts", "num_tokens", "labels", "tag_indices"):
                np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


@pytest.mark.parametrize("seed", range(6))
def test_deleting_any_rostered_user_changes_nothing_shared(tmp_path, seed):
    sentences = small_corpus(seed)
    whole = sorted({sentence.user_id for sentence in sentences})
    roster = [user for user in whole if int(user[1:]) % 3]
    before = write(tmp_path / "before", sentences, roster).view()
    for deleted in np.random.default_rng(seed).choice(roster, 3, replace=False):
        after = write(tmp_path / str(deleted), without(sentences, deleted), roster).view()
        assert_same_but_for(str(deleted), before, after, [*before.roster, *before.public_users])


def test_the_law_could_fail_deleting_a_public_user_shows(tmp_path):
    sentences, roster = small_corpus(0), ["u1", "u2"]
    before = write(tmp_path / "before", sentences, roster).view()
    after = write(tmp_path / "after", without(sentences, "u9"), roster).view()
    assert any(not np.array_equal(getattr(after, name), getattr(before, name)) for name in COUNTS)
