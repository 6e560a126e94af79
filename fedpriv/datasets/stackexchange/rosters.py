"""Rosters: the frozen lists of user ids that a privacy guarantee is about.

A roster is published in the corpus manifest. The neighbouring relation adds or removes one
rostered user's *records*; it never changes who is on the list. Users outside the roster are the
public ones, whose data may shape the vocabulary and other side information.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpriv.datasets.stackexchange.splits import Split

SUBSETS = ("train", "validation", "test", "all")
RULES = ("all-but-public-tenth", "most-sentences", "first-sorted", "seeded", "declared")

PUBLIC_SALT = "fedpriv public tenth 1"  # fixed for ever: changing it changes published rosters
_FEWER_SALT = "fedpriv fewer public users 1"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_LOOKED_AT_DATA = "Its selection looked at the data, so its list is simply declared."


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterSpec:
    """How a roster is chosen.

    Rules:
        all-but-public-tenth: users whose salted, hashed id falls outside a fixed 10 %; looks at
            nothing but each user's own id.
        most-sentences: the `size` users with most sentences, ties by id; looks at the data.
        first-sorted: the first `size` ids in sorted order.
        seeded: `size` users drawn by a hash of `seed` and the id.
        declared: the given `ids`, also those without any record in the corpus.

    Attributes:
        name: name of the roster in the corpus (letters, digits, `.`, `_`, `-`).
        rule: one of the rules above.
        size: number of users; None takes all that are eligible (not for "declared").
        min_sentences: users with fewer sentences are not eligible and stay public.
        seed: the seed of the rule "seeded".
        ids: the ids of the rule "declared", in roster order.
        declared: a sentence for the manifest saying how the list was chosen; "" writes one.
        optional: leave the roster out, with a note in the manifest, where the corpus is too
            small for it, instead of failing.

    Raises:
        ValueError: parts that do not fit together.
    """

    name: str
    rule: str
    size: int | None = None
    min_sentences: int = 0
    seed: int | None = None
    ids: Sequence[str] | None = None
    declared: str = ""
    optional: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"roster name {self.name!r}: use letters, digits, '.', '_' and '-', at most 100"
            )
        if self.rule not in RULES:
            raise ValueError(f"roster rule {self.rule!r} is unknown; choose one of {RULES}")
        if self.size is not None and self.size < 1:
            raise ValueError(f"roster size {self.size}: give at least 1, or None for everybody")
        if self.min_sentences < 0:
            raise ValueError(f"min_sentences {self.min_sentences} is negative; give 0 or more")
        if (self.rule == "declared") != (self.ids is not None):
            raise ValueError("ids are given with the rule 'declared', and only with it")
        if (self.rule == "seeded") != (self.seed is not None):
            raise ValueError("a seed is given with the rule 'seeded', and only with it")
        if self.rule == "most-sentences" and self.size is None:
            raise ValueError("the rule 'most-sentences' needs a size")
        if self.rule in ("all-but-public-tenth", "declared") and (
            self.size is not None or self.min_sentences
        ):
            raise ValueError(f"the rule {self.rule!r} takes neither a size nor min_sentences")
        if self.ids is not None and (len(set(self.ids)) != len(self.ids) or not self.ids):
            raise ValueError("declared ids must be at least one, each listed once")

    @property
    def looks_at_data(self) -> bool:
        """Whether the choice depended on the records of the users chosen."""
        return self.rule == "most-sentences" or self.min_sentences > 0

    def statement(self) -> str:
        """Return the sentence that the manifest publishes about how the list was chosen."""
        if self.declared:
            return self.declared
        cut = f" with at least {self.min_sentences} sentences" if self.min_sentences else ""
        some = "All users" if self.size is None else f"{self.size} users"
        text = {
            "all-but-public-tenth": "Users whose hashed id falls outside a fixed 10 %.",
            "most-sentences": f"The {self.size} users{cut} who wrote most sentences, ties by id.",
            "first-sorted": f"{some}{cut}, the first in sorted order of their ids.",
            "seeded": f"{some}{cut}, drawn by a hash of seed {self.seed} and the id.",
            "declared": "A list given from outside.",
        }[self.rule]
        return f"{text} {_LOOKED_AT_DATA}" if self.looks_at_data else text


def is_public_tenth(user_id: str) -> bool:
    """Return whether the id's salted SHA-256 falls in the fixed tenth kept public.

    It looks at this one id and at nothing else, so no user's presence moves another.
    """
    return _hash64(PUBLIC_SALT, user_id) < 2**64 // 10


def fewer_public(public_users: Sequence[str], number: int) -> list[str]:
    """Return so many of the users outside a roster, sorted; fewer are always among more.

    They are the first by a salted hash of their ids, and no rostered user is looked at.

    Raises:
        ValueError: there are not so many.
    """
    if number > len(public_users):
        raise ValueError(
            f"public-users {number}, but {len(public_users)} users are outside the roster; give "
            "fewer, or none for all"
        )
    return sorted(sorted(public_users, key=lambda user: _hash64(_FEWER_SALT, user))[:number])


def choose(spec: RosterSpec, num_sentences: Mapping[str, int]) -> tuple[str, ...]:
    """Return the ids of a roster, sorted (a declared list keeps its order).

    Args:
        spec: the rule.
        num_sentences: sentences of every user of the corpus.

    Raises:
        ValueError: fewer eligible users than `spec.size`, or none.
    """
    if spec.ids is not None:
        return tuple(spec.ids)
    eligible = sorted(user for user in num_sentences if num_sentences[user] >= spec.min_sentences)
    if spec.rule == "all-but-public-tenth":
        eligible = [user for user in eligible if not is_public_tenth(user)]
    elif spec.rule == "most-sentences":
        eligible.sort(key=lambda user: -num_sentences[user])  # stable: ties stay in id order
    elif spec.rule == "seeded":
        eligible.sort(key=lambda user: _hash64(f"fedpriv seeded roster {spec.seed}", user))
    if not eligible or len(eligible) < (spec.size or 0):
        raise ValueError(
            f"roster {spec.name!r} wants {spec.size or 'some'} users with at least "
            f"{spec.min_sentences} sentences, the corpus has {len(eligible)}: "
            "give a smaller size or a lower min_sentences"
        )
    return tuple(sorted(eligible[: spec.size]))


def roster_sha256(ids: Sequence[str]) -> str:
    """Return the hash that names a roster: SHA-256 of its ids, in order, as a JSON list."""
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()


def training_set_sha256(ids: Sequence[str]) -> str:
    """Return the hash that names a training set's examples: SHA-256 of their ids, one a line.

    Other bytes than `roster_sha256` has, because both stand in ledgers and results by which runs
    are recognised: neither can change.
    """
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Places:
    """Where users' rows lie in the columns of a view: the roster in its order, then the public.

    Attributes:
        roster_sha256: of the rostered ids.
        positions: a user's place among those of the view.
        edges: by subset, where each place's rows start and end, int64 (places,) each.
    """

    roster_sha256: str
    positions: Mapping[str, int]
    edges: Mapping[str, tuple[np.ndarray, np.ndarray]]


def first_users(ids: tuple[str, ...], users: int | None, roster: str) -> tuple[str, ...]:
    """Return the first so many rostered users, or all.

    Raises:
        ValueError: there are not so many.
    """
    if users is not None and not 1 <= users <= len(ids):
        raise ValueError(f"users {users}: roster {roster!r} has {len(ids)}; give 1 to that many")
    return ids[:users]


def places(
    ids: Sequence[str],
    kept: Sequence[str],
    public: Sequence[str],
    bounds: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> Places:
    """Return where users' rows lie.

    Args:
        ids: the roster as the files have it.
        kept: its first users, who are known to the view.
        public: users outside the roster.
        bounds: where a user's rows start, int64 (users + 1,), where those for training end and
            where those for validation do, int64 (users,) each.
    """
    offsets, trained, validated = bounds
    positions = dict(zip(kept, range(len(kept)), strict=True))
    positions.update(zip(public, range(len(ids), len(ids) + len(public)), strict=True))
    return Places(
        roster_sha256=roster_sha256(kept),
        positions=positions,
        edges={
            "all": (offsets[:-1], offsets[1:]),
            "train": (offsets[:-1], trained),
            "validation": (trained, validated),
            "test": (validated, offsets[1:]),
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RosterView(ABC):
    """One roster of a prepared corpus: what its examples of any kind have in common.

    Attributes:
        name: the corpus' name.
        synthetic: whether a generator made the text; every figure must then say so.
        roster_name: the roster's name.
        licence: the text's licence.
        credit: whom to credit for it.
        roster: the rostered ids, in the published order.
        public_users: all other users of the corpus, sorted.
        words: the vocabulary (V), the word used by most public users first.
        split: what is for training, validation and testing.
        provenance: where each of these came from, whose text is in an example, what was left out.
        places: where each user's rows lie.
    """

    name: str
    synthetic: bool
    roster_name: str
    licence: str
    credit: str
    roster: tuple[str, ...]
    public_users: tuple[str, ...]
    words: tuple[str, ...]
    split: Split
    provenance: Mapping[str, object]
    places: Places

    @property
    def roster_sha256(self) -> str:
        """Hash of the rostered ids."""
        return self.places.roster_sha256

    def describe(self) -> dict[str, str | bool]:
        """Return what names this data in a run folder: corpus, roster and its hash, licence."""
        return {
            "name": self.name,
            "synthetic": self.synthetic,
            "roster": self.roster_name,
            "roster_sha256": self.roster_sha256,
            "licence": self.licence,
            "credit": self.credit,
        }

    def num_examples(self, user_id: str, subset: str = "train") -> int:
        """Return how many examples `examples` would return, without touching them.

        Raises:
            ValueError: unknown user or subset.
        """
        start, end = self._span(user_id, subset)
        return end - start

    @abstractmethod
    def examples(self, user_id: str, subset: str = "train") -> Any:
        """Return one user's examples, as slices of the mapped files; possibly none."""

    def _spans(self, user_ids: Sequence[str], subset: str) -> tuple[np.ndarray, np.ndarray]:
        """Return where each user's examples start and end, int64 (users,) each."""
        # No objects a user: with hundreds of thousands of them, memory would follow.
        positions = np.fromiter(map(self._position, user_ids), np.int64, len(user_ids))
        starts, ends = self._edges(subset)
        return starts[positions], ends[positions]

    def _span(self, user_id: str, subset: str) -> tuple[int, int]:
        starts, ends = self._edges(subset)
        position = self._position(user_id)
        return int(starts[position]), int(ends[position])

    def _edges(self, subset: str) -> tuple[np.ndarray, np.ndarray]:
        if subset not in self.places.edges:
            raise ValueError(f"subset {subset!r} is unknown; choose one of {SUBSETS}")
        return self.places.edges[subset]

    def _position(self, user_id: str) -> int:
        position = self.places.positions.get(user_id)
        if position is None:
            raise ValueError(
                f"user {user_id!r} is unknown in roster {self.roster_name!r}: neither among its "
                f"{len(self.roster)} rostered nor its {len(self.public_users)} public users"
            )
        return position


class TrainingSplit:
    """The training split of a view, as `fedpriv.training.work.UserData`."""

    def __init__(self, view: RosterView) -> None:
        self._view = view

    def examples(self, user_id: str) -> Any:
        """Return a user's training examples."""
        return self._view.examples(user_id, subset="train")

    def num_examples(self, user_id: str) -> int:
        """Return how many they are."""
        return self._view.num_examples(user_id, subset="train")


def _hash64(salt: str, user_id: str) -> int:
    digest = hashlib.sha256(f"{salt}\0{user_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big")
