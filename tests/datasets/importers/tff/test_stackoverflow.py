"""A TFF-format .sqlite.lzma becomes a prepared corpus, end to end."""

import hashlib
import io
import json
import os
import tarfile

import numpy as np
import pytest

from fedpriv.datasets.importers.stackoverflow import (
    import_stackoverflow,
    read_tag_counts,
    read_word_counts,
    select_roster,
    split_words,
)
from fedpriv.datasets.importers.writer import titled_thread
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.sentence_store import SentenceStore
from fedpriv.datasets.stackexchange.splits import BY_SENTENCE, Split
from tests.harness.command_line import fedpriv
from tests.harness.refusals import refuses


def word_shares(examples) -> np.ndarray:
    """Dense counts over the number of in-vocabulary words, float32, as TFF 0.87 divides."""
    counts = np.zeros((len(examples), examples.num_words), np.float32)
    row = np.repeat(np.arange(len(examples)), np.diff(examples.indptr))
    counts[row, examples.indices] = examples.counts
    totals = counts.sum(axis=1, keepdims=True)
    return np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)


def rows(array: np.ndarray) -> list[bytes]:
    """The rows' bytes in an order of their own: equal only if equal value for value."""
    return sorted(row.tobytes() for row in np.ascontiguousarray(array, np.float32))


def clients_of(tff_writer, ids):
    """Users with 5 short sentences each."""
    rng = np.random.default_rng(0)

    def blob(user: int, n: int) -> bytes:
        words = " ".join(f"w{w}" for w in rng.integers(0, 40, 6))
        if n == 4:
            words = f"only{user} {words}"  # a word nobody else uses
        tags = "|".join(f"t{t}" for t in sorted(rng.integers(0, 6, 2)))
        return tff_writer.stackoverflow_example(
            words, f"title {n % 3}", tags, type="question" if n % 2 else "answer"
        )

    return {str(user): [blob(user, n) for n in range(5)] for user in ids}


@pytest.fixture(scope="module")
def archive(tmp_path_factory, tff_writer):
    """450 users; ids whose text order is not their number's."""
    clients = clients_of(tff_writer, range(1000, 1900, 2))
    clients["99"] = [tff_writer.stackoverflow_example("", "", "t1"), *clients.pop("1000")[1:]]
    folder = tmp_path_factory.mktemp("tff")
    return tff_writer.write(folder / "stackoverflow.sqlite.lzma", clients)


def test_the_key_of_a_thread_is_a_hash_of_title_and_tags(tff_writer, tmp_path):
    """TFF's files name no question: a thread there is what has one title and one list of tags."""
    questions = [(f"how to do {n % 9}", f"tag{n % 3}|tag{n % 5}") for n in range(100)]
    posts = [tff_writer.stackoverflow_example("a b", *question) for question in questions]
    file = tff_writer.write(tmp_path / "so.sqlite", {f"{n:02d}": posts[n::40] for n in range(40)})
    corpus = import_stackoverflow(file, tmp_path / "c", num_users=30)
    # Worked out apart: SHA-256 of title, a zero byte and tags, the first 32 digits.
    assert titled_thread("how to do 0", "tag0|tag0") == "a107e71f83aefd467c2b9d23b0323ec8"
    digests = {hashlib.sha256("\0".join(question).encode()).hexdigest() for question in questions}
    expected = sorted(digest[:32] for digest in digests)
    assert list(SentenceStore(corpus.directory).thread_keys()) == expected
    assert len(expected) < len(questions)  # asked twice in the same words: one thread


@pytest.mark.slow
def test_the_first_400_ids_in_sorted_order_and_their_public_rest(archive, tmp_path):
    steps = []
    corpus = import_stackoverflow(
        archive, tmp_path / "c", progress=lambda *step: steps.append(step)
    )
    assert (corpus.rosters, corpus.default_roster) == (("tff-400",), "tff-400")
    assert not corpus.synthetic
    view = corpus.view(split=BY_SENTENCE)
    ids = sorted([str(user) for user in range(1002, 1900, 2)] + ["99"])
    assert view.roster == tuple(ids[:400])
    assert view.public_users == tuple(ids[400:])
    assert "99" in view.public_users
    assert steps[-1] == (450 * 5, 450 * 5)
    assert corpus.manifest["dropped"] == {"sentences without a word": 1}
    assert corpus.manifest["source"]["select"] == "first-sorted"
    assert corpus.manifest["licence"] == "CC BY-SA 3.0"
    # The vocabulary is the public users' own: none of the words only a rostered user has.
    own = {word for word in view.words if word.startswith("only")}
    assert own
    assert own <= {f"only{user}" for user in view.public_users} | {"only1000"}  # renamed to 99
    entry = corpus.manifest["rosters"]["tff-400"]
    assert entry["vocabulary"]["source"] == "public-users"
    assert not entry["looks_at_data"]
    assert 0.4 < entry["foreign_titles"]["share"] < 0.7  # answers carry somebody else's title


@pytest.mark.slow
def test_a_seeded_roster_and_few_public_users(archive, tmp_path):
    options = {"select": "seeded", "seed": 2, "num_users": 50, "public_users": 20}
    corpus = import_stackoverflow(archive, tmp_path / "c", **options)
    view = corpus.view(split=BY_SENTENCE)
    assert corpus.default_roster == "tff-50-seed-2"
    assert (len(view.roster), len(view.public_users)) == (50, 20)
    assert not set(view.roster) & set(view.public_users)


def test_what_cannot_be_imported_leaves_nothing(archive, tmp_path, tff_writer):
    target = tmp_path / "c"
    with pytest.raises(ValueError):
        import_stackoverflow(archive, target, word_counts=archive)
    with refuses(ValueError, 451, 450):
        import_stackoverflow(archive, target, num_users=451)
    with refuses(ValueError, 450, archive):
        import_stackoverflow(archive, target, num_users=450)
    with refuses(ValueError, "--public-users 0"):
        import_stackoverflow(archive, target, public_users=0)
    cut = tmp_path / "cut.sqlite.lzma"
    cut.write_bytes(archive.read_bytes()[:-2000])
    with refuses(ValueError, cut):
        import_stackoverflow(cut, target)
    bad = {"a": [tff_writer.stackoverflow_example("a b", "c", "t")] * 3 + [b"\x0a\x05"], "b": []}
    broken = tff_writer.write(tmp_path / "bad.sqlite", bad)
    with refuses(ValueError, "example 4", "client 'a'"):
        import_stackoverflow(broken, target, num_users=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.sqlite", "cut.sqlite.lzma"]


@pytest.mark.data
def test_tff_own_sample_goes_through_the_same_path(shared_data, tmp_path, multi_hot):
    golden = np.load(shared_data / "tff" / "stackoverflow_synthetic_golden.npz")
    words, tags = tmp_path / "word_count", tmp_path / "tag_count"
    words.write_text("".join(f"{w} {99 - n}\n" for n, w in enumerate(golden["words"])))
    tags.write_text(json.dumps({t: 99 - n for n, t in enumerate(golden["tags"].tolist())}))
    view = import_stackoverflow(
        shared_data / "tff" / "stackoverflow_synthetic.sqlite",
        tmp_path / "c",
        num_users=2,
        word_counts=words,
        tag_counts=tags,
    ).view(split=BY_SENTENCE)
    assert view.words == tuple(golden["words"])
    assert view.tags == tuple(golden["tags"])
    for client in ("synthetic_1", "synthetic_2", "synthetic_3"):
        x, y = golden[f"{client}_x"], golden[f"{client}_y"]
        kept = y.any(axis=1)  # a post without one of the tags is left out, and counted
        examples = view.examples(client, "all")
        assert rows(word_shares(examples)) == rows(x[kept])
        assert rows(multi_hot(examples)) == rows(y[kept])


AS_PUBLISHED = Split(kind="as-published")


@pytest.fixture
def file(tmp_path, tff_writer):
    """TFF's three splits: 40 users, 12 others held out, and later 6 of both and 5 more."""

    def blobs(user):
        return [
            tff_writer.stackoverflow_example(
                f"w{n} by{user}", f"title {(n * 7 + user) % 60}", f"t{(n * 7 + user) % 4}",
                type="question" if n % 2 else "answer",
            )
            for n in range(20)
        ]  # fmt: skip

    splits = {
        "train": range(40),
        "heldout": range(100, 112),
        "test": (*range(3), *range(100, 103), *range(200, 205)),
    }
    path = tmp_path / "so.sqlite"
    for name, users in splits.items():
        tff_writer.add_split(path, {str(user): blobs(user) for user in users}, name)
    return path


def imported(file, directory, **options):
    return import_stackoverflow(file, directory, num_users=30, **options)


@pytest.mark.slow
def test_its_held_out_users_train_nothing_and_they_alone_are_tested_on(file, tmp_path):
    corpus = imported(file, tmp_path / "c", tff_split="heldout", held_users=12)
    assert corpus.default_roster == "tff-30-heldout-12"
    view = corpus.view(split=AS_PUBLISHED)
    held = [str(user) for user in range(100, 112)]
    assert sorted(view.roster[30:]) == held and len(view.roster) == 42
    assert all(int(user) < 40 for user in (*view.roster[:30], *view.public_users))
    assert all(view.num_examples(user, "train") == 0 for user in held)
    assert all(view.num_examples(user, "test") == 0 for user in view.roster[:30])
    # What they wrote is theirs and on the roster: no word of it is in the vocabulary.
    assert not {f"by{user}" for user in held} & set(view.words)
    facts = corpus.manifest["rosters"][corpus.default_roster]
    assert "12 of 12" in facts["how"] and not facts["looks_at_data"]
    source = corpus.manifest["source"]
    assert (source["held_out_of"], source["held_users"]) == ("heldout", 12)
    # By a hash they are as all others.
    assert any(corpus.view().num_examples(user, "train") for user in held)


def test_users_of_its_test_split_are_taken_unless_they_train(file, tmp_path):
    corpus = imported(file, tmp_path / "c", tff_split="test", held_users=8)
    held = {*map(str, range(100, 103)), *map(str, range(200, 205))}
    assert set(corpus.view(split=AS_PUBLISHED).roster[30:]) == held
    with refuses(ValueError, "--held-users 9", "'test'", 8):
        imported(file, tmp_path / "d", tff_split="test", held_users=9)
    assert not (tmp_path / "d").exists()


def test_without_the_option_nothing_of_other_splits_is_read(file, tmp_path):
    corpus = imported(file, tmp_path / "c")
    assert corpus.default_roster == "tff-30" and "held_users" not in corpus.manifest["source"]
    assert not (tmp_path / "c" / "held_users.json").exists()
    with refuses(ValueError, "--tff-split"):
        corpus.view(split=AS_PUBLISHED)


def test_the_command_takes_it(file):
    words = ["--users", 30, "--tff-split", "heldout", "--held-users", 6, "--name", "mine"]
    made = json.loads(fedpriv("data", "import", file, *words, "--json").stdout)
    assert made["default_roster"] == "tff-30-heldout-6"
    assert Corpus.open(made["path"]).view(split=AS_PUBLISHED).roster[30:]


def test_words_are_split_at_ascii_white_space_only():
    assert split_words(" a\tb\u00a0c \n d ") == ["a", "b\u00a0c", "d"]


def test_rosters_look_at_ids_only():
    ids = [f"{n:03d}" for n in range(50)]
    assert select_roster(ids[::-1], "first-sorted", 3) == ("000", "001", "002")
    one, two = (set(select_roster(ids, "seeded", 10, seed)) for seed in (1, 2))
    assert one != two
    # A user who comes or goes moves at most one other.
    assert len(one - set(select_roster(ids[1:], "seeded", 10, 1))) <= 1


def _tar_bz2(path, name, data):
    with tarfile.open(path, "w:bz2") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return path


def test_published_counts_plain_and_packed(tmp_path):
    words = _tar_bz2(tmp_path / "w.tar.bz2", "dir/stackoverflow.word_count", b"the 9\na 7\n")
    assert read_word_counts(words) == {"the": 9, "a": 7}
    tags = tmp_path / "stackoverflow.tag_count"
    tags.write_text('{"css": 3, "java": 8, "git": 3}')
    assert list(read_tag_counts(tags).items()) == [("java", 8), ("css", 3), ("git", 3)]


@pytest.mark.parametrize(
    ("reader", "text", "name"),
    [
        (read_word_counts, "the\n", 1),
        (read_word_counts, "the 1\nthe 2\n", 2),
        (read_word_counts, "", "counts"),
        (read_word_counts, "the -1", 1),
        (read_tag_counts, "[1]", "counts"),
        (read_tag_counts, '{"a": -1}', "counts"),
        (read_tag_counts, '{"a": true}', "counts"),
        (read_tag_counts, "{", "counts"),
        (read_tag_counts, "[" * 100_000, "counts"),
    ],
)
def test_bad_counts_are_refused(tmp_path, reader, text, name):
    path = tmp_path / "counts"
    path.write_text(text)
    with refuses(ValueError, path, name):
        reader(path)


def test_damaged_count_archives_are_refused(tmp_path):
    path = _tar_bz2(tmp_path / "w.tar.bz2", "other", b"x" * 5000)
    with refuses(ValueError, path, "'word_count'"):
        read_word_counts(path)
    path = _tar_bz2(tmp_path / "v.tar.bz2", "word_count", os.urandom(50_000))
    path.write_bytes(path.read_bytes()[:20_000])
    for damaged in (path, tmp_path / "absent"):
        with refuses(ValueError, damaged):
            read_word_counts(damaged)
