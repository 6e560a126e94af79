"""The folder in which fetched files and prepared corpora are kept, and locks on its entries."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
import platformdirs
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fedpriv.hashes import Progress, document_sha256, file_sha256
from fedpriv.output_paths import keep_private, write_private

T = TypeVar("T")


def cache_dir() -> Path:
    """Return the cache folder: `FEDPRIV_CACHE` if set, else the platform's own for fedpriv."""
    chosen = os.environ.get("FEDPRIV_CACHE")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("fedpriv"))


@contextmanager
def locked(name: str, cache: Path) -> Iterator[None]:
    """Hold the lock called `name` of a cache; other processes wait, a killed one lets go of it.

    Raises:
        ValueError: If the cache cannot be written to.
    """
    folder = cache / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = (folder / f"{name}.lock").open("a+b")
    except OSError as error:
        raise ValueError(
            f"the cache {cache} cannot be written to ({(error.strerror or str(error)).lower()}); "
            "set FEDPRIV_CACHE to a folder that can"
        ) from error
    with opened as file:
        try:
            import fcntl
        except ImportError:  # elsewhere: moving into place is atomic, so work is done twice at most
            yield
            return
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def remembered_sha256(path: Path, cache: Path, progress: Progress | None = None) -> str:
    """Return `file_sha256`, remembered in the cache while the file's size and time stay."""
    stat = path.stat()
    # The change time too: unlike the modification time, copying tools cannot set it.
    facts = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
    key = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    note = cache / "digests" / f"{key}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(note.read_text(encoding="utf-8"))
        if known["facts"] == facts and len(known["sha256"]) == 64:
            return known["sha256"]
    digest = file_sha256(path, progress)
    with suppress(OSError):  # only a convenience
        note.parent.mkdir(parents=True, exist_ok=True)
        write_private(note, json.dumps({"facts": facts, "sha256": digest}))
    return digest


@contextmanager
def new_folder(target: Path, *, complete: str | None = None) -> Iterator[Path]:
    """Give an empty folder that becomes `target`, private, if its block ends well, and else goes.

    Args:
        target: A folder that does not exist yet; its parent does.
        complete: A file in it that shows that another process made it meanwhile: then that one
            stays.

    Raises:
        OSError: If there is something at `target`, or it cannot be written to.
    """
    unready = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    try:
        yield unready
        keep_private(unready)
        try:
            unready.rename(target)
        except OSError:
            if complete is None or not (target / complete).is_file():
                raise
    finally:
        shutil.rmtree(unready, ignore_errors=True)


def data_folders() -> tuple[Path, ...]:
    """Return the data folders there are: `FEDPRIV_DATA`, `../shared/data` next to the checkout."""
    checkout = Path(__file__).resolve().parents[2]
    parents = [checkout.parent] if (checkout / "pyproject.toml").is_file() else []
    given = os.environ.get("FEDPRIV_DATA")
    folders = [Path(given).expanduser()] if given else []
    folders += [p / "shared" / "data" for p in (*parents, Path.cwd().resolve().parent)]
    return tuple(dict.fromkeys(folder for folder in folders if folder.is_dir()))


_ARRAYS = "arrays.safetensors"


def open_or_make(
    kind: str,
    name: str,
    facts: Mapping[str, object],
    *,
    read: Callable[[Path], T],
    make: Callable[[Path], object],
) -> T:
    """Return an entry of the cache, made on first use.

    Two processes that want the same one wait for each other. An entry that was half-written when
    its process was killed is never seen. A damaged one stays: something may have been added to it.

    Args:
        kind: Of entries, the folder of the cache that they are in.
        name: Of the entry, a plain word.
        facts: Everything it depends on: checksums of the sources, options; JSON values.
        read: Opens it; raises `ValueError` where it is damaged.
        make: Makes it in a folder that does not exist yet, and leaves nothing when it fails.

    Raises:
        ValueError: If it is damaged; says which folder is to be removed.
    """
    cache = cache_dir()
    target = cache / kind / f"{name}-{document_sha256(facts)[:16]}"
    if not target.exists():  # else nothing is written: an image may bring a cache
        with locked(target.name, cache):
            for half in target.parent.glob(f".{target.name}.*"):  # of a process that was killed
                shutil.rmtree(half, ignore_errors=True)
            if not target.exists():
                make(target)
    try:
        return read(target)
    except ValueError as error:
        raise ValueError(
            f"{error} (or remove {target} with all that was added to it, and it is made again)"
        ) from error


def cached_arrays(
    name: str,
    facts: Mapping[str, object],
    make: Callable[[], Mapping[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """Return arrays by name, made on first use and kept in a safetensors file.

    Args:
        name: As of `open_or_make`.
        facts: Likewise.
        make: Makes them; arrays of integers or floats.
    """

    def write(target: Path) -> None:
        arrays = dict(make())
        target.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(target) as folder:
            save_file(arrays, folder / _ARRAYS)

    def read(folder: Path) -> dict[str, np.ndarray]:
        try:
            return load_file(folder / _ARRAYS)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{folder} is damaged ({error})") from error

    return open_or_make("arrays", name, facts, read=read, make=write)
