"""A crafted archive reads, writes and removes nothing but what is in it."""

import stat

import py7zr
import pytest

from fedpriv.datasets.importers.dump import open_dump

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


def refused(path, scratch, message):
    with pytest.raises(ValueError, match=message), open_dump(path, scratch):
        pass
    assert not any(place.is_file() or place.is_symlink() for place in scratch.rglob("*"))


def test_a_member_with_an_absolute_name_is_refused(tmp_path, scratch, victim):
    refused(crafted(tmp_path / "a.7z", str(victim)), scratch, "leads out of the archive")
    assert victim.read_text() == OUTSIDE


@pytest.mark.parametrize(
    "name", ["../home/Posts.xml", "a/../../home/Posts.xml", "C:\\x\\Posts.xml", "..\\Posts.xml"]
)
def test_a_member_that_leads_upwards_is_refused(tmp_path, scratch, victim, name):
    refused(crafted(tmp_path / "a.7z", name), scratch, "leads out of the archive")
    assert victim.read_text() == OUTSIDE


@pytest.mark.parametrize("kind", [stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK])
def test_a_device_is_refused(tmp_path, scratch, kind):
    refused(crafted(tmp_path / "a.7z", "a/Posts.xml", unix(kind)), scratch, "link or a device")


@pytest.mark.parametrize("target", ["notes.txt", "../home/Posts.xml"])
def test_a_link_is_refused(tmp_path, scratch, victim, target):
    path = crafted(tmp_path / "a.7z", "Posts.xml", unix(stat.S_IFLNK), target.encode())
    refused(path, scratch, "link or a device")
    assert victim.read_text() == OUTSIDE


def test_two_members_of_the_same_name_are_two(tmp_path, scratch):
    path = tmp_path / "a.7z"
    with py7zr.SevenZipFile(path, "w") as archive:
        archive.writestr(INSIDE, "Posts.xml")
        archive.writestr(INSIDE, "Posts.xml")
    refused(path, scratch, "2 files named Posts.xml")


def test_an_ordinary_member_is_read_whatever_its_mode(tmp_path, scratch):
    path = crafted(tmp_path / "a.7z", "site/posts.XML", 0x8000 | stat.S_IFREG << 16)
    with open_dump(path, scratch) as dump:
        assert [row["Id"] for row in dump.rows()] == ["in"]
    assert not any(place.is_file() for place in scratch.rglob("*"))
