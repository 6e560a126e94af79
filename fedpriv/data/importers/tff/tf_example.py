"""Reads `tf.train.Example` from its bytes, with neither TensorFlow nor generated code.

An Example is a protocol-buffers message of four levels: `Example.features` (field 1) holds a map
`Features.feature` (field 1) from a name to a `Feature`, which holds one of `bytes_list` (1),
`float_list` (2) and `int64_list` (3), each with a repeated `value` (1), packed or not. The wire
format is that of the protocol-buffers encoding specification. As there, a repeated map key and a
changed `oneof` keep what came last, and fields nobody knows are skipped.

The bytes come from a file somebody else wrote, so every length is checked against the message that
holds it before a slice is taken, nothing recurses, and memory stays within a small multiple of
the input's own size.

>>> parse_example(bytes.fromhex("0a0d0a0b0a016112060a040a026869"))
{'a': (b'hi',)}
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

FeatureValue = tuple[bytes, ...] | np.ndarray
"""What a feature holds: a tuple of bytes, or a float32 or int64 array of one dimension."""

MAX_EXAMPLE_BYTES = 16 * 1024 * 1024
MAX_FEATURES = 1024

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_KINDS = {1: "bytes", 2: "float", 3: "int64"}


def parse_example(data: bytes) -> dict[str, FeatureValue]:
    """Return the features of one serialised `tf.train.Example`.

    Args:
        data: The message. An empty one is a valid Example without features.

    Returns:
        Feature name to a tuple of bytes, a float32 array (n,) or an int64 array (n,). A feature
        whose kind was never set is an empty tuple, as TensorFlow reads it.

    Raises:
        ValueError: If the bytes are not a well-formed Example, say where, or if it is larger than
            16 MiB or has more than 1,024 features.
    """
    if not isinstance(data, bytes):
        raise ValueError(f"a tf.train.Example is bytes, not {type(data).__name__}")
    if len(data) > MAX_EXAMPLE_BYTES:
        raise ValueError(
            f"a tf.train.Example of {len(data):,} bytes is over the limit of "
            f"{MAX_EXAMPLE_BYTES:,}; is this the right column?"
        )
    features: dict[str, FeatureValue] = {}
    num_entries = 0
    for field, wire, start, end in _fields(data, 0, len(data)):
        if field != 1:
            continue
        _want(wire, _LENGTH, "features", start)
        for inner, inner_wire, inner_start, inner_end in _fields(data, start, end):
            if inner != 1:
                continue
            _want(inner_wire, _LENGTH, "feature", inner_start)
            num_entries += 1
            if num_entries > MAX_FEATURES:
                raise ValueError(f"a tf.train.Example with more than {MAX_FEATURES} features")
            name, value = _map_entry(data, inner_start, inner_end)
            features[name] = value
    return features


def _map_entry(data: bytes, start: int, end: int) -> tuple[str, FeatureValue]:
    """Return the name and value of one entry of the feature map."""
    name = ""
    value: FeatureValue = ()
    for field, wire, first, last in _fields(data, start, end):
        if field == 1:
            _want(wire, _LENGTH, "feature name", first)
            try:
                name = data[first:last].decode("utf-8")
            except UnicodeDecodeError:
                raise ValueError(f"feature name at byte {first} is not UTF-8") from None
        elif field == 2:
            _want(wire, _LENGTH, "feature value", first)
            value = _feature(data, first, last)
    return name, value


def _feature(data: bytes, start: int, end: int) -> FeatureValue:
    """Return the list a Feature holds; the last kind set wins, lists of one kind are joined."""
    kind = 0
    pieces: list[tuple[int, int]] = []
    for field, wire, first, last in _fields(data, start, end):
        if field not in _KINDS:
            continue
        _want(wire, _LENGTH, f"{_KINDS[field]}_list", first)
        if field != kind:
            kind, pieces = field, []
        pieces.append((first, last))
    if kind == 1:
        return tuple(item for piece in pieces for item in _bytes_list(data, *piece))
    if kind == 2:
        raw = b"".join(item for piece in pieces for item in _float_list(data, *piece))
        return np.frombuffer(raw, "<f4").astype(np.float32)
    if kind == 3:
        numbers = [item for piece in pieces for item in _int64_list(data, *piece)]
        return np.array(numbers, np.uint64).view(np.int64)
    return ()


def _bytes_list(data: bytes, start: int, end: int) -> Iterator[bytes]:
    for field, wire, first, last in _fields(data, start, end):
        if field == 1:
            _want(wire, _LENGTH, "bytes_list.value", first)
            yield data[first:last]


def _float_list(data: bytes, start: int, end: int) -> Iterator[bytes]:
    for field, wire, first, last in _fields(data, start, end):
        if field != 1:
            continue
        if wire == _LENGTH:
            if (last - first) % 4:
                raise ValueError(
                    f"packed float_list at byte {first} has {last - first} bytes, no multiple of 4"
                )
        else:
            _want(wire, _FIXED32, "float_list.value", first)
        yield data[first:last]


def _int64_list(data: bytes, start: int, end: int) -> Iterator[int]:
    for field, wire, first, last in _fields(data, start, end):
        if field != 1:
            continue
        if wire == _LENGTH:
            position = first
            while position < last:
                number, position = _varint(data, position, last)
                yield number
        else:
            _want(wire, _VARINT, "int64_list.value", first)
            yield _varint(data, first, last)[0]


def _fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (field number, wire type, first byte, one past the last byte) of each field."""
    position = start
    while position < end:
        at = position
        tag, position = _varint(data, position, end)
        field, wire = tag >> 3, tag & 7
        if not 1 <= field < 1 << 29:
            raise ValueError(f"field number {field} at byte {at} is not one a message can have")
        first = position
        if wire == _LENGTH:
            length, first = _varint(data, position, end)
            position = first + length
        elif wire == _VARINT:
            _, position = _varint(data, position, end)
        elif wire == _FIXED32:
            position += 4
        elif wire == _FIXED64:
            position += 8
        else:
            raise ValueError(f"wire type {wire} at byte {at} is not one tf.train.Example uses")
        if position > end:
            raise ValueError(
                f"field {field} at byte {at} wants {position - first:,} bytes, "
                f"but its message has {end - first:,} left: truncated or not a tf.train.Example"
            )
        yield field, wire, first, position


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return the unsigned 64-bit number at a position and the position after it."""
    if position < end and data[position] < 0x80:  # nearly every number of an Example is this short
        return data[position], position + 1
    number = shift = 0
    at = position
    while position < end:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >= 1 << 64:
                raise ValueError(f"number at byte {at} does not fit in 64 bits")
            return number, position
        shift += 7
        if shift > 63:
            raise ValueError(f"number at byte {at} is longer than 10 bytes")
    raise ValueError(f"number at byte {at} is cut off: truncated or not a tf.train.Example")


def _want(wire: int, expected: int, what: str, at: int) -> None:
    if wire != expected:
        raise ValueError(f"{what} at byte {at} has wire type {wire}, not {expected}")
