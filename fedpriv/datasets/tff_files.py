"""TensorFlow Federated's client files, and `tf.train.Example` from its bytes, without TensorFlow.

TFF publishes EMNIST by writer (`emnist_all.sqlite.lzma`, of NIST Special Database 19 by LEAF),
CIFAR-100 parted among artificial users, Shakespeare by role and Stack Overflow (CC BY-SA) in its
bucket `tff-datasets-public`; `fedpriv data fetch` gets them. `read_tff_users` returns arrays of
each user, `open_client_data` the examples; `fedpriv data import` makes a corpus of Stack Overflow.

The schema is TensorFlow's, written here as text and kept in a separate pool, so that TensorFlow
may be loaded in the same process. Only the map of features is taken for what it is on the wire, a
list of entries, which can be counted before any is looked at. Reading follows the specification of
protocol buffers: a repeated key and a changed `oneof` keep what came last; a field that the schema
does not have, or that comes as another wire type than its own, is skipped.

The bytes come from a file somebody else wrote. Their number is limited before they are parsed;
memory stays within 30 times it, whatever they are (a number of one byte becomes one of eight).

>>> parse_example(bytes.fromhex("0a0d0a0b0a016112060a040a026869"))
{'a': (b'hi',)}
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import descriptor_pool, message_factory, text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError

from fedpriv.datasets.leaf import ALPHABET, SEQUENCE, encode_characters
from fedpriv.datasets.raw_files import open_plain
from fedpriv.hashes import Progress

FeatureValue = tuple[bytes, ...] | np.ndarray
"""Value of a feature: a tuple of bytes, or a float32 or int64 array of one dimension."""

MAX_EXAMPLE_BYTES = 16 * 1024 * 1024
MAX_FEATURES = 1024
_PIECE, _KEEP_FREE = 4 << 20, 64 << 20  # bytes written at a time, and left on the disk


_SCHEMA = """
  name: "tf_example.proto" package: "tensorflow" syntax: "proto3"
  message_type { name: "BytesList"
    field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
  message_type { name: "FloatList"
    field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
  message_type { name: "Int64List"
    field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
  message_type { name: "Feature" oneof_decl { name: "kind" }
    field { name: "bytes_list" number: 1 label: LABEL_OPTIONAL oneof_index: 0
      type: TYPE_MESSAGE type_name: ".tensorflow.BytesList" }
    field { name: "float_list" number: 2 label: LABEL_OPTIONAL oneof_index: 0
      type: TYPE_MESSAGE type_name: ".tensorflow.FloatList" }
    field { name: "int64_list" number: 3 label: LABEL_OPTIONAL oneof_index: 0
      type: TYPE_MESSAGE type_name: ".tensorflow.Int64List" } }
  message_type { name: "Features"
    nested_type { name: "FeatureEntry"
      field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
      field { name: "value" number: 2 label: LABEL_OPTIONAL
        type: TYPE_MESSAGE type_name: ".tensorflow.Feature" } }
    field { name: "feature" number: 1 label: LABEL_REPEATED
      type: TYPE_MESSAGE type_name: ".tensorflow.Features.FeatureEntry" } }
  message_type { name: "Example"
    field { name: "features" number: 1 label: LABEL_OPTIONAL
      type: TYPE_MESSAGE type_name: ".tensorflow.Features" } }
"""
"""`tensorflow/core/example/{example,feature}.proto`, the map of features as a list of entries."""


def _example_class() -> Any:
    """Return the message class of `tf.train.Example`."""
    file = text_format.Parse(_SCHEMA, FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


_Example = _example_class()


def parse_example(data: bytes) -> dict[str, FeatureValue]:
    """Return the features of one serialised `tf.train.Example`.

    Args:
        data: The message. An empty one is a valid Example without features.

    Returns:
        Feature name to a tuple of bytes, a float32 array (n,) or an int64 array (n,). A feature
        whose kind was never set is an empty tuple, as TensorFlow reads it.

    Raises:
        ValueError: If the bytes are not a well-formed Example, or if it is larger than 16 MiB or
            has more than 1,024 features.
    """
    if not isinstance(data, bytes):  # as a column of a foreign file may hold
        raise ValueError(f"a tf.train.Example is bytes, not {type(data).__name__}")
    if len(data) > MAX_EXAMPLE_BYTES:
        raise ValueError(
            f"a tf.train.Example of {len(data):,} bytes is over the limit of "
            f"{MAX_EXAMPLE_BYTES:,}; is this the right column?"
        )
    try:
        example = _Example.FromString(data)
    except DecodeError as error:
        raise ValueError(
            f"{len(data):,} bytes are not a tf.train.Example ({error}): truncated, damaged or of "
            "another format"
        ) from None
    entries = example.features.feature
    if len(entries) > MAX_FEATURES:
        raise ValueError(f"a tf.train.Example with more than {MAX_FEATURES} features")
    example.DiscardUnknownFields()
    return {entry.key: _feature_value(entry.value) for entry in entries}


def _feature_value(feature: Any) -> FeatureValue:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return ()
    values = getattr(feature, kind).value
    if kind == "bytes_list":
        return tuple(values)
    if kind == "int64_list":
        return np.fromiter(values, np.int64, len(values))
    # Written out again, a list of floats ends with their bytes; one float at a time is far slower.
    packed = feature.float_list.SerializeToString()
    raw = packed[len(packed) - 4 * len(values) :]
    return np.frombuffer(raw, "<f4").astype(np.float32)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an example.

    Attributes:
        dtype: "str" for UTF-8 text, else the NumPy dtype of the value handed out.
        shape: Its shape, () for a single value.
        limits: The least and the greatest value allowed; None for any.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    limits: tuple[float, float] | None = None

    def convert(self, value: FeatureValue) -> Any:
        """Return a feature's value as a str, a NumPy scalar, or an array.

        Raises:
            ValueError: If it is of another kind or size, out of range or not UTF-8; says how.
        """
        if self.dtype == "str":
            if isinstance(value, np.ndarray) or len(value) != 1:
                raise ValueError("is not one text")
            try:
                return value[0].decode("utf-8")
            except UnicodeDecodeError:
                raise ValueError("is not UTF-8") from None
        if isinstance(value, np.ndarray):
            array = value
            whole = np.issubdtype(np.dtype(self.dtype), np.integer)
            if array.dtype != (np.int64 if whole else np.float32):
                raise ValueError(f"holds {array.dtype} values, not {self.dtype}")
        elif len(value) == 1 and self.dtype == "uint8":
            array = np.frombuffer(value[0], np.uint8)  # raw pixels, as other writers store images
        else:
            raise ValueError(f"holds bytes, not {self.dtype} values")
        size = int(np.prod(self.shape))
        if array.size != size:
            raise ValueError(f"has {array.size:,} values, not {size:,}")
        # `not (all in range)` also refuses NaN.
        if self.limits and not bool(((self.limits[0] <= array) & (array <= self.limits[1])).all()):
            raise ValueError(f"has a value that is not within {self.limits}")
        return array.astype(self.dtype).reshape(self.shape)[()]


@dataclass(frozen=True, slots=True)
class Schema:
    """The fields of one data set's examples.

    Attributes:
        name: The data set's name here.
        default_split: The split read when a file has several and none is asked for.
        fields: Field by name; an example may have others, which are dropped.
    """

    name: str
    default_split: str
    fields: Mapping[str, Field]

    def convert(self, features: Mapping[str, FeatureValue]) -> dict[str, Any]:
        """Return the schema's fields of one example, see `Field.convert`.

        Raises:
            ValueError: If a field is missing, or as there.
        """
        typed: dict[str, Any] = {}
        for name, field in self.fields.items():
            if name not in features:
                raise ValueError(f"no field {name!r}; it has {sorted(features)[:8]}")
            try:
                typed[name] = field.convert(features[name])
            except ValueError as error:
                raise ValueError(f"field {name!r} {error}") from None
        return typed


_TEXT = Field("str")
_POST = ("creation_date", "score", "tags", "title", "tokens", "type")

SCHEMAS: Mapping[str, Schema] = {
    schema.name: schema
    for schema in (
        Schema("stackoverflow", "train", dict.fromkeys(_POST, _TEXT) | {"score": Field("int64")}),
        Schema(
            "emnist",
            "digits_only_train",
            {
                "label": Field("int32", limits=(0, 61)),
                "pixels": Field("float32", (28, 28), (0.0, 1.0)),
            },
        ),
        Schema(
            "cifar100",
            "train",
            {
                "coarse_label": Field("int64", limits=(0, 19)),
                "image": Field("uint8", (32, 32, 3), (0, 255)),
                "label": Field("int64", limits=(0, 99)),
            },
        ),
        Schema("shakespeare", "train", {"snippets": _TEXT}),
    )
}

SQLITE_MAGIC = b"SQLite format 3\x00"

_TABLES = {
    "client_metadata": {"client_id", "split_name", "num_examples"},
    "examples": {"split_name", "client_id", "serialized_example_proto"},
}


class ClientData:
    """The clients of one split of a TFF file; a context manager, closed at the end of its block.

    Guarantees: `client_ids` is sorted as TFF sorts it (by code point), and each client gives
    exactly as many examples as the file's metadata announces, or raises.

    Attributes:
        split_name: The split.
        schema: The fields of its examples.
        client_ids: The clients, sorted.
        num_examples: Number of examples by client id, as the metadata has it.
    """

    def __init__(
        self, path: Path, connection: sqlite3.Connection, schema: Schema, split_name: str | None
    ) -> None:
        """Use `open_client_data` instead."""
        self._path, self._connection, self.schema = path, connection, schema
        self.split_name = self._choose_split(split_name)
        self.num_examples: Mapping[str, int] = self._read_counts()
        self.client_ids: tuple[str, ...] = tuple(sorted(self.num_examples))

    def __enter__(self) -> ClientData:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the examples cannot be read afterwards."""
        self._connection.close()

    def of_split(self, split_name: str) -> ClientData:
        """Return the clients of another split of the same file; it closes with this one.

        Raises:
            ValueError: If the file has no such split, or no clients in it.
        """
        return ClientData(self._path, self._connection, self.schema, split_name)

    def stream(self, client_ids: set[str] | frozenset[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (client id, example) of many clients, by the cheaper of two ways.

        A file with an index on `client_id` is asked client by client (then the clients come in
        sorted order); one without is read once from end to end (then they come as stored). A
        client's examples are in stored order, each a dict typed by the schema.

        Raises:
            ValueError: If a client is not of this split, or an example of one is malformed.
        """
        if unknown := client_ids - self.num_examples.keys():
            raise ValueError(
                f"no client {min(unknown)!r} in split {self.split_name!r} of {self._path}; "
                f"it has {len(self.client_ids):,}, such as {self.client_ids[:3]}"
            )
        if not self._has_index():
            yield from self._typed(client_ids)
            return
        for client_id in sorted(client_ids):
            yield from self._typed({client_id}, "AND client_id = ?", client_id)

    def _typed(
        self, client_ids: set[str] | frozenset[str], where: str = "", *values: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (client id, example) of the rows asked for that are of some clients."""
        statement = (
            "SELECT client_id, serialized_example_proto FROM main.examples WHERE split_name = ? "
        )
        found = dict.fromkeys(client_ids, 0)
        with _sqlite_errors(self._path):
            for client_id, blob in self._connection.execute(
                statement + where, (self.split_name, *values)
            ):
                if client_id not in found:
                    continue
                found[client_id] += 1
                place = f"example {found[client_id]} of client {client_id!r} in {self._path}"
                with _naming(place):
                    example = self.schema.convert(parse_example(blob))
                yield client_id, example
        for client_id, number in found.items():
            if number != self.num_examples[client_id]:
                raise ValueError(
                    f"{self._path}: client {client_id!r} has {number:,} examples, its metadata "
                    f"says {self.num_examples[client_id]:,}; the file is incomplete, fetch it again"
                )

    def _has_index(self) -> bool:
        with _sqlite_errors(self._path):
            plan = self._connection.execute(
                "EXPLAIN QUERY PLAN SELECT serialized_example_proto FROM main.examples "
                "WHERE split_name = '' AND client_id = ''"
            ).fetchall()
        return any(
            "client_id=?" in str(row[-1]) and "AUTOMATIC" not in str(row[-1]) for row in plan
        )

    def _choose_split(self, wanted: str | None) -> str:
        with _sqlite_errors(self._path):
            rows = self._connection.execute(
                "SELECT DISTINCT split_name FROM main.client_metadata"
            ).fetchall()
        if not all(isinstance(row[0], str) for row in rows):
            raise ValueError(f"{self._path}: a split_name in client_metadata is not text")
        splits: list[str] = sorted(row[0] for row in rows)
        if wanted is None:
            wanted = splits[0] if len(splits) == 1 else self.schema.default_split
        if wanted not in splits:
            raise ValueError(f"{self._path} has no split {wanted!r}; it has {splits}")
        return wanted

    def _read_counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        with _sqlite_errors(self._path):
            for client_id, number in self._connection.execute(
                "SELECT client_id, num_examples FROM main.client_metadata WHERE split_name = ?",
                (self.split_name,),
            ):
                if not isinstance(client_id, str) or not client_id:
                    raise ValueError(f"{self._path}: client id {client_id!r} is no non-empty text")
                if not isinstance(number, int) or number < 0:
                    raise ValueError(
                        f"{self._path}: client {client_id!r} has num_examples {number!r}"
                    )
                if client_id in counts:
                    raise ValueError(f"{self._path}: client {client_id!r} is twice in its metadata")
                counts[client_id] = number
        if not counts:
            raise ValueError(f"{self._path} has no clients in split {self.split_name!r}")
        return counts


def open_client_data(
    path: Path | str,
    *,
    split_name: str | None = None,
    schema: str = "auto",
    progress: Progress | None = None,
) -> ClientData:
    """Open a TFF client-data file (`.sqlite`, `.sqlite.lzma`, `.sqlite.xz`).

    Args:
        path: The file, whose format is recognised by its content, not by its name.
        split_name: Which split; by default the only one there is, else the schema's own training
            split ("train", for EMNIST "digits_only_train").
        schema: "stackoverflow", "emnist", "cifar100", "shakespeare", or "auto" to tell it from the
            first example's field names.
        progress: Called with how far unpacking is.

    Raises:
        ValueError: If the file is missing, truncated, damaged, not a TFF client-data file, has no
            such split, or its examples do not have the schema's fields.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no file {path}; fetch one with `fedpriv data fetch`")
    if schema != "auto" and schema not in SCHEMAS:
        raise ValueError(f"unknown schema {schema!r}; one of auto, {', '.join(sorted(SCHEMAS))}")
    with path.open("rb") as file:
        plain = file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    if plain:
        connection = _connect(path, path)
    else:
        # The database stays readable through its open descriptor when the folder goes, so not even
        # a killed process leaves gigabytes behind; where that does not hold, the folder stays.
        with tempfile.TemporaryDirectory(prefix="fedpriv-", ignore_cleanup_errors=True) as folder:
            target = Path(folder) / "unpacked.sqlite"
            _unpack(path, target, progress)
            connection = _connect(target, path)
    try:
        _check_tables(connection, path)
        chosen = _guess_schema(connection, path) if schema == "auto" else SCHEMAS[schema]
        return ClientData(path, connection, chosen, split_name)
    except BaseException:
        connection.close()
        raise


def read_tff_users(
    path: Path | str, *, split_name: str | None = None, progress: Progress | None = None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return (inputs, labels) by client of a TFF file, as a `ModuleTask` takes them.

    Of EMNIST images float32 (n, 28, 28), 1 paper and 0 ink, and labels int64 from 0 to 61 (digits,
    capitals, small letters); of CIFAR-100 images uint8 (n, 3, 32, 32) and fine labels; of
    Shakespeare codes int64 (n, 80) and the code after each (n, 80): snippets between a start and
    an end are cut into windows of 80, the last filled up. Codes are places in
    `fedpriv.datasets.leaf.ALPHABET`, then `OTHER`, `START`, `END` and `FILLING`; filling is no
    target (-100).

    Args:
        path: The file, packed or not.
        split_name: As of `open_client_data`.
        progress: Likewise.

    Raises:
        ValueError: As there; or for Stack Overflow, whose words need a vocabulary.
    """
    with open_client_data(path, split_name=split_name, progress=progress) as clients:
        name = clients.schema.name
        if name not in _ARRAYS:
            raise ValueError(
                f"{path} is of {name}, whose words need a vocabulary: make a corpus of it by "
                "`fedpriv data import`"
            )
        columns: dict[str, list[dict[str, Any]]] = {user: [] for user in clients.client_ids}
        for user, example in clients.stream(frozenset(clients.client_ids)):
            columns[user].append(example)
        return {user: _ARRAYS[name](columns.pop(user)) for user in clients.client_ids}


def _emnist(rows: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    images = np.array([row["pixels"] for row in rows], np.float32).reshape(-1, 28, 28)
    return images, np.array([row["label"] for row in rows], np.int64)


def _cifar100(rows: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    images = np.array([row["image"] for row in rows], np.uint8).reshape(-1, 32, 32, 3)
    return images.transpose(0, 3, 1, 2), np.array([row["label"] for row in rows], np.int64)


#: Codes of what is no character of the alphabet: another one, the start, the end, the filling.
OTHER, START, END, FILLING = (len(ALPHABET) + place for place in range(4))
NUM_CODES = len(ALPHABET) + 4
_NO_TARGET = -100


def _shakespeare(rows: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    windows = []
    for row in rows:
        codes = np.concatenate([[START], encode_characters(row["snippets"]), [END]])
        number = -(-(len(codes) - 1) // SEQUENCE)
        padded = np.full(number * SEQUENCE + 1, FILLING)
        padded[: len(codes)] = codes
        starts = np.arange(number)[:, None] * SEQUENCE
        windows.append(padded[starts + np.arange(SEQUENCE + 1)])  # the last is the next one's first
    found = np.concatenate([np.zeros((0, SEQUENCE + 1), np.int64), *windows])
    targets = found[:, 1:].copy()
    targets[targets == FILLING] = _NO_TARGET
    return found[:, :-1].copy(), targets


_ARRAYS = {"emnist": _emnist, "cifar100": _cifar100, "shakespeare": _shakespeare}


@contextmanager
def _sqlite_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite raises on a damaged file into a `ValueError` that names the file."""
    try:
        yield
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} cannot be read as a TFF client-data file ({error}); fetch it again"
        ) from None


@contextmanager
def _naming(place: str) -> Iterator[None]:
    """Put the place of an example before what is wrong with it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _unpack(source: Path, target: Path, progress: Progress | None) -> None:
    """Unpack an .xz or .lzma file of a database; memory depends on neither's size.

    Raises:
        ValueError: If it is truncated, damaged or of something else, or there is no room.
    """
    total = source.stat().st_size
    with open_plain(source) as (packed, plain), target.open("xb") as out:
        piece = plain.read(len(SQLITE_MAGIC))
        if piece != SQLITE_MAGIC:  # before gigabytes of a wrong file are written
            raise ValueError(f"{source} does not unpack to an SQLite database: a wrong file?")
        while piece:
            if shutil.disk_usage(target.parent).free < len(piece) + _KEEP_FREE:
                raise ValueError(
                    f"no room in {target.parent} to unpack {source}; free some space there, or set "
                    "TMPDIR to a larger disk"
                )
            out.write(piece)
            if progress is not None:
                progress(packed.tell(), total)
            piece = plain.read(_PIECE)


def _connect(file: Path, path: Path) -> sqlite3.Connection:
    """Open read-only; check that the file has as many pages as its header says."""
    with _sqlite_errors(path):
        connection = sqlite3.connect(
            f"{file.resolve().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
        )
        # A blob of a gigabyte is refused before it is read.
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2 * MAX_EXAMPLE_BYTES)
        connection.execute("PRAGMA trusted_schema = OFF")
        (page,), (pages,) = (
            connection.execute(f"PRAGMA {what}").fetchone() for what in ("page_size", "page_count")
        )
    if file.stat().st_size < page * pages:  # SQLite itself sees whole pages that are missing
        connection.close()
        raise ValueError(f"{path} is truncated: its header announces more bytes; fetch it again")
    return connection


def _check_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a database whose two tables are not plain tables with TFF's columns."""
    with _sqlite_errors(path):
        kinds = dict(connection.execute("SELECT name, type FROM main.sqlite_master").fetchall())
        for table, wanted in _TABLES.items():
            # A generated column would run the file's own expressions; hidden is 0 in a plain one.
            rows = connection.execute(f"PRAGMA main.table_xinfo({table})").fetchall()
            missing = wanted - {row[1] for row in rows if row[6] == 0}
            if kinds.get(table) != "table" or missing:
                raise ValueError(
                    f"{path} has no plain table {table!r} with columns {sorted(wanted)} (it has "
                    f"{sorted(map(str, kinds))[:8]}); not a TFF client-data file"
                )


def _guess_schema(connection: sqlite3.Connection, path: Path) -> Schema:
    """Return the schema all of whose fields the first example has."""
    with _sqlite_errors(path):
        row = connection.execute(
            "SELECT serialized_example_proto FROM main.examples LIMIT 1"
        ).fetchone()
    if row is None:
        raise ValueError(f"{path} has no examples")
    with _naming(f"the first example of {path}"):
        features = parse_example(row[0])
    for schema in SCHEMAS.values():
        if schema.fields.keys() <= features.keys():
            return schema
    raise ValueError(
        f"the fields {sorted(features)[:8]} of the first example of {path} are those of none of "
        f"{', '.join(SCHEMAS)}; not a data set this reader knows"
    )
