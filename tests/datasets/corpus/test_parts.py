"""Parts of a corpus: what each machine of a deployment holds, and what it does not."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.parts import SERVER, cut_corpus
from fedpriv.datasets.stackexchange.splits import BY_SENTENCE, Split
from tests.datasets.corpus import threaded
from tests.datasets.corpus.sentences import write
from tests.harness.command_line import fedpriv
from tests.harness.refusals import refuses

COLUMNS = ("indptr", "indices", "counts", "num_tokens", "labels", "tag_indptr", "tag_indices")


OF_OWNERS = Split(owners="all", examples_per_owner=2)


@pytest.fixture(scope="module")
def parts(tiny_corpus, tmp_path_factory):
    return cut_corpus(tiny_corpus, tmp_path_factory.mktemp("cut") / "parts", nodes=3)


def view_of(parts, name):
    return Corpus.open(parts.folder / name).view()


def same(left, right) -> bool:
    return all(np.array_equal(getattr(left, c), getattr(right, c)) for c in COLUMNS)


def test_every_user_is_on_one_node_with_all_that_is_its(tiny_corpus, parts):
    view = tiny_corpus.view()
    hosted = [user for ids in parts.users.values() for user in ids]
    assert sorted(hosted) == sorted(view.roster) and len(parts.users) == 3
    for name, ids in parts.users.items():
        own = view_of(parts, name)
        assert own.roster == ids
        for user in ids:
            for subset in ("train", "validation", "test", "all"):
                assert same(own.examples(user, subset), view.examples(user, subset))
    assert sum(view.num_examples(user) for user in hosted) > 0


def test_a_node_holds_nobody_elses_sentences_nor_their_ids(tiny_corpus, parts):
    view = tiny_corpus.view()
    for name, ids in parts.users.items():
        others = set(view.roster) - set(ids)
        text = "".join(p.read_text("utf-8") for p in (parts.folder / name).rglob("*.json"))
        assert not [user for user in others if f'"{user}"' in text]
        own = view_of(parts, name)
        mine = sum(view.num_examples(user, "all") for user in ids)
        assert len(own.columns) == mine + len(own.public_rows("all", of="public-threads"))
        with refuses(ValueError, repr(min(others))):
            own.examples(min(others))


def test_the_server_knows_who_there_is_and_has_no_sentence_of_any(tiny_corpus, parts):
    view, server = tiny_corpus.view(), view_of(parts, SERVER)
    assert (server.roster, server.roster_sha256) == (view.roster, view.roster_sha256)
    assert all(server.num_examples(user, "all") == 0 for user in server.roster)
    assert len(server.columns) == len(server.public_rows("all"))


def test_what_is_public_is_the_same_everywhere(tiny_corpus, parts):
    view = tiny_corpus.view()
    for name in (SERVER, *parts.users):
        own = view_of(parts, name)
        assert (own.words, own.tags, own.public_users) == (view.words, view.tags, view.public_users)
        assert own.num_public_examples == view.num_public_examples
        for counts in ("word_counts", "word_users", "word_sentences", "tag_users"):
            assert np.array_equal(getattr(own, counts), getattr(view, counts))
        for subset in ("train", "test"):
            mine, theirs = own.public_rows(subset), view.public_rows(subset)
            assert len(mine) == len(theirs)
            assert same(own.columns.take(mine), view.columns.take(theirs))
        with refuses(ValueError, "public-threads"):
            own.public_rows("train", of="all-posts")


def files_of(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def texts_of(corpus, ids):
    """Sentence and title of users' examples, as the corpus keeps them; of no ids: public ones'."""
    view = corpus.view()
    rows = view.all_rows(ids, "all") if ids else view.public_rows("all")
    kept = [corpus.texts(kind) for kind in ("sentence", "title")]
    places = view.columns.take(rows).texts.tolist()
    return [tuple(t[p] for t, p in zip(kept, at, strict=True)) for at in places]


@pytest.mark.slow
def test_a_machine_has_the_text_of_its_own_examples_and_of_no_others(tmp_path):
    """A node that of its users, the server that of public users."""
    whole = threaded.make(tmp_path / "whole")
    made = cut_corpus(whole, tmp_path / "parts", nodes=3)
    for name, ids in {**made.users, SERVER: ()}.items():
        part = Corpus.open(made.folder / name)
        found = texts_of(part, ids)
        assert found == texts_of(whole, ids) and found
        for place, kind in enumerate(("sentence", "title")):
            assert set(part.texts(kind)) == {text[place] for text in found}
        own = part.view()
        assert name == SERVER or (own.columns.take(own.public_rows("all")).texts == -1).all()


@pytest.mark.slow
def test_with_one_users_text_changed_no_other_machine_has_another(tmp_path):
    gone, files = "r04", []
    for name in ("as it was", "changed"):
        rows = [
            replace(row, tokens=[*row.tokens, "new"], tags=row.tags[::-1])
            if row.user_id == gone and name == "changed"
            else row
            for row in threaded.sentences()
        ]
        whole = write(tmp_path / name / "whole", rows, [threaded.ROSTER])
        made = cut_corpus(whole, tmp_path / name / "parts", nodes=3)
        files.append({part: files_of(made.folder / part) for part in (SERVER, *made.users)})
    differ = [part for part in files[0] if files[0][part] != files[1][part]]
    assert differ == [part for part, ids in made.users.items() if gone in ids]


def test_parts_are_readable_by_their_owner_alone(parts):
    modes = {path.stat().st_mode & 0o777 for path in parts.folder.rglob("*")}
    assert modes == {0o700, 0o600}


def test_a_part_has_the_split_it_was_cut_for_and_says_so(tiny_corpus, parts, tmp_path):
    with refuses(ValueError, "by-thread-0", "by-sentence"):
        Corpus.open(parts.folder / "node-1").view(split=BY_SENTENCE)
    made = cut_corpus(tiny_corpus, tmp_path / "parts", nodes=1, split=BY_SENTENCE)
    assert Corpus.open(made.folder / "node-1").view(split=BY_SENTENCE).roster


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"nodes": 0}, 0),
        ({"nodes": 99}, 99),
        ({"split": OF_OWNERS}, OF_OWNERS.name),
    ],
    ids=["none", "too many", "owners of examples"],
)
def test_what_cannot_be_cut_is_said_and_leaves_nothing(tiny_corpus, tmp_path, changes, name):
    with refuses(ValueError, name):
        cut_corpus(tiny_corpus, tmp_path / "parts", **{"nodes": 2, **changes})
    assert list(tmp_path.iterdir()) == []


def test_a_part_and_a_folder_that_is_there_are_refused(parts, tiny_corpus, tmp_path):
    with refuses(ValueError, parts.folder / "node-1"):
        cut_corpus(Corpus.open(parts.folder / "node-1"), tmp_path / "again", nodes=2)
    with refuses(ValueError, tmp_path):
        cut_corpus(tiny_corpus, tmp_path, nodes=2)


@pytest.mark.slow
def test_the_command_says_who_went_where(tiny_corpus, tmp_path):
    command = ("data", "part", tiny_corpus.directory, "--nodes", 2, "--json", "--out")
    for given, split in (([], "by-thread-0-selecting"), (["--select", "last"], "by-thread-0")):
        found = json.loads(fedpriv(*command, tmp_path / split, *given).stdout)
        assert found["split"] == split and set(found["users"]) == {"node-1", "node-2"}
    done = fedpriv("data", "info", tmp_path / split / "node-1")
    assert done.exit_code == 0 and '"part": "node-1"' in done.output
