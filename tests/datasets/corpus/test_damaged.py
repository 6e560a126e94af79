"""What cannot be written leaves nothing, and damaged files are refused."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedpriv.datasets.stackexchange import manifest
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.datasets.stackexchange.splits import BY_SENTENCE
from tests.datasets.corpus.sentences import SENTENCES, said, write
from tests.harness.refusals import refuses


def nothing_left(directory):
    return list(directory.iterdir()) == []


def test_an_error_while_writing_leaves_nothing(tmp_path):
    def breaks():
        yield from SENTENCES
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError):
        write(tmp_path / "c", breaks())
    assert nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"sentences": []}, []),
        ({"sentences": [said("u", "", "law")]}, ["'u'"]),
        ({"sentences": [replace(SENTENCES[0], tokens=["a\nb"])]}, [repr("a\nb")]),
        ({"rosters": [RosterSpec(name="r", rule="first-sorted", size=50)]}, [50]),
        ({"rosters": [RosterSpec(name="r", rule="first-sorted", size=50, optional=True)]}, ["'r'"]),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path, change, names):
    with refuses(ValueError, *names):
        write(tmp_path / "c", **change)
    assert nothing_left(tmp_path)


def edit_manifest(directory, digest=True, **changes):
    path = directory / "manifest.json"
    content = {**json.loads(path.read_text()), **changes}
    if digest:
        content["manifest_sha256"] = manifest._digest(content)
    path.write_text(json.dumps(content))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (lambda d: (d / "manifest.json").unlink(), "manifest.json"),
        (lambda d: (d / "manifest.json").write_text('{"format"'), "manifest.json"),
        (lambda d: edit_manifest(d, format="other"), "manifest.json"),
        (lambda d: edit_manifest(d, version=99), "version 99"),
        (lambda d: edit_manifest(d, digest=False, synthetic=False), "manifest.json"),
        (lambda d: (d / "words.txt").unlink(), "words.txt"),
        (lambda d: flip(d / "rosters" / "inside" / "by-sentence" / "labels.npy"), "labels.npy"),
        (lambda d: os.truncate(d / "sentences" / "words.npy", 140), "words.npy"),
    ],
)
def test_a_damaged_corpus_is_refused_on_opening(corpus, damage, name):
    damage(corpus.directory)
    with refuses(ValueError, name):
        Corpus.open(corpus.directory).view(split=BY_SENTENCE)


def flip(path: Path):
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(bytes(content))


def test_damage_in_a_large_file_is_found_by_verify(tmp_path, monkeypatch):
    corpus = write(tmp_path / "c")
    corpus.view(split=BY_SENTENCE)
    flip(tmp_path / "c" / "rosters" / "inside" / "by-sentence" / "words.npy")
    monkeypatch.setattr(manifest, "_CHECKED_ON_OPEN", 0)
    Corpus.open(tmp_path / "c")
    with refuses(ValueError, "words.npy"):
        corpus.verify()


@pytest.mark.parametrize("name", ["words", "labels", "counts", "user_offsets", "word_offsets"])
def test_files_that_do_not_fit_each_other_are_refused(corpus, name):
    path = corpus.directory / "rosters" / "inside" / "by-sentence" / f"{name}.npy"
    np.save(path, np.load(path)[:-1])
    with refuses(ValueError, path.name):
        corpus.view(split=BY_SENTENCE)


def test_arrays_are_read_only_views_of_the_files(corpus):
    examples = corpus.view(split=BY_SENTENCE).examples("in1", "all")
    for column in (examples.indices, examples.counts, examples.labels, examples.num_tokens):
        assert not column.flags.owndata
        assert not column.flags.writeable
