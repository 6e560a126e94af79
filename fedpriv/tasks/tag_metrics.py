"""What softmax regression on posts is measured by: accuracy, recall@5 and cross-entropy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import sparse
from scipy.special import softmax

from fedpriv.datasets.stackexchange.tags import INPUTS, TagExamples
from fedpriv.training.evaluate import Metrics, Total
from fedpriv.tree import Params

#: Examples, all classes of which are held in memory at once.
SCORED_EXAMPLES = 1024

_Array = np.ndarray
_Columns = tuple[_Array, _Array, _Array, _Array, _Array, _Array, _Array]


def evaluate_tags(
    params: Params, examples: TagExamples, inputs: str, rows: np.ndarray | None = None
) -> Metrics | None:
    """Return the metrics of softmax regression on tag examples, or None when there are none.

    "accuracy" is the share of examples whose label is the most probable class, ties going to the
    lower index. "recall_at_5" is the share of all true tags, not only labels, that are among their
    example's five most probable. "loss" is the mean cross-entropy in nats.

    Args:
        params: `kernel` and `bias`.
        examples: Read where they lie; they may be mapped from a file larger than memory.
        inputs: "tff" or "unit-norm".
        rows: int64, which examples; None for all.

    Raises:
        ValueError: If a word or a tag is outside the model, or the inputs are unknown.
    """
    if inputs not in INPUTS:
        raise ValueError(f"inputs {inputs!r} is unknown; choose one of {INPUTS}")
    from fedpriv.kernels.tag_scores import measure

    chosen = np.arange(len(examples)) if rows is None else rows
    number = len(chosen)
    if number == 0:
        return None
    right, found, pairs, loss = measure(
        *measured_columns(examples, chosen),
        inputs == "unit-norm",
        params["kernel"],
        params["bias"],
    )
    return Metrics(
        totals={
            "accuracy": Total(sum=right, count=number),
            "recall_at_5": Total(sum=found, count=pairs),
            # Rounded as the mean is, on which recorded figures hang to the last bit.
            "loss": Total(sum=loss / number * number, count=number),
        },
        num_examples=number,
    )


def tag_probabilities(params: Params, examples: TagExamples, inputs: str) -> np.ndarray:
    """Return the tags' probabilities, float64 `(n, tags)`, of examples that fit into memory.

    Args:
        params: `kernel` and `bias`.
        examples: Their words are the kernel's rows.
        inputs: "tff" or "unit-norm".
    """
    words, columns = np.unique(examples.indices, return_inverse=True)
    values = examples.values(inputs).astype(np.float64)
    rows = sparse.csr_array((values, columns, examples.indptr), (len(examples), len(words)))
    logits = rows @ params["kernel"][words].astype(np.float64) + params["bias"]
    return softmax(logits, axis=1)


def measured_columns(examples: TagExamples, chosen: np.ndarray) -> _Columns:
    """Return the first arguments of the kernels that measure some of a set of examples.

    Args:
        examples: May be mapped from a file larger than memory, and are read where they lie.
        chosen: Which examples.

    Returns:
        `indptr`, `indices`, `counts`, `labels`, `tag_indptr`, `tag_indices` and `chosen` as
        `fedpriv.kernels.tag_scores.measure` takes them.
    """
    if examples.counts.dtype not in (np.uint8, np.uint16, np.float32):
        # Only those that are measured are converted: the columns may be larger than memory.
        examples, chosen = examples.take(chosen), np.arange(len(chosen))
        examples = replace(examples, counts=examples.counts.astype(np.float32))
    return (
        np.ascontiguousarray(examples.indptr, np.int64),
        np.ascontiguousarray(examples.indices, np.int32),
        np.ascontiguousarray(examples.counts),
        np.ascontiguousarray(examples.labels, np.int32),
        np.ascontiguousarray(examples.tag_indptr, np.int64),
        np.ascontiguousarray(examples.tag_indices, np.int32),
        np.ascontiguousarray(chosen, np.int64),
    )


def majority_share(label_counts: np.ndarray) -> float | None:
    """Return the accuracy of always naming the commonest label, or None without examples.

    Args:
        label_counts: int64, how often each label occurs.
    """
    total = int(label_counts.sum())
    return float(label_counts.max() / total) if total else None
