"""Places to write to: what is refused beforehand, and what is said when writing fails."""

import errno
import sqlite3
import tempfile

import numpy as np
import pytest

from fedpriv.datasets.cache import locked
from fedpriv.output_paths import check_file, check_folder, check_new_folder, writing_to
from tests.harness.refusals import refuses


@pytest.fixture
def read_only(monkeypatch):
    """A disk on which no file can be made, for root either."""

    def refuse(dir):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)


@pytest.mark.parametrize("check", [check_file, check_folder, check_new_folder])
class TestEveryPlace:
    def test_a_new_one_may_lie_in_folders_that_are_not_there_and_none_is_made(
        self, check, tmp_path
    ):
        check(tmp_path / "a" / "b" / "c", "--out")
        assert not list(tmp_path.iterdir())

    def test_below_a_file(self, check, tmp_path):
        (tmp_path / "file").write_text("")
        with refuses(ValueError, "--out", tmp_path / "file" / "x" / "y", tmp_path / "file"):
            check(tmp_path / "file" / "x" / "y", "--out")

    def test_on_a_disk_that_only_reads(self, check, tmp_path, read_only):
        with refuses(ValueError, "--to", tmp_path / "new", tmp_path):
            check(tmp_path / "new", "--to")


def test_a_folder_in_place_of_another(tmp_path):
    (tmp_path / "file").write_text("")
    with refuses(ValueError, "--out", tmp_path / "new"):
        check_file(tmp_path, "--out")
    check_folder(tmp_path, "--out")
    (tmp_path / "empty").mkdir()
    check_new_folder(tmp_path / "empty", "--out", or_empty=True)
    for check, there in (
        (check_folder, tmp_path / "file"),
        (check_new_folder, tmp_path / "file"),
        (check_new_folder, tmp_path),
        (check_new_folder, tmp_path / "empty"),
    ):
        with refuses(ValueError, "--out", there):
            check(there, "--out")
    check_new_folder(None, "--out")


FULL = (
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    OSError("1000 requested and 12 written"),
    sqlite3.OperationalError("database or disk is full"),
)


@pytest.mark.parametrize("error", FULL, ids=repr)
def test_a_full_disk(error, tmp_path):
    with refuses(ValueError, tmp_path, "then go on"), writing_to(tmp_path, "; then go on"):
        raise error


def test_numpy_says_so_of_a_full_disk(tmp_path):
    # The words that are looked for are NumPy's: this fails when it changes them.
    with refuses(ValueError, tmp_path), writing_to(tmp_path), open("/dev/full", "wb") as full:
        np.arange(100_000).tofile(full)


def test_other_errors_are_left_alone(tmp_path):
    noted = OSError(errno.ENOSPC, "No space left on device")
    noted.add_note("while it was trained")  # by somebody's own code
    for error in (OSError("odd"), FileNotFoundError(2, "No such file", "x"), noted):
        with pytest.raises(type(error)) as caught, writing_to(tmp_path):
            raise error
        assert caught.value is error


def test_a_cache_that_cannot_be_written_to(tmp_path):
    cache = tmp_path / "cache"
    cache.write_text("")
    with refuses(ValueError, cache, "FEDPRIV_CACHE"), locked("name", cache):
        raise AssertionError
