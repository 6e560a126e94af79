"""A TFF-format .sqlite.lzma becomes a prepared corpus, end to end."""

import hashlib
import json

import numpy as np
import pytest

from fedpriv.datasets.importers.stackoverflow import import_stackoverflow
from fedpriv.datasets.importers.writer import titled_thread
from fedpriv.datasets.stackexchange.sentence_store import SentenceStore
from fedpriv.datasets.stackexchange.splits import BY_SENTENCE
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


@pytest.mark.slow
def test_a_file_of_few_users_is_imported_and_run(tmp_path, tff_writer, monkeypatch):
    """`fedpriv data import FILE`, then `fedpriv run adadps-tags`: 48 of 60 users on the roster."""
    monkeypatch.chdir(tmp_path)
    clients = clients_of(tff_writer, range(100, 160))
    file = tff_writer.write(tmp_path / "few.sqlite.lzma", clients)

    made = json.loads(fedpriv("data", "import", file, "--json").stdout)
    assert (made["name"], made["default_roster"]) == ("stackoverflow", "tff-48")
    for corpus in ("stackoverflow", file):
        words = ("run", "adadps-tags", "--corpus", corpus, "--rounds", "3", "--json")
        run = json.loads(fedpriv(*words).stdout)
        assert (run["users"], run["rounds"], run["roster"]) == (48, 3, "tff-48")
        assert not run["synthetic"]
