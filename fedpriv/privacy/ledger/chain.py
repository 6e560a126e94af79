"""Hash-chained JSON lines: each line carries the SHA-256 of the line before and of itself.

A line is the canonical JSON (sorted keys, no spaces, ASCII, no NaN) of an object with `seq` (from
0), `prev` (the hash before, 64 zeros at first), `kind`, the fields of that kind, and `hash`, the
SHA-256 of the same object without `hash`. Anything edited, dropped inside, swapped or inserted
breaks the chain. Cutting whole lines off the end does not: for that the head hash is also kept in
every checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GENESIS = "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One verified line.

    Attributes:
        seq: Position, from 0.
        kind: What happened.
        fields: The values of that kind.
        hash: SHA-256 of the line, 64 hex digits.
    """

    seq: int
    kind: str
    fields: Mapping[str, Any]
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The verified lines of a file.

    Attributes:
        records: The lines in order.
        num_bytes: Bytes they take; anything after is torn.
        torn: Bytes after the last newline, of a write that was cut off.
    """

    records: tuple[Record, ...]
    num_bytes: int
    torn: int

    @property
    def head(self) -> str:
        """Hash of the last line."""
        return self.records[-1].hash if self.records else GENESIS


def encode(seq: int, previous: str, kind: str, fields: Mapping[str, Any]) -> tuple[Record, bytes]:
    """Return a record and its line, newline included.

    Raises:
        ValueError: If a field is not plain, finite JSON, or takes a reserved name.
    """
    if {"seq", "prev", "kind", "hash"} & set(fields):
        raise ValueError(f"a {kind} record cannot have the reserved fields seq, prev, kind, hash")
    body = {"seq": seq, "prev": previous, "kind": kind, **fields}
    digest = hashlib.sha256(_canonical(body)).hexdigest()
    line = _canonical({**body, "hash": digest}) + b"\n"
    return Record(seq=seq, kind=kind, fields=dict(fields), hash=digest), line


def decode(data: bytes) -> Chain:
    """Return the chain held by the bytes of a file; a last line without newline counts as torn.

    Raises:
        ValueError: Naming the first line that is not what the chain says.
    """
    end = data.rfind(b"\n") + 1
    records: list[Record] = []
    previous = GENESIS
    # A canonical line is ASCII; of any other byte Latin-1 makes a sign that no such line has.
    for number, line in enumerate(data[:end].decode("latin-1").split("\n")[:-1], start=1):
        try:
            body = _DECODER.decode(line)
            whole = _ENCODER.encode(body)
            stated, seq, prev, kind = (body.pop(name) for name in ("hash", "seq", "prev", "kind"))
            # Of a canonical line the body's bytes are those of the line without its hash.
            body_alone = _without(whole, f'"hash":"{stated}"')
            digest = hashlib.sha256(body_alone.encode("ascii")).hexdigest()
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise ValueError(f"line {number} is not a line of a ledger") from None
        follows = type(seq) is int and (stated, seq, prev) == (digest, number - 1, previous)
        if whole != line or not follows:
            raise ValueError(
                f"line {number} does not follow from the lines before it: the ledger "
                "was edited, or lines were removed, swapped or inserted"
            )
        records.append(Record(seq=seq, kind=kind, fields=body, hash=digest))
        previous = digest
    return Chain(records=tuple(records), num_bytes=end, torn=len(data) - end)


def _without(whole: str, member: str) -> str:
    """Return a canonical object without one top-level member: "kind" and more come after it."""
    before, found, after = whole.rpartition(f"{member},")
    if not found:
        raise ValueError("the line has no hash")
    return before + after


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_DECODER = json.JSONDecoder()


def _canonical(value: Any) -> bytes:
    return _ENCODER.encode(value).encode()
