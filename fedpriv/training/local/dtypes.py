"""Which dtypes a module is given, whatever arrays examples are kept in.

NumPy makes float64 where nothing else is said, and labels come in every integer type; modules have
float32 parameters and PyTorch's losses take int64 classes.

>>> model_inputs(np.zeros((2, 3))).dtype, model_targets(np.zeros(2, np.uint8)).dtype
(dtype('float32'), dtype('int64'))
"""

from __future__ import annotations

from typing import Any

import numpy as np


def model_inputs(array: Any) -> np.ndarray:
    """Return inputs as float32 where they are floats, and as int64 where they are integers.

    int32 and truth values stay what they are: layers take both.
    """
    return _converted(np.asarray(array), integers="bhBHIlLqQ")


def model_targets(array: Any) -> np.ndarray:
    """Return targets as float32 where they are floats, and as int64 where they are classes.

    Truth values are the classes 0 and 1.
    """
    return _converted(np.asarray(array), integers="?bhiBHIlLqQ")


def _converted(array: np.ndarray, integers: str) -> np.ndarray:
    if array.dtype.kind == "f":
        return array.astype(np.float32, copy=False)
    return array.astype(np.int64, copy=False) if array.dtype.char in integers else array
