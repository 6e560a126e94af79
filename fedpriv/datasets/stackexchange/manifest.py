"""Manifest of a prepared corpus: its description, its source, and a checksum of each file.

`manifest.json`, format "fedpriv-corpus", version 3. It is written last and replaced atomically, so
a directory with a valid manifest is complete. A view has a small one, `view.json`: views
are made when they are first asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpriv.hashes import document_sha256, file_sha256
from fedpriv.output_paths import write_private

FORMAT = "fedpriv-corpus"
VERSION = 3
FILE_NAME = "manifest.json"
VIEW_FILE = "view.json"
PART = "part"
"""Kind of the source of a corpus that was cut out of another one (`parts`)."""

_DIGEST = "manifest_sha256"
_CHECKED_ON_OPEN = 64 * 1024  # files up to this size are hashed when a corpus is opened


def read(directory: Path) -> dict:
    """Return the manifest of a corpus directory after checking it and the files it lists.

    The sizes of all files and the contents of the small ones are checked.

    Raises:
        ValueError: no corpus, an unknown format or version, or damage; says which.
    """
    path = directory / FILE_NAME
    if not path.is_file():
        raise ValueError(
            f"{directory} is not a prepared corpus (it has no {FILE_NAME}); "
            "make one with `fedpriv data import`"
        )
    try:
        manifest = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); import the corpus again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(f"{path} is not the manifest of a prepared corpus")
    if manifest.get("version") != VERSION:
        raise ValueError(
            f"{path} has version {manifest.get('version')!r}, this fedpriv reads version "
            f"{VERSION}: import the corpus again, or use the fedpriv that wrote it"
        )
    if manifest.get(_DIGEST) != _digest(manifest):
        raise ValueError(f"{path} was edited or damaged; import the corpus again")
    check_files(directory, manifest["files"])
    return manifest


def write(directory: Path, manifest: Mapping[str, object]) -> dict:
    """Write the manifest atomically, with its own digest, and return it as written."""
    complete = {**manifest, "format": FORMAT, "version": VERSION}
    complete[_DIGEST] = _digest(complete)
    write_private(directory / FILE_NAME, json.dumps(complete, indent=1))
    return complete


def write_view(directory: Path, facts: Mapping[str, object]) -> None:
    """Write a view's own manifest: its facts, and size and SHA-256 of each of its files."""
    found = {"facts": facts, "files": describe_files(directory, directory)}
    write_private(directory / VIEW_FILE, json.dumps(found, indent=1))


def read_view(directory: Path, *, deep: bool = False) -> dict:
    """Return the facts of a view after checking its files' sizes, and if deep their contents.

    Raises:
        ValueError: it is damaged; says which file.
    """
    path = directory / VIEW_FILE
    try:
        found = json.loads(path.read_text("utf-8"))
        facts, files = dict(found["facts"]), dict(found["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); remove the folder {directory}, and it is made again"
        ) from error
    check_files(directory, files, deep=deep)
    return facts


def describe_files(directory: Path, under: Path) -> dict[str, dict[str, object]]:
    """Return size and SHA-256 of every file below `under`, by path relative to `directory`."""
    paths = sorted(path for path in under.rglob("*") if path.is_file())
    return {
        path.relative_to(directory).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": file_sha256(path),
        }
        for path in paths
    }


def check_files(
    directory: Path, files: Mapping[str, Mapping[str, Any]], *, deep: bool = False
) -> None:
    """Compare the sizes of files with a manifest, and contents: of small ones, if deep of all.

    Raises:
        ValueError: a file is missing or differs.
    """
    for name, entry in files.items():
        path = directory / name
        size = path.stat().st_size if path.is_file() else None
        if size != entry["bytes"]:
            found = "is missing" if size is None else f"has {size} bytes"
            raise ValueError(f"{path} {found}, expected {entry['bytes']}; import the corpus again")
        read = deep or entry["bytes"] <= _CHECKED_ON_OPEN
        if read and file_sha256(path) != entry["sha256"]:
            raise ValueError(f"{path} does not match its checksum; import the corpus again")


def _digest(manifest: Mapping[str, object]) -> str:
    content = {key: value for key, value in manifest.items() if key != _DIGEST}
    return document_sha256(content)
