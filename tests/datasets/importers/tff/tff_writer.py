"""Writes tf.train.Example and TFF client-data files, for tests only (fixture `tff_writer`)."""

import lzma
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import numpy as np


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def feature(value, *, packed: bool = True) -> bytes:
    """Encode str, bytes, a list of bytes, or a float32 or integer array as a Feature."""
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        value = [value]
    if isinstance(value, list):
        return field(1, b"".join(field(1, item) for item in value))
    flat = np.asarray(value).ravel()
    if flat.dtype.kind == "f":
        pieces = [struct.pack("<f", item) for item in flat]
        body = field(1, b"".join(pieces)) if packed else b"".join(b"\x0d" + p for p in pieces)
        return field(2, body)
    pieces = [varint(int(item)) for item in flat]
    body = field(1, b"".join(pieces)) if packed else b"".join(b"\x08" + p for p in pieces)
    return field(3, body)


def example(*, packed: bool = True, **features) -> bytes:
    entries = (
        field(1, field(1, name.encode()) + field(2, feature(value, packed=packed)))
        for name, value in features.items()
    )
    return field(1, b"".join(entries))


def stackoverflow_example(tokens: str, title: str, tags: str, type: str = "answer") -> bytes:
    return example(
        creation_date="2010-01-01 00:00:00 UTC",
        score=np.array([1]),
        tags=tags,
        title=title,
        tokens=tokens,
        type=type,
    )


def write(
    path: Path,
    clients: dict[str, list[bytes]],
    *,
    split: str = "train",
    index: bool = False,
    counts: dict[str, int] | None = None,
) -> Path:
    """Write a client-data file; packed when its name ends in .lzma or .xz."""
    plain = path.with_suffix("") if path.suffix in (".lzma", ".xz") else path
    connection = sqlite3.connect(plain)
    with connection:
        connection.executescript(
            "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, "
            "serialized_example_proto BLOB NOT NULL); CREATE TABLE client_metadata "
            "(client_id TEXT NOT NULL, split_name TEXT NOT NULL, num_examples INTEGER NOT NULL)"
        )
        if index:
            connection.execute("CREATE INDEX by_client ON examples (client_id, split_name)")
        for client, blobs in clients.items():
            facts = (client, split, (counts or {}).get(client, len(blobs)))
            connection.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", facts)
            rows = [(split, client, blob) for blob in blobs]
            connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    connection.close()
    if path != plain:
        form = lzma.FORMAT_ALONE if path.suffix == ".lzma" else lzma.FORMAT_XZ
        path.write_bytes(lzma.compress(plain.read_bytes(), format=form, preset=1))
        plain.unlink()
    return path


def add_split(path: Path, clients: dict[str, list[bytes]], split: str) -> None:
    """Write a split of a client-data file, next to those that it has."""
    other = write(path.with_name(f"{split}.sqlite"), clients, split=split)
    if not path.exists():
        other.rename(path)
        return
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("ATTACH ? AS other", (str(other),))
        for table in ("examples", "client_metadata"):
            db.execute(f"INSERT INTO main.{table} SELECT * FROM other.{table}")
    other.unlink()
