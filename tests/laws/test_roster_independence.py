"""Law: deleting a rostered user's records changes nothing that is shared, and nobody else.

What must not move: the roster, the vocabulary, the tag order, every count that side information
is made from, and every other user's examples, labels and split.
"""

import lzma
import re

import numpy as np
import pytest

from fedpriv.datasets.importers.dump import import_stackexchange
from fedpriv.datasets.importers.writer import CorpusDescription, CorpusWriter, Sentence
from fedpriv.datasets.stackexchange.rosters import RosterSpec, is_public_tenth

COUNTS = ("word_counts", "word_users", "word_sentences", "tag_users")


def write(directory, sentences, spec, **options):
    about = CorpusDescription(
        name="law", synthetic=True, source={}, licence="CC0-1.0", credit="nobody",
        max_words=25, max_tags=6, **options,
    )  # fmt: skip
    with CorpusWriter(directory, about) as writer:
        for sentence in sentences:
            writer.add(sentence)
        return writer.finish([spec], spec.name)


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
    spec = RosterSpec(name="inside", rule="declared", ids=roster)
    before = write(tmp_path / "before", sentences, spec).view()
    random = np.random.default_rng(seed)
    for deleted in random.choice(roster, 3, replace=False):
        left = [sentence for sentence in sentences if sentence.user_id != deleted]
        after = write(tmp_path / str(deleted), left, spec).view()
        assert_same_but_for(str(deleted), before, after, [*before.roster, *before.public_users])


def test_the_law_could_fail_deleting_a_public_user_shows(tmp_path):
    sentences = small_corpus(0)
    spec = RosterSpec(name="inside", rule="declared", ids=["u1", "u2"])
    before = write(tmp_path / "before", sentences, spec).view()
    left = [sentence for sentence in sentences if sentence.user_id != "u9"]
    after = write(tmp_path / "after", left, spec).view()
    assert any(not np.array_equal(getattr(after, name), getattr(before, name)) for name in COUNTS)


def dump_of(posts):
    return "<posts>\n" + "".join(posts) + "</posts>\n"


def small_dump(seed):
    """Questions and answers of 60 accounts, as rows of a dump, with their owners."""
    rng = np.random.default_rng(seed)

    def text(size):
        return " ".join(f"w{word}" for word in rng.zipf(1.3, size) % 200)

    posts, questions = [], []
    for number in range(1, 300):
        owner = int(rng.integers(1, 61))
        if number < 20 or rng.random() < 0.3:
            questions.append(number)
            tags = "".join(f"|t{tag}" for tag in rng.integers(8, size=2)) + "|"
            row = f'PostTypeId="1" Title="{text(4)}" Tags="{tags}"'
        else:
            row = f'PostTypeId="2" ParentId="{rng.choice(questions)}"'
        posts.append((str(owner), f'<row Id="{number}" {row} OwnerUserId="{owner}" '
                      f'Body="{text(6)}"/>\n'))  # fmt: skip
    return posts


@pytest.mark.parametrize("seed", range(3))
def test_deleting_a_rostered_account_from_the_dump_itself_leaves_the_words(tmp_path, seed):
    # The account's questions go, so other accounts' answers lose their title and tags. The
    # vocabulary and its counts still stay, since they count text by public users only.
    posts = small_dump(seed)
    rostered = sorted({owner for owner, _ in posts if not is_public_tenth(owner)})
    path = tmp_path / "Posts.xml"
    path.write_text(dump_of(post for _, post in posts))
    before = import_stackexchange(path, tmp_path / "before", name="site", max_words=100).view()
    for deleted in np.random.default_rng(seed).choice(rostered, 3, replace=False):
        path.write_text(dump_of(post for owner, post in posts if owner != deleted))
        target = tmp_path / f"without-{deleted}"
        after = import_stackexchange(path, target, name="site", max_words=100).view()
        assert set(after.roster) == set(before.roster) - {deleted}
        assert after.words == before.words
        assert after.num_public_examples == before.num_public_examples
        for name in COUNTS[:3]:
            np.testing.assert_array_equal(getattr(after, name), getattr(before, name))


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("deleted", ["2", "1001"])
def test_the_law_holds_on_onstartups(shared_data, tmp_path, deleted, monkeypatch):
    dump = shared_data / "stackexchange" / "onstartups.Posts.xml.xz"
    whole = import_stackexchange(dump, tmp_path / "whole")
    before = whole.view()
    spec = RosterSpec(name="frozen", rule="declared", ids=before.roster)
    add = CorpusWriter.add

    def add_unless_deleted(writer, sentence):
        if sentence.user_id != deleted:
            add(writer, sentence)

    monkeypatch.setattr(CorpusWriter, "add", add_unless_deleted)
    without = import_stackexchange(dump, tmp_path / "without")
    after = without.add_roster(spec)
    some = np.random.default_rng(0).choice(before.roster, 200, replace=False).tolist()
    assert_same_but_for(deleted, before, after, [*some, *before.public_users])

    with lzma.open(dump, "rt", encoding="utf-8") as file:
        owned = re.compile(rf'OwnerUserId="{deleted}"')
        path = tmp_path / "Posts.xml"
        path.write_text("".join(line for line in file if not owned.search(line)), "utf-8")
    monkeypatch.setattr(CorpusWriter, "add", add)
    raw = import_stackexchange(path, tmp_path / "raw", name="onstartups").view()
    assert raw.words == before.words
    np.testing.assert_array_equal(raw.word_counts, before.word_counts)
