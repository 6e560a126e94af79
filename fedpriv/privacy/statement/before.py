"""What a run's start was trained on before, and what that has to do with the run's own ε.

A start from a file is never covered by the ε of the run that goes on from it. Where the file is one
that a run of fedpriv released, that run's folder says what it cost its users, and the two ε add up
for the same roster; where it is not, its training data are unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedpriv.privacy.epsilon import Epsilon, rounded_up, shown_delta
from fedpriv.privacy.event import Relation
from fedpriv.privacy.plans.adaptive import AnyPlan
from fedpriv.untrusted_text import plain

UNKNOWN = "a start from a file, whose training data are unknown"
COST = "what the start cost the same users before"
TRAINED = "trained"
"""Under what name the facts of a start, and the metadata of an exported model, say it."""
_MOST_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedBefore:
    """What is known of the training of a model that a run released.

    Attributes:
        ledger_head: Hash of the last line that the run's ledger had.
        mode: "secure"; "simulation" where the noise of it, or of what it started from, was seeded.
        unit: Whom its ε is for.
        relation: By name.
        roster_sha256: Of its users; None where that is not known.
        epsilon: What all of its charges cost, with what its own start cost the same users; None
            without privacy.
        delta: Likewise.
        accountant: Who computed it.
        not_covered: What its ε does not cover, in plain phrases.
        claimed: Whether a file says so itself, and no ledger was there to compare.
    """

    ledger_head: str
    mode: str
    unit: str
    relation: str
    roster_sha256: str | None
    epsilon: float | None
    delta: float | None
    accountant: str
    not_covered: tuple[str, ...] = ()
    claimed: bool = False

    @classmethod
    def read(cls, value: Any) -> TrainedBefore | None:
        """Return what a JSON value says; None where it says nothing, or nonsense."""
        if not isinstance(value, Mapping):
            return None
        try:
            found = cls(**{**value, "not_covered": tuple(value.get("not_covered", ()))})
        except TypeError:
            return None
        words = (found.ledger_head, found.mode, found.unit, found.relation, found.accountant)
        words = (*words, found.roster_sha256 or "", *found.not_covered)
        sound = all(isinstance(one, str) and len(one) <= _MOST_CHARS for one in words)
        if not sound or not isinstance(found.claimed, bool):
            return None
        if found.epsilon is None:
            return found
        known = _is_number(found.epsilon) and _is_number(found.delta) and found.epsilon >= 0.0
        return found if known and 0.0 <= (found.delta or 0.0) < 1.0 else None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "not_covered": list(self.not_covered)}

    @property
    def protects(self) -> bool:
        """Whether its users have an ε of noise that nobody can draw again."""
        return self.epsilon is not None and self.mode == "secure"

    def is_of(self, plan: AnyPlan) -> bool:
        """Return whether it was trained on those whom a plan is for."""
        same = self.roster_sha256 is not None and self.roster_sha256 == plan.roster_sha256
        return same and self.unit == plan.unit

    def adds_to(self, plan: AnyPlan, *, secure: bool) -> bool:
        """Return whether its ε and that of a plan are of the same users and relation."""
        counts = self.protects or (self.epsilon is not None and not secure)
        return counts and self.is_of(plan) and self.relation == plan.relation.value

    def phrases(self, plan: AnyPlan, *, secure: bool) -> tuple[str, ...]:
        """Return what the ε of a plan that starts from it does not cover."""
        whom = "the same users" if self.is_of(plan) else "another roster"
        said = ", as the file says" if self.claimed else ""
        if self.epsilon is None or (secure and not self.protects):
            how = "that was trained without privacy"
            if self.epsilon is not None:
                how = "whose noise was simulated, of a known seed,"
            left = "" if self.is_of(plan) else ": whoever is on both is not protected"
            return (f"a start {how} on {whom}{said}{left}",)
        simulated = "simulated " if self.mode != "secure" else ""
        spent = (
            f"{simulated}ε = {rounded_up(self.epsilon, 4):,.4f} "
            f"at δ = {shown_delta(self.delta or 0.0)} ({plain(self.relation)}, per "
            f"{plain(self.unit)}, by {plain(self.accountant)}){said}"
        )
        if self.adds_to(plan, secure=secure):
            first = f"{COST}: {spent}, which adds to this ε"
        elif self.is_of(plan):
            first = f"{COST}: {spent}, by another relation, which does not add up"
        else:
            first = f"what the start cost another roster: {spent}: whoever is on both has both"
        return (first, *(f"of the start: {plain(phrase)}" for phrase in self.not_covered))


def trained_before(start: Mapping[str, Any] | None) -> TrainedBefore | None:
    """Return what the facts of a start say of its training; None where that is unknown."""
    return TrainedBefore.read(start.get(TRAINED)) if isinstance(start, Mapping) else None


def is_from_file(start: Mapping[str, Any] | None, options: Mapping[str, Any] | None) -> bool:
    """Return whether training went on from a file, by the facts or by the options."""
    kind = start.get("kind") if isinstance(start, Mapping) else None
    return kind == "file" or (isinstance(options, Mapping) and options.get("start") == "file")


def file_start(
    plan: AnyPlan,
    start: Mapping[str, Any] | None,
    options: Mapping[str, Any] | None,
    *,
    secure: bool,
) -> tuple[str, ...]:
    """Return what a plan's ε does not cover of a start from a file; nothing of another start."""
    if not is_from_file(start, options):
        return ()
    found = trained_before(start)
    return (UNKNOWN,) if found is None else found.phrases(plan, secure=secure)


def with_start(
    plan: AnyPlan, spent: Epsilon, start: Mapping[str, Any] | None, *, secure: bool
) -> Epsilon | None:
    """Return the ε of a run and of what it started from, together.

    Both are of the same users by the same relation: ε and δ are added (basic composition).

    Returns:
        None where the run did not start from a model of the same users whose ε is known.
    """
    found = trained_before(start)
    if found is None or not plan.is_private or not found.adds_to(plan, secure=secure):
        return None
    return Epsilon(
        value=spent.value + (found.epsilon or 0.0),
        delta=min(1.0, spent.delta + (found.delta or 0.0)),
        relation=Relation(spent.relation),
        accountant=f"basic composition of {spent.accountant} and {plain(found.accountant)}",
        unit=spent.unit,
        claimed=found.claimed,
    )


def refuse_start_without_privacy(
    plan: AnyPlan, start: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """Refuse to start a secure run from a model that was trained without privacy.

    Whether those people are on this roster too cannot be told from another roster's digest.

    Raises:
        ValueError: With what the model was trained on, unless it was asked for by name.
    """
    found = trained_before(start)
    if found is None or found.protects or not plan.is_private:
        return
    if options.get("start-without-privacy") is not True:
        [said] = found.phrases(plan, secure=True)
        raise ValueError(
            f"a secure run may not go on from {said}: no ε covers what was learnt from them; start "
            "from a model with privacy or of public data, or set start-without-privacy=true, which "
            "every statement of the run then says"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
