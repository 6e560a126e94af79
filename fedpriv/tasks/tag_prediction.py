"""Tag prediction: softmax regression on the words of posts, its metrics and its public folds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import softmax

from fedpriv.checkpoints.vocabulary import (
    PAIR_WEIGHT,
    VOCABULARY,
    Vocabulary,
    WordFeatures,
    rarity_weights,
    vocabulary_bytes,
)
from fedpriv.datasets.stackexchange.embeddings import EncodedTexts
from fedpriv.datasets.stackexchange.splits import PublicText
from fedpriv.datasets.stackexchange.tag_view import (
    INPUTS,
    DenseFeatures,
    Features,
    TagExamples,
    TagView,
)
from fedpriv.measures import ACCURACY, LOSS, RECALL_AT_5
from fedpriv.mechanisms.side_information import PublicWords
from fedpriv.rng import Key
from fedpriv.tasks.task import EMPTY, TaskDescription, ViewTask
from fedpriv.training.convex_losses import Constants
from fedpriv.training.devices import usable_device
from fedpriv.training.evaluate import WHOLE, ClassScores, Metrics, Part, Total, combined
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.softmax import CompiledSoftmaxTrainer, OwnWords, softmax_on_device
from fedpriv.training.per_example.linear import (
    SoftmaxGradients,
    UnbiasedSoftmaxGradients,
    losses_on_line,
    softmax_losses,
)
from fedpriv.training.permutation_sgd import loss_constants
from fedpriv.training.public_learning import PublicLearner, tag_learner
from fedpriv.training.public_selection import PublicFold
from fedpriv.training.work import Trainer
from fedpriv.tree import Params

#: Examples, all classes of which are held in memory at once.
SCORED_EXAMPLES = 1024

_TOP = 5


def evaluate_tags(
    params: Params,
    columns: TagExamples,
    inputs: str,
    rows: np.ndarray | None = None,
    features: Features | None = None,
) -> Metrics | None:
    """Return the metrics of softmax regression on tag examples, or None when there are none.

    "accuracy" is the share of examples whose label is the most probable class, ties going to the
    lower index. "recall_at_5" is the share of all true tags, not only labels, that are among their
    example's five most probable. "loss" is the mean cross-entropy in nats.

    Args:
        params: As of `tag_logits`, as the other arguments.
        columns: The examples.
        inputs: "tff" or "unit-norm".
        rows: int64, which examples; None for all.
        features: Of their words.

    Raises:
        ValueError: If a word or a tag is outside the model, or the inputs are unknown.
    """
    chosen = np.arange(len(columns)) if rows is None else rows
    number = len(chosen)
    if number == 0:
        return None
    right, found, _, losses = score_tags(params, columns, inputs, chosen, features)
    pairs = int((columns.tag_indptr[chosen + 1] - columns.tag_indptr[chosen]).sum())
    loss = float(np.cumsum(losses)[-1]) + 0.0  # one after the other; never -0
    return Metrics(
        totals={
            "accuracy": Total(sum=int(right.sum()), count=number),
            "recall_at_5": Total(sum=int(found.sum()), count=pairs),
            # Rounded as the mean is, on which recorded figures hang to the last bit.
            "loss": Total(sum=loss / number * number, count=number),
        },
        num_examples=number,
    )


def tag_logits(
    params: Params,
    columns: TagExamples,
    inputs: str,
    rows: np.ndarray,
    features: Features | None = None,
) -> Iterator[tuple[np.ndarray, TagExamples]]:
    """Yield logits, float32 `(n, tags)`, and the examples that they are of, a block at a time.

    Args:
        params: `kernel`, and `bias` where there is one.
        columns: Read where they lie; they may be mapped from a file larger than memory.
        inputs: "tff" or "unit-norm".
        rows: int64, which examples.
        features: Make the model's inputs of the examples; None for the counts of their words.

    Raises:
        ValueError: If a word is outside the model, or the inputs are unknown.
    """
    from fedpriv.kernels.sparse_softmax import logits_of

    kernel = np.ascontiguousarray(params["kernel"], np.float32)
    bias = np.ascontiguousarray(params.get("bias", np.zeros(kernel.shape[1])), np.float32)
    for first in range(0, len(rows), SCORED_EXAMPLES):
        chosen = rows[first : first + SCORED_EXAMPLES]
        if isinstance(features, DenseFeatures):
            some = columns.take(chosen)
            yield features.dense(some) @ kernel, some
        else:
            some = columns.with_features(features, chosen)
            yield logits_of(some.indptr, some.indices, some.values(inputs), kernel, bias), some


def score_tags(
    params: Params,
    columns: TagExamples,
    inputs: str,
    rows: np.ndarray,
    features: Features | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return what `score_logits` does of the examples at some rows; arguments as of `tag_logits`.

    Raises:
        ValueError: If a word or a tag is outside the model, or the inputs are unknown.
    """
    found: list[tuple[np.ndarray, ...]] = [(np.empty(0, np.uint8),) * 2 + (np.empty(0),) * 2]
    found += [score_logits(*block) for block in tag_logits(params, columns, inputs, rows, features)]
    right, ahead, gains, losses = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return right, ahead, gains, losses


def score_logits(
    logits: np.ndarray, examples: TagExamples
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Score tag examples, each by itself.

    Args:
        logits: float32 `(n, tags)`.
        examples: n of them; only labels and tags are looked at.

    Returns:
        Of each: whether its label scored highest, uint8; how many of its tags are among the five
        highest, uint8; nDCG@5, float64: with the tag at rank r (from 1) worth 1 / log2(1 + r) where
        r is at most 5, the sum over its tags divided by the highest that any ranking could reach,
        and 0 of an example without tags; and its cross-entropy in nats, float64. Ties go to the
        lower number.

    Raises:
        ValueError: If a tag is outside the model.
    """
    number, num_tags = logits.shape
    labels, tags = examples.labels, examples.tag_indices
    for numbers in (labels, tags):
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < num_tags:
            raise ValueError(f"a tag or a label lies outside the {num_tags} classes")
    owners = np.repeat(np.arange(number), np.diff(examples.tag_indptr))
    of, own = logits[owners], logits[owners, tags][:, np.newaxis]
    ahead = np.count_nonzero(of > own, axis=1)
    ahead += np.count_nonzero((of == own) & (np.arange(num_tags) < tags[:, np.newaxis]), axis=1)
    places = np.arange(len(tags)) - examples.tag_indptr[owners]
    reached, highest = (
        np.bincount(owners, np.where(rank < _TOP, 1.0 / np.log2(2.0 + rank), 0.0), number)
        for rank in (ahead, places)
    )
    peak = logits.max(axis=1)
    with np.errstate(over="ignore"):  # of a diverged model -inf, whose exponential is 0
        total = np.exp(logits - peak[:, np.newaxis]).sum(axis=1, dtype=np.float64)
    of_label = logits[np.arange(number), labels].astype(np.float64)
    return (
        (logits.argmax(axis=1) == labels).astype(np.uint8),
        np.bincount(owners, ahead < _TOP, number).astype(np.uint8),
        np.divide(reached, highest, out=np.zeros(number), where=highest > 0.0),
        np.log(total) - (of_label - peak),
    )


def majority_share(label_counts: np.ndarray) -> float | None:
    """Return the accuracy of always naming the commonest label, or None without examples.

    Args:
        label_counts: int64, how often each label occurs.
    """
    total = int(label_counts.sum())
    return float(label_counts.max() / total) if total else None


NUM_FOLDS = 5
TF_IDF = "tf-idf"
MOST_PARAMETERS = 10_000_000
"""Limit on a model's size with rows for pairs of words."""


def spread_examples(
    columns: TagExamples, rows: np.ndarray, inputs: str, features: Features | None = None
) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Return inputs and labels of the examples at some rows; of an `EMPTY` row zeros, labelled 0.

    Args:
        columns: As of `tag_logits`, as the other arguments.
        rows: int64 (n,).
        inputs: "tff" or "unit-norm".
        features: Of their words.
    """
    there = rows != EMPTY
    examples = columns.with_features(features, rows[there])
    found = sparse.csr_matrix(examples.features(inputs))
    lengths, labels = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    lengths[there], labels[there] = np.diff(found.indptr), examples.labels
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    shape = (len(rows), examples.num_words)
    return sparse.csr_matrix((found.data, found.indices, indptr), shape=shape), labels


class TagPrediction(ViewTask[TagView]):
    """Predict a post's most common tag from a sentence of it: softmax regression, 10,000 x 500.

    Weights of "tf-idf" are counted among users outside the roster, as `public_words` says, so
    deleting a rostered user's records changes none of them; with counts published with the data
    they are private side information, which the description says.

    Args:
        view: A corpus seen through one roster.
        inputs: "tff" (mean one-hot words, as TensorFlow Federated), "unit-norm", or "tf-idf":
            roots of counts times a power of the words' public idf, scaled to unit norm.
        tf_idf_power: Of the idf, with inputs "tf-idf".
        pairs: Rows of the kernel that pairs of words are hashed into; 0 for none.
        pair_weight: How much a pair counts next to its words.
        encoded: Rows of a pretrained encoder, scaled to unit norm, which are the inputs in the
            place of words; None for words.
        choosing: Makes the view whose validation threads public models are chosen on; None where
            there is none, as by sentence: they are chosen on public users' test examples.
        public_text: What of public users' posts public models learn from.
        data_sha256: As of `ViewTask`.

    Attributes:
        measures: Accuracy, recall@5 and, as a diagnostic, the loss.
        norm: The scaling of rows once they have their features.

    Raises:
        ValueError: If there are no such inputs, inputs of words or pairs of them are asked for
            with an encoder, pairs of inputs "tff", or the model is too large.
    """

    measures = ACCURACY, RECALL_AT_5, LOSS
    thread_safe = True  # of its losses on a line

    def __init__(
        self,
        view: TagView,
        *,
        inputs: str = "tff",
        tf_idf_power: float = 0.5,
        pairs: int = 0,
        pair_weight: float = PAIR_WEIGHT,
        encoded: EncodedTexts | None = None,
        choosing: Callable[[], TagView] | None = None,
        public_text: PublicText = "public-threads",
        data_sha256: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        known = ("tff",) if encoded is not None else (*INPUTS, TF_IDF)
        if inputs not in known or (pairs and inputs == "tff"):
            raise ValueError(
                f"inputs {inputs!r}, pairs {pairs!r}: inputs are one of {', '.join(known)}, and an "
                "encoder's rows have neither weights nor pairs; pairs need rows of unit norm, "
                "those of unit-norm or tf-idf"
            )
        super().__init__(view, data_sha256)
        self._inputs, self._power = inputs, tf_idf_power
        self._pairs, self._pair_weight, self._encoded = pairs, pair_weight, encoded
        self.norm = "unit-norm" if inputs == TF_IDF or encoded is not None else inputs
        self._features = self.features_of(view)
        num_rows = len(view.words) if self._features is None else self._features.num_rows
        number = (num_rows + 1) * len(view.tags)
        if pairs and number > MOST_PARAMETERS:
            room = MOST_PARAMETERS // len(view.tags) - len(view.words) - 1
            raise ValueError(
                f"pairs {pairs:,} make a model of {number:,} parameters, above "
                f"{MOST_PARAMETERS:,}; give at most {max(room, 0):,}"
            )
        self._words = OwnWords(
            inputs=self.norm, shape=(num_rows, len(view.tags)), word_features=self._features
        )
        self._choosing = choosing
        self._public_text: PublicText = public_text

    @property
    def published(self) -> Mapping[str, str] | None:
        """Digest of the encoder's files by its id; None for words."""
        of = None if self._encoded is None else self._encoded.description
        return None if of is None else {of.id: of.sha256}

    def init_params(self, key: Key) -> Params:
        """Return zeros: the loss is convex, and zero is made of no user's data.

        They are the params of a `fedpriv.models.images.SoftmaxRegression` of this size. On an
        encoder's rows there is no bias: noise on it would be the same on every example's logits,
        and half of all noise there, while rows have a direction in common that serves as one.
        """
        kernel = np.zeros(self._words.shape, np.float32)
        if self._encoded is not None:
            return {"kernel": kernel}
        return {"kernel": kernel, "bias": np.zeros(kernel.shape[1], np.float32)}

    def trainer(
        self,
        schedule: LocalSgd,
        multiplier: Mapping[str, np.ndarray],
        device: str | None = None,
    ) -> Trainer:
        """Return row-sparse local SGD: compiled, user by user, or many users on a device.

        Raises:
            ValueError: If there is no such device here.
        """
        rows = multiplier.get("kernel")
        factors = None if rows is None else rows.reshape(-1)
        if device is None and self._encoded is not None:
            from fedpriv.training.local.softmax import DenseSoftmaxTrainer

            return DenseSoftmaxTrainer(
                schedule=schedule, inputs=self._encoded.distinct, multiplier=factors
            )
        if device is None:
            return CompiledSoftmaxTrainer(
                schedule=schedule,
                inputs=self.norm,
                multiplier=factors,
                word_features=self._features,
            )
        return softmax_on_device(
            self._words,
            schedule,
            usable_device(device),
            multiplier=factors,
            biased=self._encoded is None,
        )

    def example_gradients(self, slots: np.ndarray) -> SoftmaxGradients:
        """Return softmax regression on single examples of rostered users, in float64 sums."""
        view, rows = self.view, np.full(slots.shape, EMPTY)
        for place, user in enumerate(self.roster):
            own, filled = view.all_rows([user], "train"), slots[place] != EMPTY
            rows[place, filled] = own[slots[place, filled]]
        inputs, labels = spread_examples(view.columns, rows.reshape(-1), self.norm, self._features)
        made = SoftmaxGradients if self._encoded is None else UnbiasedSoftmaxGradients
        return made(inputs, labels, len(view.tags))

    def losses_along(
        self, params: Params, direction: Params, sizes: Sequence[float], examples: TagExamples
    ) -> np.ndarray:
        """Return a user's mean cross-entropy at every step size, float64 (sizes,)."""
        words, inputs = self._words.over(examples)
        here, change = (
            inputs @ p["kernel"][words] + p.get("bias", 0.0) for p in (params, direction)
        )
        labels = examples.labels.astype(np.int64)
        found = losses_on_line(
            here.astype(np.float64), change.astype(np.float64), sizes, labels, softmax_losses
        )
        return found.mean(axis=0)

    def constants(self, *, regulariser: float) -> Constants:
        """Return the constants of the loss: rows of at most unit norm, with a bias at most √2."""
        return loss_constants("softmax", regulariser=regulariser, inputs=math.sqrt(2.0))

    def public_words(self) -> PublicWords:
        """Return how common the kernel's rows are among public users; the bias has no word.

        Pairs are not counted: which of them share a row is a matter of the hash.

        Raises:
            ValueError: If the inputs are an encoder's, whose rows are no words.
        """
        if self._encoded is not None:
            raise ValueError(
                "an encoder's rows are no words, so none is rarer than another; set precondition "
                "to none"
            )
        view = self.view
        return PublicWords(
            counts=view.word_counts,
            sentences=view.word_sentences,
            num_sentences=view.num_public_examples,
            source="private" if self.counts_are_published else "public",
            where=self.counted_in,
            num_pairs=self._pairs,
        )

    def synthetic_batch(self) -> TagExamples:
        """Return one example, of the first word and the first tag, to try a trainer on."""
        one = np.zeros(1, np.int32)
        return TagExamples(
            indptr=np.arange(2),
            indices=one,
            counts=np.ones(1, np.uint8),
            num_tokens=np.ones(1, np.int32),
            labels=one,
            tag_indptr=np.arange(2),
            tag_indices=one,
            num_words=len(self.view.words),
            num_tags=len(self.view.tags),
            texts=None if self._encoded is None else np.zeros((1, 2), np.int64),
        )

    def files(self) -> dict[str, bytes]:
        """Return the words and tags, in the order of the kernel's rows and columns."""
        view, encoded, made = self.view, self._encoded, self._features
        found = Vocabulary(
            words=() if encoded is not None else tuple(view.words),
            tags=tuple(view.tags),
            inputs=self._inputs if encoded is None else "encoder",
            word_features=made if isinstance(made, WordFeatures) else None,
            encoder=None if encoded is None else encoded.description,
        )
        return {VOCABULARY: vocabulary_bytes(found)}

    def evaluate(self, params: Params, *, public: bool, part: Part = WHOLE) -> Metrics | None:
        """Return accuracy and recall@5 on examples held out.

        Of the roster all of them; of public users those in threads that a public user asked, since
        the others carry titles and tags that may be a rostered user's. By sentence it is all
        examples of public users. Part i of n is every n-th user from the i-th on.
        """
        columns, features = self.view.columns, self._features
        return combined(
            evaluate_tags(params, columns, self.norm, rows, features)
            for rows in self._held_out(public, part)
        )

    def class_scores(self, params: Params, *, public: bool, part: Part = WHOLE) -> ClassScores:
        """Return the tags' probabilities and the labels of the same examples."""
        columns, features = self.view.columns, self._features
        for rows in self._held_out(public, part):
            for logits, examples in tag_logits(params, columns, self.norm, rows, features):
                labels = examples.labels.astype(np.int64)
                yield softmax(logits.astype(np.float64), axis=1), labels

    def _held_out(self, public: bool, part: Part) -> Iterable[np.ndarray]:
        view, (number, of) = self.view, part
        if public and not view.split.shares_threads:
            rows = view.public_rows(view.split.measured_on)
            return [np.ascontiguousarray(rows[number::of])]
        users = (view.public_users if public else view.roster)[number::of]
        return view.rows(users, "all" if public else view.split.measured_on)

    def user_losses(self, params: Params, user_ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return each user's mean cross-entropy over its training examples, and their number."""
        numbers, _, sums = self._sums_by_user(params, user_ids, "train")
        return np.where(numbers > 0, sums / np.maximum(numbers, 1), np.nan), numbers

    def held_out_by_user(self, params: Params) -> tuple[np.ndarray, np.ndarray]:
        """Return how many held-out examples each rostered user has, and how many are right."""
        return self._sums_by_user(params, self.roster, self.view.split.measured_on)[:2]

    def _sums_by_user(
        self, params: Params, user_ids: Sequence[str], subset: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return each user's number of examples, how many are right, and the sum of losses."""
        view, features = self.view, self._features
        numbers = np.array([view.num_examples(user, subset) for user in user_ids], np.int64)
        rows = view.all_rows(user_ids, subset)  # user after user
        right, _, _, losses = score_tags(params, view.columns, self.norm, rows, features)
        users = np.repeat(np.arange(len(numbers)), numbers)
        of_right, of_losses = (
            np.bincount(users, n, minlength=len(numbers)) for n in (right, losses)
        )
        return numbers, of_right, of_losses

    def public_learner(self, key: Key, *, choosing: bool) -> PublicLearner | None:
        """Return what learns from public users' training examples; None where there are none.

        Args:
            key: Orders the examples.
            choosing: Whether to leave out validation threads, and measure on those. By sentence
                those for testing are left out instead, and not choosing learns from them too.
        """
        view, text = self.view, self._public_text
        held, trained = "validation", "train"
        if choosing and self._choosing is not None:
            view = self._choosing()
        elif self._choosing is None:  # by sentence: nothing else is held out
            held, trained = "test", "train" if choosing else "all"
        rows, seen = view.public_rows(trained, of=text), view.public_rows(held, of=text)
        if not len(rows) or (choosing and not len(seen)):
            return None
        return self.learner(rows, key, seen, view)

    def learner(
        self, rows: np.ndarray, key: Key, seen: np.ndarray, view: TagView | None = None
    ) -> PublicLearner:
        """Return a learner of rows of a view's columns.

        Args:
            rows: int64.
            key: Orders the examples.
            seen: int64, rows that it measures on; empty for none.
            view: Of the corpus; None for the task's.
        """
        of = self.view if view is None else view
        columns, norm, features = of.columns, self.norm, self.features_of(of)

        def measure(params: Params) -> Metrics | None:
            return evaluate_tags(params, columns, norm, seen, features)

        return tag_learner(columns.take(rows), norm, key, measure, features)

    def examples(self, rows: np.ndarray) -> TagExamples:
        """Return rows of the view's columns as the model takes them."""
        return self.view.columns.with_features(self._features, rows)

    def public_folds(self) -> Sequence[PublicFold] | None:
        """Return the folds of `fold_rows`; None where rostered users train on these threads.

        That is so unless the split selects (`Split.selecting`).
        """
        selecting = self.view.split.selecting
        return [self._fold(*rows) for rows in self.fold_rows()] if selecting else None

    def fold_rows(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return rows by fold of public training threads, in which each thread judges once.

        Labels that occur in one fold alone are not judged by: no model of the others could name
        them.

        Returns:
            Of `NUM_FOLDS` folds: rows of the view's columns that judge, in threads of this fold,
            those of the next one, on which settings are chosen, and those of all others to learn
            from, int64 each. Nothing where one would be empty.
        """
        view = self.view
        learnt, judged = view.public_rows("train", of=self._public_text), view.public_rows("train")
        threads, first, place = np.unique(
            view.threads[learnt], return_index=True, return_inverse=True
        )
        # In the order of public users: a thread's number in the corpus may depend on rostered ones.
        fold_of_thread = np.argsort(np.argsort(first)) % NUM_FOLDS
        fold_of = fold_of_thread[place]
        fold_of_judged = fold_of_thread[np.searchsorted(threads, view.threads[judged])]
        labels = view.columns.labels
        folds = []
        for number in range(NUM_FOLDS):
            tuning, others = fold_of == (number + 1) % NUM_FOLDS, fold_of != number
            judging = judged[fold_of_judged == number]
            judging = judging[np.isin(labels[judging], labels[learnt[others]])]
            if not len(judging) or not tuning.any():
                return []
            folds.append((judging, learnt[tuning], learnt[others & ~tuning]))
        return folds

    def _fold(self, judging: np.ndarray, tuning: np.ndarray, learning: np.ndarray) -> PublicFold:
        """Return the task without the public threads of one fold, given as of `fold_rows`."""
        whole = np.concatenate([learning, tuning])

        def learner(key: Key, *, choosing: bool) -> PublicLearner | None:
            rows = learning if choosing else whole
            return self.learner(rows, key, tuning) if len(rows) else None

        def right(params: Params) -> np.ndarray:
            """Words that no other fold has are left out, as of a test thread they would be."""
            others, judged = self.examples(whole), self.examples(judging)
            known = np.isin(np.arange(others.num_words), others.indices)
            kept = known[judged.indices]
            indptr = np.concatenate([[0], np.cumsum(kept)])[judged.indptr]
            judged = replace(
                judged, indptr=indptr, indices=judged.indices[kept], counts=judged.counts[kept]
            )
            found = score_tags(params, judged, self.norm, np.arange(len(judged)))[0]
            return found.astype(np.float64)

        return PublicFold(
            measures=self.measures,
            groups=self.view.threads[judging],
            init_params=self.init_params,
            public_learner=learner,
            values=right,
        )

    def public_users_held_out(self) -> Iterator[tuple[PublicLearner, list[TagExamples]]]:
        """Yield learners of public examples, and users whose threads they do not learn from.

        Public users are dealt out in turns; each is held out once, with the examples that are
        public.
        """
        view = self.view
        learnt, public = view.public_rows("train", of=self._public_text), view.public_rows("train")
        found = (view.all_rows([user], "train") for user in view.public_users)
        # In threads that a public user asked.
        by_user = [own for rows in found if len(own := rows[np.isin(rows, public)])]
        for number in range(NUM_FOLDS):
            held = by_user[number::NUM_FOLDS]
            if not held:
                continue
            held_threads = np.unique(view.threads[np.concatenate(held)])
            others = learnt[~np.isin(view.threads[learnt], held_threads)]
            if len(others):
                key = Key.simulation(0).fold("public users").fold(number)
                learner = self.learner(others, key, others[:0])
                yield learner, [view.columns.take(rows) for rows in held]

    def describe(self) -> TaskDescription:
        """Return names, counts and provenance of the view."""
        return self._described

    @cached_property
    def _described(self) -> TaskDescription:  # it counts every label of the roster
        view = self.view
        labels = view.label_counts(view.roster, view.split.measured_on)
        public = np.zeros(len(view.tags), np.int64)
        for rows in self._held_out(True, WHOLE):
            public += np.bincount(view.columns.labels[rows], minlength=len(public))
        return self._description(
            num_tags=len(view.tags),
            provenance={**view.provenance, **self._weights_from()},
            majority_class_accuracy=majority_share(labels),
            majority_class_accuracy_public=majority_share(public),
        )

    def features_of(self, view: TagView) -> Features | None:
        """Return what becomes of a view's words, by its own counts; None for their counts."""
        if self._encoded is not None:
            return self._encoded
        if self._inputs != TF_IDF and not self._pairs:
            return None
        number, weights = len(view.words), np.empty(0, np.float32)
        if self._inputs == TF_IDF:
            weights = rarity_weights(view.word_sentences, view.num_public_examples, self._power)
        return WordFeatures(
            num_words=number,
            weights=weights,
            num_pairs=self._pairs,
            pair_weight=self._pair_weight,
        )

    def _weights_from(self) -> dict[str, Any]:
        """Return what the provenance says of weights of words, or of an encoder, if any."""
        if self._encoded is not None:
            of = self._encoded.description
            return {
                "encoder": f"{of.id}, of an example's {' and '.join(of.texts)}",
                "encoder_sha256": of.sha256,
                "encoder_rows_made_by": self._encoded.embeddings.made_by,
                "encoder_trained_on": "whatever its publisher trained it on, which may include "
                "text of these users: no ε covers that",
            }
        if self._inputs != TF_IDF:
            return {}
        rule = f"inverse document frequency to the power {self._power:g}"
        found: dict[str, Any] = {"word_weights": f"{rule}, from {self.counted_in}"}
        if self.counts_are_published:
            listed: Any = self.view.provenance.get("private_side_information") or ()
            found["private_side_information"] = [*listed, "weights of the words (tf-idf)"]
        return found
