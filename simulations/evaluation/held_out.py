"""Examples that a split holds out, and what a model does to each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedpriv.datasets.stackexchange.splits import PublicText, Split
from fedpriv.datasets.stackexchange.tag_view import (
    INPUTS,
    Features,
    TagExamples,
    TagView,
)
from fedpriv.measures import ACCURACY
from fedpriv.rng import Key
from fedpriv.tasks.tag_prediction import (
    SCORED_EXAMPLES,
    evaluate_tags,
    score_logits,
    score_tags,
)
from fedpriv.training.evaluate import Metrics
from fedpriv.training.public_learning import (
    MOST_PASSES,
    AdaGrad,
    PublicLearner,
    choose,
    learn,
    tag_learner,
)
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
    """Outcome of one model on each of n examples.

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
    return view.all_rows(view.roster, view.split.measured_on)


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
    params: Params, view: TagView, inputs: str, features: Features | None = None
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
    return scored(params, view.columns, inputs, held_rows(view), features)


def scored(
    params: Params,
    examples: TagExamples,
    inputs: str,
    rows: np.ndarray,
    features: Features | None = None,
) -> Outcomes:
    """Return what a model does to some of a set of examples, which may be mapped from a file.

    Raises:
        ValueError: As `outcomes`.
    """
    if inputs not in INPUTS:
        raise ValueError(
            f"inputs {inputs!r} cannot be scored; use tff or unit-norm, the latter with the "
            "features of a task of weighted words"
        )
    shape = params["kernel"].shape
    num_words = examples.num_words if features is None else features.num_rows
    if shape != (num_words, examples.num_tags):
        raise ValueError(
            f"a kernel of {shape[0]} x {shape[1]} is not one of {num_words} words and "
            f"{examples.num_tags} tags; every split has its own"
        )
    _check_finite(*params.values())
    return _outcomes(*score_tags(params, examples, inputs, rows, features))


def of_logits(logits: np.ndarray, place: np.ndarray, examples: TagExamples) -> Outcomes:
    """Return the outcomes of examples whose logits a model of any kind computed.

    Args:
        logits: float32 `(m, tags)`.
        place: int64 `(n,)`, which row of them each example has.
        examples: n of them.
    """
    _check_finite(logits)
    ends = (slice(at, at + SCORED_EXAMPLES) for at in range(0, len(examples), SCORED_EXAMPLES))
    parts = ((logits[place[at]], examples.part(at.start, at.stop)) for at in ends)
    return joined([_outcomes(*score_logits(*part)) for part in parts])


def _check_finite(*arrays: np.ndarray) -> None:
    # Nothing scores higher than NaN, so that a model of such would never be wrong.
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("the model diverged: its numbers are not finite; leave it out")


def _outcomes(
    right: np.ndarray, found: np.ndarray, ndcg: np.ndarray, losses: np.ndarray
) -> Outcomes:
    return Outcomes(right=right, found=found, ndcg=ndcg.astype(np.float32))


_LEARNING_RATE = 0.1  # of each user's own AdaGrad


def majority(view: TagView) -> Outcomes:
    """Return what always ranking tags by how often they are a held-out label does.

    It looks at the labels that it is measured on: no constant answer is more often right.
    """
    counts = view.label_counts(view.roster, view.split.measured_on)
    return _ranked(counts.astype(np.float32), view.columns.take(held_rows(view)))


def own_majority(view: TagView) -> Outcomes:
    """Return what ranking tags by how often they are a label in a user's training text does.

    Ties go to the label that is commoner in all rostered users' training text, and so do those
    that the user has no text for; a user without any is given that order.
    """
    overall = view.label_counts(view.roster, "train")
    commoner = np.empty(len(overall), np.int64)  # 0 for the rarest
    commoner[np.lexsort((-np.arange(len(overall)), overall))] = np.arange(len(overall))
    found = []
    for user, held in _users(view):
        own = np.bincount(view.examples(user).labels, minlength=len(overall))
        # As ranks: whole numbers that single precision holds, whatever the counts are.
        ranks = np.empty(len(overall), np.float32)
        ranks[np.lexsort((commoner, own))] = np.arange(len(overall))
        found.append(_ranked(ranks, held))
    return joined(found)


def local_only(
    view: TagView,
    start: Params,
    inputs: str,
    *,
    key: Key,
    passes: int = 1,
) -> Outcomes:
    """Return what every user's own model does: AdaGrad on its training text alone from a start.

    Nothing leaves the user, so no ε is spent. From zeros it is each user's own text alone; from a
    public-only model it is what private training of others has to be better than. Anyone who has no
    training text is measured by the start.

    Args:
        view: A corpus seen through one roster.
        start: `kernel` and `bias`.
        inputs: "tff" or "unit-norm".
        key: Orders each user's examples.
        passes: over the user's text.

    Raises:
        ValueError: If a logit is not finite, or the start is not of this view's words and tags.
    """
    found = []
    for user, held in _users(view):
        own = view.examples(user)
        params = start
        if len(own):
            words = np.unique(np.concatenate([own.indices, held.indices]))
            own, held = _among(own, words), _among(held, words)
            params = {"kernel": start["kernel"][words], "bias": start["bias"].copy()}
            learning = AdaGrad(params, _LEARNING_RATE)
            for number in range(passes):
                generator = key.fold("user").fold(user).fold(number).generator()
                learning.step(own.take(generator.permutation(len(own))), inputs)
        found.append(scored(params, held, inputs, np.arange(len(held))))
    return joined(found)


def _users(view: TagView) -> Iterator[tuple[str, TagExamples]]:
    """Yield rostered users that have held-out examples, with those."""
    on = view.split.measured_on
    for user in view.roster:
        if view.num_examples(user, on):
            yield user, view.examples(user, on)


def _among(examples: TagExamples, words: np.ndarray) -> TagExamples:
    """Return examples whose words are numbered as a sorted list has them."""
    indices = np.searchsorted(words, examples.indices).astype(np.int32)
    return replace(examples, indices=indices, num_words=len(words))


def _ranked(scores: np.ndarray, examples: TagExamples) -> Outcomes:
    """Return what ranking tags by scores does to examples."""
    return of_logits(scores[None], np.zeros(len(examples), np.int64), examples)


MAJORITY = "majority"
OWN_MAJORITY = "own majority"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fold:
    """Outcomes of models on the held-out examples of one split.

    Attributes:
        data: What names the data.
        split: How examples were divided.
        held: The examples.
        outcomes: By model, one a seed.

    Raises:
        ValueError: A model has no seed, or outcomes are of other examples.
    """

    data: Mapping[str, Any]
    split: Split
    held: HeldOut = field(repr=False)
    outcomes: Mapping[str, tuple[Outcomes, ...]] = field(repr=False)

    def __post_init__(self) -> None:
        for name, found in self.outcomes.items():
            if not found:
                raise ValueError(f"model {name!r} has no seed; give its params, or leave it out")
            for one in found:
                if len(one) != len(self.held):
                    raise ValueError(
                        f"model {name!r} was measured on {len(one)} examples and not on the "
                        f"{len(self.held)} of split {self.split.name}"
                    )


def measure_fold(
    view: TagView,
    models: Mapping[str, Sequence[Params]],
    *,
    inputs: str,
    measured_before: Mapping[str, Sequence[Outcomes]] | None = None,
) -> Fold:
    """Return what models do to the held-out examples of a view's roster.

    The rows "majority" and "own majority" are added.

    Args:
        view: The split that they are measured on.
        models: By name, one model a seed; seed k of all of them is taken to belong together.
        inputs: "tff" or "unit-norm".
        measured_before: What was measured already, or is no one model, as `local_only`.

    Raises:
        ValueError: A name is taken twice, a model is not this view's, diverged, or has no seed.
    """
    measured = dict(measured_before or {})
    measured |= {MAJORITY: [majority(view)], OWN_MAJORITY: [own_majority(view)]}
    twice = [name for name in models if name in measured]
    if twice:
        raise ValueError(f"model {twice[0]!r} is there already; give it another name")
    for name, seeds in models.items():
        try:
            measured[name] = [outcomes(params, view, inputs) for params in seeds]
        except ValueError as error:
            raise ValueError(f"model {name!r}: {error}") from error
    return Fold(
        data=view.describe(),
        split=view.split,
        held=held_out(view),
        outcomes={name: tuple(found) for name, found in measured.items()},
    )


def pooled(folds: Sequence[Fold]) -> tuple[HeldOut, dict[str, tuple[Outcomes, ...]]]:
    """Return the examples of several folds as one, each with the models that did not see it.

    Raises:
        ValueError: The folds are not of one data, models and seeds, or share threads.
    """
    if not folds:
        raise ValueError("no fold; give at least one")
    first, seen = folds[0], np.empty(0, np.int64)
    for fold in folds:
        threads = np.unique(fold.held.threads)
        if dict(fold.data) != dict(first.data):
            raise ValueError(f"folds {first.split.name} and {fold.split.name} are of other data")
        if (fold.split.kind, fold.split.measured_on) != (
            first.split.kind,
            first.split.measured_on,
        ):
            raise ValueError(f"splits {first.split.name} and {fold.split.name} do not add up")
        if np.intersect1d(seen, threads).size:
            raise ValueError(f"split {fold.split.name} holds out threads that another does")
        seen = np.concatenate([seen, threads])
    counts = [{name: len(found) for name, found in fold.outcomes.items()} for fold in folds]
    if any(count != counts[0] for count in counts):
        raise ValueError(f"the folds are not of the same models and seeds: {counts}")
    held = HeldOut(
        users=np.concatenate([fold.held.users for fold in folds]),
        threads=np.concatenate([fold.held.threads for fold in folds]),
        trained=np.concatenate([fold.held.trained for fold in folds]),
        num_tags=np.concatenate([fold.held.num_tags for fold in folds]),
    )
    return held, {
        name: tuple(
            joined([fold.outcomes[name][seed] for fold in folds]) for seed in range(len(seeds))
        )
        for name, seeds in first.outcomes.items()
    }


def central(
    view: TagView,
    choosing: TagView,
    inputs: str,
    *,
    keys: Sequence[Key],
    public_text: PublicText | None = "public-threads",
    rates: Sequence[float] | None = None,
    most_passes: int = MOST_PASSES,
    features: Callable[[TagView], Features | None] = lambda view: None,
) -> list[Params]:
    """Return models of all training examples of a view, without privacy: float32, one a key.

    Args:
        view: What is trained on.
        choosing: The same with validation threads left out, which settings are chosen by; its
            split is `view.split.choosing()`.
        inputs: "tff" or "unit-norm".
        keys: Order the examples, one a model; settings are chosen with the first.
        public_text: What of public users' posts is trained on too; None for nothing.
        rates: Learning rates tried; None for those of public-only.
        most_passes: Passes over the examples.
        features: What becomes of a view's words, by its own counts.

    Raises:
        ValueError: If `choosing` is another split's, there is no key or nothing to measure.
    """
    if choosing.split != view.split.choosing() or choosing.roster_sha256 != view.roster_sha256:
        raise ValueError(
            f"settings for split {view.split.name} are chosen by {view.split.choosing().name} of "
            f"the same roster, not by {choosing.split.name}"
        )
    if not keys:
        raise ValueError("no key; give one for each model")
    trial = _learner(choosing, inputs, keys[0], public_text, features(choosing))
    found, made = choose(trial, ACCURACY, rates=rates, most_passes=most_passes), features(view)
    whole = (_learner(view, inputs, key, public_text, made) for key in keys)
    return [learn(one, found.by_figure) for one in whole]


def _learner(
    view: TagView,
    inputs: str,
    key: Key,
    public_text: PublicText | None,
    features: Features | None,
) -> PublicLearner:
    rows = view.all_rows(view.roster, "train")
    if public_text is not None:
        rows = np.concatenate([rows, view.public_rows("train", of=public_text)])
    held = held_rows(view)

    def measure(params: Params) -> Metrics | None:
        return evaluate_tags(params, view.columns, inputs, held, features)

    return tag_learner(view.columns.take(rows), inputs, key, measure, features)
