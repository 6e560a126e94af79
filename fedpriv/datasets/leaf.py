"""Data sets by user in LEAF's JSON: FEMNIST, Shakespeare, and any of that form.

LEAF's scripts (github.com/TalwalkarLab/leaf, BSD-2-Clause) download the originals and write files
`all_data_*.json`, or after a split `train/` and `test/` folders of them; nothing is published
ready-made. FEMNIST is of NIST Special Database 19 (public domain), by writer; Shakespeare of the
plays at Project Gutenberg (public domain in the USA), by speaking role. A file is one JSON object:

    {"users": [id, ...], "num_samples": [n, ...], "user_data": {id: {"x": [...], "y": [...]}}}

FEMNIST has of each example 784 grey values from 0 (ink) to 1 (paper) and a label from 0 to 61, the
digits, capitals and small letters; Shakespeare 80 characters and the next one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.datasets.raw_files import read_file
from fedpriv.datasets.user_ids import normalise_name
from fedpriv.hashes import Progress

UserArrays = dict[str, tuple[np.ndarray, np.ndarray]]
"""(inputs, labels) by user id, as a `ModuleTask` takes them."""

SEQUENCE = 80
"""Characters that LEAF's Shakespeare shows before the one to be guessed."""
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""Characters of LEAF's Shakespeare in order of their codes; any other one has the next code."""

_LARGEST = 2 << 30
_PIXELS = 28 * 28
_NUM_LABELS = 62


def read_leaf(path: str | os.PathLike[str], *, progress: Progress | None = None) -> UserArrays:
    """Return each user's x and y of any data set in LEAF's JSON, as they are written.

    Numbers are int64 of shape (n, ...), or float32 where one of any user's is no integer; texts are
    arrays of str, (n,). Arrays of a user without examples are as those of the others.

    Args:
        path: A file of LEAF's form, packed or not, or a folder of them.
        progress: Called with the bytes read, file after file.

    Raises:
        ValueError: If there is no such file, or one is truncated or not of that form, or a user is
            twice, or examples are not all finite numbers of one shape or all texts; names the user.
    """
    found = _read(Path(path), lambda x, y: (_as_written(x, "x"), _as_written(y, "y")), progress)
    pairs = found.items()
    try:
        x = _alike({user: arrays[0] for user, arrays in pairs}, "x")
        y = _alike({user: arrays[1] for user, arrays in pairs}, "y")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return {user: (x[user], y[user]) for user in found}


def _as_written(given: list[Any], name: str) -> np.ndarray:
    try:
        found = np.asarray(given)
    except ValueError:  # rows of several lengths
        found = np.empty(0, object)
    texts = found.dtype.kind == "U" and all(isinstance(text, str) for text in given)
    if given and found.dtype.kind not in "if" and not texts:
        raise ValueError(f"examples of {name} are neither numbers of one shape nor texts")
    if found.dtype.kind == "f" and not bool((np.abs(found) < np.finfo(np.float32).max).all()):
        raise ValueError(f"a number of {name} is not finite as float32")
    return found


def _alike(arrays: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """Return users' arrays with one dtype, and those of users without examples with one shape."""
    some = {user: array for user, array in arrays.items() if len(array)}
    first = next(iter(some.items()), ("", np.empty(0, np.float32)))
    for user, array in some.items():
        texts = {one.dtype.kind == "U" for one in (array, first[1])}
        if array.shape[1:] != first[1].shape[1:] or len(texts) > 1:
            raise ValueError(
                f"an example of {name} of user {user!r} is {_describe(array)}, and of user "
                f"{first[0]!r} {_describe(first[1])}; give all of one kind and shape"
            )
    kinds = {array.dtype.kind for array in some.values()}
    dtype = np.str_ if "U" in kinds else np.int64 if kinds == {"i"} else np.float32
    shape = first[1].shape[1:]
    return {u: a.reshape(len(a), *shape).astype(dtype, copy=False) for u, a in arrays.items()}


def _describe(array: np.ndarray) -> str:
    return "a text" if array.dtype.kind == "U" else f"of numbers of shape {array.shape[1:]}"


def read_leaf_femnist(
    path: str | os.PathLike[str], *, progress: Progress | None = None
) -> UserArrays:
    """Return FEMNIST by writer: images float32 (n, 28, 28), 1 paper and 0 ink; labels int64 (n,).

    Args:
        path: A file of LEAF's, packed or not, or a folder of them.
        progress: Called with the bytes read, file after file.

    Raises:
        ValueError: If there is no such file, or one is truncated or not of that form, or a user is
            twice, or has grey values or labels that are none; names file and user.
    """

    def arrays(x: list[Any], y: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        images, labels = _numbers(x, "x", (_PIXELS,)), _numbers(y, "y", ())
        if not bool(((images >= 0) & (images <= 1)).all()):  # which refuses NaN too
            raise ValueError("a grey value of x is not from 0 to 1")
        if not _within(labels, _NUM_LABELS) or bool((labels % 1).any()):
            raise ValueError(f"a label of y is no whole number from 0 to {_NUM_LABELS - 1}")
        return images.astype(np.float32).reshape(-1, 28, 28), labels.astype(np.int64)

    return _read(Path(path), arrays, progress)


def read_leaf_shakespeare(
    path: str | os.PathLike[str], *, progress: Progress | None = None
) -> UserArrays:
    """Return Shakespeare by role: codes of 80 characters, int64 (n, 80), and the next, int64 (n,).

    Codes are of `encode_characters`. Of consecutive examples 79 characters are the same.

    Args:
        path: As of `read_leaf_femnist`.
        progress: Likewise.

    Raises:
        ValueError: As there, or for an example of another length.
    """

    def arrays(x: list[Any], y: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        for texts, name, length in ((x, "x", SEQUENCE), (y, "y", 1)):
            if not all(isinstance(text, str) and len(text) == length for text in texts):
                raise ValueError(f"an example of {name} is no text of {length} characters")
        codes = encode_characters("".join(x)), encode_characters("".join(y))
        return codes[0].reshape(-1, SEQUENCE), codes[1]

    return _read(Path(path), arrays, progress)


def encode_characters(text: str) -> np.ndarray:
    r"""Return each character's code, int64 (len(text),): its place in `ALPHABET`, or that after it.

    >>> encode_characters("ab\n%").tolist()
    [53, 54, 0, 80]
    """
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return _CODES[np.minimum(points, len(_CODES) - 1)]


_CODES = np.full(129, len(ALPHABET), np.int64)
_CODES[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))


def _within(values: np.ndarray, end: int) -> bool:
    return bool(((values >= 0) & (values < end)).all())


def _numbers(given: list[Any], name: str, shape: tuple[int, ...]) -> np.ndarray:
    try:
        found = np.asarray(given)
    except ValueError:  # rows of several lengths
        found = np.empty(0, object)
    if not len(given):
        return np.zeros((0, *shape))
    if found.dtype.kind not in "if" or found.shape != (len(given), *shape):
        what = f"{shape[0]} numbers" if shape else "a number"
        raise ValueError(f"an example of {name} is not {what}")
    return found.astype(np.float64)


def _read(
    path: Path,
    arrays: Callable[[list[Any], list[Any]], tuple[np.ndarray, np.ndarray]],
    progress: Progress | None,
) -> UserArrays:
    files = sorted(path.glob("*.json*")) if path.is_dir() else [path]
    if not files or not path.exists():
        raise ValueError(
            f"{path} is no file and no folder with .json files; give what LEAF's preprocess.sh made"
        )
    found: UserArrays = {}
    for file in files:
        for user, data in _users(file, progress):
            if user in found:
                raise ValueError(f"{file}: user {user!r} is there twice; give each file once")
            try:
                found[user] = arrays(data["x"], data["y"])
            except ValueError as error:
                raise ValueError(f"{file}, user {user!r}: {error}") from None
    return found


def _users(file: Path, progress: Progress | None) -> Iterator[tuple[str, Mapping[str, list[Any]]]]:
    content = read_file(file, at_most=_LARGEST, progress=progress)
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{file} is no JSON ({type(error).__name__}): truncated, damaged or another file"
        ) from None
    data = document.get("user_data") if isinstance(document, dict) else None
    counts = document.get("num_samples") if isinstance(document, dict) else None
    users = document.get("users") if isinstance(document, dict) else None
    if not (isinstance(data, dict) and isinstance(users, list) and isinstance(counts, list)):
        raise ValueError(f"{file} has no users, num_samples and user_data: no file of LEAF's")
    if not users or len(users) != len(counts) or {str(user) for user in users} != set(data):
        raise ValueError(
            f"{file}: {len(users):,} users, {len(counts):,} num_samples and {len(data):,} in "
            "user_data do not belong together"
        )
    for user, number in zip(users, counts, strict=True):
        own = data[str(user)]
        x, y = (own.get(name) if isinstance(own, dict) else None for name in "xy")
        if not (isinstance(x, list) and isinstance(y, list) and len(x) == len(y) == number):
            raise ValueError(f"{file}, user {user!r}: x and y are not lists of {number!r} examples")
        yield normalise_name(str(user)), {"x": x, "y": y}
