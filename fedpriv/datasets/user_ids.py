"""Pseudonymous user ids: a keyed hash of the name of a person on a node, and rosters of ids.

Who sees ids (the server, its logs, a roster) learns no name without the key: guesses cannot be
tried. Nodes with the same key give the same person the same id, so that a person on two of them is
found to be one. Anyone who has the key and a list of names can tell who of them is on a roster.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
import unicodedata
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedpriv.rng import Key

_DOMAIN = b"fedpriv user id\0"
_KEY_BYTES = 32
_ID_HEX = 32  # 128 bits: two of a billion people collide once in 10^20
# Unicode's Default_Ignorable_Code_Point, but for category Cf: fillers, joiners, variants.
_IGNORABLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U000e0000-\U000e0fff]"
)


def user_id(key: bytes, name: str) -> str:
    """Return the id of a person: HMAC-SHA-256 of the name, cut to 128 bits, in hex.

    >>> user_id(bytes(32), "Ann") == user_id(bytes(32), " Ann "), len(user_id(bytes(32), "Ann"))
    (True, 32)
    """
    digest = hmac.new(key, _DOMAIN + normalise_name(name).encode(), "sha256")
    return digest.hexdigest()[:_ID_HEX]


def normalise_name(name: str) -> str:
    r"""Return the form of a person's name under which all readers of data know that person.

    Letters are composed (Unicode NFC), blanks around it are no part of it, and those within are one
    space. Characters that are not seen are no part of it either: controls (category Cc, such as
    NUL), those of format (Cf, such as zero-width spaces) and others that Unicode lets programs
    ignore. Case and leading zeros of a number stay.

    >>> normalise_name(" Ann\u200b  Lee\0") == normalise_name("Ann Lee")
    True
    """
    if name.isascii() and name.isprintable() and " " not in name:
        return name
    seen = "".join(letter for letter in name if letter.isspace() or _is_seen(letter))
    return unicodedata.normalize("NFC", " ".join(seen.split()))


def _is_seen(letter: str) -> bool:
    return unicodedata.category(letter) not in ("Cc", "Cf") and not _IGNORABLE.match(letter)


def name_of(value: object) -> str:
    """Return the normalised name that a value of a user column is; "" where it names no one.

    Texts in UTF-8 and whole numbers name people. A float names no one: 7 and 7.0 would be two.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, str | int | np.integer):
        return ""
    try:
        return normalise_name(str(value).encode().decode())
    except UnicodeEncodeError:  # of surrogates, as which bytes that are not UTF-8 are read
        return ""


def no_name(value: object) -> str:
    """Return why `name_of` a value is "", as the end of a sentence about a column."""
    if isinstance(value, float | np.floating) and value == value:
        return "holds a float, which names no one: give texts or whole numbers"
    return "names no one"


def check_distinct(names: Iterable[str]) -> None:
    """Refuse ids that are spelt differently and name one person.

    Raises:
        ValueError: Names both; one person would be two users, each protected alone.
    """
    found: dict[str, str] = {}
    for name in names:
        other = found.setdefault(normalise_name(name), name)
        if other != name:
            raise ValueError(
                f"users {other!r} and {name!r} are one name; put that person's examples together"
            )


def write_key(path: Path) -> None:
    """Make a new key of 256 random bits, readable by its owner alone; none is replaced.

    Raises:
        FileExistsError: If there is a file already: with another key all ids are others.
    """
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise FileExistsError(
            f"{path} is there already, and with another key every id would be another; keep it, or "
            "name a new file"
        ) from None
    with os.fdopen(made, "w") as out:
        out.write(Key.secure().to_bytes().hex() + "\n")


def read_key(path: Path) -> bytes:
    """Return the key of a file that its owner alone may read.

    Raises:
        PermissionError: If others may read it.
        ValueError: If it is not there, or holds something else.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise PermissionError(
                f"{path} has mode {mode:04o}, so that others may read the key of people's ids; "
                f"chmod 600 {path}"
            )
        key = bytes.fromhex(path.read_text("ascii"))
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(
            f"{path} is not a key of people's ids ({type(error).__name__}); give the file that "
            "`fedpriv data key` made, the same on every node"
        ) from None
    if len(key) != _KEY_BYTES:
        raise ValueError(
            f"{path} holds {len(key)} bytes and a key has {_KEY_BYTES}; make one by `fedpriv data "
            "key`"
        )
    return key


def read_roster(path: Path) -> tuple[str, ...]:
    """Return the ids of a roster's file, one a line, sorted.

    Raises:
        ValueError: If it is not there, empty, or lists an id twice.
    """
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"the roster {path} cannot be read ({type(error).__name__}); give a file with one id a "
            "line: fedpriv data roster"
        ) from error
    ids = sorted(line for line in lines if line)
    if not ids:
        raise ValueError(
            f"the roster {path} lists no one; put the nodes' ids together: fedpriv data roster"
        )
    twice = next((a for a, b in pairwise(ids) if a == b), None)
    if twice is not None:
        raise ValueError(
            f"the roster {path} lists {twice!r} twice; list each id once: fedpriv data roster"
        )
    return tuple(ids)
