"""Where raw files are looked for, and how packed ones are read."""

import gzip
import io
import lzma
import tarfile

import pytest

from fedpriv.datasets import raw_files
from fedpriv.datasets.raw_files import find_files, read_file, read_lines, tar_members
from tests.harness.refusals import refuses

CHOICES = (("best.gz",), ("a.bin", "b.bin"))


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A folder for each place that is looked at, in this order."""
    data, cache, beside = (tmp_path / name for name in ("data", "cache", "beside"))
    for folder in (data, cache / "downloads" / "thing", beside / "thing"):
        folder.mkdir(parents=True)
    monkeypatch.setenv("FEDPRIV_DATA", str(data))
    monkeypatch.setattr(raw_files, "data_folders", lambda: (data, beside))
    return data, cache / "downloads" / "thing", beside / "thing"


def find(argument=None):
    return find_files("thing", CHOICES, argument, get="fetch them")


def test_places_come_in_order(places, tmp_path, monkeypatch):
    with refuses(ValueError, "thing", places[0], places[2], "fetch them"):
        find()
    with monkeypatch.context() as patched:
        patched.delenv("FEDPRIV_DATA")
        with refuses(ValueError, "FEDPRIV_DATA", "fetch them"):
            find()
    for folder in reversed(places):  # the least first; each better one is taken before it
        (folder / "best.gz").write_bytes(b"")
        assert find() == (folder / "best.gz",)
    other = tmp_path / "other" / "thing"
    other.mkdir(parents=True)
    (other / "best.gz").write_bytes(b"")
    assert find(tmp_path / "other") == (other / "best.gz",)
    assert find(other / "best.gz") == (other / "best.gz",)


def test_forms_come_in_order_and_whole(places):
    data = places[0]
    (data / "a.bin").write_bytes(b"")
    (data / "odd.bin").write_bytes(b"")
    for given, name in (
        (None, "b.bin"),
        (data / "a.bin", "b.bin"),
        (data / "odd.bin", "best.gz"),
        (data / "nowhere", "fetch them"),
    ):
        with refuses(ValueError, "thing", name):
            find(given)
    (data / "b.bin").write_bytes(b"")
    assert find() == find(data) == find(data / "b.bin") == (data / "a.bin", data / "b.bin")
    (data / "best.gz").write_bytes(b"")
    assert find() == (data / "best.gz",)


BODY = b"0123456789" * 1000
PACKERS = {"gz": gzip.compress, "xz": lzma.compress, "plain": bytes}


@pytest.mark.parametrize("kind", PACKERS)
def test_files_are_read_whatever_they_are_packed_with(tmp_path, kind):
    path = tmp_path / "file"
    path.write_bytes(PACKERS[kind](BODY))
    told = []
    assert read_file(path, at_most=len(BODY), progress=lambda *at: told.append(at)) == BODY
    assert told[-1][0] == told[-1][1] == path.stat().st_size
    with refuses(ValueError, path, "9,999"):
        read_file(path, at_most=len(BODY) - 1)


@pytest.mark.parametrize("kind", ["gz", "xz"])
def test_damage_is_a_clear_error(tmp_path, kind):
    path = tmp_path / "file"
    packed = PACKERS[kind](BODY)
    middle = len(packed) // 2
    flipped = packed[:middle] + bytes([packed[middle] ^ 255]) + packed[middle + 1 :]
    for content in (packed[:-1], packed[:middle], packed[:8], flipped, packed + b"something more"):
        path.write_bytes(content)
        with refuses(ValueError, path):
            read_file(path, at_most=1 << 20)


@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_lines(tmp_path, pack):
    path = tmp_path / "lines"
    path.write_bytes(pack(b"one\ntwo\nthree"))
    assert list(read_lines(path, longest=9)) == [(1, b"one\n"), (2, b"two\n"), (3, b"three")]
    with refuses(ValueError, path, 3, 4):
        list(read_lines(path, longest=4))
    path.write_bytes(gzip.compress(b"one\n" * 1000)[:-9])
    with refuses(ValueError, path):
        list(read_lines(path, longest=9))


def make_tar(path, files):
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            if content is LINK:
                entry.type, entry.linkname, entry.size = tarfile.SYMTYPE, "/etc/passwd", 0
            archive.addfile(entry, io.BytesIO(content))
    path.write_bytes(gzip.compress(plain.getvalue()))
    return plain.getvalue()


LINK = b"link"


def test_members_of_an_archive(tmp_path):
    path = tmp_path / "x.tar.gz"
    make_tar(path, {"a": b"1", "b": b"22", "../c": b"3", "link": LINK})
    got = dict(tar_members(path, lambda name: name != "a", at_most=2))
    assert got == {"b": b"22", "../c": b"3"}
    with refuses(ValueError, path, "b", 2):
        list(tar_members(path, lambda name: True, at_most=1))


def test_an_archive_cut_anywhere_is_refused(tmp_path):
    path = tmp_path / "x.tar.gz"
    plain = make_tar(path, {"a": b"1" * 512, "b": b"2" * 512})
    whole = path.read_bytes()
    cut = [whole[:length] for length in range(10, len(whole) - 1, 7)]
    for content in (*cut, gzip.compress(plain[:700])):  # the last is packed whole, but cut before
        path.write_bytes(content)
        with refuses(ValueError, path):
            list(tar_members(path, lambda name: True, at_most=1 << 20))
