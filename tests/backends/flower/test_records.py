"""Trees as records and back."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ConfigRecord
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpriv.backends.flower.messages import MalformedRecordError, decode, decode_params, encode
from fedpriv.tree import RowSparse

FLOATS = st.sampled_from([np.float32, np.float64])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)


@given(
    FLOATS.flatmap(
        lambda dtype: hnp.arrays(
            dtype, SHAPES, elements=st.floats(width=32, allow_nan=True, allow_infinity=True)
        )
    )
)
def test_any_dense_tensor_reads_back_bit_for_bit(array):
    found = decode(encode({"a": array}), {"a": array})["a"]
    assert found.dtype == array.dtype and found.shape == array.shape
    assert found.tobytes() == array.tobytes()


@given(st.sets(st.integers(0, 19)), FLOATS, st.sampled_from([(), (3,), (2, 2)]))
def test_any_row_sparse_tensor_reads_back_bit_for_bit(rows, dtype, tail):
    index = np.array(sorted(rows), np.int64)
    values = np.arange(len(index) * int(np.prod(tail)), dtype=dtype).reshape(len(index), *tail)
    tensor = RowSparse(rows=index, values=values, num_rows=20)
    found = decode(encode({"a/b": tensor}), {"a/b": np.zeros((20, *tail))})["a/b"]
    assert isinstance(found, RowSparse) and found.num_rows == 20
    assert np.array_equal(found.rows, index)
    assert np.array_equal(found.values, values) and found.values.dtype == dtype


INTEGERS = st.sampled_from([np.int32, np.int64])


@given(
    INTEGERS.flatmap(
        lambda dtype: hnp.arrays(
            dtype, SHAPES, elements=st.integers(np.iinfo(dtype).min, np.iinfo(dtype).max)
        )
    )
)
def test_any_whole_numbers_read_back_bit_for_bit(array):
    found = decode(encode({"a": array}), {"a": np.zeros(array.shape)}, whole=True)["a"]
    assert found.dtype == array.dtype and found.shape == array.shape
    assert found.tobytes() == array.tobytes()


@given(st.sets(st.integers(0, 19)), INTEGERS, st.sampled_from([(), (3,), (2, 2)]))
def test_any_row_sparse_whole_numbers_read_back_bit_for_bit(rows, dtype, tail):
    index = np.array(sorted(rows), np.int64)
    values = np.full((len(index), *tail), np.iinfo(dtype).min, dtype)
    tensor = RowSparse(rows=index, values=values, num_rows=20)
    found = decode(encode({"a": tensor}), {"a": np.zeros((20, *tail))}, whole=True)["a"]
    assert isinstance(found, RowSparse) and np.array_equal(found.rows, index)
    assert np.array_equal(found.values, values) and found.values.dtype == dtype


def test_only_what_was_asked_for_is_read(subtests):
    """Whole numbers or floats, dense or by rows; never one for the other."""
    for whole in [True, False]:
        for dtype in [
            np.int8,
            np.int16,
            np.int32,
            np.int64,
            np.uint8,
            np.uint32,
            np.uint64,
            np.float16,
            np.float32,
            np.float64,
            np.longdouble,
            np.complex128,
            bool,
            ">i4",
            ">i8",
            ">f4",
            ">f8",
            "M8[s]",
        ]:
            with subtests.test(whole=whole, dtype=dtype):
                values = np.zeros((3, 2), dtype)
                wanted = values.dtype in (("<i4", "<i8") if whole else ("<f4", "<f8"))
                for tensor in (values, RowSparse(rows=np.arange(3), values=values, num_rows=3)):
                    record = encode({"a": tensor})
                    if wanted:
                        assert (
                            decode(record, {"a": np.zeros((3, 2))}, whole=whole)["a"].dtype == dtype
                        )
                    else:
                        with pytest.raises(MalformedRecordError, match="expected C-ordered"):
                            decode(record, {"a": np.zeros((3, 2))}, whole=whole)


def test_params_of_whole_numbers_are_refused():
    with pytest.raises(MalformedRecordError, match="expected C-ordered float32"):
        decode_params(encode({"a": np.zeros(2, np.int32)}))


def test_views_share_the_records_memory():
    array = np.arange(12.0).reshape(3, 4)
    record = encode({"a": array})
    found = decode(record, {"a": array})["a"]
    assert not found.flags.writeable and not found.flags.owndata


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


@pytest.mark.parametrize(
    "record",
    [None, ConfigRecord({"a": 1.0}), encode({"a": np.zeros(2)}), encode(
        {"a": RowSparse(rows=np.array([0]), values=np.ones((1, 1), np.float32), num_rows=2)})],
    ids=["nothing", "config", "float64", "row-sparse"],
)  # fmt: skip
def test_params_that_are_none_are_refused(record):
    with pytest.raises(MalformedRecordError):
        decode_params(record)


def test_a_scalar_cannot_be_row_sparse():
    record = encode({"a": RowSparse(rows=np.array([0]), values=np.ones((1,)), num_rows=1)})
    with pytest.raises(MalformedRecordError, match="'a' is missing"):
        decode(record, {"a": np.zeros(())})
