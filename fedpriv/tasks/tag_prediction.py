"""Tag prediction: softmax regression on the words of posts, the task of the main job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedpriv.checkpoints.vocabulary_file import VOCABULARY, Vocabulary, vocabulary_bytes
from fedpriv.data.corpus.examples import INPUTS, TagExamples
from fedpriv.data.corpus.splits import PublicText
from fedpriv.data.corpus.view import TagView
from fedpriv.data.corpus.vocabulary import PRIVATE
from fedpriv.measures import ACCURACY, LOSS, RECALL_AT_5, Measure
from fedpriv.mechanisms.side_information import PublicWords
from fedpriv.rng import Key
from fedpriv.tasks.description import TaskDescription
from fedpriv.tasks.tag_metrics import evaluate_tags, majority_share
from fedpriv.training.devices import check_of_use
from fedpriv.training.evaluate import WHOLE, Metrics, Part, combined
from fedpriv.training.in_public.tags import TagLearner
from fedpriv.training.local.trainer import Schedule, SparseSoftmaxTrainer
from fedpriv.training.work import LocalTrainer, UserData
from fedpriv.tree import Params


class _TrainingExamples:
    """The training split of a view, as `UserData`."""

    def __init__(self, view: TagView) -> None:
        self._view = view

    def examples(self, user_id: str) -> Any:
        return self._view.examples(user_id, subset="train")

    def num_examples(self, user_id: str) -> int:
        return self._view.num_examples(user_id, subset="train")


class TagPrediction:
    """Predict a post's most common tag from a sentence of it: softmax regression, 10,000 x 500.

    Args:
        view: A corpus seen through one roster.
        inputs: "tff" (mean one-hot words, as TensorFlow Federated) or "unit-norm".
        choosing: Makes the view whose validation threads public models are chosen on; None where
            there is none, as by sentence: they are chosen on public users' test examples.
        public_text: What of public users' posts public models learn from.
    """

    def __init__(
        self,
        view: TagView,
        *,
        inputs: str = "tff",
        choosing: Callable[[], TagView] | None = None,
        public_text: PublicText = "public-threads",
    ) -> None:
        if inputs not in INPUTS:
            raise ValueError(f"inputs {inputs!r} is not known; use one of {', '.join(INPUTS)}")
        self._view, self._inputs = view, inputs
        self._choosing = choosing
        self._public_text: PublicText = public_text

        self._data = _TrainingExamples(view)
        self._description: TaskDescription | None = None

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Accuracy, recall@5 and, as a diagnostic, the loss."""
        return ACCURACY, RECALL_AT_5, LOSS

    @property
    def roster(self) -> tuple[str, ...]:
        """The frozen user ids."""
        return self._view.roster

    @property
    def roster_sha256(self) -> str:
        """Digest of the roster."""
        return self._view.roster_sha256

    @property
    def data(self) -> UserData:
        """The rostered users' training examples."""
        return self._data

    def init_params(self, key: Key) -> Params:
        """Return zeros: the loss is convex, and zero is nobody's data.

        They are the params of a `fedpriv.models.linear.SoftmaxRegression` of this size.
        """
        num_words, num_tags = len(self._view.words), len(self._view.tags)
        return {
            "kernel": np.zeros((num_words, num_tags), np.float32),
            "bias": np.zeros(num_tags, np.float32),
        }

    def trainer(
        self, schedule: Schedule, multiplier: Mapping[str, np.ndarray], device: str = "cpu"
    ) -> LocalTrainer:
        """Return row-sparse local SGD.

        Raises:
            ValueError: For any device but the CPU: its rows are short and many.
        """
        rows = multiplier.get("kernel")
        trainer = SparseSoftmaxTrainer(
            schedule=schedule,
            inputs=self._inputs,
            multiplier=None if rows is None else rows.reshape(-1),
        )
        check_of_use(device, trainer)
        return trainer

    def public_words(self) -> PublicWords:
        """Return how common the kernel's rows are among public users; the bias has no word."""
        view = self._view
        published = view.provenance["word_counts_source"] == PRIVATE
        return PublicWords(
            counts=view.word_counts,
            sentences=view.word_sentences,
            num_sentences=view.num_public_examples,
            source="private" if published else "public",
            where="counts published with the data, rostered users included"
            if published
            else "text that users outside the roster wrote",
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
            num_words=len(self._view.words),
            num_tags=len(self._view.tags),
        )

    def files(self) -> dict[str, bytes]:
        """Return the words and tags, in the order of the kernel's rows and columns."""
        view = self._view
        found = Vocabulary(words=tuple(view.words), tags=tuple(view.tags), inputs=self._inputs)
        return {VOCABULARY: vocabulary_bytes(found)}

    def evaluate(self, params: Params, *, public: bool, part: Part = WHOLE) -> Metrics | None:
        """Return accuracy and recall@5 on examples held out.

        Of the roster all of them; of public users those in threads that a public user asked, since
        the others carry titles and tags that may be a rostered user's. By sentence it is all
        examples of public users. Part i of n is every n-th user from the i-th on.
        """
        view, (number, of) = self._view, part
        if public and not view.split.shares_threads:
            rows = view.public_rows(view.split.measured_on)
            share = np.ascontiguousarray(rows[number::of])
            return evaluate_tags(params, view.columns, self._inputs, share)
        users = (view.public_users if public else view.roster)[number::of]
        blocks = view.rows(users, "all" if public else view.split.measured_on)
        return combined(evaluate_tags(params, view.columns, self._inputs, rows) for rows in blocks)

    def public_learner(self, key: Key, *, choosing: bool) -> TagLearner | None:
        """Return what learns from public users' training examples; None without public users.

        Args:
            key: Orders the examples.
            choosing: Whether to leave out validation threads, and measure on those.
        """
        view, inputs, text = self._view, self._inputs, self._public_text
        held, trained = "validation", "train"
        if choosing and self._choosing is not None:
            view = self._choosing()
        elif self._choosing is None:  # by sentence: nothing else is held out
            held, trained = "test", "train" if choosing else "all"
        rows, seen = view.public_rows(trained, of=text), view.public_rows(held, of=text)
        if not len(rows) or (choosing and not len(seen)):
            return None
        columns = view.columns
        return TagLearner(
            examples=columns.take(rows),
            inputs=inputs,
            key=key,
            measured=lambda params: evaluate_tags(params, columns, inputs, seen),
        )

    def describe(self) -> TaskDescription:
        """Return names, counts and provenance of the view."""
        if self._description is None:  # it counts every label of the roster
            self._description = self._described()
        return self._description

    def _described(self) -> TaskDescription:
        view = self._view
        return TaskDescription(
            name=view.name,
            synthetic=view.synthetic,
            roster=view.roster_name,
            roster_sha256=view.roster_sha256,
            licence=view.licence,
            credit=view.credit,
            num_users=len(view.roster),
            num_public_users=len(view.public_users),
            num_words=len(view.words),
            num_tags=len(view.tags),
            provenance=view.provenance,
            majority_class_accuracy=majority_share(
                view.label_counts(view.roster, view.split.measured_on)
            ),
        )
