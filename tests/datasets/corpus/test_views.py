"""Where views come from: corpora that can only be read, split by split."""

import os
import stat
import tempfile
from pathlib import Path

import numpy as np
import pytest

from fedpriv.datasets.cache import cached_arrays
from fedpriv.datasets.stackexchange import manifest
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.datasets.stackexchange.splits import BY_SENTENCE, BY_THREAD, Split
from fedpriv.experiments.start import FromPublic, public_only
from fedpriv.experiments.tasks import TagPredictionTask
from fedpriv.rng import Key
from tests.datasets.corpus import threaded
from tests.datasets.corpus.threaded import PUBLIC, make, sentences
from tests.harness.refusals import refuses

KEY = Key.simulation(0)


@pytest.fixture
def corpus(tmp_path):
    return make(tmp_path / "c")


def content(view):
    users = [*view.roster, *view.public_users]
    return (
        (view.roster, view.public_users, view.words, view.tags, view.tag_users.tolist()),
        [
            getattr(view.examples(user, subset), column).tolist()
            for user in users
            for subset in ("train", "validation", "test")
            for column in ("labels", "indices", "counts", "num_tokens", "tag_indices")
        ],
    )


def test_further_views_go_into_the_cache_and_are_made_once(corpus, cache, tmp_path, monkeypatch):
    real, before = tempfile.mkdtemp, sorted(corpus.directory.rglob("*"))

    def refuse(prefix, dir):  # whoever runs this
        if corpus.directory in Path(dir).parents:
            raise PermissionError(13, "Permission denied", str(dir))
        return real(prefix=prefix, dir=dir)

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    found = corpus.view(split=Split(fold=2))
    assert content(found) == content(make(tmp_path / "other").view(split=Split(fold=2)))
    assert sorted(corpus.directory.rglob("*")) == before
    (made,) = cache.glob("views/*/inside/by-thread-2")
    assert made.parts[-3] == corpus.manifest["manifest_sha256"][:16]
    assert {path.stat().st_mode & 0o777 for path in made.glob("*.npy")} == {0o600}
    assert made.stat().st_mode & 0o777 == 0o700  # its owner's alone
    monkeypatch.setattr(Corpus, "make_view", None)
    again = Corpus.open(corpus.directory).view(split=Split(fold=2))
    assert content(again) == content(found)


def test_a_view_is_made_once_and_the_first_is_kept(corpus, monkeypatch):
    split = Split(kind="by-user", fold=1)
    first = content(corpus.view(split=split))
    path = corpus.directory / "rosters" / "inside" / split.name
    made = path.stat().st_ino
    # A second process, that began before the first was done.
    facts = corpus.make_view(corpus.view().roster, split, path.parent)
    assert path.stat().st_ino == made and facts["split"] == split.name
    assert [child.name for child in path.parent.iterdir() if child.name[0] == "."] == []
    monkeypatch.setattr(Corpus, "make_view", None)
    assert content(corpus.view(split=split)) == first


def test_a_damaged_view_is_named_with_what_to_do(corpus):
    corpus.view(split=Split(fold=1))
    path = corpus.directory / "rosters" / "inside" / "by-thread-1" / manifest.VIEW_FILE
    path.write_text("{")
    with refuses(ValueError, path, path.parent):
        corpus.view(split=Split(fold=1))


def test_a_roster_whose_public_users_ask_nothing_has_a_view_by_sentence_and_no_start(tmp_path):
    """Titles and tags of rostered users are in public users' answers: ε covers none of that."""
    asked = {row.thread for row in sentences() if row.own_title and row.user_id in PUBLIC}
    corpus = make(tmp_path / "asked", [row for row in sentences() if row.thread not in asked])
    assert corpus.manifest["rosters"]["inside"]["split"] == "by-sentence"
    assert corpus.view(split=BY_SENTENCE).words
    with refuses(ValueError, 0, "by-sentence"):
        corpus.view(split=BY_THREAD)

    def task(**options):
        return TagPredictionTask(split="by-sentence", **options)(None, corpus)

    assert public_only(task(), KEY) is None
    with refuses(ValueError, "all-posts"):
        FromPublic().make(task(), KEY)
    every = FromPublic().make(task(public_text="all-posts"), KEY)
    assert every.facts["kind"] == "public"


@pytest.fixture(autouse=True)
def open_umask():
    """As lax as it gets, so that no mode is right by chance."""
    before = os.umask(0)
    yield
    os.umask(before)


def others(folder):
    """Return what somebody else may do something with."""
    found = [folder, *folder.rglob("*")]
    return {
        path.name: oct(path.stat().st_mode)
        for path in found
        if stat.S_IMODE(path.stat().st_mode) & 0o077
    }


def test_a_corpus_its_views_and_later_rosters_are_their_owners(tmp_path):
    corpus = threaded.make(tmp_path / "corpus")
    assert others(tmp_path / "corpus") == {}
    corpus.view(split=BY_THREAD)
    users = list(corpus.view(split=BY_THREAD).roster)
    corpus.add_roster(RosterSpec(name="few", rule="declared", ids=users[:5]))
    corpus.view("few", split=BY_THREAD)
    assert others(tmp_path / "corpus") == {}


def test_arrays_in_the_cache_are_too(tmp_path):
    cached_arrays("texts", {"of": 1}, lambda: {"ids": np.arange(4)})
    (entry,) = (tmp_path / "cache" / "arrays").iterdir()
    assert others(entry) == {}
