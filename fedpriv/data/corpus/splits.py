"""Splits: which of a corpus's examples are for training, for validation and for testing.

An example is a sentence with its question's title, and its label comes from the question's tags.
Where a user's sentences are divided at random, those of one post, with one title and one label,
stand on both sides, and what is measured is memory. So the default holds out whole *threads*, a
question with all its answers: whoever wrote a sentence of a held-out thread, no training set has
it, and neither has what is counted for words, tags and side information.

What counts as *public* is narrower, too: an answer carries its asker's title and tags, so only
sentences of public users in threads that a public user asked are no other user's. Words, tags,
their order, side information and the default public start are made of those alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Measured = Literal["test", "validation"]
Kind = Literal["by-thread", "by-sentence", "by-time", "by-user", "as-published"]
KINDS: tuple[Kind, ...] = ("by-thread", "by-sentence", "by-time", "by-user", "as-published")
_FOLDED = ("by-thread", "by-user", "as-published")
Owners = Literal["account", "all"]
"""Who owns an example: the account that wrote its sentence, or also who asked the question."""
PublicText = Literal["public-threads", "all-posts"]
PUBLIC_TEXT: tuple[PublicText, ...] = ("public-threads", "all-posts")
"""What of public users' posts: in threads that a public user asked, or all of them."""

NUM_FOLDS = 5

_SAID = {
    "by-thread": (
        "whole threads held out: a fifth of the questions, by a hash (fold {fold} of 0 to 4), is "
        "in no training set"
    ),
    "by-sentence": (
        "by sentence, as the papers did: a fifth of each user's sentences for testing, whose "
        "threads, titles and labels are in training too"
    ),
    "by-time": "by time: the last fifth of the threads is in no training set",
    "by-user": (
        "by user and thread: a fifth of the users (fold {fold} of 0 to 4) train nothing, and are "
        "tested on in threads held out"
    ),
    "as-published": (
        "by user, as published with the data, and by thread (fold {fold} of 0 to 4): users whom "
        "the source holds out train nothing, and are tested on in threads held out"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How examples are divided.

    Attributes:
        kind: "by-thread", the default; "by-sentence", as the papers did; "by-time", of threads;
            "by-user", of users and threads; "as-published", of users that the data's source holds
            out, as TFF does, and threads.
        fold: which fifth is for testing, 0 to 4; "by-sentence" and "by-time" have none.
        measured_on: "test" trains on every other thread. "validation" is for choosing settings: a
            fifth of the other threads is in no training set and no count either, and is what is
            measured, so that nothing is chosen by looking at the test threads.
        public_users: how many users outside the roster count as public, the first by a hash of
            their ids, so that fewer are among more; the others are in nothing. None for all.
        owners: "account", or "all", so that blanking a person's words wherever they stand changes
            little: training examples of rostered users that another rostered user asked are
            dropped. What is held out stays as it is.
        examples_per_owner: with all owners, drop nothing for having two, but leave no owner more
            training examples than that. None drops them.
        selecting: rostered users train on no example in a thread that a public user asked, so that
            public users' examples there can judge what was trained (`fedpriv.tasks.tag_folds`).

    Raises:
        ValueError: unknown kind, a fold that there is not, validation by sentence, fewer than
            no public users, all owners by sentence, a bound without them, or selecting by sentence.
    """

    kind: Kind = "by-thread"
    fold: int = 0
    measured_on: Measured = "test"
    public_users: int | None = None
    owners: Owners = "account"
    examples_per_owner: int | None = None
    selecting: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"split {self.kind!r} is unknown; choose one of {', '.join(KINDS)}")
        if not 0 <= self.fold < NUM_FOLDS:
            raise ValueError(f"fold {self.fold}: there are {NUM_FOLDS}; give 0 to {NUM_FOLDS - 1}")
        if self.fold and self.kind not in _FOLDED:
            raise ValueError(f"split {self.kind!r} has no folds; leave fold {self.fold} out")
        if self.measured_on not in ("test", "validation"):
            raise ValueError(f"measured-on {self.measured_on!r}: choose 'test' or 'validation'")
        if self.measured_on == "validation" and self.kind == "by-sentence":
            raise ValueError("split by-sentence has no validation threads; measure on test")
        if self.public_users is not None and self.public_users < 0:
            raise ValueError(f"public-users {self.public_users}: give 0 or more, or none for all")
        if self.owners not in ("account", "all"):
            raise ValueError(f"owners {self.owners!r}: choose 'account' or 'all'")
        if self.owners == "all" and self.kind == "by-sentence":
            raise ValueError(
                "owners all does not go with split by-sentence: what others' tags leave of a "
                "user's sentences would decide which of them train; hold threads out"
            )
        if self.selecting and self.kind == "by-sentence":
            raise ValueError(
                "split by-sentence shares threads between training and public examples, so they "
                "can select no model; set select last, or hold threads out"
            )
        most = self.examples_per_owner
        if most is not None and (self.owners != "all" or most < 1):
            raise ValueError(
                f"examples-per-owner {most}: give at least 1, with owners all, or leave it out"
            )

    @property
    def name(self) -> str:
        """The split's name in files."""
        name = f"{self.kind}-{self.fold}" if self.kind in _FOLDED else self.kind
        if self.public_users is not None:
            name = f"{name}-public-{self.public_users}"
        if self.owners == "all":
            most = self.examples_per_owner
            name = f"{name}-owners-{'all' if most is None else most}"
        if self.selecting:
            name = f"{name}-selecting"
        return name if self.measured_on == "test" else f"{name}-validation"

    @property
    def shares_threads(self) -> bool:
        """Whether training and test share threads, titles and labels."""
        return self.kind == "by-sentence"

    def said(self) -> str:
        """Return what reports say of it."""
        said = _SAID[self.kind].format(fold=self.fold)
        if self.public_users is not None:
            said = f"{said}; {self.public_users} of the users outside the roster count as public"
        if self.owners == "all" and self.examples_per_owner is None:
            said = f"{said}; training examples that another rostered user asked are dropped"
        if self.examples_per_owner is not None:
            said = f"{said}; at most {self.examples_per_owner} training examples an owner"
        if self.selecting:
            said = f"{said}; rostered users train on no thread that a public user asked"
        if self.measured_on == "test":
            return said
        return f"{said}; a fifth of the other threads held out too, and measured on"

    def choosing(self) -> Split:
        """Return the split that settings are chosen by."""
        return replace(self, measured_on="validation")


BY_THREAD = Split()
BY_SENTENCE = Split(kind="by-sentence")
