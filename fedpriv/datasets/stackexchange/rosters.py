"""Rosters: the frozen lists of user ids that a privacy guarantee is about.

A roster is published in the corpus manifest. The neighbouring relation adds or removes one
rostered user's *records*; it never changes who is on the list. Users outside the roster are the
public ones, whose data may shape the vocabulary and other side information.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RULES = ("all-but-public-tenth", "most-sentences", "first-sorted", "seeded", "declared")

PUBLIC_SALT = "fedpriv public tenth 1"  # fixed for ever: changing it changes published rosters
_FEWER_SALT = "fedpriv fewer public users 1"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_LOOKED_AT_DATA = "Its selection looked at the data, so its list is simply declared."


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterSpec:
    """Rule by which a roster is chosen.

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
    return hash64(PUBLIC_SALT, user_id) < 2**64 // 10


def limit_public(public_users: Sequence[str], number: int) -> list[str]:
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
    return sorted(sorted(public_users, key=lambda user: hash64(_FEWER_SALT, user))[:number])


def choose_roster(spec: RosterSpec, num_sentences: Mapping[str, int]) -> tuple[str, ...]:
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
        eligible.sort(key=lambda user: hash64(f"fedpriv seeded roster {spec.seed}", user))
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


def hash64(salt: str, key: str) -> int:
    """Return the first 64 bits of a salted SHA-256, as an unsigned integer."""
    digest = hashlib.sha256(f"{salt}\0{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def ordinal_hashes(salt: str, user_id: str, ordinals: np.ndarray) -> np.ndarray:
    """Return one uint64 per sentence of a user, a function of the arguments alone.

    `hash64` of the user's id keys a bijection of the ordinals (SplitMix64's finaliser).
    """
    mixed = ordinals.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed += np.uint64(hash64(salt, user_id))  # wraps around, as intended
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
