"""Words, denominators, rosters and published counts of TFF's Stack Overflow."""

import os

import pytest

from fedpriv.datasets.importers.stackoverflow import (
    read_tag_counts,
    read_word_counts,
    select_roster,
    split_words,
)


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
    import io
    import tarfile

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
    ("reader", "text", "message"),
    [
        (read_word_counts, "the\n", "is not a new word"),
        (read_word_counts, "the 1\nthe 2\n", "line 2"),
        (read_word_counts, "", "no word counts"),
        (read_word_counts, "the -1", "is not a new word"),
        (read_tag_counts, "[1]", "not a JSON object"),
        (read_tag_counts, '{"a": -1}', "not a JSON object"),
        (read_tag_counts, '{"a": true}', "not a JSON object"),
        (read_tag_counts, "{", "not JSON"),
        (read_tag_counts, "[" * 100_000, "not JSON"),
    ],
)
def test_bad_counts_are_refused(tmp_path, reader, text, message):
    path = tmp_path / "counts"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        reader(path)


def test_damaged_count_archives_are_refused(tmp_path):
    path = _tar_bz2(tmp_path / "w.tar.bz2", "other", b"x" * 5000)
    with pytest.raises(ValueError, match="no file whose name ends in"):
        read_word_counts(path)
    path = _tar_bz2(tmp_path / "v.tar.bz2", "word_count", os.urandom(50_000))
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(ValueError, match=r"damaged|truncated"):
        read_word_counts(path)
    with pytest.raises(ValueError, match="no file"):
        read_word_counts(tmp_path / "absent")
