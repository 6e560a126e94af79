"""Where a corpus comes from, in which order, and that nothing half-made is left behind."""

import json
import lzma
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedpriv.datasets import cache
from fedpriv.datasets.importers import locate
from fedpriv.datasets.importers.locate import (
    cached_synthetic,
    find_candidates,
    raw_kind,
    resolve_corpus,
)
from fedpriv.datasets.importers.synthetic import NAME, Shape, synthesize
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from tests.datasets.importers.test_stackexchange import document, question
from tests.harness.refusals import refuses

TINY = Shape(num_users=4, num_sentences=60, public_users=3, num_words=100, num_tags=6, num_topics=2)


def posts_xml(num_users: int = 60) -> str:
    body, day = "<p>I want word{} now. It is late.</p>", {"CreationDate": "2010-01-01T00:00:00.000"}
    numbers = range(1, num_users + 1)
    return document(
        *(
            question(n, n, f"How to do thing {n % 5}?", body.format(n % 7), f"<tag{n % 3}>", **day)
            for n in numbers
        )
    )


@pytest.fixture(autouse=True)
def place(no_data, monkeypatch):
    monkeypatch.setattr(locate, "STAND_IN", TINY)
    return no_data


@pytest.fixture
def beside(place) -> Path:
    folder = place.parent / "shared" / "data"
    (folder / "stackexchange").mkdir(parents=True)
    return folder


@pytest.fixture
def dump(tmp_path) -> Path:
    path = tmp_path / "raw" / "onstartups.Posts.xml"
    path.parent.mkdir()
    path.write_text(posts_xml())
    return path


def contents(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_nothing_anywhere_is_an_error_or_synthetic(tmp_path):
    with refuses(ValueError, "FEDPRIV_DATA", "fedpriv data fetch onstartups"):
        resolve_corpus(None, allow_synthetic=False)
    corpus = resolve_corpus(None, allow_synthetic=True)
    assert (corpus.name, corpus.synthetic) == (NAME, True)
    assert corpus.directory.parent == tmp_path / "cache" / "corpora"
    before = (corpus.directory / "manifest.json").stat().st_mtime_ns
    with refuses(ValueError, "FEDPRIV_DATA"):  # nor is it taken for a real one
        resolve_corpus(None, allow_synthetic=False)
    again = resolve_corpus(NAME, allow_synthetic=False)  # by name it is always allowed
    assert again.directory == corpus.directory
    assert (again.directory / "manifest.json").stat().st_mtime_ns == before


@pytest.mark.slow
def test_the_argument_comes_first_then_the_environment_then_the_cache_then_the_folder(
    tmp_path, dump, beside, monkeypatch
):
    in_folder = beside / "stackexchange" / "onstartups.Posts.xml.xz"
    in_folder.write_bytes(lzma.compress(posts_xml(50).encode()))
    assert posts(resolve_corpus(None, allow_synthetic=True)) == 50

    fetched = tmp_path / "cache" / "downloads" / "onstartups" / "posts.xml"
    fetched.parent.mkdir(parents=True)
    fetched.write_text(posts_xml(51))
    assert posts(resolve_corpus(None, allow_synthetic=True)) == 51
    assert posts(resolve_corpus("onstartups", allow_synthetic=True)) == 51

    monkeypatch.setenv("FEDPRIV_DATA", str(dump))
    assert posts(resolve_corpus(None, allow_synthetic=True)) == 60

    synthetic = synthesize(tmp_path / "c", shape=TINY)
    assert resolve_corpus(synthetic.directory, allow_synthetic=False).synthetic
    assert resolve_corpus(str(tmp_path / "c" / "manifest.json"), allow_synthetic=False).synthetic


def posts(corpus: Corpus) -> int:
    assert corpus.name == "onstartups"
    assert corpus.manifest["licence"] == "CC BY-SA 3.0"
    return corpus.manifest["source"]["posts"]


def test_a_raw_file_is_imported_once_and_again_when_it_changes(dump, tmp_path):
    corpus = resolve_corpus(str(dump), allow_synthetic=False)
    assert corpus.default_roster == "onstartups-all"
    stamp = (corpus.directory / "manifest.json").stat().st_mtime_ns
    again = resolve_corpus(str(dump), allow_synthetic=False)
    assert again.directory == corpus.directory
    assert (again.directory / "manifest.json").stat().st_mtime_ns == stamp
    dump.write_text(posts_xml(70))
    assert resolve_corpus(str(dump), allow_synthetic=False).directory != corpus.directory
    moved = tmp_path / "elsewhere" / "onstartups.Posts.xml"
    moved.parent.mkdir()
    moved.write_text(posts_xml())
    assert resolve_corpus(str(moved), allow_synthetic=False).directory == corpus.directory
    dump.unlink()  # a prepared corpus of the cache outlives its raw file
    assert resolve_corpus("onstartups", allow_synthetic=False).name == "onstartups"


def test_a_folder_with_a_raw_file_will_do(beside, dump, monkeypatch):
    (beside / "onstartups.Posts.xml.xz").write_bytes(b"\xfd7zXZ\x00" + b"nonsense" * 9)
    with refuses(ValueError, "onstartups.Posts.xml.xz"):
        resolve_corpus(str(beside), allow_synthetic=False)
    (beside / "onstartups.Posts.xml.xz").write_bytes(lzma.compress(dump.read_bytes()))
    directory = resolve_corpus(str(beside), allow_synthetic=False).directory
    monkeypatch.setenv("FEDPRIV_DATA", str(beside))
    assert resolve_corpus(None, allow_synthetic=False).directory == directory
    assert resolve_corpus("onstartups", allow_synthetic=False).directory == directory
    with refuses(ValueError, beside.parent, "manifest.json"):
        resolve_corpus(str(beside.parent), allow_synthetic=False)


@pytest.mark.parametrize("argument", ["/no/such/place", "onstartups"])
@pytest.mark.parametrize("by", ["argument", "FEDPRIV_DATA"])
def test_what_is_not_there_is_said_and_never_replaced(argument, by, monkeypatch):
    if by == "FEDPRIV_DATA":
        monkeypatch.setenv("FEDPRIV_DATA", argument)
    with refuses(ValueError, by, repr(argument)):
        resolve_corpus(argument if by == "argument" else None, allow_synthetic=True)


@pytest.mark.parametrize("harm", [lambda text: text[: len(text) * 2 // 3], lambda text: ""])
def test_a_bad_dump_leaves_nothing_half_made(dump, harm, tmp_path):
    dump.write_text(harm(posts_xml()))
    with refuses(ValueError, "onstartups.Posts.xml"):
        resolve_corpus(str(dump), allow_synthetic=True)
    assert contents(tmp_path / "cache" / "corpora") == set()


def test_a_bad_tff_file_leaves_nothing_half_made(tmp_path, tff_writer):
    blobs = [tff_writer.stackoverflow_example("a b", "c", "t")] * 2
    path = tff_writer.write(tmp_path / "so.sqlite.lzma", {f"{n:03}": blobs for n in range(450)})
    corpus = resolve_corpus(str(path), allow_synthetic=False)
    assert (corpus.name, corpus.default_roster) == ("stackoverflow", "tff-400")
    made = contents(tmp_path / "cache" / "corpora")
    path.write_bytes(path.read_bytes()[:-30])
    with refuses(ValueError, path):
        resolve_corpus(str(path), allow_synthetic=True)
    assert contents(tmp_path / "cache" / "corpora") == made
    # Its own place in the search: below onstartups, above the synthetic one.
    assert resolve_corpus(None, allow_synthetic=True).name == "stackoverflow"


@pytest.mark.parametrize("file", ["users.json", "sentences/words.npy"])
def test_damage_is_named_and_rosters_that_were_added_stay_until_the_folder_is_removed(dump, file):
    corpus = resolve_corpus(str(dump), allow_synthetic=False)
    corpus.add_roster(RosterSpec(name="team", rule="declared", ids=["elsewhere"]))
    path = corpus.directory / file
    path.write_bytes(path.read_bytes()[:-1])
    for given in ("onstartups", str(dump)):
        with refuses(ValueError, path):
            resolve_corpus(given, allow_synthetic=False)
    assert (corpus.directory / "rosters" / "team" / "roster.json").is_file()
    shutil.rmtree(corpus.directory)
    assert "team" not in resolve_corpus(str(dump), allow_synthetic=False).rosters


def test_what_a_killed_process_left_is_cleared_away(tmp_path):
    corpus = cached_synthetic()
    left = corpus.directory.parent / f".{corpus.directory.name}.partial-abc"
    shutil.move(corpus.directory, left)
    assert cached_synthetic().directory == corpus.directory
    assert contents(corpus.directory.parent) == {corpus.directory.name}


def test_two_at_once_make_it_once():
    made = []

    def make(target, progress):
        made.append(target)
        return synthesize(target, shape=TINY)

    with ThreadPoolExecutor(2) as pool:
        asked = [
            pool.submit(locate.cached, "x-synthetic", make, source=None, options={})
            for _ in range(2)
        ]
    one, other = (corpus.result().directory for corpus in asked)
    assert one == other and len(made) == 1


def test_only_the_default_synthetic_corpus_answers_to_the_plain_name():
    other = cached_synthetic(seed=5)
    assert "synthetic" in other.directory.name
    assert [found.path for found in find_candidates(NAME)] == []
    assert resolve_corpus(NAME, allow_synthetic=False).manifest["source"]["seed"] == 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Posts.xml", "stackexchange"),
        ("law.stackexchange.com.7z", "stackexchange"),
        ("so.sqlite.lzma", "tff-stackoverflow"),
    ],
)
def test_the_kind_of_a_raw_file(tmp_path, name, kind):
    (tmp_path / name).write_bytes(b"...")
    assert raw_kind(tmp_path / name) == kind
    (tmp_path / "anything").write_bytes(b"SQLite format 3\0...")
    assert raw_kind(tmp_path / "anything") == "tff-stackoverflow"
    (tmp_path / "notes.txt").write_bytes(b"...")
    with refuses(ValueError, tmp_path / "notes.txt"):
        raw_kind(tmp_path / "notes.txt")


def test_the_digest_of_a_file_is_remembered_until_it_changes(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"one")
    first = cache.remembered_sha256(path, tmp_path / "cache")
    calls = []
    real = cache.file_sha256
    monkeypatch.setattr(cache, "file_sha256", lambda *a: calls.append(a) or real(*a))
    assert cache.remembered_sha256(path, tmp_path / "cache") == first
    assert calls == []
    path.write_bytes(b"two")
    assert cache.remembered_sha256(path, tmp_path / "cache") != first
    (note,) = (tmp_path / "cache" / "digests").iterdir()
    note.write_text(json.dumps(["nonsense"]))
    cache.remembered_sha256(path, tmp_path / "cache")
    assert len(calls) == 2
