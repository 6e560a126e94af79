"""A TFF-format .sqlite.lzma becomes a prepared corpus, end to end."""

import json

import numpy as np
import pytest

from fedpriv.cli import app
from fedpriv.datasets.importers.stackoverflow import import_stackoverflow
from fedpriv.datasets.stackexchange.splits import BY_SENTENCE
from tests.golden.tff_tags import tag_prediction_arrays
from tests.harness.command_line import CliRunner


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


@pytest.fixture(scope="module")
def archive(tmp_path_factory, tff_writer):
    """450 users with 5 short sentences each; ids whose text order is not their number's."""
    rng = np.random.default_rng(0)

    def blob(user: int, n: int) -> bytes:
        words = " ".join(f"w{w}" for w in rng.integers(0, 40, 6))
        if n == 4:
            words = f"only{user} {words}"  # a word nobody else uses
        tags = "|".join(f"t{t}" for t in sorted(rng.integers(0, 6, 2)))
        return tff_writer.stackoverflow_example(
            words, f"title {n % 3}", tags, type="question" if n % 2 else "answer"
        )

    clients = {str(user): [blob(user, n) for n in range(5)] for user in range(1000, 1900, 2)}
    clients["99"] = [tff_writer.stackoverflow_example("", "", "t1"), *clients.pop("1000")[1:]]
    folder = tmp_path_factory.mktemp("tff")
    return tff_writer.write(folder / "stackoverflow.sqlite.lzma", clients)


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
def test_the_corpus_holds_what_tff_would_make_of_the_file(archive, tmp_path, multi_hot):
    from fedpriv.datasets.tff_files import open_client_data

    view = import_stackoverflow(archive, tmp_path / "c").view(split=BY_SENTENCE)
    with open_client_data(archive) as data:
        for user in (view.roster[0], view.public_users[-2]):
            x, y = tag_prediction_arrays(data.examples(user), view.words, view.tags)
            kept = y.any(axis=1)
            examples = view.examples(user, "all")
            shares = word_shares(examples)
            # The split reorders a user's sentences, so they are compared as multisets.
            assert rows(x[kept]) == rows(shares)
            assert rows(np.minimum(y[kept], 1)) == rows(multi_hot(examples))
            assert sorted(examples.labels) == sorted(y[kept].argmax(axis=1))


@pytest.mark.slow
def test_a_seeded_roster_and_few_public_users(archive, tmp_path):
    def views():
        for number, seed in enumerate((1, 1, 2)):
            corpus = import_stackoverflow(
                archive,
                tmp_path / str(number),
                select="seeded",
                seed=seed,
                num_users=50,
                public_users=20,
            )
            assert corpus.default_roster == f"tff-50-seed-{seed}"
            yield corpus.view(split=BY_SENTENCE)

    one, same, other = views()
    assert one.roster == same.roster != other.roster
    assert one.words == same.words
    assert (len(one.roster), len(one.public_users)) == (50, 20)
    assert not set(one.roster) & set(one.public_users)


@pytest.mark.slow
def test_published_counts_are_used_and_said_to_be_private(archive, tmp_path):
    words, tags = tmp_path / "word_count", tmp_path / "tag_count"
    words.write_text("w1 50\nw0 40\nonly1002 30\nabsent 9\n")
    tags.write_text(json.dumps({"t0": 3, "t1": 9}))
    corpus = import_stackoverflow(
        archive, tmp_path / "c", word_counts=words, tag_counts=tags, num_users=450
    )
    view = corpus.view(split=BY_SENTENCE)
    assert view.words[:3] == ("w1", "w0", "only1002")
    assert view.tags == ("t1", "t0")
    source = corpus.manifest["rosters"]["tff-450"]["vocabulary"]["source"]
    assert source == "private"
    assert "private source" in corpus.manifest["source"]["vocabulary"]
    with pytest.raises(ValueError, match="go together"):
        import_stackoverflow(archive, tmp_path / "d", word_counts=words)


def test_what_cannot_be_imported_leaves_nothing(archive, tmp_path, tff_writer):
    target = tmp_path / "c"
    with pytest.raises(ValueError, match="cannot be chosen from 450"):
        import_stackoverflow(archive, target, num_users=451)
    with pytest.raises(ValueError, match=r"all 450 users .* are on the roster"):
        import_stackoverflow(archive, target, num_users=450)
    with pytest.raises(ValueError, match="--public-users 0"):
        import_stackoverflow(archive, target, public_users=0)
    cut = tmp_path / "cut.sqlite.lzma"
    cut.write_bytes(archive.read_bytes()[:-2000])
    with pytest.raises(ValueError, match=r"is truncated|is damaged"):
        import_stackoverflow(cut, target)
    bad = {"a": [tff_writer.stackoverflow_example("a b", "c", "t")] * 3 + [b"\x0a\x05"], "b": []}
    broken = tff_writer.write(tmp_path / "bad.sqlite", bad)
    with pytest.raises(ValueError, match="example 4 of client 'a'"):
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
def test_a_run_takes_the_archive_as_its_corpus(archive, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    words = ["run", "adadps-tags", "--corpus", str(archive), "--rounds", "2", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    # Progress goes to standard error, which the runner mixes in before the figures.
    figures = json.loads(done.stdout[done.stdout.index("{") :])
    assert figures["users"] == 400 and figures["rounds"] == 2
    assert not figures["synthetic"] and figures["roster"] == "tff-400"


@pytest.mark.slow
def test_a_file_of_few_users_is_imported_and_run(tmp_path, tff_writer, monkeypatch):
    """`fedpriv data import FILE`, then `fedpriv run adadps-tags`: 48 of 60 users on the roster."""
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)

    def blob(n: int) -> bytes:
        tag = int(rng.integers(0, 6))
        words = " ".join(f"w{w}" for w in (tag, *rng.integers(6, 40, 5)))
        kind = "question" if n % 2 else "answer"
        title = f"title {rng.integers(0, 30)}"
        return tff_writer.stackoverflow_example(words, title, f"t{tag}", type=kind)

    clients = {f"{user:03}": [blob(n) for n in range(12)] for user in range(60)}
    file = tff_writer.write(tmp_path / "few.sqlite.lzma", clients)

    def told(*words: str) -> dict:
        done = CliRunner().invoke(app, [*words, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout[done.stdout.index("{") :])

    made = told("data", "import", str(file))
    assert (made["name"], made["default_roster"]) == ("stackoverflow", "tff-48")
    assert "four fifths are on the roster" in made["rosters"]["tff-48"]["how"]
    run = told("run", "adadps-tags", "--corpus", "stackoverflow", "--rounds", "3")
    assert (run["users"], run["rounds"], run["roster"]) == (48, 3, "tff-48")
    # More users than 400, and all is as without: the reference's 400.
    clients = {f"{user:03}": [blob(0)] for user in range(401)}
    corpus = import_stackoverflow(
        tff_writer.write(tmp_path / "more.sqlite", clients), tmp_path / "more"
    )
    assert corpus.default_roster == "tff-400"
    assert "four fifths" not in corpus.manifest["rosters"]["tff-400"]["how"]
