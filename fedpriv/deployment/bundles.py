"""Bundles as they lie unpacked on a node."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import sys
import zipfile
from pathlib import Path

from fedpriv.deployment.flower_private import unpack


def unpacked(bundle: bytes, apps: Path) -> Path:
    """Return where a bundle lies unpacked, below a folder of bundles.

    A bundle always has the same folder, named by its SHA-256, so what was compiled of it is found
    again. Nodes that share the folder wait for each other.

    Guarantees:
        * The folder's files, but for `__pycache__`, are the bundle's, to the byte, and no others:
          one that was changed meanwhile is unpacked anew.
    """
    folder = apps / hashlib.sha256(bundle).hexdigest()
    apps.mkdir(parents=True, exist_ok=True)
    lock = os.open(f"{folder}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        place = unpack(bundle, folder)
        if _files(place) != _expected(bundle):
            shutil.rmtree(folder)
            place = unpack(bundle, folder)
        return place
    finally:
        os.close(lock)


def forget_other_code(place: Path) -> None:
    """Forget what was imported of a bundle's packages, unless it has the same, byte for byte.

    What is kept need not be imported or compiled again; of anything else the bundle's own copy is
    imported next.
    """
    packages = {name.partition("/")[0] for name in _files(place) if name.endswith(".py")}
    for package in sorted(packages):
        installed = getattr(sys.modules.get(package), "__file__", None)
        bundled = _files(place / package)
        if installed is None or any(
            not (found := Path(installed).parent / name).is_file() or found.read_bytes() != content
            for name, content in bundled.items()
        ):
            for module in list(sys.modules):
                if module.partition(".")[0] == package:
                    del sys.modules[module]


def _expected(bundle: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        return {
            name: archive.read(name)
            for name in archive.namelist()
            if not name.endswith("/") and not name.startswith(".info/")
        }


def _files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
