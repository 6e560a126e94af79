"""Click and conversion logs in Criteo's form, and a synthetic log of that form.

A line is a label, 13 integer columns and 26 categorical ones, apart by tabs; a column may be empty.
Integers become sign(x) log(1 + |x|) (an empty one 0, and a mark that it was), categories are hashed
into a fixed number of columns by SHA-256 of column and text, so that no table of them is made of
the data. Reading looks at one line at a time: no row's features depend on another row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy import sparse

from fedpriv.datasets.dataset import Dataset
from fedpriv.hashes import file_sha256
from fedpriv.rng import Key

NUM_INTEGERS, NUM_CATEGORIES = 13, 26
_COLUMNS = 1 + NUM_INTEGERS + NUM_CATEGORIES
_DENSE = 2 * NUM_INTEGERS
_LARGEST = 1 << 62
_TEST_SHARE = 0.2


def load_criteo(file: Path | str, *, buckets: int = 2_000, rows: int | None = None) -> Dataset:
    """Return a log as sparse rows of unit l2 norm, and labels 0 and 1.

    The last of the rows in the file's order, which is time's, are for testing.

    Args:
        file: The log, plain text.
        buckets: Columns that categories are hashed into.
        rows: At most so many lines; None for all.

    Raises:
        ValueError: If the file is missing or a line is not of that form; says which line.
    """
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; name a log in Criteo's form")
    with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        x, y = read_rows(lines, str(path), buckets=buckets, rows=rows)
    source = {"source": [{"file": path.name, "sha256": file_sha256(path)}]}
    return _dataset("criteo", x, y, source, synthetic=False)


def synthetic_criteo(num_rows: int = 5_000, *, seed: int = 0, buckets: int = 2_000) -> Dataset:
    """Return a synthetic log of Criteo's form, less than half of whose labels are 1.

    Args:
        num_rows: How many lines.
        seed: Of all that is drawn.
        buckets: As of `load_criteo`.
    """
    lines = list(synthetic_lines(num_rows, seed=seed))
    x, y = read_rows(lines, "the synthetic log", buckets=buckets)
    source = {"source": f"synthetic: generated with seed {seed}"}
    return _dataset("synthetic-criteo", x, y, source, synthetic=True)


def synthetic_lines(num_rows: int, *, seed: int = 0) -> Iterator[str]:
    """Yield lines of a synthetic log: categories with Zipf frequencies, a few of which matter."""
    rng = Key.simulation(seed).fold("synthetic conversions").generator()
    effects = rng.normal(0.0, 1.0, (NUM_CATEGORIES, 50))
    usual = np.arange(1, 51) ** -1.5
    effects -= (effects @ usual / usual.sum())[:, None]  # so that few labels are 1, by any seed
    for _ in range(num_rows):
        integers = rng.negative_binomial(1, 0.1, NUM_INTEGERS)
        missing = rng.random(NUM_INTEGERS) < 0.2
        categories = np.minimum(rng.zipf(1.5, NUM_CATEGORIES), 50) - 1
        score = -1.5 + 0.25 * (np.log1p(integers[:3]).sum() - 5.7)
        score += effects[np.arange(6), categories[:6]].sum()
        label = int(rng.random() < 1.0 / (1.0 + np.exp(-score)))
        shown = ["" if gone else str(n) for n, gone in zip(integers, missing, strict=True)]
        named = [f"{column:02d}{place:06x}" for column, place in enumerate(categories)]
        yield "\t".join([str(label), *shown, *named])


def read_rows(
    lines: Iterable[str], where: str, *, buckets: int, rows: int | None = None
) -> tuple[sparse.csr_array, np.ndarray]:
    """Return rows float32 `(n, 26 + buckets)` of unit l2 norm, and labels int64 `(n,)`.

    Args:
        lines: Of the log.
        where: What to call it in an error.
        buckets: Columns that categories are hashed into, at least 1.
        rows: At most so many lines; None for all.

    Raises:
        ValueError: If there is no line, or one is not of that form.
    """
    if buckets < 1:
        raise ValueError(f"buckets {buckets} must be at least 1")
    labels: list[int] = []
    columns: list[np.ndarray] = []
    values: list[np.ndarray] = []
    for number, line in enumerate(lines, start=1):
        if rows is not None and number > rows:
            break
        parts = line.rstrip("\r\n").split("\t")
        if len(parts) != _COLUMNS or parts[0] not in ("0", "1"):
            raise ValueError(
                f"{where}, line {number:,}: {len(parts)} columns and label {parts[0][:20]!r}; give "
                f"{_COLUMNS} columns apart by tabs, the first of them 0 or 1"
            )
        labels.append(int(parts[0]))
        at, of = _row(parts[1:], f"{where}, line {number:,}", buckets)
        columns.append(at)
        values.append(of)
    if not labels:
        raise ValueError(f"{where} has no line")
    starts = np.cumsum([0, *map(len, columns)])
    made = sparse.csr_array(
        (np.concatenate(values), np.concatenate(columns), starts),
        shape=(len(labels), _DENSE + buckets),
    )
    return made, np.array(labels, np.int64)


def _row(parts: list[str], where: str, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    found: dict[int, float] = {}
    for column, text in enumerate(parts[:NUM_INTEGERS]):
        if not text:
            found[NUM_INTEGERS + column] = 1.0
            continue
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"{where}: {text[:20]!r} is no whole number") from None
        if abs(number) > _LARGEST:
            raise ValueError(f"{where}: {text[:20]!r} is too large")
        found[column] = float(np.sign(number) * np.log1p(abs(number)))
    for column, text in enumerate(parts[NUM_INTEGERS:]):
        if text:
            place = _DENSE + _bucket(column, text) % buckets
            found[place] = found.get(place, 0.0) + 1.0
    at = np.array(sorted(found), np.int32)
    of = np.array([found[place] for place in at.tolist()], np.float64)
    norm = np.linalg.norm(of)
    return at, (of / norm if norm > 0 else of).astype(np.float32)


@lru_cache(maxsize=1 << 16)
def _bucket(column: int, text: str) -> int:
    digest = hashlib.sha256(f"fedpriv criteo {column}\0{text}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def _dataset(
    name: str,
    x: sparse.csr_array,
    y: np.ndarray,
    source: Mapping[str, object],
    *,
    synthetic: bool,
) -> Dataset:
    cut = len(y) - max(1, int(_TEST_SHARE * len(y)))
    if cut < 2:
        raise ValueError(f"{len(y)} rows leave {cut} to train on; give more")
    return Dataset(
        name=name,
        x_train=x[:cut],
        y_train=y[:cut],
        x_test=x[cut:],
        y_test=y[cut:],
        provenance={**source, "private_side_information": [], "public": None},
        synthetic=synthetic,
    )
