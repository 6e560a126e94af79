"""Next-word prediction by user: a recurrent network on sentences, its encoding and its measures.

Sentences are encoded as TensorFlow Federated does: cut to their first words; "begin" is before
them, "end" behind those that were shorter than the longest length, and padding behind that. Inputs
are all but the last of these, targets all but the first; where there is padding no target is
counted.

Its StackOverflow tasks (google-research/federated, `stackoverflow_word_prediction`) report
`accuracy_no_oov_or_eos`: the share of words predicted right among targets that are neither padding
nor unknown nor the end of a sentence. What a model *predicts* may be any token; a prediction of
"unknown" or "end" for a word is a mistake. It is the headline here. Two rules that need no network,
the commonest word and the commonest word after the last one, are counted in public text alone, so
they cost no privacy: a model that is not better has learnt nothing worth an ε.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from fedpriv.datasets.stackexchange.word_view import WordSequences, WordView
from fedpriv.libraries import one_thread
from fedpriv.measures import LOSS, Measure
from fedpriv.mechanisms.side_information import SideInformation
from fedpriv.models.text import IGNORED, WordLSTM, next_word_loss
from fedpriv.rng import Key
from fedpriv.tasks.task import TaskDescription, ViewTask
from fedpriv.training.devices import usable_device
from fedpriv.training.evaluate import WHOLE, ClassScores, Metrics, Part, Total, chunks, combined
from fedpriv.training.local.module import ModuleTrainer, module_params
from fedpriv.training.local.module_state import made_from
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.sgd import as_tensor
from fedpriv.training.local.vectorised import VectorisedTrainer
from fedpriv.training.local.words import WordTrainer, dense_gradients, token_scores
from fedpriv.training.periodic_shift import Shift
from fedpriv.training.public_learning import PublicLearner, gradient_learner
from fedpriv.training.work import Trainer
from fedpriv.tree import Params

PAD = 0
"""Token behind a short sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """From sentences to token numbers: padding, words, unknown words, begin and end, as in TFF.

    >>> encoding = Encoding(num_words=10_000)
    >>> encoding.unknown, encoding.begin, encoding.end, encoding.num_tokens
    (10001, 10002, 10003, 10004)

    Attributes:
        num_words: Of the vocabulary; the word of rank r, from 0, is token r + 1. Words of a rank
            beyond are unknown.
        length: Words of a sentence that are looked at, and of inputs and targets.
    """

    num_words: int
    length: int = 20

    def __post_init__(self) -> None:
        if self.length < 1 or self.num_words < 1:
            raise ValueError(
                f"sequence-length {self.length} of {self.num_words} words: each must be at least 1"
            )

    @property
    def unknown(self) -> int:
        """Every word outside the vocabulary."""
        return self.num_words + 1

    @property
    def begin(self) -> int:
        """Begin of a sentence; never a target."""
        return self.num_words + 2

    @property
    def end(self) -> int:
        """End of a sentence."""
        return self.num_words + 3

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return self.num_words + 4

    def __call__(self, sentences: WordSequences) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets, int64 `(n, length)` each.

        Targets are IGNORED where there is padding.
        """
        n, starts = len(sentences), np.asarray(sentences.starts)
        lengths = np.minimum(np.diff(starts), self.length)
        place = np.arange(self.length)
        inside = place < lengths[:, None]
        rows = np.full((n, self.length + 1), PAD, np.int64)
        rows[:, 0] = self.begin
        ranks = np.asarray(sentences.words[(starts[:-1, None] + place)[inside]], np.int64)
        known = (ranks >= 0) & (ranks < self.num_words)
        rows[:, 1:][inside] = np.where(known, ranks + 1, self.unknown)
        short = np.flatnonzero(lengths < self.length)
        rows[short, lengths[short] + 1] = self.end
        targets = rows[:, 1:].copy()
        targets[targets == PAD] = IGNORED
        return rows[:, :-1], targets


WORD_ACCURACY = Measure(name="accuracy", label="word accuracy", form="share")
WITH_END = Measure(name="accuracy_no_oov", label="accuracy with end of sentence", form="share")
WITH_ALL = Measure(name="accuracy_with_oov", label="accuracy with unknown words", form="share")
PERPLEXITY = Measure(name="perplexity", label="perplexity", higher_is_better=False)
MEASURES = (WORD_ACCURACY, WITH_END, WITH_ALL, PERPLEXITY, LOSS)

_BLOCK = 128
# Sentences whose targets are given all tokens' probabilities at once, of several models together.
_SCORED = 32


def counted(targets: np.ndarray, of: Encoding) -> np.ndarray:
    """Return where a target counts for `WORD_ACCURACY`, bool of the targets' shape."""
    left_out = (IGNORED, PAD, of.unknown, of.end)
    return ~np.isin(targets, left_out)


def shares_right(predicted: np.ndarray, targets: np.ndarray, of: Encoding) -> Mapping[str, Total]:
    """Return the three accuracies of predictions.

    Args:
        predicted: int64, any shape.
        targets: int64, the same; IGNORED for padding.
        of: Their encoding.
    """
    right = predicted == targets
    with_all = (targets != IGNORED) & (targets != PAD)
    with_end = with_all & (targets != of.unknown)
    places = (counted(targets, of), with_end, with_all)
    return {
        measure.name: Total(sum=int(np.count_nonzero(right & where)), count=int(where.sum()))
        for measure, where in zip((WORD_ACCURACY, WITH_END, WITH_ALL), places, strict=True)
    }


def count_bigrams(x: np.ndarray, y: np.ndarray, of: Encoding) -> tuple[int, np.ndarray]:
    """Return the commonest word of a text, and after each token the commonest, int64 (tokens,).

    Only what `WORD_ACCURACY` counts is counted: words, neither unknown ones nor ends. Ties go to
    the lower number; after a token that no word follows it is the commonest of all.

    Args:
        x: int64 tokens `(n, time)`.
        y: int64 targets, likewise.
        of: Their encoding.

    Raises:
        ValueError: If there is no word.
    """
    where = counted(y, of)
    before, after = x[where], y[where]
    if not len(after):
        raise ValueError("there is no public text with a word of the vocabulary to count")
    commonest = int(np.argmax(np.bincount(after, minlength=of.num_tokens)))
    pairs, times = np.unique(before * of.num_tokens + after, return_counts=True)
    first, second = np.divmod(pairs, of.num_tokens)
    # Sorted by count within a token, the commonest and lowest last: later writes win.
    order = np.lexsort((-second, times, first))
    follows = np.full(of.num_tokens, commonest, np.int64)
    follows[first[order]] = second[order]
    return commonest, follows


TOKENS_FILE = "tokens.json"
# Of public threads one in so many is kept back to choose settings by.
_ONE_IN = 5
# More public sentences than these say no more about which settings are better.
_JUDGED_ON = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of a network.

    Attributes:
        num_words: Of the vocabulary, at most; public users may use fewer.
        width: Of the embedding.
        units: Of the LSTM.
        tied: Whether scores share the embedding's matrix.
    """

    num_words: int
    width: int
    units: int
    tied: bool


FULL = Size(num_words=10_000, width=96, units=670, tied=False)
"""That of Reddi et al.: 4,050,748 parameters with all its words."""
REDUCED = Size(num_words=2_000, width=48, units=96, tied=True)
"""For two cores: 158,532 parameters with all its words."""
SIZES = {"reduced": REDUCED, "full": FULL}
"""By the option `model`."""


class NextWords(ViewTask[WordView]):
    """Predict each word of a sentence from those before it.

    Guarantees:
        * Vocabulary, order of tokens, side information and trivial rules come from users outside
          the roster (or from published counts, and the description says so): deleting a rostered
          user's records changes none of them.
        * An example is a sentence in its writer's own words, without title and tags.

    Args:
        view: A corpus as sequences of words, through one roster.
        size: Of the network.
        length: Words of a sentence that are looked at.
        measured: At most so many held-out sentences are measured, at least 1, evenly spread; None
            for all.
        multipliers: Makes the gain of a word's rows of its rank among public words, for
            `side_information`.
        shift: Which sentences a round has, by its number; None for all in every round.
        data_sha256: As of `ViewTask`.

    Attributes:
        measures: Word accuracy first; perplexity, and the loss as a diagnostic.
    """

    measures = MEASURES

    def __init__(
        self,
        view: WordView,
        *,
        size: Size = REDUCED,
        length: int = 20,
        measured: int | None = None,
        multipliers: Callable[[int], np.ndarray] | None = None,
        shift: Shift | None = None,
        data_sha256: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        super().__init__(view, data_sha256)
        self._measured_at_most, self._multipliers, self._shift = measured, multipliers, shift
        self.round_tensors = None if shift is None else shift.extra
        if shift is not None:
            kinds = np.unique(view.columns.kinds[view.public_rows("train")])
            if np.count_nonzero(kinds) < 2:  # 0 is of posts of no known kind
                raise ValueError(
                    f"shift {shift.kind}: public users' sentences are not of questions and of "
                    "answers, as far as this corpus knows; import one that says, or leave shift "
                    "at none"
                )
        self._size = size
        self.encoding = Encoding(num_words=min(size.num_words, len(view.words)), length=length)

    def module(self, *, fused: bool = True) -> WordLSTM:
        """Return the network, newly initialised from torch's generator; see `WordLSTM`."""
        of, number = self._size, self.encoding.num_tokens
        module = WordLSTM(number, width=of.width, units=of.units, tied=of.tied)
        module.fused = fused
        return module

    def init_params(self, key: Key) -> Params:
        """Return the network's own initialisation, drawn from the key."""
        return module_params(made_from(key, self.module))

    def trainer(
        self,
        schedule: LocalSgd,
        multiplier: Mapping[str, np.ndarray],
        device: str | None = None,
    ) -> Trainer:
        """Return local SGD on sentences: user by user on the CPU, or many users on a device.

        Raises:
            ValueError: If there is no such device here.
        """
        select = None if self._shift is None else self._shift.select
        if device is None:
            return WordTrainer(
                schedule=schedule, encode=self.encoding, multiplier=multiplier, select=select
            )
        return VectorisedTrainer(
            alone=ModuleTrainer(
                module=self.module(fused=False),
                loss=next_word_loss,
                schedule=schedule,
                multiplier=multiplier,
                device=usable_device(device),
                encode=self.encoding,
            ),
            select=select,
        )

    def evaluate(self, params: Params, *, public: bool, part: Part = WHOLE) -> Metrics | None:
        """Return the measures on held-out sentences, of public users or of the roster."""
        return self._measured(params, self.held_rows(public=public), part)

    def class_scores(self, params: Params, *, public: bool, part: Part = WHOLE) -> ClassScores:
        """Return all tokens' probabilities at the targets that `WORD_ACCURACY` counts, and those.

        Of the same held-out sentences as `evaluate`, a block of sentences at a time.
        """
        rows = self.held_rows(public=public)
        for scores, targets, _ in self._scores(params, rows, part, _SCORED):
            with one_thread():
                where = torch.from_numpy(counted(targets.numpy(), self.encoding))
                probabilities = scores[where].double().softmax(dim=1)
            yield probabilities.numpy(), targets[where].numpy()

    def trivial(self, *, public: bool) -> dict[str, Metrics]:
        """Return the accuracy of public text's commonest word, and of its bigrams.

        Returns:
            "unigram" and "bigram"; nothing where there is no sentence to measure, or no public text
            to count.
        """
        rows = self.held_rows(public=public)
        if not len(rows) or self.bigrams is None:
            return {}
        (commonest, follows), (x, y) = self.bigrams, self._encoded(rows)
        found = {"unigram": np.full_like(x, commonest), "bigram": follows[x]}
        return {
            name: Metrics(totals=shares_right(predicted, y, self.encoding), num_examples=len(x))
            for name, predicted in found.items()
        }

    @cached_property
    def bigrams(self) -> tuple[int, np.ndarray] | None:
        """`count_bigrams` of public training text; None where there is none."""
        rows = self.view.public_rows("train")
        return count_bigrams(*self._encoded(rows), self.encoding) if len(rows) else None

    def side_information(self) -> SideInformation:
        """Return multipliers of the embedding's and the scores' rows, by rank in public text.

        Raises:
            ValueError: If none were asked for.
        """
        if self._multipliers is None:
            raise ValueError("the task was given no rule for multipliers; leave precondition out")
        number = self.encoding.num_words
        rows = np.ones(self.encoding.num_tokens, np.float32)
        rows[1 : number + 1] = self._multipliers(number)
        names = ["embedding.weight"] if self._size.tied else ["embedding.weight", "output"]
        return SideInformation(
            multiplier={name: rows[:, None] for name in names},
            source="private" if self.counts_are_published else "public",
            description=f"rows of rarer words are multiplied, by rank in {self.counted_in}",
        )

    def synthetic_batch(self) -> WordSequences:
        """Return two sentences of the first word and an unknown one, to try a trainer on.

        One is of a question and one of an answer: a shift may leave either out.
        """
        return WordSequences(
            starts=np.array([0, 2, 4]),
            words=np.array([0, -1, 0, -1], np.int32),
            kinds=np.array([1, 2], np.uint8),
        )

    def public_learner(self, key: Key, *, choosing: bool) -> PublicLearner | None:
        """Return what learns from public users' training sentences; None where there are none.

        Args:
            key: Draws the initialisation and orders the sentences.
            choosing: Whether to keep a fifth of the threads back, by the key, and measure on some
                of their sentences.
        """
        rows = self.view.public_rows("train")
        seen = rows[:0]
        if choosing:
            threads = np.unique(self.view.threads[rows])
            order = key.fold("kept back").generator().permutation(len(threads))
            held = np.isin(self.view.threads[rows], threads[order[: len(threads) // _ONE_IN]])
            rows, seen = rows[~held], _spread(rows[held], _JUDGED_ON)
        if not len(rows) or (choosing and not len(seen)):
            return None
        x, y = self._encoded(rows)

        def gradient(params: Params, index: np.ndarray, key: Key) -> Params:
            of = {name: as_tensor(array) for name, array in params.items()}
            batch = (torch.from_numpy(array[index]) for array in (x, y))
            with one_thread():
                return {n: g.numpy() for n, g in dense_gradients(of, *batch).items()}

        return gradient_learner(
            gradient,
            key.fold("in public"),
            num_examples=len(rows),
            begun=self.init_params(key),
            measure=lambda params: self._measured(params, seen) if len(seen) else None,
            rates=(4e-3,),
            batch_size=64,
        )

    def files(self) -> dict[str, bytes]:
        """Return the words in the order of their tokens, and what the other tokens are."""
        of = self.encoding
        content = {
            "format": "fedpriv-tokens",
            "version": 1,
            "words_from": 1,
            "words": list(self.view.words[: of.num_words]),
            "pad": PAD,
            "unknown": of.unknown,
            "begin": of.begin,
            "end": of.end,
            "sequence_length": of.length,
        }
        return {TOKENS_FILE: json.dumps(content).encode()}

    def describe(self) -> TaskDescription:
        """Return names, counts and provenance of the view."""
        unigram = self.trivial(public=False).get("unigram")
        return self._description(
            num_words=self.encoding.num_words,
            majority_class_accuracy=None if unigram is None else unigram.get(WORD_ACCURACY.name),
        )

    def held_rows(self, *, public: bool) -> np.ndarray:
        """Return row numbers of the held-out sentences that are measured, int64."""
        view = self.view
        on: str = view.split.measured_on
        if public and view.split.shares_threads:
            rows = view.public_rows("all")  # by sentence nothing else is held out
        else:
            rows = view.public_rows(on) if public else view.all_rows(view.roster, on)
        return _spread(rows, self._measured_at_most)

    def _encoded(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.encoding(self.view.columns.take(rows))

    def _scores(
        self, params: Params, rows: np.ndarray, part: Part, size: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
        """Yield a block's scores, targets and number of sentences, until all had their turn."""
        of: dict[str, Any] = {
            name: as_tensor(np.ascontiguousarray(array)) for name, array in params.items()
        }
        for chosen in chunks(len(rows), part, size):
            x, y = (torch.from_numpy(array) for array in self._encoded(rows[chosen]))
            with one_thread(), torch.no_grad():
                found = token_scores(of, x, y)
            yield *found, len(x)

    def _measured(self, params: Params, rows: np.ndarray, part: Part = WHOLE) -> Metrics | None:
        def measured(scores: torch.Tensor, targets: torch.Tensor, number: int) -> Metrics:
            with one_thread():
                loss = nn.functional.cross_entropy(scores, targets, reduction="sum").double()
                predicted = scores.argmax(dim=1).numpy()
            count = len(targets)
            totals = dict(shares_right(predicted, targets.numpy(), self.encoding))
            totals[PERPLEXITY.name] = Total(sum=float(loss), count=count, value_is="exp of mean")
            totals[LOSS.name] = Total(sum=float(loss), count=count)
            return Metrics(totals=totals, num_examples=number)

        return combined(measured(*block) for block in self._scores(params, rows, part, _BLOCK))


def _spread(rows: np.ndarray, most: int | None) -> np.ndarray:
    """Return at most so many rows, evenly spread over all."""
    if most is None or len(rows) <= most:
        return rows
    return rows[np.arange(most) * len(rows) // most]
