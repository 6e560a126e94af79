"""Whose figures they are, in the words of the plan's unit: users, or single examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedpriv.privacy.plan import unit_words

# What a run folder calls them whatever the unit, because an example is a user with one record.
_NAMES = {
    "num_users": "num_examples",
    "num_public_users": "num_public_examples",
    "max_examples_per_user": "",
    "num_rounds": "num_steps",
    "expected_cohort_size": "expected_batch_size",
    "cohort_cap": "batch_cap",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitLabels:
    """Nouns of a unit.

    Attributes:
        one: One of those that the plan protects, without saying so.
        total: One of them, where it is said how many there are.
        rostered: One of them, of whom figures are diagnostics.
        public: One of those whom no plan protects, of whom figures are released.
        provenance: Where the run's data came from, in a few words.
        turn: One of the charges of a plan, for which some of them are drawn.
        drawn: Those drawn for it.
    """

    one: str
    total: str
    rostered: str
    public: str
    provenance: str
    turn: str
    drawn: str

    @property
    def diagnosed(self) -> str:
        """Legend of what ε does not cover."""
        return f"{self.rostered}s: a diagnostic, not covered by ε"

    @property
    def released(self) -> str:
        """Legend of what is released."""
        return f"{self.public}s: released"


USERS = UnitLabels(
    one="user",
    total="user",
    rostered="rostered user",
    public="public user",
    provenance="where the users and the counts came from",
    turn=unit_words("user").turn,
    drawn=unit_words("user").drawn,
)
EXAMPLES = UnitLabels(
    one="example",
    total="training example",
    rostered="training example",
    public="test example",
    provenance="where the examples came from",
    turn=unit_words("example").turn,
    drawn=unit_words("example").drawn,
)


def labels_of(unit: str) -> UnitLabels:
    """Return the nouns of a plan's unit: "user", "example", or "owner", of examples too."""
    return EXAMPLES if unit in ("example", "owner") else USERS


def labels_of_all(units: Iterable[str]) -> UnitLabels:
    """Return the nouns of runs that are read side by side; of both kinds where they differ.

    A step is a round, of examples: turns of both kinds are called rounds.

    >>> labels_of_all(["example", "example"]).public, labels_of_all(["user", "example"]).public
    ('test example', 'public users or test example')
    """
    kinds = list(dict.fromkeys(labels_of(unit) for unit in units))
    if len(kinds) == 1:
        return kinds[0]

    def either(name: str) -> str:
        *others, last = (getattr(kind, name) for kind in kinds)
        return "".join(f"{other}s or " for other in others) + last

    return UnitLabels(
        one=either("one"),
        total=either("total"),
        rostered=either("rostered"),
        public=either("public"),
        provenance="where the data came from",
        turn=USERS.turn,
        drawn=USERS.drawn,
    )


def by_unit(values: Mapping[str, Any], unit: str) -> dict[str, Any]:
    """Return a corpus or plan under the names that fit the unit; what has no meaning is left out.

    >>> by_unit({"num_users": 3, "max_examples_per_user": None, "delta": 0.1}, "example")
    {'num_examples': 3, 'delta': 0.1}
    """
    if unit not in ("example", "owner"):
        return dict(values)
    named = {_NAMES.get(name, name): value for name, value in values.items()}
    return {name: value for name, value in named.items() if name}
