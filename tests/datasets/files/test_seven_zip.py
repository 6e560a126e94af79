"""A crafted archive reads, writes and removes nothing but what is in it."""

import stat

import py7zr
import pytest

from fedpriv.datasets.importers.dump import open_dump
from tests.harness.refusals import refuses

INSIDE, OUTSIDE = b"<posts><row Id='in'/></posts>", "<posts><row Id='secret'/></posts>"


def unix(kind):
    """Return a member's attributes that say so of it."""
    return 0x8000 | (kind | 0o777) << 16


def crafted(path, name, attributes=None, content=INSIDE):
    """Write an archive whose one member has a name that py7zr itself would not write."""
    with py7zr.SevenZipFile(path, "w") as archive:
        archive.writestr(content, "a/Posts.xml")
        member = archive.header.files_info.files[-1]
        member["filename"] = name
        if attributes is not None:
            member["attributes"] = attributes
    return path


@pytest.fixture
def scratch(tmp_path):
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


@pytest.fixture
def victim(tmp_path):
    """A file of somebody else's, readable and removable."""
    (tmp_path / "home").mkdir()
    file = tmp_path / "home" / "Posts.xml"
    file.write_text(OUTSIDE)
    return file


def refused(path, scratch, *names):
    with refuses(ValueError, path, *names), open_dump(path, scratch):
        pass
    assert not any(place.is_file() or place.is_symlink() for place in scratch.rglob("*"))


UPWARDS = ["../home/Posts.xml", "a/../../home/Posts.xml", "C:\\x\\Posts.xml", "..\\Posts.xml"]
DEVICES = [stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK]


@pytest.mark.parametrize(
    ("name", "kind", "content"),
    [
        *((name, None, INSIDE) for name in ("{victim}", *UPWARDS)),
        *(("a/Posts.xml", kind, INSIDE) for kind in DEVICES),
        *(("Posts.xml", stat.S_IFLNK, to) for to in (b"notes.txt", b"../home/Posts.xml")),
    ],
)
def test_what_leads_out_of_the_archive_is_refused(tmp_path, scratch, victim, name, kind, content):
    """A member elsewhere, a device and a link."""
    name = name.format(victim=victim)
    attributes = None if kind is None else unix(kind)
    refused(
        crafted(tmp_path / "a.7z", name, attributes, content),
        scratch,
        repr(name.replace("\\", "/")),
    )
    assert victim.read_text() == OUTSIDE


def test_two_members_of_the_same_name_are_two(tmp_path, scratch):
    path = tmp_path / "a.7z"
    with py7zr.SevenZipFile(path, "w") as archive:
        archive.writestr(INSIDE, "Posts.xml")
        archive.writestr(INSIDE, "Posts.xml")
    refused(path, scratch, 2, "Posts.xml")


def test_an_ordinary_member_is_read_whatever_its_mode(tmp_path, scratch):
    path = crafted(tmp_path / "a.7z", "site/posts.XML", 0x8000 | stat.S_IFREG << 16)
    with open_dump(path, scratch) as dump:
        assert [row["Id"] for row in dump.rows()] == ["in"]
    assert not any(place.is_file() for place in scratch.rglob("*"))
