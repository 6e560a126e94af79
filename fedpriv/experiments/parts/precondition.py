"""Preconditioning by side information: where A acts, and what it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fedpriv.experiments.composing.options import option
from fedpriv.mechanisms import SideInformation, side_information
from fedpriv.mechanisms.preconditioners import Fixed, Preconditioner
from fedpriv.mechanisms.side_information import PublicWords
from fedpriv.ranges import Range

# Imported where one is asked: `fedpriv --help` reads these declarations, and loads no trainers.
if TYPE_CHECKING:
    from fedpriv.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Nowhere:
    """Nothing is preconditioned."""

    def in_steps(self, side: SideInformation | None) -> Mapping[str, np.ndarray]:
        """Return 1/A for local steps, by name; empty for nothing."""
        return {}

    def on_updates(self, side: SideInformation | None) -> Preconditioner | None:
        """Return what preconditions updates; None for nothing."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class InSteps:
    """Local steps are multiplied by 1/A."""

    def in_steps(self, side: SideInformation) -> Mapping[str, np.ndarray]:
        """Return 1/A."""
        return side.multiplier

    def on_updates(self, side: SideInformation) -> Preconditioner | None:
        """Return nothing."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnUpdates:
    """Updates are multiplied by 1/A before they are bounded."""

    def in_steps(self, side: SideInformation) -> Mapping[str, np.ndarray]:
        """Return nothing."""
        return {}

    def on_updates(self, side: SideInformation) -> Preconditioner | None:
        """Return one A for the whole run."""
        return Fixed(multiplier=side.multiplier)


@dataclass(frozen=True, slots=True, kw_only=True)
class InBoth:
    """Local steps are multiplied by 1/A, and updates are before they are bounded."""

    def in_steps(self, side: SideInformation) -> Mapping[str, np.ndarray]:
        """Return 1/A."""
        return side.multiplier

    def on_updates(self, side: SideInformation) -> Preconditioner | None:
        """Return one A for the whole run."""
        return Fixed(multiplier=side.multiplier)


@dataclass(frozen=True, slots=True, kw_only=True)
class AndBack:
    """Updates are multiplied by 1/A before they are bounded, the released mean by A."""

    def in_steps(self, side: SideInformation) -> Mapping[str, np.ndarray]:
        """Return nothing."""
        return {}

    def on_updates(self, side: SideInformation) -> Preconditioner | None:
        """Return one A for the whole run, and its undoing."""
        return Fixed(multiplier=side.multiplier, inverse=side.inverse())


class OfWords(Protocol):
    """A kind of side information that is made of what is known of words."""

    def rows(self, words: PublicWords) -> tuple[np.ndarray, str]:
        """Return 1/A of each word, float32 `(num_words,)`, and the rule in words."""
        ...


def _of_words(part: OfWords, task: Task, experiment: str) -> SideInformation:
    """Return A of the task's words.

    Raises:
        ValueError: If it has none.
    """
    from fedpriv.tasks.task import KnowsMultipliers, KnowsWords

    if not isinstance(task, KnowsWords):
        more = "set side-information own" if isinstance(task, KnowsMultipliers) else (
            "give it a method side_information() that returns a SideInformation and set "
            "side-information own, or leave precondition out"
        )  # fmt: skip
        kind = next(name for name, made_by in KINDS.items() if isinstance(part, made_by))
        raise ValueError(
            f"side-information {kind!r} is made of public words, of which the task of "
            f"{experiment} has none; {more}"
        )
    words = task.public_words()
    rows, said = part.rows(words)
    if words.num_pairs:
        rows = np.append(rows, np.full(words.num_pairs, rows[np.argmin(words.counts)]))
        said += "; pairs of words as the rarest word"
    return SideInformation(
        multiplier={"kernel": rows.astype(np.float32).reshape(-1, 1)},
        source=words.source,
        description=f"{said}, from {words.where}",
    )


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

    make = _of_words


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

    make = _of_words


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

    make = _of_words


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMultipliers:
    """A of the task's own."""

    def make(self, task: Task, experiment: str) -> SideInformation:
        """Return what the task knows.

        Raises:
            ValueError: If it knows nothing.
        """
        from fedpriv.tasks.task import KnowsMultipliers

        if not isinstance(task, KnowsMultipliers):
            raise ValueError(
                f"side-information 'own': the task of {experiment} knows no multipliers; give "
                "it a method side_information() that returns a SideInformation, or leave "
                "precondition out"
            )
        return task.side_information()


PLACES: Mapping[str, type] = {
    "none": Nowhere,
    "local": InSteps,
    "update": OnUpdates,
    "both": InBoth,
    "scale-then-privatise": AndBack,
}
KINDS: Mapping[str, type] = {
    "rank": Rank,
    "frequency": Frequency,
    "tf-idf": TfIdf,
    "own": OwnMultipliers,
}
