"""The reader of tf.train.Example: what it reads, and that nothing malformed gets through."""

import numpy as np
import pytest
from google.protobuf import descriptor_pool
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.datasets import tff_files
from fedpriv.datasets.tff_files import (
    MAX_EXAMPLE_BYTES,
    MAX_FEATURES,
    SCHEMAS,
    parse_example,
)
from tests.harness.refusals import refuses


@pytest.mark.parametrize("packed", [True, False])
def test_reads_the_three_kinds_of_list(tff_writer, packed):
    data = tff_writer.example(
        packed=packed,
        text=[b"one", b"", b"three"],
        numbers=np.array([0, 1, -1, 2**63 - 1, -(2**63)]),
        reals=np.array([0.5, -1.25, np.inf], np.float32),
    )
    found = parse_example(data)
    assert found["text"] == (b"one", b"", b"three")
    assert found["numbers"].dtype == np.int64
    assert found["numbers"].tolist() == [0, 1, -1, 2**63 - 1, -(2**63)]
    assert found["reals"].dtype == np.float32
    assert found["reals"].tolist() == [0.5, -1.25, np.inf]


def test_the_last_of_a_repeated_key_and_of_a_oneof_wins(tff_writer):
    w = tff_writer
    both = w.feature(b"text") + w.feature(np.array([7]))
    twice = w.field(1, w.field(1, b"k") + w.field(2, w.feature(b"old")))
    data = w.field(1, twice + w.field(1, w.field(1, b"k") + w.field(2, both)))
    assert parse_example(data)["k"].tolist() == [7]


def test_unknown_fields_of_every_level_are_skipped(tff_writer):
    w = tff_writer
    unknown = w.field(9, b"?") + b"\x58\x05" + b"\x5d1234" + b"\x6112345678"
    value = unknown + w.field(1, unknown + w.field(1, b"v"))
    entry = unknown + w.field(1, b"k") + w.field(2, value)
    data = unknown + w.field(1, unknown + w.field(1, entry))
    assert parse_example(data) == {"k": (b"v",)}


def test_empty_messages_are_examples_with_nothing_in_them(tff_writer):
    w = tff_writer
    assert parse_example(b"") == {}
    assert parse_example(w.field(1, b"")) == {}
    assert parse_example(w.field(1, w.field(1, w.field(1, b"k") + w.field(2, b"")))) == {"k": ()}


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",  # a length that is not there
        b"\x0a\x05abc",  # longer than the message
        b"\x0a\x45\x0a\x03\x0a\x20k" + bytes(64),  # longer than its own message
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # 2^64 - 1 bytes
        b"\x0a" + b"\xff" * 11,  # a number of more than ten bytes
        b"\x4b" * 200 + b"\x4c" * 200,  # groups in groups
        b"\x0f",  # wire type 7
        b"\x00\x00",  # field number 0
        b"\x0a\x06\x0a\x04\x0a\x02\xff\xfe",  # a name that is not UTF-8
    ],
)
def test_malformed_bytes_are_refused(data):
    with refuses(ValueError, len(data)):
        parse_example(data)


def test_a_known_field_of_another_wire_type_is_a_field_nobody_knows(tff_writer):
    w = tff_writer
    assert parse_example(b"\x08\x01") == {}  # features that is a number
    assert parse_example(w.field(1, b"\x08\x01")) == {}  # and a feature
    number = b"\x09" + bytes(8)  # 64 bits where a varint or a packed list belongs
    entry = w.field(1, b"n") + w.field(2, w.field(3, number))
    found = parse_example(w.field(1, w.field(1, entry)))["n"]
    assert found.dtype == np.int64 and not len(found)
    # What is then missing, the schema of the data set asks for.
    with refuses(ValueError, "'creation_date'"):
        SCHEMAS["stackoverflow"].convert(parse_example(b"\x08\x01"))
    with refuses(ValueError, "'label'", 0, 1):
        SCHEMAS["emnist"].convert({"label": found})


@pytest.mark.parametrize("packed", [True, False])
def test_floats_are_read_bit_for_bit_and_are_the_callers_own(tff_writer, packed):
    w = tff_writer
    bits = np.array([0, 0x80000000, 1, 0x7F800001, 0xFFC12345, 0x3F800000], np.uint32)
    body = w.field(1, bits.tobytes()) if packed else b"".join(b"\x0d" + x.tobytes() for x in bits)
    for more in (b"", w.field(9, b"1234567")):  # unknown, after the list's own values
        entry = w.field(1, b"reals") + w.field(2, w.field(2, body + more))
        found = parse_example(w.field(1, w.field(1, entry)))["reals"]
        assert found.view(np.uint32).tolist() == bits.tolist()
        found[0] = 1  # not a view of anything that cannot be written to


def test_too_large_and_too_many_are_refused(tff_writer, monkeypatch):
    w = tff_writer
    names = [w.field(1, w.field(1, str(number).encode())) for number in range(MAX_FEATURES + 1)]
    assert len(parse_example(w.field(1, b"".join(names[1:])))) == MAX_FEATURES
    for many in (b"".join(names), b"\x0a\x00" * (MAX_FEATURES + 1)):
        with refuses(ValueError, MAX_FEATURES):
            parse_example(w.field(1, many))
    with refuses(ValueError, "str"):
        parse_example("text")  # type: ignore[arg-type]
    assert parse_example(w.field(9, bytes(MAX_EXAMPLE_BYTES - 5))) == {}
    monkeypatch.delattr(tff_files, "_Example")  # what is too large is not even parsed
    with refuses(ValueError, f"{MAX_EXAMPLE_BYTES:,}"):
        parse_example(bytes(MAX_EXAMPLE_BYTES + 1))


@pytest.mark.slow
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    try:
        parse_example(data)
    except ValueError:
        return


def test_the_message_is_tensorflows_own_but_no_part_of_the_pool_that_is_shared():
    descriptor = tff_files._Example.DESCRIPTOR
    assert descriptor.full_name == "tensorflow.Example"
    assert descriptor.file.pool is not descriptor_pool.Default()
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("tensorflow.Example")
