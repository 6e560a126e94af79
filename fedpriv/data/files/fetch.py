"""Downloads with checksums, progress and restart; nothing half-made under a file's own name.

pooch keeps the store: it decides whether the file at hand is the right one, and puts a download in
place only once it is. The transfer itself is ours, because pooch's cannot go on where it stopped:
bytes are collected in `partial/NAME`, and as long as the server can serve ranges and the file there
is still the same one (its ETag or modification time), a broken transfer goes on from there, within
one call and from one call to the next.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pooch
import requests

from fedpriv.data.files.cache import cache_dir, locked, write_atomically
from fedpriv.data.files.sources import DATASETS, Source
from fedpriv.data.files.unpack import Progress
from fedpriv.hashes import file_sha256

_CHUNK = 1 << 14  # what is lost of a transfer that breaks
_ATTEMPTS_WITHOUT_PROGRESS = 3
_TIMEOUT = (10, 60)  # seconds to connect, and between two pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """One file that is now at hand.

    Attributes:
        path: Where it is.
        sha256: Of its bytes.
        verified: "checksum" if it was compared with a published one, "first download" if only
            with what an earlier download gave, "unknown" if this was the first.
    """

    path: Path
    sha256: str
    verified: str


def fetch(
    name: str,
    *,
    folder: Path | None = None,
    mirror: str | None = None,
    progress: Progress | None = None,
) -> tuple[Fetched, ...]:
    """Fetch the files of one known data set; those at hand and right are not fetched again.

    Args:
        name: A key of `sources.DATASETS`.
        folder: Where to put them; the cache's `downloads/NAME` by default.
        mirror: Address of a folder to take the same files from instead.
        progress: Called with the bytes done and in all, file after file.

    Raises:
        ValueError: If the name is not known, the server cannot be reached or does not have the
            file, the transfer breaks, or what arrived is not the right file. Nothing is left under
            the file's name then; a transfer that can go on later is kept in `partial/`.
    """
    if name not in DATASETS:
        raise ValueError(f"unknown data set {name!r}; one of {', '.join(DATASETS)}")
    folder = cache_dir() / "downloads" / name if folder is None else folder
    return tuple(
        fetch_file(source, folder, mirror=mirror, progress=progress)
        for source in DATASETS[name].files
    )


def fetch_file(
    source: Source, folder: Path, *, mirror: str | None = None, progress: Progress | None = None
) -> Fetched:
    """Fetch one file into a folder, see `fetch`."""
    folder.mkdir(parents=True, exist_ok=True)
    url = (mirror if mirror is not None else source.folder_url).rstrip("/") + "/" + source.file_name
    target = folder / source.file_name
    note = folder / f"{source.file_name}.sha256"
    with locked(hashlib.sha256(str(target.resolve()).encode()).hexdigest()[:16], cache_dir()):
        kind, _, expected = source.checksum.partition(":")
        verified = "checksum" if expected else "unknown"
        known = expected if kind == "sha256" else None
        if not expected and note.is_file():
            known, verified = note.read_text(encoding="ascii").split()[0], "first download"
        if kind == "git-blob" and target.is_file() and _git_blob(target) != expected:
            target.unlink()  # pooch would take what it has no checksum of its own for
        pooch.get_logger().setLevel(logging.ERROR)

        def transfer(address: str, output: str, _: object) -> None:
            _transfer(address, Path(output), folder / "partial", source, progress)
            _check(Path(output), source, known, url)

        downloader: Any = transfer  # the type pooch announces is not how it calls one
        pooch.retrieve(
            url,
            known_hash=f"sha256:{known}" if known else None,
            fname=source.file_name,
            path=folder,
            downloader=downloader,
        )
        digest = known or file_sha256(target)
        if not expected and verified == "unknown":
            write_atomically(note, f"{digest}  {source.file_name}\n")
    return Fetched(path=target, sha256=digest, verified=verified)


def _check(path: Path, source: Source, sha256: str | None, url: str) -> None:
    """Refuse a complete download that is not the file we wanted."""
    with path.open("rb") as file:
        head = file.read(max(16, len(source.starts_with)))
    if not head.startswith(source.starts_with) or head.lstrip()[:5].lower() in (b"<!doc", b"<html"):
        raise ValueError(f"{url} gave something else than {source.file_name}; nothing was kept")
    if sha256 is not None and (found := file_sha256(path)) != sha256:
        raise ValueError(
            f"{url} has the wrong SHA-256 {found}, not {sha256}: damaged, or not the same file any "
            "more; nothing was kept"
        )
    if source.checksum.startswith("git-blob:"):
        expected = source.checksum.partition(":")[2]
        if (found := _git_blob(path)) != expected:
            raise ValueError(
                f"{url} has the wrong git object id {found}, not {expected}: damaged, or not the "
                "same file any more; nothing was kept"
            )


def _git_blob(path: Path) -> str:
    """Return the object id git gives a file's bytes (SHA-1 with a header; an identity check)."""
    digest = hashlib.sha1(b"blob %d\x00" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _transfer(
    url: str, output: Path, partial_folder: Path, source: Source, progress: Progress | None
) -> None:
    """Bring the whole body of `url` to `output`, going on after breaks where the server can."""
    partial_folder.mkdir(exist_ok=True)
    partial = partial_folder / source.file_name
    facts = partial_folder / f"{source.file_name}.json"

    stuck = 0
    keep = False
    try:
        while True:
            before = partial.stat().st_size if partial.is_file() else 0
            keep = True  # while we are in there, being killed or interrupted leaves a good start
            error = _one_attempt(url, partial, facts, progress)
            keep = False
            if error is None:
                partial.replace(output)
                return
            after = partial.stat().st_size if partial.is_file() else 0
            resumable = after > 0 and bool(_validator(facts))
            stuck = 0 if resumable and after > before else stuck + 1
            if stuck >= _ATTEMPTS_WITHOUT_PROGRESS:
                keep = True
                raise ValueError(
                    f"{url}: {error}; "
                    + (
                        f"{after:,} bytes are kept, so the same command goes on from there"
                        if resumable
                        else "nothing was kept, try again later"
                    )
                )
    finally:
        if not (keep and partial.is_file() and _validator(facts)):
            partial.unlink(missing_ok=True)
            facts.unlink(missing_ok=True)
            if not any(partial_folder.iterdir()):
                partial_folder.rmdir()


def _validator(facts: Path) -> str:
    """Return what the server named the version of the file by, "" if it did not."""
    try:
        return str(json.loads(facts.read_text(encoding="utf-8"))["validator"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _one_attempt(url: str, partial: Path, facts: Path, progress: Progress | None) -> str | None:
    """Fetch what is missing of a file; return None if it is whole now, else what went wrong."""
    have = partial.stat().st_size if partial.is_file() else 0
    headers = {"Accept-Encoding": "identity"}
    validator = _validator(facts)
    if have and validator:
        headers |= {"Range": f"bytes={have}-", "If-Range": validator}
    try:
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
            if response.status_code == 416:  # nothing is left after what we have: start again
                partial.unlink(missing_ok=True)
                return "the server has less than was fetched before"
            if response.status_code in (400, 401, 403, 404, 410):
                raise ValueError(f"{url} answers {response.status_code} ({response.reason})")
            if response.status_code not in (200, 206):
                return f"the server answers {response.status_code} ({response.reason})"
            start, total = _extent(response, have)
            etag = response.headers.get("ETag", "")
            name = (
                etag
                if etag and not etag.startswith("W/")
                else (response.headers.get("Last-Modified", ""))
            )
            ranges = response.status_code == 206 or (
                response.headers.get("Accept-Ranges", "") == "bytes"
            )
            write_atomically(facts, json.dumps({"validator": name if ranges else ""}))
            done = start
            with partial.open("r+b" if start else "wb") as file:
                file.seek(start)
                file.truncate()
                for chunk in response.iter_content(_CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    if progress is not None:
                        progress(done, total)
    except requests.RequestException as error:
        return f"the transfer broke off ({_cause(error)})"
    if total and done != total:
        return f"{done:,} of {total:,} bytes arrived, then the transfer ended"
    return None


def _extent(response: requests.Response, have: int) -> tuple[int, int]:
    """Return (where the body starts, length of the whole file or 0)."""
    length = response.headers.get("Content-Length", "")
    body = int(length) if length.isdecimal() else 0
    if response.status_code == 206:
        unit, _, rest = response.headers.get("Content-Range", "").partition(" ")
        span, _, total = rest.partition("/")
        first = span.partition("-")[0]
        if unit != "bytes" or first != str(have):
            raise requests.RequestException("the server sent another range than was asked for")
        return have, int(total) if total.isdecimal() else (have + body if body else 0)
    return 0, body


def _cause(error: requests.RequestException) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"
