"""Measuring a model. What is measured on rostered users is a diagnostic, never a release."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from fedpriv.data.examples import TagExamples
from fedpriv.tree import Params

_CHUNK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Figures of one model on one set of examples; `None` where the task has no such figure.

    Attributes:
        accuracy: Share of examples whose label is the most probable class.
        recall_at_5: Share of all true tags that are among their example's five most probable.
        loss: Mean cross-entropy in nats.
        num_examples: How many examples were measured.
    """

    accuracy: float | None = None
    recall_at_5: float | None = None
    loss: float | None = None
    num_examples: int = 0

    def to_json(self) -> dict[str, float | int | None]:
        """Return the figures by name."""
        return asdict(self)


def evaluate_tags(params: Params, examples: TagExamples, inputs: str) -> Metrics | None:
    """Return the metrics of softmax regression on tag examples, or None when there are none.

    Ties between classes go to the lower index. Recall is micro-averaged over (example, tag) pairs
    and counts every tag of a post, not only the label.
    """
    if len(examples) == 0:
        return None
    kernel, bias = params["kernel"], params["bias"]
    features = examples.features(inputs)
    pair_counts = np.diff(examples.tag_indptr)
    classes = np.arange(len(bias))
    right = found = 0
    loss = 0.0
    for start in range(0, len(examples), _CHUNK):
        stop = min(start + _CHUNK, len(examples))
        logits = features[start:stop] @ kernel
        logits += bias
        rows = np.arange(stop - start)
        labels = examples.labels[start:stop]
        right += int((logits.argmax(axis=1) == labels).sum())
        tags = examples.tag_indices[examples.tag_indptr[start] : examples.tag_indptr[stop]]
        owner = np.repeat(rows, pair_counts[start:stop])
        scores = logits[owner]
        own = scores[np.arange(len(tags)), tags][:, None]
        ahead = (scores > own).sum(axis=1)
        ahead += ((scores == own) & (classes < tags[:, None])).sum(axis=1)
        found += int((ahead < 5).sum())
        peak = logits.max(axis=1, keepdims=True)
        logits -= peak
        picked = logits[rows, labels].astype(np.float64)
        loss += float((np.log(np.exp(logits).sum(axis=1, dtype=np.float64)) - picked).sum())
    return Metrics(
        accuracy=right / len(examples),
        recall_at_5=found / max(int(pair_counts.sum()), 1),
        loss=loss / len(examples),
        num_examples=len(examples),
    )


def majority_class_accuracy(examples: TagExamples) -> float | None:
    """Return the accuracy of always naming the commonest label, or None without examples."""
    if len(examples) == 0:
        return None
    return float(np.bincount(examples.labels).max() / len(examples))
