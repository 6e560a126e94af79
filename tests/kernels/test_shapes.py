"""Arrays that disagree are refused by every kernel, before anything is written."""

import copy
import importlib
import pkgutil

import numpy as np
import pytest
from numba.core.registry import CPUDispatcher

from fedpriv import kernels
from fedpriv.kernels import (
    dense_softmax,
    normals,
    rounded_normals,
    sparse_softmax,
    streams,
    sums,
    word_features,
)

I32, I64, F32, F64, U32, U64 = (
    np.int32, np.int64, np.float32, np.float64, np.uint32, np.uint64,
)  # fmt: skip
FREE = {"squares", "pair_row", "scaled_softmax", "softmax_residual"}
"""Kernels with one array, of any length; the last two only ever get a row that a kernel made."""


def some(dtype, *shape):
    """An array of ones."""
    return np.ones(shape, dtype)


# Three examples of two words each; a kernel of 5 words or inputs and 4 classes.
BAG = {"indptr": np.array([0, 2, 4, 6]), "indices": np.array([0, 1, 1, 2, 3, 4], I32)}
LABELS = np.array([0, 1, 3], I32)
ORDER = np.arange(3)
BANDS = {"first": 1, "count": 2}
# Two users, of one row and of two.
BLOCK = {"total": np.array([0]), "rows": np.array([0, 1, 2]), "starts": np.array([0, 1, 3]),
         "values": some(F32, 3, 4), "factors": some(F64, 2)}  # fmt: skip
NODES = {"outputs": some(F64, 2), "decays": some(F64, 2)}

CALLS = {
    sums.add_whole_block: {**BLOCK, "total": some(I32, 3, 4), "squared": some(F64, 2)},
    sums.release_whole: {"total": some(I32, 5), "noise": some(F32, 5), "unit": 0.5, "step": 1.0,
                         "out": some(F32, 5)},
    normals.box_muller: {"bits": some(U32, 6), "stddev": F32(1.0), "out": some(F32, 6)},
    normals.philox: {"key": some(U32, 2), "counter": some(U32, 4), "out": some(U32, 8)},
    rounded_normals.rounded_normals: {"bits": some(U64, 6), "scale": 8.0, "out": some(I64, 6)},
    streams.band_rows: {"ring": some(F32, 4, 3), "coefficients": some(F64, 2), **BANDS},
    streams.band_rows_whole: {"ring": some(I64, 4, 3), "coefficients": some(I64, 2), **BANDS,
                              "bits": 2, "scale": 3},
    streams.buffer_row: {"fresh": some(F32, 3), "buffers": some(F32, 2, 3), **NODES},
    streams.buffer_row_whole: {"fresh": some(I64, 3), "buffers": some(F64, 2, 3), **NODES,
                               "bits": 2},
    streams.merge_whole: {"own": some(I64, 3), "children": some(I64, 3), "weight": 1, "scale": 1},
    dense_softmax.train: {
        "x": some(F32, 2, 5), "place": np.array([0, 1, 1]), "labels": LABELS.astype(I64),
        "order": ORDER, "starts": np.array([0, 2, 3]), "kernel": some(F32, 5, 4),
        "multiplier": some(F32, 5), "learning_rate": 0.1, "pull": 0.0,
    },
    sparse_softmax.logits_of: {
        **BAG, "values": some(F32, 6), "kernel": some(F32, 5, 4), "bias": some(F32, 4),
    },
    sparse_softmax.train: {
        **BAG, "counts": some(F32, 6), "labels": LABELS, "order": ORDER, "ends": np.array([0, 3]),
        "steps": np.array([0, 2, 3]), "step_ends": np.array([0, 3]), "unit_norm": True,
        "kernel": some(F32, 5, 4), "bias": some(F32, 4),
        "multiplier": some(F32, 5), "learning_rate": 0.1,
    },
    sparse_softmax.adagrad_pass: {
        **BAG, "values": some(F32, 6), "labels": LABELS,
        "kernel": some(F32, 5, 4), "bias": some(F32, 4), "kernel_squares": some(F32, 5, 4),
        "bias_squares": some(F32, 4), "learning_rate": 0.1,
    },
    word_features.word_features: {
        **BAG, "counts": some(F32, 6), "weights": some(F32, 5), "num_words": 5, "num_pairs": 3,
        "most_paired": 2, "pair_weight": 1.0,
    },
}  # fmt: skip
# Of these, one place less is a smaller task, and no contradiction.
SMALLER = {
    "dense_softmax.train-starts-0", "sparse_softmax.train-starts-0",
    "sparse_softmax.logits_of-indptr-0",
    "streams.band_rows-ring-1", "streams.band_rows_whole-ring-1",
    "streams.band_rows-coefficients-0", "streams.band_rows_whole-coefficients-0",
    "word_features.word_features-indptr-0",
}  # fmt: skip
AMPLE = {"indptr", "indices", "counts", "order", "starts", "steps", "kernel", "x", "offset",
         "ring", "total", "multiplier"}  # fmt: skip
"""Arrays of which a kernel may read a part."""


def name_of(kernel):
    return f"{kernel.py_func.__module__.rpartition('.')[2]}.{kernel.py_func.__name__}"


def arrays_of(call):
    return {name: value for name, value in call.items() if isinstance(value, np.ndarray)}


SHORTER = {
    f"{name_of(kernel)}-{name}-{axis}": (kernel, name, axis)
    for kernel, call in CALLS.items()
    for name, array in arrays_of(call).items()
    for axis in range(array.ndim)
}


def test_every_kernel_is_in_the_table():
    known = {name_of(kernel) for kernel in CALLS}
    for module in pkgutil.iter_modules(kernels.__path__, "fedpriv.kernels."):
        for name, found in vars(importlib.import_module(module.name)).items():
            if isinstance(found, CPUDispatcher) and not name.startswith("_") and name not in FREE:
                assert name_of(found) in known


@pytest.mark.parametrize("kernel", CALLS, ids=name_of)
def test_arrays_that_fit_are_taken(kernel):
    kernel(*copy.deepcopy(CALLS[kernel]).values())


@pytest.mark.parametrize("case", sorted(SHORTER.keys() - SMALLER))
def test_a_shorter_array_is_refused(case):
    kernel, name, axis = SHORTER[case]
    call = copy.deepcopy(CALLS[kernel])
    shorter = np.delete(call[name], -1, axis)
    with pytest.raises(ValueError):
        kernel(*{**call, name: shorter}.values())
    for other, array in arrays_of(call).items():  # nothing was written before
        np.testing.assert_array_equal(array, CALLS[kernel][other])


@pytest.mark.parametrize("kernel", CALLS, ids=name_of)
def test_a_longer_array_is_refused(kernel):
    for name, array in arrays_of(CALLS[kernel]).items():
        if name not in AMPLE:
            with pytest.raises(ValueError):
                longer = np.append(array, array[-1:], axis=0)
                kernel(*{**copy.deepcopy(CALLS[kernel]), name: longer}.values())


@pytest.mark.parametrize("shape", [(0, 2), (0, 4), (5, 0)])
@pytest.mark.parametrize(
    "kernel", [kernel for kernel, call in CALLS.items() if np.ndim(call.get("multiplier", 0)) == 2],
    ids=name_of,
)  # fmt: skip
def test_a_multiplier_without_numbers_is_none_at_all_or_refused(kernel, shape):
    with pytest.raises(ValueError):
        kernel(*{**copy.deepcopy(CALLS[kernel]), "multiplier": some(F32, *shape)}.values())
    kernel(*{**copy.deepcopy(CALLS[kernel]), "multiplier": some(F32, 0, 0)}.values())


#: The first number beyond what each array points into.
BEYOND = {"rows": 3, "indices": 5, "order": 3, "place": 2, "labels": 4, "starts": 4,
          "indptr": 7}  # fmt: skip


@pytest.mark.parametrize("at", [0, 1, -1])
@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        pytest.param(kernel, name, id=f"{name_of(kernel)}-{name}")
        for kernel, call in CALLS.items()
        for name in sorted(call.keys() & BEYOND.keys())
    ],
)
def test_a_number_outside_is_refused(kernel, name, at):
    for value in (-1, BEYOND[name], 2**31 - 1, -(2**31)):
        call = copy.deepcopy(CALLS[kernel])
        call[name][at] = value
        if kernel is sparse_softmax.train and name in ("indices", "indptr", "labels", "order"):
            assert np.isnan(kernel(*call.values())[-1]).all()  # a user's own: it alone fails
            continue
        with pytest.raises(ValueError):
            kernel(*call.values())
