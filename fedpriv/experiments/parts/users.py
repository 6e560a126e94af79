"""The parts that an experiment whose unit is a user is composed of, and their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from fedpriv.experiments.parts import shared
from fedpriv.experiments.parts.composition import Slot
from fedpriv.experiments.parts.options import option
from fedpriv.experiments.task_factory import MissingCorpusError
from fedpriv.mechanisms import side_information
from fedpriv.mechanisms.side_information import PublicWords
from fedpriv.ranges import Range

if TYPE_CHECKING:
    from fedpriv.data.corpus.corpus import Corpus
    from fedpriv.tasks.tag_prediction import TagPrediction


@dataclass(frozen=True, slots=True, kw_only=True)
class TagPredictionTask:
    """Makes the tag-prediction task of a corpus, seen through a roster."""

    roster: str | None = option(None, "A roster of the corpus; none for the corpus's own.")
    users: int | None = option(
        None, "Only the roster's first so many users, for quick trials.", Range.AT_LEAST_ONE
    )
    inputs: Literal["tff", "unit-norm"] = option("tff", "How a sentence's words are weighted.")

    def __call__(self, experiment: object, corpus: Corpus | None) -> TagPrediction:
        """Return the task.

        Raises:
            MissingCorpusError: If there is no corpus.
            ValueError: If it has no such roster or so few users.
        """
        from fedpriv.tasks.tag_prediction import TagPrediction  # its torch takes seconds to load

        if corpus is None:
            raise MissingCorpusError(
                "tag prediction needs a corpus; give --corpus PATH, or see `fedpriv data list`"
            )
        view = corpus.view(roster=self.roster, users=self.users)
        return TagPrediction(view, inputs=self.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """How long."""

    rounds: int = option(100, "How many rounds are planned and paid for.", Range.AT_LEAST_ONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonCohorts:
    """Every user's own independent Bernoulli draw."""

    cohort: float | None = option(
        None, "Expected cohort size; none for a twentieth of the roster.", Range.ABOVE_ZERO
    )
    cohort_cap: int | None = option(None, "Largest cohort; none for no cap.", Range.AT_LEAST_ONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedCohorts:
    """So many users each round."""

    cohort: float | None = option(
        None, "Cohort size; none for a twentieth of the roster.", Range.ABOVE_ZERO
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedNoise:
    """Noise on the sum of bounded updates, which may be exact."""

    noise_multiplier: float | None = option(
        None, "Stddev of the noise over the clip norm; none to calibrate.", Range.AT_LEAST_ZERO
    )
    target_epsilon: float | None = option(
        None, "Calibrates the noise, and ends a run before it would be exceeded.",
        Range.ABOVE_ZERO,
    )  # fmt: skip
    exact_sum: bool = option(
        True, "Round updates to a grid: the same bits for any order, backend and workers."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSgd:
    """What a user does."""

    local_learning_rate: float = option(1.0, "Step size of local SGD.", Range.ABOVE_ZERO)
    local_batch_size: int = option(100, "Examples a local step.", Range.AT_LEAST_ONE)
    local_epochs: int = option(1, "Local passes.", Range.AT_LEAST_ONE)
    max_examples_per_user: int = option(256, "Cap of a user's work.", Range.AT_LEAST_ONE)


class OfWords(Protocol):
    """A kind of side information that is made of what is known of words."""

    def rows(self, words: PublicWords) -> tuple[np.ndarray, str]:
        """Return 1/A of each word, float32 `(num_words,)`, and the rule in words."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A by rank among public words."""

    preconditioner_gain: float = option(200.0, "Largest multiplier 1/A.")
    preconditioner_top: int = option(
        100, "How many of the commonest words are left alone.", Range.AT_LEAST_ZERO
    )

    def rows(self, words: PublicWords) -> tuple[np.ndarray, str]:
        """Return 1/A: 1 for the commonest words, the gain for the others."""
        gain, top, number = self.preconditioner_gain, self.preconditioner_top, len(words.counts)
        made = side_information.rank_multiplier(number, top=min(top, number), gain=gain)
        return made, f"rank (words beyond the {top} commonest are multiplied by {gain:g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequency:
    """A by frequency among public words."""

    preconditioner_gain: float = option(200.0, "Largest multiplier 1/A.")
    preconditioner_power: float = option(1.0, "Exponent of the frequency.")

    def rows(self, words: PublicWords) -> tuple[np.ndarray, str]:
        """Return 1/A: the inverse of a power of each word's frequency, at most the gain."""
        gain, power = self.preconditioner_gain, self.preconditioner_power
        made = side_information.frequency_multiplier(
            words.counts, words.num_sentences, cap=gain, power=power
        )
        said = f"1 / token frequency, to the power {power:g}, at most {gain:g}"
        return made, f"frequency ({said})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TfIdf:
    """A by TF-IDF among public words."""

    preconditioner_gain: float = option(200.0, "Largest multiplier 1/A.")

    def rows(self, words: PublicWords) -> tuple[np.ndarray, str]:
        """Return 1/A: each word's total TF-IDF over the largest, times the gain."""
        gain = self.preconditioner_gain
        made = gain * side_information.tf_idf_multiplier(
            words.counts, words.sentences, words.num_sentences
        )
        return made, f"tf-idf (total TF-IDF relative to the largest, times {gain:g})"


_SERVER: Mapping[str, float] = {"learning_rate": 1.0, "adaptivity": 1e-3}
_PLACES = ("none", "local", "update", "both", "scale-then-privatise")

TAG_PREDICTION = Slot(
    name="task", help="Tag prediction: whose sentences.", choices={"": TagPredictionTask}
)
SLOTS = (
    Slot(name="length", help="How long.", choices={"": Rounds}),
    Slot(
        name="sampling",
        help="How cohorts are drawn.",
        choices={"poisson": PoissonCohorts, "fixed": FixedCohorts},
    ),
    shared.BOUND,
    Slot(
        name="noise",
        help="What is added to the sum.",
        choices={"gaussian": RoundedNoise, "none": shared.Nothing},
    ),
    shared.PROMISE,
    Slot(name="local work", help="What a user does.", choices={"": LocalSgd}),
    Slot(
        name="precondition",
        help="Where A of side information acts: in local steps, on the update, or both.",
        choices=dict.fromkeys(_PLACES, shared.Nothing),
    ),
    Slot(
        name="side-information",
        help="What A is made of: what is known of public words, or the task's own multipliers.",
        choices={"rank": Rank, "frequency": Frequency, "tf-idf": TfIdf, "own": shared.Nothing},
        within=("precondition", frozenset(_PLACES[1:])),
    ),
    Slot(
        name="guide",
        help="A preconditioner made of past releases.",
        choices={
            "none": shared.Nothing,
            "delayed": shared.DelayedGuide,
            "past-releases": shared.PastReleasesGuide,
        },
    ),
    Slot(
        name="server-optimizer",
        help="What the server makes of the released mean.",
        choices={
            "sgd": shared.Sgd,
            "momentum": shared.Momentum,
            "ema-momentum": shared.Momentum,
            "adam": shared.AdaptiveMomentum,
            "yogi": shared.AdaptiveMomentum,
            "adagrad": shared.Adaptive,
        },
        prefix="server-",
        defaults=_SERVER,
    ),
    shared.AGGREGATE,
    shared.RUN,
)
