"""A corpus as it is written: vocabulary, examples, splits, rosters and what is counted."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fedpriv.datasets.importers import writer
from fedpriv.datasets.stackexchange import sentence_store
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.datasets.stackexchange.splits import BY_SENTENCE
from tests.datasets.corpus.sentences import ROSTER, SENTENCES, said, write
from tests.harness.refusals import refuses


def rows(view, user, split="all"):
    """Examples as a sorted list of (label, words with counts, tokens, tags)."""
    examples = view.examples(user, split)
    found = []
    for row in range(len(examples)):
        words = slice(*examples.indptr[row : row + 2])
        tags = slice(*examples.tag_indptr[row : row + 2])
        counts = zip(examples.indices[words], examples.counts[words], strict=True)
        named = {view.words[word]: int(count) for word, count in counts}
        label, number = view.tags[examples.labels[row]], int(examples.num_tokens[row])
        found.append((label, named, number, [view.tags[t] for t in examples.tag_indices[tags]]))
    return sorted(found, key=str)


def test_vocabulary_is_what_most_public_users_use_in_their_own_text(corpus):
    view = corpus.view(split=BY_SENTENCE)
    # "is" by both public users, then alphabetical; "foreign words" is somebody else's title.
    assert view.words == ("is", "cash", "fun", "it", "king", "sue", "them")
    assert view.word_users.tolist() == [2, 1, 1, 1, 1, 1, 1]
    assert view.word_counts.tolist() == [3, 3, 1, 1, 1, 1, 1]
    assert view.word_sentences.tolist() == [3, 1, 1, 1, 1, 1, 1]
    assert view.num_public_examples == 3
    assert view.tags == ("law", "money")
    assert view.tag_users.tolist() == [2, 2]
    assert view.provenance["word_counts_source"] == "public users"


def test_examples_hold_words_of_sentence_and_title_and_the_first_tag_as_label(corpus):
    view = corpus.view(split=BY_SENTENCE)
    assert rows(view, "in1") == [
        ("law", {"cash": 1, "king": 2}, 6, ["law"]),
        ("law", {"cash": 1, "sue": 1}, 6, ["law", "money"]),
    ]
    assert rows(view, "pub1") == [
        ("law", {"is": 1, "it": 1}, 4, ["law"]),
        ("money", {"cash": 3, "is": 1, "king": 1}, 5, ["money"]),
    ]
    assert rows(view, "in2") == [("law", {"fun": 1}, 1, ["law"])]
    assert rows(view, "gone") == [] and view.examples("gone").features().shape == (0, 7)
    assert (view.roster, view.public_users) == (("in2", "in1", "gone"), ("pub1", "pub2"))


def test_what_was_left_out_and_whose_text_it_is_are_counted(tmp_path):
    given = [*SENTENCES, said("in2", "is", "law", "title", own=False, by="in1")]
    provenance = write(tmp_path / "c", given).view(split=BY_SENTENCE).provenance
    assert provenance["dropped"] == {"bad rows": 3}
    assert provenance["sentences_without_label"] == {"rostered": 2, "public": 0}
    # Of the four labelled examples two have a foreign title, one of them by a rostered user.
    assert provenance["foreign_text_share"] == pytest.approx(2 / 4)
    assert provenance["foreign_text_share_by_rostered_users"] == pytest.approx(1 / 4)


def test_own_text_only_drops_foreign_titles_and_their_tokens(tmp_path):
    view = write(tmp_path / "c", own_text_only=True).view(split=BY_SENTENCE)
    assert ("law", {"cash": 1}, 3, ["law", "money"]) in rows(view, "in1")
    assert view.provenance["foreign_text_share"] == 0
    assert view.provenance["own_text_only"] is True


@pytest.mark.parametrize("own", [True, False])
def test_titles_by_others_are_not_in_the_working_database_either(tmp_path, monkeypatch, own):
    """A kill leaves it: of own text alone it holds no title, and else one of each thread."""
    real, number = writer._write_sentences, []

    def looked_at(database, folder):
        number.append(database.execute("SELECT COUNT(*) FROM titles").fetchone()[0])
        return real(database, folder)

    monkeypatch.setattr(writer, "_write_sentences", looked_at)
    write(tmp_path / "c", own_text_only=own)
    assert (number[0] == 0) is own


def test_published_counts_replace_the_choice_and_are_called_private(tmp_path):
    words, tags = {"king": 9, "absent": 50, "cash": 9, "is": 1}, {"rare": 8, "law": 2}
    published = {"words": words, "tags": tags}
    view = write(tmp_path / "c", published=published, max_words=3).view(split=BY_SENTENCE)
    assert view.words == ("absent", "king", "cash")
    assert view.word_counts.tolist() == [50, 9, 9]
    assert view.word_users.tolist() == [0, 1, 1]
    assert view.tags == ("rare", "law")
    assert view.provenance["word_counts_source"] == "private"
    assert ("rare", {"king": 1}, 5, ["rare"]) in rows(view, "in2")


def test_published_counts_need_no_public_user_but_a_chosen_vocabulary_does(tmp_path):
    everybody = RosterSpec(name="all", rule="first-sorted")
    with refuses(ValueError, 0, "by-sentence"):
        write(tmp_path / "c", rosters=[everybody])
    corpus = write(
        tmp_path / "c", rosters=[everybody], published={"words": {"is": 1}, "tags": {"law": 1}}
    )
    assert corpus.view(split=BY_SENTENCE).public_users == ()


def test_inputs_are_tff_means_or_unit_rows(corpus):
    view = corpus.view(split=BY_SENTENCE)
    examples = view.columns.take(view.all_rows(view.public_users, "all"))
    dense = examples.features("tff").toarray()
    assert dense.dtype == np.float32
    expected = np.zeros_like(dense)
    for row in range(len(examples)):
        for entry in range(examples.indptr[row], examples.indptr[row + 1]):
            expected[row, examples.indices[entry]] = examples.counts[entry]
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(dense, expected, rtol=1e-6)
    unit = examples.features("unit-norm").toarray()
    norms = np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(unit, expected / norms, rtol=1e-6)
    with refuses(ValueError, "'tf-idf'"):
        examples.features("tf-idf")


def many(users=30, seed=0):
    rng = np.random.default_rng(seed)
    for number in rng.permutation(np.repeat(np.arange(users), rng.integers(1, 60, users))):
        words = " ".join(f"w{word}" for word in rng.zipf(1.5, rng.integers(1, 9)) % 50)
        tags = f"t{rng.integers(5)} t{rng.integers(5)}"
        yield said(f"u{number:02d}", words, tags)


HALF = RosterSpec(name="half", rule="first-sorted", size=15)


def test_the_split_is_80_20_within_each_user_and_gives_all_something_to_train_on(tmp_path):
    view = write(tmp_path / "c", many(), rosters=[HALF]).view(split=BY_SENTENCE)
    for user in [*view.roster, *view.public_users]:
        train, test = len(view.examples(user, "train")), len(view.examples(user, "test"))
        total = len(view.examples(user, "all"))
        assert train + test == total == view.num_examples(user, "all")
        assert train >= 1
        assert abs(train - 0.8 * total) <= 0.5 or total == 1
        assert rows(view, user) == sorted(
            rows(view, user, "train") + rows(view, user, "test"), key=str
        )


@pytest.mark.slow
def test_the_split_follows_its_seed_and_forgets_order_of_arrival_between_users(tmp_path):
    ordered = sorted(many(), key=lambda sentence: sentence.user_id)
    made = [
        write(tmp_path / "a", many(), rosters=[HALF]),
        write(tmp_path / "b", ordered, rosters=[HALF]),
        write(tmp_path / "c", many(), rosters=[HALF], split_seed=1),
    ]
    views = [corpus.view(split=BY_SENTENCE) for corpus in made]
    tests = [[rows(view, user, "test") for user in view.roster] for view in views]
    assert tests[0] == tests[1] != tests[2]
    assert views[0].words == views[1].words


@pytest.mark.slow
def test_batches_and_a_memory_of_any_size_give_the_same_corpus(tmp_path, monkeypatch):
    whole = write(tmp_path / "a", many(), rosters=[HALF])
    monkeypatch.setattr(sentence_store, "BATCH_SENTENCES", 7)
    monkeypatch.setattr(writer, "_BATCH", 7)
    monkeypatch.setattr(writer, "_NAMES_IN_MEMORY", 3)
    pieces = write(tmp_path / "b", many(), rosters=[HALF])
    assert whole.manifest == pieces.manifest  # it holds a checksum of every file


def test_counts_get_a_type_that_holds_them(tmp_path):
    long = said("pub1", "is " * 70_000 + "fun", "law")
    corpus = write(tmp_path / "c", [*SENTENCES, long])
    view = corpus.view(split=BY_SENTENCE)
    assert view.examples("pub1", "all").counts.max() == 70_000
    assert view.word_counts[view.words.index("is")] == 70_003


def test_users_cuts_the_roster_and_leaves_the_vocabulary(corpus):
    whole, cut = corpus.view(split=BY_SENTENCE), corpus.view(users=1, split=BY_SENTENCE)
    assert cut.roster == whole.roster[:1]
    assert cut.words == whole.words
    assert cut.public_users == whole.public_users
    assert cut.roster_sha256 != whole.roster_sha256
    assert rows(cut, "in2") == rows(whole, "in2")
    assert rows(cut, "pub2") == rows(whole, "pub2")
    with refuses(ValueError, "'in1'"):
        cut.examples("in1")
    with refuses(ValueError, 4, "'inside'"):
        corpus.view(users=4, split=BY_SENTENCE)
    with refuses(ValueError, "'exam'"):
        whole.examples("in1", "exam")
    with refuses(ValueError, "'elsewhere'"):
        corpus.view("elsewhere", split=BY_SENTENCE)


def test_a_roster_can_be_added_later_once(corpus):
    before = corpus.view(split=BY_SENTENCE)
    added = corpus.add_roster(RosterSpec(name="two", rule="first-sorted", size=2))
    assert added.roster == ("in1", "in2")
    again = Corpus.open(corpus.directory)
    assert again.rosters == ("inside", "two")
    assert again.view("two").words == added.words
    assert again.view(split=BY_SENTENCE).roster_sha256 == before.roster_sha256
    again.verify()
    with refuses(ValueError, "'two'"):
        again.add_roster(RosterSpec(name="two", rule="first-sorted", size=1))


def test_rosters_that_are_added_at_once_are_all_there(corpus):
    """Each is added by who opened the corpus before the others were listed."""
    names = [f"drawn-{n}" for n in range(6)]
    there = {name: Corpus.open(corpus.directory) for name in names}
    first = {**corpus.manifest["rosters"]}

    def add(name):
        spec = RosterSpec(name=name, rule="seeded", size=2, seed=len(name))
        return there[name].add_roster(spec).roster

    with ThreadPoolExecutor(6) as pool:
        made = dict(zip(names, pool.map(add, names), strict=True))
    found = Corpus.open(corpus.directory)
    assert set(found.rosters) == {*first, *names}
    assert {name: found.view(name, split=BY_SENTENCE).roster for name in names} == made
    with refuses(ValueError, "'drawn-0'"):  # also of who has not seen it
        corpus.add_roster(RosterSpec(name="drawn-0", rule="seeded", size=2, seed=1))


def test_a_roster_that_cannot_be_made_leaves_the_corpus_as_it_was(corpus):
    before = sorted(corpus.directory.rglob("*"))
    with refuses(ValueError, "'big'", 99):
        corpus.add_roster(RosterSpec(name="big", rule="first-sorted", size=99))
    assert sorted(corpus.directory.rglob("*")) == before
    assert Corpus.open(corpus.directory).rosters == ("inside",)


def test_an_optional_roster_is_left_out_with_a_note(tmp_path):
    big = RosterSpec(name="big", rule="first-sorted", size=99, optional=True)
    corpus = write(tmp_path / "c", rosters=[ROSTER, big])
    assert corpus.rosters == ("inside",)
    assert "99" in corpus.manifest["rosters_left_out"]["big"]
