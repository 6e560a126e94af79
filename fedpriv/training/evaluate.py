"""Measuring a model. What is measured on rostered users is a diagnostic, never a release."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np

from fedpriv.data.corpus.examples import TagExamples
from fedpriv.tree import Params

#: One of so many equal shares of what is measured: (number from 0, how many).
Part = tuple[int, int]
WHOLE: Part = (0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Figures of one model on one set of examples; `None` where the task has no such figure.

    Attributes:
        accuracy: Share of examples whose label is the most probable class.
        recall_at_5: Share of all true tags that are among their example's five most probable.
        loss: Mean cross-entropy in nats.
        num_examples: How many examples were measured.
        num_tags: How many true tags recall was taken over.
    """

    accuracy: float | None = None
    recall_at_5: float | None = None
    loss: float | None = None
    num_examples: int = 0
    num_tags: int = 0

    def to_json(self) -> dict[str, float | int | None]:
        """Return the figures by name."""
        return asdict(self)


def combined(parts: Iterable[Metrics | None]) -> Metrics | None:
    """Return the metrics of all parts' examples together, or None when there are none.

    Shares are counted again as whole examples and tags, so accuracy and recall are exactly those
    of measuring everything at once; the loss is to rounding. A figure that a part lacks is None.
    """
    found = [part for part in parts if part is not None and part.num_examples]
    if not found:
        return None
    examples = sum(part.num_examples for part in found)
    tags = sum(part.num_tags for part in found)
    right = [_count(part.accuracy, part.num_examples) for part in found]
    recalled = [_count(part.recall_at_5, part.num_tags) for part in found]
    losses = [None if p.loss is None else p.loss * p.num_examples for p in found]
    return Metrics(
        accuracy=_share(right, examples),
        recall_at_5=_share(recalled, tags),
        loss=_share(losses, examples),
        num_examples=examples,
        num_tags=tags,
    )


def _count(share: float | None, of: int) -> float | None:
    return share if share is None or not math.isfinite(share) else round(share * of)


def _share(parts: list[float | None], of: int) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) / max(of, 1) if len(known) == len(parts) else None


def chunks(num_examples: int, part: Part = WHOLE, size: int = 1024) -> Iterator[slice]:
    """Yield one part's slices of a row of examples.

    The slices are the same for every number of parts, so a product of matrices that depends on how
    many rows it is given still gives every example the same scores.
    """
    number, of = part
    for start in range(number * size, num_examples, of * size):
        yield slice(start, min(start + size, num_examples))


def evaluate_tags(
    params: Params, examples: TagExamples, inputs: str, rows: np.ndarray | None = None
) -> Metrics | None:
    """Return the metrics of softmax regression on tag examples, or None when there are none.

    Ties between classes go to the lower index. Recall is micro-averaged over (example, tag) pairs
    and counts every tag of a post, not only the label.

    Args:
        params: `kernel` and `bias`.
        examples: Read where they lie; they may be mapped from a file larger than memory.
        inputs: "tff" or "unit-norm".
        rows: int64, which examples; None for all.

    Raises:
        ValueError: If a word or a tag is outside the model.
    """
    from fedpriv.kernels.tag_scores import measure

    chosen = np.arange(len(examples)) if rows is None else rows
    if len(chosen) == 0:
        return None
    if examples.counts.dtype not in (np.uint8, np.uint16, np.float32):
        # Only those that are measured are converted: the columns may be larger than memory.
        examples, chosen = examples.take(chosen), np.arange(len(chosen))
        examples = replace(examples, counts=examples.counts.astype(np.float32))
    right, found, pairs, loss = measure(
        np.ascontiguousarray(examples.indptr, np.int64),
        np.ascontiguousarray(examples.indices, np.int32),
        np.ascontiguousarray(examples.counts),
        np.ascontiguousarray(examples.labels, np.int32),
        np.ascontiguousarray(examples.tag_indptr, np.int64),
        np.ascontiguousarray(examples.tag_indices, np.int32),
        chosen,
        inputs == "unit-norm",
        params["kernel"],
        params["bias"],
    )
    return Metrics(
        accuracy=right / len(chosen),
        recall_at_5=found / max(pairs, 1),
        loss=loss / len(chosen),
        num_examples=len(chosen),
        num_tags=pairs,
    )


def majority_share(label_counts: np.ndarray) -> float | None:
    """Return the accuracy of always naming the commonest label, or None without examples.

    Args:
        label_counts: int64, how often each label occurs.
    """
    total = int(label_counts.sum())
    return float(label_counts.max() / total) if total else None
