"""Words, denominators, rosters and published counts of TFF's Stack Overflow."""

import io
import os
import tarfile

import pytest

from fedpriv.datasets.importers.stackoverflow import (
    read_tag_counts,
    read_word_counts,
    select_roster,
    split_words,
)
from tests.harness.refusals import refuses


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
