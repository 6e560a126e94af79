"""Where views come from: corpora of version 1, corpora that can only be read, split by split."""

import json
import shutil
from pathlib import Path

import pytest

from fedpriv.data.corpus import manifest, views
from fedpriv.data.corpus.corpus import Corpus
from fedpriv.data.corpus.rosters import RosterSpec
from fedpriv.data.corpus.splits import BY_SENTENCE, BY_THREAD, KINDS, Split
from fedpriv.experiments.parts.start import FromPublic, public_only
from fedpriv.experiments.parts.users import TagPredictionTask
from fedpriv.rng import Key
from tests.data.corpus.threaded import PUBLIC, ROSTERED, make, sentences, threads_of

KEY = Key.simulation(0)
NEW_IN_SENTENCES = ("askers", "threads", "days")
NEW_IN_VIEWS = ("validation_ends.npy", "threads.npy", "public_threads.npy", manifest.VIEW_FILE)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def corpus(tmp_path):
    return make(tmp_path / "c")


@pytest.fixture
def older(tmp_path):
    """The corpus as a version before threads wrote it."""
    corpus = make(tmp_path / "older")
    corpus.view(split=BY_SENTENCE)
    return version_1(corpus.directory)


def version_1(directory: Path) -> Path:
    (directory / "threads.txt").unlink()
    (directory / "titles.txt").unlink()
    (directory / "held_users.json").unlink()
    for name in NEW_IN_SENTENCES:
        (directory / "sentences" / f"{name}.npy").unlink()
    content = json.loads((directory / manifest.FILE_NAME).read_text())
    for name, entry in content["rosters"].items():
        parent = directory / "rosters" / name
        facts = manifest.read_view(parent / "by-sentence")
        (parent / "by-sentence").rename(parent.with_name("kept"))
        shutil.rmtree(parent)
        parent.with_name("kept").rename(parent)
        for file in NEW_IN_VIEWS:
            (parent / file).unlink()
        for fact in ("examples_by_subset", "examples_of_public_threads", "split"):
            del facts[fact], entry[fact]
        entry |= facts
    (directory / manifest.FILE_NAME).unlink()
    content["files"] = manifest.describe_files(directory, directory)
    del content["totals"]["threads"]
    manifest.write(directory, {**content, "version": manifest.WITHOUT_THREADS})
    return directory


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


class TestVersion1:
    def test_it_is_still_read_by_sentence(self, older, corpus):
        opened = Corpus.open(older)
        opened.verify()
        assert opened.manifest["version"] == 1
        view = opened.view(split=BY_SENTENCE)
        assert content(view) == content(corpus.view(split=BY_SENTENCE))
        assert view.provenance["split"] == BY_SENTENCE.said()
        assert not len(view.public_rows("all")) and len(view.public_rows("all", of="all-posts"))
        with pytest.raises(ValueError, match="prepared before threads were kept; import it again"):
            _ = view.threads

    @pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "by-sentence"])
    def test_it_is_split_no_other_way_and_says_what_to_do(self, older, kind):
        before = sorted(older.rglob("*"))
        with pytest.raises(
            ValueError,
            match=f"cannot be split {kind}; import it again, or choose split by-sentence",
        ):
            Corpus.open(older).view(split=Split(kind=kind))
        assert sorted(older.rglob("*")) == before

    def test_it_does_not_take_all_public_users_where_fewer_are_asked_for(self, older):
        fewer = Split(kind="by-sentence", public_users=5)
        with pytest.raises(ValueError, match="import it again, or leave public-users 5 out"):
            Corpus.open(older).view(split=fewer)

    def test_it_takes_new_rosters_by_sentence(self, older):
        few = RosterSpec(name="few", rule="declared", ids=ROSTERED[:5])
        added = Corpus.open(older).add_roster(few)
        assert added.roster == ROSTERED[:5] and added.split == BY_SENTENCE
        assert not len(added.public_rows("all"))
        again = Corpus.open(older)
        again.verify()
        assert content(again.view("few", split=BY_SENTENCE)) == content(added)
        assert content(again.view(split=BY_SENTENCE))  # the one that was there
        with pytest.raises(ValueError, match="import it again"):
            again.view("few")

    def test_who_asked_is_not_known_so_no_start_of_it_passes_for_public(self, older):
        # Titles and tags of rostered users are in public users' answers: ε covers none of that.
        def task(**options):
            return TagPredictionTask(split="by-sentence", **options)(None, Corpus.open(older))

        assert public_only(task(), KEY) is None
        with pytest.raises(ValueError, match=r"does not know who asked.*all-posts.*start fresh"):
            FromPublic().make(task(), KEY)
        every = FromPublic().make(task(public_text="all-posts"), KEY)
        assert every.facts["kind"] == "public"


@pytest.fixture
def only_read(corpus, monkeypatch):
    """The corpus, with its folders refusing new files, whoever runs this."""
    real = views.tempfile.mkdtemp

    def refuse(prefix, dir):
        if corpus.directory in Path(dir).parents:
            raise PermissionError(13, "Permission denied", str(dir))
        return real(prefix=prefix, dir=dir)

    monkeypatch.setattr(views.tempfile, "mkdtemp", refuse)
    return corpus


class TestCorporaThatCanOnlyBeRead:
    def test_further_views_go_into_the_cache_and_are_made_once(
        self, only_read, cache, tmp_path, monkeypatch
    ):
        before = sorted(only_read.directory.rglob("*"))
        found = only_read.view(split=Split(fold=2))
        assert content(found) == content(make(tmp_path / "other").view(split=Split(fold=2)))
        assert sorted(only_read.directory.rglob("*")) == before
        (made,) = cache.glob("views/*/inside/by-thread-2")
        assert made.parts[-3] == only_read.manifest["manifest_sha256"][:16]
        monkeypatch.setattr(views, "make", None)
        again = Corpus.open(only_read.directory).view(split=Split(fold=2))
        assert content(again) == content(found)

    def test_another_corpus_does_not_find_them(self, only_read, tmp_path):
        whole = only_read.view(split=Split(fold=2))
        less = make(tmp_path / "less", [row for row in sentences() if row.user_id != "r03"])
        view = less.view(split=Split(fold=2))
        assert view.num_examples("r03", "all") == 0 < whole.num_examples("r03", "all")

    def test_what_they_were_made_with_is_opened_where_it_is(self, only_read, cache):
        assert threads_of(only_read.view(), ROSTERED, "test")
        assert not (cache / "views").exists()


def test_a_view_is_made_once_and_the_first_is_kept(corpus, monkeypatch):
    split = Split(kind="by-user", fold=1)
    first = content(corpus.view(split=split))
    path = corpus.directory / "rosters" / "inside" / split.name
    made = path.stat().st_ino
    facts = views.make(  # a second process, that began before the first was done
        corpus.directory, corpus.manifest, corpus.view().roster, split, path.parent
    )
    assert path.stat().st_ino == made and facts["split"] == split.name
    assert [child.name for child in path.parent.iterdir() if child.name[0] == "."] == []
    monkeypatch.setattr(views, "make", None)
    assert content(corpus.view(split=split)) == first


def test_a_damaged_view_is_named_with_what_to_do(corpus):
    corpus.view(split=Split(fold=1))
    path = corpus.directory / "rosters" / "inside" / "by-thread-1" / manifest.VIEW_FILE
    path.write_text("{")
    with pytest.raises(ValueError, match=r"remove the folder .*by-thread-1, and it is made again"):
        corpus.view(split=Split(fold=1))


def test_a_roster_whose_public_users_ask_nothing_has_a_view_by_sentence_alone(tmp_path):
    asked = {row.thread for row in sentences() if row.own_title and row.user_id in PUBLIC}
    rows = [row for row in sentences() if row.thread not in asked]
    corpus = make(tmp_path / "asked", rows)
    assert corpus.manifest["rosters"]["inside"]["split"] == "by-sentence"
    assert corpus.view(split=BY_SENTENCE).words
    with pytest.raises(ValueError, match="in the training threads that they asked: leave more"):
        corpus.view(split=BY_THREAD)
