"""Downloads against a server on loopback: right, wrong, cut short, restarted, interrupted."""

import hashlib
import re

import pytest

from fedpriv.datasets.importers import downloads as fetching
from fedpriv.datasets.importers.downloads import DATASETS, Source, fetch, fetch_file
from tests.harness.refusals import refuses

BODY = bytes(range(256)) * 4000  # about a megabyte: several pieces


@pytest.fixture(autouse=True)
def body(server):
    """What there is to fetch."""
    server.files["a.bin"] = BODY


def source(server, checksum="", name="a.bin"):
    return Source(file_name=name, folder_url=server.url, checksum=checksum)


SHA256 = hashlib.sha256(BODY).hexdigest()
GIT_BLOB = hashlib.sha1(b"blob %d\0" % len(BODY) + BODY).hexdigest()


def names(folder):
    return sorted(path.name for path in folder.rglob("*")) if folder.exists() else []


@pytest.mark.parametrize("checksum", [f"sha256:{SHA256}", f"git-blob:{GIT_BLOB}"])
def test_a_right_file_is_fetched_once(server, tmp_path, checksum):
    seen = []
    folder = tmp_path / "out"
    got = fetch_file(source(server, checksum), folder, progress=lambda *step: seen.append(step))
    assert got.path.read_bytes() == BODY
    assert (got.sha256, got.verified) == (SHA256, "checksum")
    assert seen[-1] == (len(BODY), len(BODY))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert names(folder) == ["a.bin"]
    assert fetch_file(source(server, checksum), folder) == got and len(server.requests) == 1
    got.path.write_bytes(b"damaged")
    assert fetch_file(source(server, checksum), folder).path.read_bytes() == BODY


@pytest.mark.parametrize("checksum", ["sha256:" + "0" * 64, "git-blob:" + "0" * 40])
def test_a_wrong_checksum_is_refused_and_leaves_nothing(server, tmp_path, checksum):
    with refuses(ValueError, server.url + "a.bin", checksum.partition(":")[2]):
        fetch_file(source(server, checksum), tmp_path / "out")
    assert names(tmp_path / "out") == []


@pytest.mark.parametrize(
    "faults",
    [{"cut_after": [300_000, 400_000]}, {"cut_after": [300_000], "at_most": 400_000}],
    ids=["broken", "less than the rest"],
)
def test_a_broken_transfer_goes_on_where_it_stopped(server, tmp_path, faults):
    vars(server).update(faults)
    got = fetch_file(source(server, f"sha256:{SHA256}"), tmp_path / "out")
    assert got.path.read_bytes() == BODY
    starts = [int(wanted[6:-1]) if wanted else 0 for _, wanted in server.requests]
    assert starts[0] == 0
    assert 280_000 <= starts[1] <= 300_000
    assert 660_000 <= starts[2] <= 700_000
    assert len(starts) == 3
    assert names(tmp_path / "out") == ["a.bin"]


def test_a_server_that_answers_with_another_range_is_not_believed(server, tmp_path):
    server.cut_after, server.shift = [300_000], 5
    with refuses(ValueError, server.url + "a.bin"):
        fetch_file(source(server), tmp_path / "out")
    assert not (tmp_path / "out" / "a.bin").exists()


def test_without_ranges_each_try_starts_again_and_a_truncated_body_leaves_nothing(server, tmp_path):
    server.ranges, server.cut_after = False, [300_000] * 9
    with refuses(ValueError, server.url + "a.bin"):
        fetch_file(source(server), tmp_path / "out")
    assert names(tmp_path / "out") == []
    assert [wanted for _, wanted in server.requests] == [None] * 3
    server.cut_after = [300_000]
    assert fetch_file(source(server), tmp_path / "out").path.read_bytes() == BODY


def interrupt(done, total):
    raise KeyboardInterrupt


@pytest.mark.parametrize("stopped", ["stuck", "interrupted", "changed"])
def test_a_transfer_that_stops_is_kept_apart_and_the_next_call_goes_on(server, tmp_path, stopped):
    """But where the file has changed on the server it begins again."""
    if stopped == "interrupted":
        with pytest.raises(KeyboardInterrupt):
            fetch_file(source(server), tmp_path / "out", progress=interrupt)
    else:
        server.cut_after = [300_000, 0, 0, 0]
        with refuses(ValueError, "294,912"):
            fetch_file(source(server), tmp_path / "out")
    assert not (tmp_path / "out" / "a.bin").exists()
    if stopped == "changed":
        server.files["a.bin"], server.etag = BODY[::-1], '"two"'
        assert fetch_file(source(server), tmp_path / "out").path.read_bytes() == BODY[::-1]
        return
    got = fetch_file(source(server, f"sha256:{SHA256}"), tmp_path / "out")
    assert got.path.read_bytes() == BODY
    assert re.fullmatch(r"bytes=\d+-", server.requests[-1][1])
    assert names(tmp_path / "out") == ["a.bin"]


def test_without_a_published_checksum_the_first_download_is_the_measure(server, tmp_path):
    folder = tmp_path / "out"
    assert fetch_file(source(server), folder).verified == "unknown"
    assert names(folder) == ["a.bin", "a.bin.sha256"]
    (folder / "a.bin").write_bytes(b"damaged")
    assert fetch_file(source(server), folder).verified == "first download"
    assert (folder / "a.bin").read_bytes() == BODY
    (folder / "a.bin").unlink()
    server.files["a.bin"] = b"another"
    with refuses(ValueError, "SHA-256", SHA256):
        fetch_file(source(server), folder)
    assert names(folder) == ["a.bin.sha256"]


def test_missing_files_web_pages_and_dead_servers_are_clear(server, tmp_path):
    server.files["page"] = b"<!DOCTYPE html><title>sign in</title>"
    dead = Source(file_name="a.bin", folder_url="http://127.0.0.1:9/")
    for given, name in (
        (source(server, name="absent"), 404),
        (source(server, name="page"), "page"),
        (dead, "ConnectionError"),
    ):
        with refuses(ValueError, given.folder_url + given.file_name, name):
            fetch_file(given, tmp_path / "out")
    assert names(tmp_path / "out") == []


def test_fetch_by_name_from_a_mirror(server, tmp_path, monkeypatch):
    data = dict(DATASETS)
    two = tuple(Source(file_name=n, folder_url="http://127.0.0.1:9/") for n in ("a.bin", "b.bin"))
    data["two"] = type(DATASETS["emnist"])(files=two, about="", licence="", note="")
    monkeypatch.setattr(fetching, "DATASETS", data)
    server.files["b.bin"] = b"b"
    first, second = fetch("two", mirror=server.url.rstrip("/"))
    assert (first.path.name, second.path.read_bytes()) == ("a.bin", b"b")
    assert first.path.parent == tmp_path / "cache" / "downloads" / "two"
    with refuses(ValueError, "'z'"):
        fetch("z")
