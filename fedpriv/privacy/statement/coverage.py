"""Coverage: what the ε of a run does not cover, and why a run without a guarantee has none.

An ε covers what is computed from the noised sums. A vocabulary, document frequencies or side
information that were taken from the protected users themselves reach the model apart from those
sums, and no accountant sees them. Whatever prints an ε prints this next to it. Everything is read
from what `experiment.json` records, so that it holds for every run folder.

A start from a file is never covered by the ε of the run that continues from it. Where a run of
fedpriv released that file, the run's folder states what it cost its users, and the two ε add up
for the same roster; otherwise its training data are unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedpriv.mechanisms.event import Relation
from fedpriv.privacy.epsilon import Epsilon, format_delta, rounded_up
from fedpriv.privacy.plan import AnyPlan, read_plan, unit_words
from fedpriv.untrusted_text import plain

UNKNOWN = "a start from a file, whose training data are unknown"
COST = "what the start cost the same users before"
TRAINED = "trained"
"""Key of it in the facts of a start and in the metadata of an exported model."""
BROUGHT = "brought"
"""Key in the facts of a start: names of tensors that the task's code brings."""
_MOST_NAMED = 3
_MOST_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedBefore:
    """Privacy of the training of a model that a run released and another run starts from.

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
        """Return it from its JSON; None where that is missing or malformed."""
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
        """Whether its users have an ε whose noise cannot be drawn again from a seed."""
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
            left = "" if self.is_of(plan) else ": a user on both is not protected"
            return (f"a start {how} on {whom}{said}{left}",)
        simulated = "simulated " if self.mode != "secure" else ""
        spent = (
            f"{simulated}ε = {rounded_up(self.epsilon, 4):,.4f} "
            f"at δ = {format_delta(self.delta or 0.0)} ({plain(self.relation)}, per "
            f"{plain(self.unit)}, by {plain(self.accountant)}){said}"
        )
        if self.adds_to(plan, secure=secure):
            first = f"{COST}: {spent}, which adds to this ε"
        elif self.is_of(plan):
            first = f"{COST}: {spent}, by another relation, which does not add up"
        else:
            first = f"what the start cost another roster: {spent}: a user on both has both"
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
    """Return the composed ε of a run and of the model that it started from.

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

    Another roster's digest does not show whether those people are on this roster too.

    Raises:
        ValueError: With what the model was trained on, unless it was asked for by name.
    """
    found = trained_before(start)
    if found is None or found.protects or not plan.is_private:
        return
    if options.get("start.without_privacy") is not True:
        [said] = found.phrases(plan, secure=True)
        raise ValueError(
            f"a secure run may not go on from {said}: no ε covers what was learnt from them; start "
            "from a model with privacy or of public data, or set start-without-privacy=true, which "
            "every statement of the run then says"
        )


def brought_weights(start: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return what a plan's ε does not cover of weights that the task's code brings."""
    names = as_object(start).get(BROUGHT)
    if not isinstance(names, list) or not names:
        return ()
    shown, more = [plain(name) for name in names[:_MOST_NAMED]], len(names) - _MOST_NAMED
    return (
        f"what weights that the code of the model brings were trained on ({', '.join(shown)}"
        f"{f' and {more} more' if more > 0 else ''})",
    )


def refuse_brought_weights(
    plan: AnyPlan, start: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """Refuse a secure run of a model whose weights its code brings, from an unknown source.

    Raises:
        ValueError: With the weights' names, unless they were asked for by name.
    """
    found = brought_weights(start)
    if not found or not plan.is_private or options.get("start.brought_weights") is True:
        return
    raise ValueError(
        f"a secure run may not use {found[0].removeprefix('what ')}: of two keys they come out "
        "alike, and no ε covers what they may hold; draw them by torch, name published files that "
        "they are of (published=... of the task), or set start-brought-weights=true where they "
        "hold nothing of rostered users, which every statement of the run then says"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


KEY = "epsilon_does_not_cover"
"""Key of the list in JSON, which is empty where ε covers everything."""

PUBLIC_EXAMPLES = "public examples"
"""Data of a public-only model, unless a run names others."""

NO_NOISE = "no noise is added"

USER_LOOP = "user_loop"
"""Key of a description that was read from a ledger alone, of a user-defined training loop."""

FLOATS = "what the last bits of noise in floating point betray"
"""Limit of the ε of a secure run whose sums or noise are not of whole numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The gaps of a run's ε, printed wherever the ε is.

    Attributes:
        not_covered: What ε does not cover, in plain phrases; empty where it covers everything, and
            where it is infinite, which holds of whatever was done.
        reason: Why ε is infinite; "" for a plan with noise.
    """

    not_covered: tuple[str, ...] = ()
    reason: str = ""

    @property
    def mark(self) -> str:
        """Qualification of an ε: "does NOT cover: ...", or "".

        >>> Coverage(not_covered=("vocabulary", "document frequencies")).mark
        'does NOT cover: vocabulary; document frequencies'
        """
        return "does NOT cover: " + "; ".join(self.not_covered) if self.not_covered else ""

    def qualified(self, text: str) -> str:
        """Return an ε in words with the mark behind it.

        >>> Coverage(not_covered=("vocabulary",)).qualified("ε = 2.00")
        'ε = 2.00, does NOT cover: vocabulary'
        """
        return f"{text}, {self.mark}" if self.mark else text

    def explained(self, spent: Epsilon) -> Epsilon:
        """Return an ε with the reason why it is infinite, where the plan alone does not know it."""
        return replace(spent, reason=self.reason) if self.reason else spent

    def marked(self, spent: Epsilon) -> Epsilon:
        """Return an ε that prints what it does not cover."""
        return replace(spent, not_covered=self.not_covered)


NOT_KNOWN = Coverage(
    not_covered=("whatever experiment.json would name, which is missing or not the run's",)
)


def coverage_without_document(facts: Mapping[str, Any]) -> Coverage:
    """Return the coverage of a run without `experiment.json`, from its ledger's first line.

    A user-defined training loop has no document, and states there what is not covered.
    """
    said = facts.get(KEY)
    own = isinstance(said, list) and all(isinstance(phrase, str) for phrase in said)
    found = tuple(map(str, said)) if own and said else NOT_KNOWN.not_covered
    return Coverage(not_covered=(*found, FLOATS) if in_floats(facts) else found)


def coverage_of(document: Mapping[str, Any], plan: AnyPlan | None = None) -> Coverage:
    """Return what the ε of a run does not cover, from its `experiment.json`.

    Args:
        document: `experiment.json`.
        plan: The run's; None reads that of the document.

    Raises:
        ValueError: If the document holds no plan.
    """
    plan = read_plan(document.get("plan")) if plan is None else plan
    if USER_LOOP in document:
        return coverage_without_document(document) if plan.is_private else Coverage(reason=NO_NOISE)
    return coverage(
        plan,
        corpus=document.get("corpus"),
        side_information=document.get("side_information"),
        options=document.get("experiment"),
        start=document.get("start"),
        secure=document.get("mode") == "secure",
        in_floats=in_floats(document),
    )


def in_floats(document: Mapping[str, Any]) -> bool:
    """Return whether a run's `experiment.json` says that it is secure and not hardened.

    A seeded simulation guarantees nothing that floating point could break: ε is called simulated.
    """
    return document.get("mode") == "secure" and document.get("hardened") is not True


def coverage(
    plan: AnyPlan,
    *,
    corpus: Mapping[str, Any] | None = None,
    side_information: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    start: Mapping[str, Any] | None = None,
    secure: bool = False,
    in_floats: bool = False,
) -> Coverage:
    """Return what the ε of a plan does not cover.

    Args:
        plan: The plan.
        corpus: What the run folder says of the data, with their "provenance".
        side_information: Its "source" and "description", or None without any.
        options: The experiment's options by their command-line names.
        start: What the run folder says of what training started from.
        secure: Whether it is a secure run, which simulated noise of its start does not protect.
        in_floats: Whether it is a secure run of sums or noise in floating point.
    """
    if not plan.is_private:
        return Coverage(reason=_no_guarantee_reason(plan, side_information, options))
    found = private_knowledge(plan.unit, corpus, side_information)
    if as_object(as_object(corpus).get("provenance")).get("roster_looks_at_data"):
        found += ("who is on the roster, a choice that looked at their records",)
    if as_object(corpus).get("public_of_rostered"):
        found += ("figures on public examples, some of which equal rostered users'",)
    if as_object(corpus).get("public_train_of_rostered"):
        found += ("a start from public examples, some of which equal rostered users'",)
    found += private_start(options)
    found += file_start(plan, start, options, secure=secure)
    found += brought_weights(start)
    return Coverage(not_covered=(*found, FLOATS) if in_floats else found)


def private_start(options: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return what a start knows of rostered users, by the experiment's options."""
    options = as_object(options)
    if (options.get("start"), options.get("task.public_text")) == ("public", "all-posts"):
        return ("a start from all of public users' posts, with rostered users' titles and tags",)
    return ()


def public_only_of(options: Mapping[str, Any] | None) -> str:
    """Return what the public-only model of a run learnt from; "" where it was public."""
    if as_object(options).get("task.public_text") != "all-posts":
        return ""
    return "all of public users' posts; rostered users' titles and tags in them no ε covers"


def private_knowledge(
    unit: str, corpus: Mapping[str, Any] | None, side_information: Mapping[str, Any] | None
) -> tuple[str, ...]:
    """Return what a run knows of those whom a plan of this unit protects, in plain phrases.

    That is side information of source "private", what the data set's provenance lists as
    `private_side_information`, and words, tags and counts published with the data.
    """
    provenance = as_object(as_object(corpus).get("provenance"))
    whom = unit_words(unit).protected
    listed: Any = provenance.get("private_side_information") or ()
    taken: list[Any] = [*listed] if isinstance(listed, (list, tuple)) else [listed]
    if "private" in str(provenance.get("word_counts_source", "")):
        taken.append("vocabulary, tag list and word counts")
    if as_object(side_information).get("source") == "private":
        taken.append("side information")
    return tuple(f"{what} taken from {whom}" for what in taken)


def refuse_private_knowledge(
    unit: str,
    corpus: Mapping[str, Any] | None,
    side_information: Mapping[str, Any] | None,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Refuse private knowledge that only a simulation may use.

    Raises:
        ValueError: If anything was taken from those whom the plan protects.
    """
    found = private_knowledge(unit, corpus, side_information) + private_start(options)
    if found:
        raise ValueError(
            f"a secure run may not use {'; '.join(found)}: no ε covers that; take it from public "
            "data, do without it, or run a simulation, whose reports say so"
        )


def _no_guarantee_reason(
    plan: AnyPlan, side: Mapping[str, Any] | None, options: Mapping[str, Any] | None
) -> str:
    options, side = as_object(options), as_object(side)
    if options.get("noise") in (None, "none"):
        return NO_NOISE
    # The plan of such a run has no noise, so that it is not taken for a guarantee.
    sigma = options.get("noise.multiplier")
    mechanism = plan.mechanism
    sensitivity = mechanism.sensitivity if mechanism is not None and mechanism.runs else 0.0
    size = (
        f" of standard deviation {sigma * sensitivity:.4g}"
        if isinstance(sigma, (int, float))
        else ""
    )
    seen = side.get("description") if side.get("source") == "private" else None
    return (
        f"noise{size} is added, but there is no guarantee, because the run looks at "
        f"{seen or 'private data without noise'}"
    )


def as_object(value: Any) -> Mapping[str, Any]:
    """Return a JSON object, empty where there is something else."""
    return value if isinstance(value, Mapping) else {}
