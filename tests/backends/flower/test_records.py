"""Trees as records and back."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpriv.backends.flower.messages import (
    MalformedRecordError,
    decode,
    decode_params,
    encode,
    reason_of,
)
from fedpriv.tree import RowSparse
from tests.backends.flower import stub_grid as stub
from tests.harness.refusals import refuses

SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)


KINDS = st.sampled_from([np.float32, np.float64, np.int32, np.int64])


def elements(dtype):
    if np.dtype(dtype).kind == "f":
        return st.floats(width=32, allow_nan=True, allow_infinity=True)
    return st.integers(np.iinfo(dtype).min, np.iinfo(dtype).max)


@pytest.mark.slow
@given(KINDS.flatmap(lambda dtype: hnp.arrays(dtype, SHAPES, elements=elements(dtype))))
def test_any_dense_tensor_reads_back_bit_for_bit(array):
    record = encode({"a": array})
    found = decode(record, {"a": np.zeros(array.shape)}, whole=array.dtype.kind == "i")["a"]
    assert found.dtype == array.dtype and found.shape == array.shape
    assert found.tobytes() == array.tobytes()
    assert not found.flags.writeable and not found.flags.owndata  # a view of the record's memory


@pytest.mark.slow
@given(st.sets(st.integers(0, 19)), KINDS, st.sampled_from([(), (3,), (2, 2)]))
def test_any_row_sparse_tensor_reads_back_bit_for_bit(rows, dtype, tail):
    index, whole = np.array(sorted(rows), np.int64), np.dtype(dtype).kind == "i"
    values = np.arange(len(index) * int(np.prod(tail)), dtype=dtype).reshape(len(index), *tail)
    values += np.iinfo(dtype).min if whole else 0
    tensor = RowSparse(rows=index, values=values, num_rows=20)
    found = decode(encode({"a/b": tensor}), {"a/b": np.zeros((20, *tail))}, whole=whole)["a/b"]
    assert isinstance(found, RowSparse) and found.num_rows == 20
    assert np.array_equal(found.rows, index)
    assert np.array_equal(found.values, values) and found.values.dtype == dtype


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    "dtype",
    [np.int8, np.int16, np.int32, np.int64, np.uint32, np.uint64, np.float16, np.float32,
     np.float64, np.longdouble, np.complex128, bool, ">i4", ">i8", ">f4", ">f8", "M8[s]"],
    ids=str,
)  # fmt: skip
def test_only_what_was_asked_for_is_read(dtype, whole):
    """Whole numbers or floats, dense or by rows; never one for the other."""
    values = np.zeros((3, 2), dtype)
    wanted = values.dtype in (("<i4", "<i8") if whole else ("<f4", "<f8"))
    for tensor in (values, RowSparse(rows=np.arange(3), values=values, num_rows=3)):
        record = encode({"a": tensor})
        if wanted:
            assert decode(record, {"a": np.zeros((3, 2))}, whole=whole)["a"].dtype == dtype
        else:
            with refuses(MalformedRecordError, "C-ordered"):
                decode(record, {"a": np.zeros((3, 2))}, whole=whole)


def test_values_may_be_sent_in_another_dtype():
    tensors = {"a": np.array([1e300]), "b": RowSparse(
        rows=np.array([1]), values=np.array([[0.1]]), num_rows=2)}  # fmt: skip
    found = decode(encode(tensors, np.float32), {"a": np.zeros(1), "b": np.zeros((2, 1))})
    assert found["a"].dtype == found["b"].dtype == np.float32
    assert np.isinf(found["a"]).all() and found["b"].values[0, 0] == np.float32(0.1)


def test_params_come_back_in_order_and_writable():
    params = {"z": np.ones((2, 2), np.float32), "a": np.zeros(3, np.float32)}
    found = decode_params(encode(params))
    assert list(found) == ["z", "a"]
    found["z"] += 1
    assert decode_params(encode({})) == {}
    sparse = RowSparse(rows=np.array([0]), values=np.ones((1, 1), np.float32), num_rows=2)
    odd = (None, ConfigRecord({"a": 1.0}), *(encode({"a": t}) for t in (np.zeros(2), sparse)))
    for record in odd:
        with pytest.raises(MalformedRecordError):
            decode_params(record)


def failed(reason):
    asked = Message(RecordDict(), 7, "train")
    return Message(Error(2, reason), reply_to=asked)


def test_a_reason_begins_with_a_line_and_ends_with_why():
    stub.StubGrid({})
    lines = [f"at {'x' * number} 10.0.0.{number}:9094" for number in range(60)]
    said = reason_of(failed("\n".join([*lines, "", "ValueError: no such corpus"])))
    assert said.endswith("ValueError: no such corpus") and len(said) < 450
    assert said.removeprefix("... ").startswith("at x")
    assert reason_of(failed("one line")) == "one line"
    said = reason_of(failed("word " * 5000 + "and why"))
    assert said.startswith("... word ") and said.endswith("and why") and len(said) < 450
