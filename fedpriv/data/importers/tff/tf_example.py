"""Reads `tf.train.Example` from its bytes: protocol buffers, with neither TensorFlow nor its code.

The schema is TensorFlow's, said here in Python and kept in a pool of its own, so that TensorFlow
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

from typing import Any

import numpy as np
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    OneofDescriptorProto,
)
from google.protobuf.message import DecodeError

FeatureValue = tuple[bytes, ...] | np.ndarray
"""What a feature holds: a tuple of bytes, or a float32 or int64 array of one dimension."""

MAX_EXAMPLE_BYTES = 16 * 1024 * 1024
MAX_FEATURES = 1024


def _field(
    name: str, number: int, kind: str, *, repeated: bool = False, oneof: int | None = None
) -> FieldDescriptorProto:
    """Return a field; its kind is a scalar type's name, or a message's with a dot before it."""
    return FieldDescriptorProto(
        name=name,
        number=number,
        label=FieldDescriptorProto.LABEL_REPEATED
        if repeated
        else FieldDescriptorProto.LABEL_OPTIONAL,
        type=FieldDescriptorProto.TYPE_MESSAGE
        if kind.startswith(".")
        else FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}"),
        type_name=kind if kind.startswith(".") else None,
        oneof_index=oneof,
    )


def _list(name: str, kind: str) -> DescriptorProto:
    return DescriptorProto(name=name, field=[_field("value", 1, kind, repeated=True)])


def _example_class() -> Any:
    """Return the message class of `tensorflow/core/example/{example,feature}.proto`."""
    entry = DescriptorProto(
        name="FeatureEntry",
        field=[_field("key", 1, "string"), _field("value", 2, ".tensorflow.Feature")],
    )
    feature = DescriptorProto(
        name="Feature",
        field=[
            _field("bytes_list", 1, ".tensorflow.BytesList", oneof=0),
            _field("float_list", 2, ".tensorflow.FloatList", oneof=0),
            _field("int64_list", 3, ".tensorflow.Int64List", oneof=0),
        ],
        oneof_decl=[OneofDescriptorProto(name="kind")],
    )
    features = DescriptorProto(
        name="Features",
        field=[_field("feature", 1, ".tensorflow.Features.FeatureEntry", repeated=True)],
        nested_type=[entry],
    )
    example = DescriptorProto(name="Example", field=[_field("features", 1, ".tensorflow.Features")])
    lists = [_list("BytesList", "bytes"), _list("FloatList", "float"), _list("Int64List", "int64")]
    file = FileDescriptorProto(
        name="tf_example.proto",
        package="tensorflow",
        syntax="proto3",
        message_type=[*lists, feature, features, example],
    )
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
    return {entry.key: _value(entry.value) for entry in entries}


def _value(feature: Any) -> FeatureValue:
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
