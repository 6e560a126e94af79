"""Users whom TFF's own splits hold out, beside those that a hash does."""

import json

import pytest

from fedpriv.datasets.importers.stackoverflow import import_stackoverflow
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.splits import Split
from tests.harness.command_line import fedpriv
from tests.harness.refusals import refuses

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
