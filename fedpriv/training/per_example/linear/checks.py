"""What compiled loops are handed of linear models: looked at first, since they do not look."""

from __future__ import annotations

import numpy as np

from fedpriv.tree import Params

# Examples whose logits are held at a time where all may be asked for.
CHUNK = 1 << 12


def kernel_and_bias(
    params: Params, name: str, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return kernel and bias as float32 matrix and row; refuse what compiled loops cannot take."""
    kernel, bias = params[name], params["bias"]
    allowed = (shape, shape[:1]) if shape[1] == 1 else (shape,)
    if kernel.shape not in allowed or bias.shape != shape[1:]:
        raise ValueError(
            f"{name} {kernel.shape} and bias {bias.shape} do not fit {shape[0]} inputs and "
            f"{shape[1]} logits"
        )
    return (
        np.ascontiguousarray(kernel, np.float32).reshape(shape),
        np.ascontiguousarray(bias, np.float32),
    )


def checked_labels(y: np.ndarray, num_examples: int, num_classes: int) -> np.ndarray:
    """Return classes as int64.

    Raises:
        ValueError: If there is not one for each example, or one is outside the model.
    """
    labels = np.asarray(y)
    if labels.shape != (num_examples,) or labels.dtype.kind not in "iub":
        raise ValueError(
            f"labels {labels.dtype}{labels.shape} must be one integer for each of {num_examples}"
        )
    labels = labels.astype(np.int64)
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(f"labels {labels.min()}..{labels.max()} leave 0..{num_classes - 1}")
    return labels


def nonempty(chosen: np.ndarray) -> np.ndarray:
    """Return positions; refuse none."""
    if not len(chosen):
        raise ValueError("a mean over no examples was asked for; give at least one")
    return chosen
