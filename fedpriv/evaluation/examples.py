"""Examples that a split holds out, and what a model does to each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedpriv.checkpoints.vocabulary import WordFeatures
from fedpriv.datasets.stackexchange.tag_view import BATCH_EXAMPLES, INPUTS, TagExamples, TagView
from fedpriv.tasks.tag_prediction import measured_columns
from fedpriv.tree import Params


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldOut:
    """Rostered users' examples that a split holds out, user after user in the roster's order.

    Attributes:
        users: int64 (n,), each example's user, as a place in the roster.
        threads: int64 (n,), its thread, as a number within the corpus.
        trained: bool (n,), whether its user has training examples.
        num_tags: int64 (n,), how many tags it has.
    """

    users: np.ndarray = field(repr=False)
    threads: np.ndarray = field(repr=False)
    trained: np.ndarray = field(repr=False)
    num_tags: np.ndarray = field(repr=False)

    def __len__(self) -> int:
        return len(self.users)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcomes:
    """What one model does to each of n examples.

    Attributes:
        right: uint8 (n,), whether its label scores highest; ties go to the lower number.
        found: uint8 (n,), how many of its tags are among the five that score highest.
        ndcg: float32 (n,), nDCG@5 over its tags: a tag at rank r <= 5 is worth 1 / log2(1 + r),
            and their sum is divided by that of a ranking with its tags in front, of which at most
            five count; 0 without tags.
    """

    right: np.ndarray = field(repr=False)
    found: np.ndarray = field(repr=False)
    ndcg: np.ndarray = field(repr=False)

    def __len__(self) -> int:
        return len(self.right)


def joined(parts: Sequence[Outcomes]) -> Outcomes:
    """Return what was done to one set of examples after the other; of no set nothing."""
    return Outcomes(
        right=np.concatenate([np.empty(0, np.uint8), *(part.right for part in parts)]),
        found=np.concatenate([np.empty(0, np.uint8), *(part.found for part in parts)]),
        ndcg=np.concatenate([np.empty(0, np.float32), *(part.ndcg for part in parts)]),
    )


def held_rows(view: TagView) -> np.ndarray:
    """Return the row numbers of a view's held-out examples, int64, in the order of `held_out`."""
    return np.concatenate([np.arange(0), *view.rows(view.roster, view.split.measured_on)])


def held_out(view: TagView) -> HeldOut:
    """Return what is known of the held-out examples of a view's roster.

    Raises:
        ValueError: If there are none, or the corpus knows no threads.
    """
    rows, on = held_rows(view), view.split.measured_on
    if not len(rows):
        raise ValueError(
            f"{view.name}: no rostered user has an example that is held out for {on} "
            f"({view.split.describe()}); the site is too small to be measured so"
        )
    held = np.array([view.num_examples(user, on) for user in view.roster])
    trained = np.array([view.num_examples(user, "train") > 0 for user in view.roster])
    users = np.repeat(np.arange(len(held)), held)
    tags = view.columns.tag_indptr
    return HeldOut(
        users=users,
        threads=view.threads[rows].astype(np.int64),
        trained=trained[users],
        num_tags=np.asarray(tags[rows + 1] - tags[rows], np.int64),
    )


def outcomes(
    params: Params, view: TagView, inputs: str, features: WordFeatures | None = None
) -> Outcomes:
    """Return what a model does to each held-out example of a view's roster.

    Args:
        params: The model.
        view: The split that it is measured on.
        inputs: "tff" or "unit-norm", which rows of features are scaled to.
        features: What becomes of the view's words, by its own counts; None for their counts.

    Raises:
        ValueError: If the params are not finite, or not of this view's words and tags.
    """
    rows = held_rows(view)
    if features is None:
        return scored(params, view.columns, inputs, rows)
    found = []  # a block at a time: with pairs an example is several times as large as on disk
    for at in range(0, len(rows), BATCH_EXAMPLES):
        made = view.columns.with_features(features, rows[at : at + BATCH_EXAMPLES])
        found.append(scored(params, made, inputs, np.arange(len(made))))
    return joined(found)


def scored(params: Params, examples: TagExamples, inputs: str, rows: np.ndarray) -> Outcomes:
    """Return what a model does to some of a set of examples, which may be mapped from a file.

    Raises:
        ValueError: As `outcomes`.
    """
    from fedpriv.kernels.tag_scores import score_each

    if inputs not in INPUTS:
        raise ValueError(
            f"inputs {inputs!r} cannot be scored; use tff or unit-norm, the latter with the "
            "features of a task of weighted words"
        )
    kernel, bias = params["kernel"], params["bias"]
    if kernel.shape != (examples.num_words, examples.num_tags):
        raise ValueError(
            f"a kernel of {kernel.shape[0]} x {kernel.shape[1]} is not one of "
            f"{examples.num_words} words and {examples.num_tags} tags; every split has its own"
        )
    # Nothing scores higher than NaN, so that a model of such would never be wrong.
    if not (np.isfinite(kernel).all() and np.isfinite(bias).all()):
        raise ValueError("the model diverged: its params are not finite; leave it out")
    right, found, ndcg = score_each(
        *measured_columns(examples, rows),
        inputs == "unit-norm",
        np.ascontiguousarray(kernel, np.float32),
        np.ascontiguousarray(bias, np.float32),
    )
    return Outcomes(right=right, found=found, ndcg=ndcg.astype(np.float32))
