"""Tag prediction: softmax regression on the words of posts, the task of the main experiment."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from fedpriv.checkpoints.vocabulary import (
    PAIR_WEIGHT,
    VOCABULARY,
    Vocabulary,
    WordFeatures,
    rarity_weights,
    vocabulary_bytes,
)
from fedpriv.datasets.stackexchange.rosters import TrainingSplit
from fedpriv.datasets.stackexchange.splits import PublicText
from fedpriv.datasets.stackexchange.tags import BATCH_EXAMPLES, INPUTS, TagExamples, TagView
from fedpriv.datasets.stackexchange.vocabulary import PRIVATE
from fedpriv.measures import ACCURACY, LOSS, RECALL_AT_5, Measure
from fedpriv.mechanisms.side_information import PublicWords
from fedpriv.rng import Key
from fedpriv.tasks.description import TaskDescription
from fedpriv.tasks.tag_folds import TagFold, thread_folds, user_folds
from fedpriv.tasks.tag_metrics import (
    SCORED_EXAMPLES,
    evaluate_tags,
    majority_share,
    tag_probabilities,
)
from fedpriv.training.devices import check_of_use
from fedpriv.training.evaluate import WHOLE, ClassScores, Metrics, Part, combined
from fedpriv.training.local.trainer import Schedule, SparseSoftmaxTrainer
from fedpriv.training.per_example.linear import losses_on_line, softmax_losses
from fedpriv.training.permutation_sgd import Constants, softmax_constants
from fedpriv.training.public_learning import TagLearner
from fedpriv.training.work import LocalTrainer, UserData
from fedpriv.tree import Params

TF_IDF = "tf-idf"
MOST_PARAMETERS = 10_000_000
"""How large a model may become by rows for pairs of words."""


class TagPrediction:
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
        choosing: Makes the view whose validation threads public models are chosen on; None where
            there is none, as by sentence: they are chosen on public users' test examples.
        public_text: What of public users' posts public models learn from.
        data_sha256: From nothing to digests in hex of what must not change in a run, the prepared
            corpus; None where nobody can say, and no resumed run is held to it.
    """

    def __init__(
        self,
        view: TagView,
        *,
        inputs: str = "tff",
        tf_idf_power: float = 0.5,
        pairs: int = 0,
        pair_weight: float = PAIR_WEIGHT,
        choosing: Callable[[], TagView] | None = None,
        public_text: PublicText = "public-threads",
        data_sha256: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        if inputs not in (*INPUTS, TF_IDF):
            known = ", ".join((*INPUTS, TF_IDF))
            raise ValueError(f"inputs {inputs!r} is not known; use one of {known}")
        if pairs and inputs == "tff":
            raise ValueError(
                f"pairs {pairs!r} need rows of unit norm; set inputs to unit-norm or tf-idf, or "
                "pairs to 0"
            )
        self._view, self._inputs, self._power = view, inputs, tf_idf_power
        self._pairs, self._pair_weight = pairs, pair_weight
        self._word_features = self.features_of(view)
        if pairs and self._num_parameters() > MOST_PARAMETERS:
            room = MOST_PARAMETERS // len(view.tags) - len(view.words) - 1
            raise ValueError(
                f"pairs {pairs:,} make a model of {self._num_parameters():,} parameters, above "
                f"{MOST_PARAMETERS:,}; give at most {max(room, 0):,}"
            )
        self._choosing = choosing
        self._public_text: PublicText = public_text
        self.data_sha256 = data_sha256
        self._data = TrainingSplit(view)
        self._description: TaskDescription | None = None

    @property
    def view(self) -> TagView:
        """The corpus, seen through the roster and the split."""
        return self._view

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
        """Return zeros: the loss is convex, and zero is made of no user's data.

        They are the params of a `fedpriv.models.images.SoftmaxRegression` of this size.
        """
        num_tags = len(self._view.tags)
        return {
            "kernel": np.zeros((self._num_rows(), num_tags), np.float32),
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
            inputs=self._norm,
            multiplier=None if rows is None else rows.reshape(-1),
            word_features=self._word_features,
        )
        check_of_use(device, trainer)
        return trainer

    def losses_along(
        self, params: Params, direction: Params, sizes: Sequence[float], examples: TagExamples
    ) -> np.ndarray:
        """Return a user's mean cross-entropy at every step size, float64 (sizes,)."""
        if self._word_features is not None:
            examples = examples.with_features(self._word_features, np.arange(len(examples)))
        words, columns = np.unique(examples.indices, return_inverse=True)
        inputs = sparse.csr_array(
            (examples.values(self._norm), columns, examples.indptr),
            shape=(len(examples), len(words)),
        )
        here, change = (inputs @ p["kernel"][words] + p["bias"] for p in (params, direction))
        labels = examples.labels.astype(np.int64)
        found = losses_on_line(
            here.astype(np.float64), change.astype(np.float64), sizes, labels, softmax_losses
        )
        return found.mean(axis=0)

    def constants(self, *, regulariser: float) -> Constants:
        """Return the constants of the loss: rows have at most unit norm, and a bias beside."""
        return softmax_constants(regulariser=regulariser, inputs=math.sqrt(2.0))

    def public_words(self) -> PublicWords:
        """Return how common the kernel's rows are among public users; the bias has no word.

        Pairs are not counted: which of them share a row is a matter of the hash.
        """
        view = self._view
        return PublicWords(
            counts=view.word_counts,
            sentences=view.word_sentences,
            num_sentences=view.num_public_examples,
            source="private" if self._published else "public",
            where="counts published with the data, rostered users included"
            if self._published
            else "text that users outside the roster wrote",
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
            num_words=len(self._view.words),
            num_tags=len(self._view.tags),
        )

    def files(self) -> dict[str, bytes]:
        """Return the words and tags, in the order of the kernel's rows and columns."""
        view = self._view
        found = Vocabulary(
            words=tuple(view.words),
            tags=tuple(view.tags),
            inputs=self._inputs,
            word_features=self._word_features,
        )
        return {VOCABULARY: vocabulary_bytes(found)}

    def evaluate(self, params: Params, *, public: bool, part: Part = WHOLE) -> Metrics | None:
        """Return accuracy and recall@5 on examples held out.

        Of the roster all of them; of public users those in threads that a public user asked, since
        the others carry titles and tags that may be a rostered user's. By sentence it is all
        examples of public users. Part i of n is every n-th user from the i-th on.
        """
        blocks = self._held_out(public, part)
        return combined(
            self._measured(params, self._view, self._word_features, rows) for rows in blocks
        )

    def class_scores(self, params: Params, *, public: bool, part: Part = WHOLE) -> ClassScores:
        """Return the tags' probabilities and the labels of the same examples."""
        columns, made = self._view.columns, self._word_features
        for rows in self._held_out(public, part):
            for at in range(0, len(rows), SCORED_EXAMPLES):
                block = rows[at : at + SCORED_EXAMPLES]
                found = columns.take(block) if made is None else columns.with_features(made, block)
                yield tag_probabilities(params, found, self._norm), found.labels.astype(np.int64)

    def _held_out(self, public: bool, part: Part) -> Iterable[np.ndarray]:
        view, (number, of) = self._view, part
        if public and not view.split.shares_threads:
            rows = view.public_rows(view.split.measured_on)
            return [np.ascontiguousarray(rows[number::of])]
        users = (view.public_users if public else view.roster)[number::of]
        return view.rows(users, "all" if public else view.split.measured_on)

    @property
    def public_users(self) -> tuple[str, ...]:
        """The users of the corpus that are outside the roster, as far as they count as public."""
        return self._view.public_users

    def user_losses(self, params: Params, user_ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return each user's mean cross-entropy over its training examples, and their number."""
        numbers = [self._view.num_examples(user, "train") for user in user_ids]
        losses = np.full(len(numbers), np.nan)
        for place, user in enumerate(user_ids):
            for rows in self._view.rows([user], "train", size=max(numbers[place], 1)):
                found = self._measured(params, self._view, self._word_features, rows)
                assert found is not None
                losses[place] = found.totals["loss"].value
        return losses, np.array(numbers, np.int64)

    def public_learner(self, key: Key, *, choosing: bool) -> TagLearner | None:
        """Return what learns from public users' training examples; None where there are none.

        Args:
            key: Orders the examples.
            choosing: Whether to leave out validation threads, and measure on those. By sentence
                those for testing are left out instead, and not choosing learns from them too.
        """
        view, text = self._view, self._public_text
        held, trained = "validation", "train"
        if choosing and self._choosing is not None:
            view = self._choosing()
        elif self._choosing is None:  # by sentence: nothing else is held out
            held, trained = "test", "train" if choosing else "all"
        rows, seen = view.public_rows(trained, of=text), view.public_rows(held, of=text)
        if not len(rows) or (choosing and not len(seen)):
            return None
        made = self._word_features if view is self._view else self.features_of(view)
        return TagLearner(
            examples=view.columns.take(rows),
            inputs=self._norm,
            key=key,
            measured=lambda params: self._measured(params, view, made, seen),
            word_features=made,
        )

    def public_folds(self) -> Sequence[TagFold] | None:
        """Return the folds of public threads; None where rostered users' data is in them."""
        if not self._view.split.selecting:
            return None
        made = self._word_features
        return thread_folds(self, self._view, self._public_text, self._norm, made)

    def public_users_held_out(self) -> Iterator[tuple[TagLearner, list[TagExamples]]]:
        """Yield learners of public examples, and public users' examples that they do not see."""
        made = self._word_features
        return user_folds(self, self._view, self._public_text, self._norm, made)

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
            provenance={**view.provenance, **self._weights_from()},
            majority_class_accuracy=majority_share(
                view.label_counts(view.roster, view.split.measured_on)
            ),
        )

    @property
    def _norm(self) -> str:
        """What rows are scaled to once they have their features."""
        return "unit-norm" if self._inputs == TF_IDF else self._inputs

    @property
    def _published(self) -> bool:
        """Whether words were counted among rostered users too."""
        return self._view.provenance["word_counts_source"] == PRIVATE

    def features_of(self, view: TagView) -> WordFeatures | None:
        """Return what becomes of a view's words, by its own counts; None for their counts."""
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

    def _num_rows(self) -> int:
        made = self._word_features
        return len(self._view.words) if made is None else made.num_rows

    def _num_parameters(self) -> int:
        return (self._num_rows() + 1) * len(self._view.tags)

    def _measured(
        self, params: Params, view: TagView, made: WordFeatures | None, rows: np.ndarray
    ) -> Metrics | None:
        if made is None:
            return evaluate_tags(params, view.columns, self._norm, rows)
        # A block at a time: with pairs an example is several times as large as on disk.
        blocks = (rows[at : at + BATCH_EXAMPLES] for at in range(0, len(rows), BATCH_EXAMPLES))
        return combined(
            evaluate_tags(params, view.columns.with_features(made, block), self._norm)
            for block in blocks
        )

    def _weights_from(self) -> dict[str, Any]:
        """Return what the provenance says of weights of words; nothing where there are none."""
        if self._inputs != TF_IDF:
            return {}
        whom = self.public_words().where
        found: dict[str, Any] = {
            "word_weights": f"inverse document frequency to the power {self._power:g}, from {whom}"
        }
        if self._published:
            listed: Any = self._view.provenance.get("private_side_information") or ()
            found["private_side_information"] = [*listed, "weights of the words (tf-idf)"]
        return found
