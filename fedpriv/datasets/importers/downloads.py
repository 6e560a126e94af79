"""Downloads of the public files that `fedpriv data fetch` knows, checked and resumable.

All addresses are in `downloads.toml`. TensorFlow Federated has no package of its data sets on PyPI
(there is none called tensorflow-federated-datasets): it publishes these files in a storage bucket.

A download is in its place only once it is whole and the right file. What a break leaves is in
`partial/`, with the version that the server named, from which the next call goes on.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedpriv.datasets.cache import cache_dir, locked
from fedpriv.hashes import Progress, file_sha256
from fedpriv.output_paths import write_private


@dataclass(frozen=True, slots=True)
class Source:
    """One file that can be fetched.

    Attributes:
        file_name: Its name, here and at the end of its address.
        folder_url: Its address up to the name.
        checksum: "sha256:..." of the file, "git-blob:..." for the object id under which git keeps
            it, or "" where nothing is known beforehand.
    """

    file_name: str
    folder_url: str
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class Fetchable:
    """Files that are fetched under one name.

    Attributes:
        files: The files; of a corpus the first is the one to import.
        about: Description.
        licence: Its licence.
        note: Origin of its checksum.
    """

    files: tuple[Source, ...]
    about: str
    licence: str
    note: str


def _read_table() -> dict[str, Fetchable]:
    table = tomllib.loads(Path(__file__).with_name("downloads.toml").read_text("utf-8"))
    found = {}
    for name, entry in table.items():
        folder, checksums = entry.pop("folder"), entry.pop("files")
        files = tuple(Source(file, folder, checksum) for file, checksum in checksums.items())
        found[name] = Fetchable(files=files, **entry)
    return found


DATASETS: Mapping[str, Fetchable] = _read_table()
"""Data sets that can be fetched, by name."""

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
        name: A key of `DATASETS`.
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
    target, partial = folder / source.file_name, folder / "partial" / source.file_name
    note = folder / f"{source.file_name}.sha256"
    with locked(hashlib.sha256(str(target.resolve()).encode()).hexdigest()[:16], cache_dir()):
        kind, _, expected = source.checksum.partition(":")
        verified = "checksum" if expected else "unknown"
        if not expected and note.is_file():
            expected, verified = note.read_text(encoding="ascii").split()[0], "first download"
        digest = _git_blob if kind == "git-blob" else file_sha256
        if not target.is_file() or (expected and digest(target) != expected):
            _transfer(url, partial, progress)
            try:
                with partial.open("rb") as file:  # an error, as a page
                    if file.read(16).lstrip()[:5].lower() in (b"<!doc", b"<html"):
                        raise ValueError(f"{url} gave a page and no file; nothing was kept")
                if expected and (found := digest(partial)) != expected:
                    what = "git object id" if kind == "git-blob" else "SHA-256"
                    raise ValueError(
                        f"{url} has the wrong {what} {found}, not {expected}: damaged, or not the "
                        "same file any more; nothing was kept"
                    )
                partial.replace(target)
            finally:
                _remove(partial)
        sha256 = expected if digest is file_sha256 and expected else file_sha256(target)
        if verified == "unknown":
            write_private(note, f"{sha256}  {source.file_name}\n")
    return Fetched(path=target, sha256=sha256, verified=verified)


def _git_blob(path: Path) -> str:
    """Return the object id git gives a file's bytes (SHA-1 with a header; an identity check)."""
    digest = hashlib.sha1(b"blob %d\x00" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _transfer(url: str, partial: Path, progress: Progress | None) -> None:
    """Bring the whole body of `url` to `partial`, going on after breaks where the server can.

    What a break, a kill or an interrupt leaves stays where the next call can go on from it.
    """
    partial.parent.mkdir(exist_ok=True)
    stuck, before = 0, _size(partial)
    try:
        while (error := _one_attempt(url, partial, progress)) is not None:
            after, resumable = _size(partial), _resumable(partial)
            stuck = 0 if resumable and after > before else stuck + 1
            before = after
            if stuck >= _ATTEMPTS_WITHOUT_PROGRESS:
                then = "nothing was kept, try again later"
                if resumable:
                    then = f"{after:,} bytes are kept, so the same command goes on from there"
                raise ValueError(f"{url}: {error}; {then}")
    except BaseException:
        if not _resumable(partial):
            _remove(partial)
        raise


def _remove(partial: Path) -> None:
    for path in (partial, _version(partial)):
        path.unlink(missing_ok=True)
    if partial.parent.is_dir() and not any(partial.parent.iterdir()):
        partial.parent.rmdir()


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _version(partial: Path) -> Path:
    """Return the file that says which version of a body was begun, as the server names it."""
    return partial.with_name(f"{partial.name}.version")


def _resumable(partial: Path) -> bool:
    return _size(partial) > 0 and _size(_version(partial)) > 0


def _one_attempt(url: str, partial: Path, progress: Progress | None) -> str | None:
    """Fetch what is missing of a file; return None if it is whole now, else what went wrong."""
    import requests

    have, headers = _size(partial), {"Accept-Encoding": "identity"}
    if _resumable(partial):
        headers |= {"Range": f"bytes={have}-", "If-Range": _version(partial).read_text("utf-8")}
    try:
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
            status, answered = response.status_code, response.headers
            if status == 416:  # nothing is left after what we have: start again
                partial.unlink(missing_ok=True)
                return "the server has less than was fetched before"
            if status in (400, 401, 403, 404, 410):
                raise ValueError(f"{url} answers {status} ({response.reason})")
            if status not in (200, 206):
                return f"the server answers {status} ({response.reason})"
            done, length = 0, answered.get("Content-Length", "")
            if status == 206:
                span = re.match(r"bytes (\d+)-", answered.get("Content-Range", ""))
                if span is None or int(span[1]) != have:
                    return "the server sent another range than was asked for"
                done, length = have, answered["Content-Range"].rpartition("/")[2]
            total = int(length) if length.isdecimal() else 0
            version = answered.get("ETag", "")
            if not version or version.startswith("W/"):
                version = answered.get("Last-Modified", "")
            goes_on = status == 206 or answered.get("Accept-Ranges", "") == "bytes"
            write_private(_version(partial), version if goes_on else "")
            with partial.open("r+b" if done else "wb") as file:
                file.seek(done)
                file.truncate()
                for chunk in response.iter_content(_CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    if progress is not None:
                        progress(done, total)
    except requests.RequestException as error:
        return f"the transfer broke off ({type(error).__name__}: {str(error)[:200]})"
    if total and done != total:
        return f"{done:,} of {total:,} bytes arrived, then the transfer ended"
    return None
