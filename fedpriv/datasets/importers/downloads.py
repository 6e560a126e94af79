"""Downloads of the public files that `fedpriv data fetch` knows, checked and resumable.

All addresses are in this one table. TensorFlow Federated has no package of its data sets on PyPI
(there is none called tensorflow-federated-datasets): it publishes these files in a storage bucket.

pooch keeps the store: it decides whether the file at hand is the right one, and puts a download in
place only once it is. The transfer itself is ours, because pooch's cannot go on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.datasets.cache import cache_dir, locked, write_atomically
from fedpriv.hashes import Progress, file_sha256

_BUCKET = "https://storage.googleapis.com/tff-datasets-public/"
_ONSTARTUPS = (
    "https://raw.githubusercontent.com/collapsed-stacks/onstartups/"
    "240fea96a6a543e3e9cf557dcfe08bb74f829622/data/main/"
)


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


_UNKNOWN = "TFF publishes no checksum of it; the SHA-256 of the first download is kept and compared"
_SEVERAL = "SHA-256 as several projects that fetch it have it"


def _files(folder: str, checksums: Mapping[str, str]) -> tuple[Source, ...]:
    return tuple(Source(name, folder, checksum) for name, checksum in checksums.items())


DATASETS: Mapping[str, Fetchable] = {
    "stackoverflow": Fetchable(
        _files(
            _BUCKET,
            {
                "stackoverflow.sqlite.lzma": "",
                "stackoverflow.word_count.tar.bz2": (
                    "sha256:1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c"
                ),
                "stackoverflow.tag_count.tar.bz2": (
                    "sha256:6fe281cec490d9384a290d560072438e7e2b377bbb823876ce7bd6f82696772d"
                ),
            },
        ),
        about="Stack Overflow sentences by user, with published word and tag counts (TFF)",
        licence="CC BY-SA 3.0",
        note=f"word and tag counts: TFF's SHA-256; the database: {_UNKNOWN}",
    ),
    "emnist": Fetchable(
        _files(_BUCKET, {"emnist_all.sqlite.lzma": ""}),
        about="handwritten characters by writer (TFF, from LEAF)",
        licence="as EMNIST (NIST Special Database 19) and LEAF",
        note=_UNKNOWN,
    ),
    "cifar100": Fetchable(
        _files(_BUCKET, {"cifar100.sqlite.lzma": ""}),
        about="CIFAR-100 parted among 500 + 100 artificial users (TFF)",
        licence="as CIFAR-100",
        note=_UNKNOWN,
    ),
    "shakespeare": Fetchable(
        _files(
            _BUCKET,
            {
                "shakespeare.sqlite.lzma": (
                    "sha256:d3d11fceb9e105439ac6f4d52af6efafed5a2a1e1eb24c5bd2dd54ced242f5c4"
                )
            },
        ),
        about="the plays' lines by character (TFF, from LEAF)",
        licence="public domain text; preparation Apache-2.0",
        note="SHA-256 as the tests of the fedjax project have it",
    ),
    "onstartups": Fetchable(
        _files(_ONSTARTUPS, {"posts.xml": "git-blob:a8e30e3205d568dd46b77bb83f0532fad6a20718"}),
        about="all posts of Answers on Startups, 2009-2013 (Stack Exchange dump)",
        licence="CC BY-SA 3.0",
        note="the object id of the file in that commit of collapsed-stacks/onstartups",
    ),
    "imdb": Fetchable(
        _files(
            "https://ai.stanford.edu/~amaas/data/sentiment/",
            {
                "aclImdb_v1.tar.gz": (
                    "sha256:c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe"
                )
            },
        ),
        about="50,000 labelled film reviews (Maas et al. 2011)",
        licence="research use",
        note=_SEVERAL,
    ),
    "mnist": Fetchable(
        _files(
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            {
                "train-images-idx3-ubyte.gz": (
                    "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
                ),
                "train-labels-idx1-ubyte.gz": (
                    "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
                ),
                "t10k-images-idx3-ubyte.gz": (
                    "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
                ),
                "t10k-labels-idx1-ubyte.gz": (
                    "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
                ),
            },
        ),
        about="70,000 handwritten digits (LeCun et al.)",
        licence="CC BY-SA 3.0",
        note="SHA-256 as several projects that fetch them have it",
    ),
    "cifar10": Fetchable(
        _files(
            "https://www.cs.toronto.edu/~kriz/",
            {
                "cifar-10-binary.tar.gz": (
                    "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
                )
            },
        ),
        about="60,000 small photographs of ten classes (Krizhevsky 2009)",
        licence="none stated",
        note=_SEVERAL,
    ),
    "sst2": Fetchable(
        _files(
            "https://dl.fbaipublicfiles.com/glue/data/",
            {
                "SST-2.zip": (
                    "sha256:d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa"
                )
            },
        ),
        about="69,000 sentences of film reviews, good or bad (SST-2, GLUE)",
        licence="as GLUE",
        note=_SEVERAL,
    ),
}


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
    import pooch  # here, because `fedpriv --help` reads this module's table

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
            _transfer(address, Path(output), folder / "partial" / source.file_name, progress)
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
        if file.read(16).lstrip()[:5].lower() in (b"<!doc", b"<html"):  # an error, as a page
            raise ValueError(f"{url} gave something else than {source.file_name}; nothing was kept")
    kind, _, expected = source.checksum.partition(":")
    if kind == "git-blob":
        what, found = "git object id", _git_blob(path)
    else:
        what, found, expected = "SHA-256", file_sha256(path), sha256 or ""
    if expected and found != expected:
        raise ValueError(
            f"{url} has the wrong {what} {found}, not {expected}: damaged, or not the same file "
            "any more; nothing was kept"
        )


def _git_blob(path: Path) -> str:
    """Return the object id git gives a file's bytes (SHA-1 with a header; an identity check)."""
    digest = hashlib.sha1(b"blob %d\x00" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _transfer(url: str, output: Path, partial: Path, progress: Progress | None) -> None:
    """Bring the whole body of `url` to `output`, going on after breaks where the server can.

    What a break, a kill or an interrupt leaves in `partial` stays there where the server named the
    file's version, so that the next call goes on from it.
    """
    partial.parent.mkdir(exist_ok=True)
    facts = partial.with_name(f"{partial.name}.json")
    stuck = 0
    try:
        while True:
            before = _size(partial)
            error = _one_attempt(url, partial, facts, progress)
            if error is None:
                partial.replace(output)
                return
            after = _size(partial)
            resumable = after > 0 and bool(_validator(facts))
            stuck = 0 if resumable and after > before else stuck + 1
            if stuck >= _ATTEMPTS_WITHOUT_PROGRESS:
                then = "nothing was kept, try again later"
                if resumable:
                    then = f"{after:,} bytes are kept, so the same command goes on from there"
                raise ValueError(f"{url}: {error}; {then}")
    finally:
        if not (_size(partial) and _validator(facts)):
            partial.unlink(missing_ok=True)
            facts.unlink(missing_ok=True)
            if not any(partial.parent.iterdir()):
                partial.parent.rmdir()


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _validator(facts: Path) -> str:
    """Return what the server named the version of the file by, "" if it did not."""
    try:
        return str(json.loads(facts.read_text(encoding="utf-8"))["validator"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _one_attempt(url: str, partial: Path, facts: Path, progress: Progress | None) -> str | None:
    """Fetch what is missing of a file; return None if it is whole now, else what went wrong."""
    import requests

    have, validator = _size(partial), _validator(facts)
    headers = {"Accept-Encoding": "identity"}
    if have and validator:
        headers |= {"Range": f"bytes={have}-", "If-Range": validator}
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
            write_atomically(facts, json.dumps({"validator": version if goes_on else ""}))
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
