"""TensorFlow Federated's client files, and `tf.train.Example` from its bytes, without TensorFlow.

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

import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import numpy as np
from google.protobuf import descriptor_pool, message_factory, text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError

from fedpriv.datasets.raw_files import unpack
from fedpriv.hashes import Progress

FeatureValue = tuple[bytes, ...] | np.ndarray
"""Value of a feature: a tuple of bytes, or a float32 or int64 array of one dimension."""

MAX_EXAMPLE_BYTES = 16 * 1024 * 1024
MAX_FEATURES = 1024


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
    if not isinstance(data, bytes):
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
        low: The least value allowed, None for any.
        high: The greatest value allowed, None for any.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    low: float | None = None
    high: float | None = None

    @property
    def is_text(self) -> bool:
        """Whether the value is a str."""
        return self.dtype == "str"


@dataclass(frozen=True, slots=True)
class Schema:
    """The fields of one dataset's examples.

    Attributes:
        name: The dataset's name here.
        default_split: The split read when a file has several and none is asked for.
        fields: Field by name; an example may have others, which are dropped.
    """

    name: str
    default_split: str
    fields: Mapping[str, Field]

    def convert(self, features: Mapping[str, FeatureValue]) -> dict[str, Any]:
        """Return the schema's fields of one example: str, a NumPy scalar, or an array.

        Raises:
            ValueError: If a field is missing, of another kind or size, out of range or not UTF-8.
        """
        typed: dict[str, Any] = {}
        for name, expected in self.fields.items():
            if name not in features:
                raise ValueError(f"no field {name!r}; it has {sorted(features)[:8]}")
            typed[name] = _convert(name, expected, features[name])
        return typed


def _convert(name: str, expected: Field, value: FeatureValue) -> Any:
    if expected.is_text:
        if isinstance(value, np.ndarray) or len(value) != 1:
            raise ValueError(f"field {name!r} is not one text")
        try:
            return value[0].decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"field {name!r} is not UTF-8") from None
    size = int(np.prod(expected.shape))
    if isinstance(value, np.ndarray):
        array = value
        whole = np.issubdtype(np.dtype(expected.dtype), np.integer)
        if array.dtype != (np.int64 if whole else np.float32):
            raise ValueError(f"field {name!r} holds {array.dtype} values, not {expected.dtype}")
    elif len(value) == 1 and expected.dtype == "uint8":
        array = np.frombuffer(value[0], np.uint8)  # raw pixels, as other writers store images
    else:
        raise ValueError(f"field {name!r} holds bytes, not {expected.dtype} values")
    if array.size != size:
        raise ValueError(f"field {name!r} has {array.size:,} values, not {size:,}")
    # `not (all in range)` also refuses NaN.
    if expected.low is not None and not bool((array >= expected.low).all()):
        raise ValueError(f"field {name!r} has a value below {expected.low} (or none)")
    if expected.high is not None and not bool((array <= expected.high).all()):
        raise ValueError(f"field {name!r} has a value above {expected.high} (or none)")
    array = array.astype(expected.dtype).reshape(expected.shape)
    return array if expected.shape else array[()]


_TEXT = Field("str")

SCHEMAS: Mapping[str, Schema] = MappingProxyType(
    {
        "stackoverflow": Schema(
            "stackoverflow",
            "train",
            {
                "creation_date": _TEXT,
                "score": Field("int64"),
                "tags": _TEXT,
                "title": _TEXT,
                "tokens": _TEXT,
                "type": _TEXT,
            },
        ),
        "emnist": Schema(
            "emnist",
            "digits_only_train",
            {
                "label": Field("int32", low=0, high=61),
                "pixels": Field("float32", (28, 28), low=0.0, high=1.0),
            },
        ),
        "cifar100": Schema(
            "cifar100",
            "train",
            {
                "coarse_label": Field("int64", low=0, high=19),
                "image": Field("uint8", (32, 32, 3), low=0, high=255),
                "label": Field("int64", low=0, high=99),
            },
        ),
        "shakespeare": Schema("shakespeare", "train", {"snippets": _TEXT}),
    }
)


def guess_schema(features: Mapping[str, FeatureValue]) -> Schema:
    """Return the schema all of whose fields an example has.

    Raises:
        ValueError: If there is none.
    """
    for schema in SCHEMAS.values():
        if schema.fields.keys() <= features.keys():
            return schema
    raise ValueError(
        f"its fields {sorted(features)[:8]} are those of none of {', '.join(SCHEMAS)}; "
        "not a dataset this reader knows"
    )


SQLITE_MAGIC = b"SQLite format 3\x00"

_TABLES = {
    "client_metadata": {"client_id", "split_name", "num_examples"},
    "examples": {"split_name", "client_id", "serialized_example_proto"},
}


class ClientData:
    """The clients of one split of a TFF file; a context manager, closed at the end of its block.

    Guarantees: `client_ids` is sorted as TFF sorts it (by code point), and each client gives
    exactly as many examples as the file's metadata promises, or raises.
    """

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        split_name: str,
        schema: Schema,
        counts: Mapping[str, int],
    ) -> None:
        """Use `open_client_data` instead."""
        self._path = path
        self._connection = connection
        self._counts = counts
        self.split_name = split_name
        self.schema = schema
        self.client_ids: tuple[str, ...] = tuple(sorted(counts))

    def __enter__(self) -> ClientData:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the examples cannot be read afterwards."""
        self._connection.close()

    def of_split(self, split_name: str) -> ClientData:
        """Return the clients of another split of the same file; it closes with this one.

        Raises:
            ValueError: If the file has no such split, or no clients in it.
        """
        splits = _splits(self._connection, self._path)
        name = _choose_split(splits, split_name, self.schema, self._path)
        counts = _counts(self._connection, self._path, name)
        return ClientData(self._path, self._connection, name, self.schema, counts)

    @property
    def num_examples(self) -> Mapping[str, int]:
        """Number of examples by client id, as the metadata has it."""
        return MappingProxyType(self._counts)

    def examples(self, client_id: str) -> Iterator[dict[str, Any]]:
        """Yield the examples of one client in stored order, each a dict typed by the schema.

        Raises:
            ValueError: If the client is not of this split, or an example of it is malformed.
        """
        if client_id not in self._counts:
            raise ValueError(
                f"no client {client_id!r} in split {self.split_name!r} of {self._path}; "
                f"it has {len(self._counts):,}, such as {self.client_ids[:3]}"
            )
        rows = self._rows("AND client_id = ?", (self.split_name, client_id))
        found = 0
        for _, blob in rows:
            found += 1
            yield self._typed(client_id, found, blob)
        self._check_count(client_id, found)

    def stream(self, client_ids: set[str] | frozenset[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (client id, example) of many clients, by the cheaper of two ways.

        A file with an index on `client_id` is asked client by client (then the clients come in
        sorted order); one without is read once from end to end (then they come as stored).
        """
        unknown = set(client_ids) - self._counts.keys()
        if unknown:
            raise ValueError(f"no client {min(unknown)!r} in split {self.split_name!r}")
        if self._has_index():
            for client_id in sorted(client_ids):
                for example in self.examples(client_id):
                    yield client_id, example
            return
        found = dict.fromkeys(client_ids, 0)
        for client_id, blob in self._rows("", (self.split_name,)):
            if client_id in found:
                found[client_id] += 1
                yield client_id, self._typed(client_id, found[client_id], blob)
        for client_id, number in found.items():
            self._check_count(client_id, number)

    def create_dataset_for_client(self, client_id: str) -> dict[str, np.ndarray]:
        """Return one client's examples as columns: field name to an array with a row an example.

        Text columns have dtype object (str); numbers have the dtype and shape of the schema.
        """
        rows = list(self.examples(client_id))
        return {
            name: np.array(
                [row[name] for row in rows], object if field.is_text else field.dtype
            ).reshape((len(rows), *field.shape))
            for name, field in self.schema.fields.items()
        }

    def _rows(self, where: str, values: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
        statement = (
            "SELECT client_id, serialized_example_proto FROM main.examples "
            f"WHERE split_name = ? {where}"
        )
        with _sqlite_errors(self._path):
            # Not `yield from`: that would close the cursor of a reader that stops half-way.
            for row in self._connection.execute(statement, values):  # noqa: UP028
                yield row

    def _typed(self, client_id: str, number: int, blob: object) -> dict[str, Any]:
        where = f"example {number} of client {client_id!r} in {self._path}"
        if not isinstance(blob, bytes):
            raise ValueError(f"{where} is {type(blob).__name__}, not a blob")
        try:
            return self.schema.convert(parse_example(blob))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def _check_count(self, client_id: str, found: int) -> None:
        if found != self._counts[client_id]:
            raise ValueError(
                f"{self._path}: client {client_id!r} has {found:,} examples, its metadata says "
                f"{self._counts[client_id]:,}; the file is incomplete, fetch it again"
            )

    def _has_index(self) -> bool:
        with _sqlite_errors(self._path):
            plan = self._connection.execute(
                "EXPLAIN QUERY PLAN SELECT serialized_example_proto FROM main.examples "
                "WHERE split_name = ? AND client_id = ?",
                ("", ""),
            ).fetchall()
        return any(
            "client_id=?" in str(row[-1]) and "AUTOMATIC" not in str(row[-1]) for row in plan
        )


def open_client_data(
    path: Path | str,
    *,
    split_name: str | None = None,
    schema: str = "auto",
    progress: Progress | None = None,
) -> ClientData:
    """Open a TFF client-data file (`.sqlite`, `.sqlite.lzma`, `.sqlite.xz`).

    Args:
        path: The file. What it is, is recognised by its content, not by its name.
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
            unpack(path, target, starts_with=SQLITE_MAGIC, progress=progress)
            connection = _connect(target, path)
    try:
        _check_tables(connection, path)
        chosen = _choose_schema(connection, path, schema)
        splits = _splits(connection, path)
        split_name = _choose_split(splits, split_name, chosen, path)
        counts = _counts(connection, path, split_name)
    except BaseException:
        connection.close()
        raise
    return ClientData(path, connection, split_name, chosen, counts)


@contextmanager
def _sqlite_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite says of a damaged file into a `ValueError` that names the file."""
    try:
        yield
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} cannot be read as a TFF client-data file ({error}); fetch it again"
        ) from None


def _connect(file: Path, path: Path) -> sqlite3.Connection:
    """Open read-only; check that the file has as many pages as its header says."""
    with file.open("rb") as opened:
        header = opened.read(100).ljust(100, b"\x00")
    page_size = int.from_bytes(header[16:18], "big")
    page_size = 65536 if page_size == 1 else page_size
    pages = int.from_bytes(header[28:32], "big") if header[24:28] == header[92:96] else 0
    size = file.stat().st_size
    if size < 100 or page_size < 512 or size < page_size * pages:
        raise ValueError(
            f"{path} is truncated: {size:,} bytes of database are there, its header promises "
            f"{max(page_size * pages, 512):,}; fetch it again"
        )
    with _sqlite_errors(path):
        connection = sqlite3.connect(
            f"{file.resolve().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
        )
        # A blob of a gigabyte is refused before it is read.
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2 * MAX_EXAMPLE_BYTES)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return connection


def _check_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a database whose two tables are not plain tables with TFF's columns."""
    with _sqlite_errors(path):
        kinds = dict(connection.execute("SELECT name, type FROM main.sqlite_master").fetchall())
        for table, wanted in _TABLES.items():
            if kinds.get(table) != "table":
                raise ValueError(
                    f"{path} has no table {table!r} (it has {sorted(map(str, kinds))[:8]}); "
                    "not a TFF client-data file"
                )
            # A generated column would run the file's own expressions; hidden is 0 in a plain one.
            columns = {
                row[1]
                for row in connection.execute(f"PRAGMA main.table_xinfo({table})")
                if row[6] == 0
            }
            if not wanted <= columns:
                raise ValueError(
                    f"{path}: table {table!r} lacks the columns {sorted(wanted - columns)}; "
                    "not a TFF client-data file"
                )


def _choose_schema(connection: sqlite3.Connection, path: Path, schema: str) -> Schema:
    if schema != "auto":
        return SCHEMAS[schema]
    with _sqlite_errors(path):
        row = connection.execute(
            "SELECT serialized_example_proto FROM main.examples LIMIT 1"
        ).fetchone()
    if row is None:
        raise ValueError(f"{path} has no examples")
    if not isinstance(row[0], bytes):
        raise ValueError(f"{path}: its first example is {type(row[0]).__name__}, not a blob")
    try:
        return guess_schema(parse_example(row[0]))
    except ValueError as error:
        raise ValueError(f"the first example of {path}: {error}") from None


def _splits(connection: sqlite3.Connection, path: Path) -> list[str]:
    with _sqlite_errors(path):
        rows = connection.execute("SELECT DISTINCT split_name FROM main.client_metadata").fetchall()
    if not all(isinstance(row[0], str) for row in rows):
        raise ValueError(f"{path}: a split_name in client_metadata is not text")
    return sorted(row[0] for row in rows)


def _choose_split(splits: list[str], wanted: str | None, schema: Schema, path: Path) -> str:
    if wanted is None and len(splits) == 1:
        return splits[0]
    wanted = schema.default_split if wanted is None else wanted
    if wanted not in splits:
        raise ValueError(f"{path} has no split {wanted!r}; it has {splits}")
    return wanted


def _counts(connection: sqlite3.Connection, path: Path, split_name: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    with _sqlite_errors(path):
        for client_id, number in connection.execute(
            "SELECT client_id, num_examples FROM main.client_metadata WHERE split_name = ?",
            (split_name,),
        ):
            if not isinstance(client_id, str) or not client_id:
                raise ValueError(f"{path}: client id {client_id!r} is not a non-empty text")
            if not isinstance(number, int) or number < 0:
                raise ValueError(f"{path}: client {client_id!r} has num_examples {number!r}")
            if client_id in counts:
                raise ValueError(f"{path}: client {client_id!r} is twice in client_metadata")
            counts[client_id] = number
    if not counts:
        raise ValueError(f"{path} has no clients in split {split_name!r}")
    return counts
