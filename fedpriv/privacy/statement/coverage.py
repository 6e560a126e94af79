"""What the ε of a run does not cover, and why a run has no guarantee where it has none.

An ε covers what is computed from the noised sums. A vocabulary, document frequencies or side
information that were taken from the very people it speaks of reach the model apart from those sums,
and no accountant sees them. Who prints an ε prints this next to it. Everything is read from what
`experiment.json` records, so that it holds for every run folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedpriv.privacy.epsilon import Epsilon
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plans.adaptive import AnyPlan, read_plan
from fedpriv.privacy.statement.before import file_start
from fedpriv.privacy.unit_words import words_of

KEY = "epsilon_does_not_cover"
"""Under what name JSON has the list, which is empty where ε covers everything."""

PUBLIC_EXAMPLES = "public examples"
"""What a public-only model learns from, unless a run says otherwise."""

NO_NOISE = "no noise is added"

OWN = "own"
"""What a description has that was read from a ledger alone, of a training of one's own."""

FLOATS = "what the last bits of noise in floating point betray"
"""What the ε of a secure run does not cover whose sums or noise are not of whole numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What is to be said wherever the ε of a run is printed.

    Attributes:
        not_covered: What ε does not cover, in plain phrases; empty where it covers everything, and
            where it is infinite, which holds of whatever was done.
        reason: Why ε is infinite; "" for a plan with noise.
    """

    not_covered: tuple[str, ...] = ()
    reason: str = ""

    @property
    def mark(self) -> str:
        """What goes with an ε: "does NOT cover: ...", or "".

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
        """Return an ε that says why it is infinite, where the plan alone could not know."""
        return replace(spent, reason=self.reason) if self.reason else spent

    def marked(self, spent: Epsilon) -> Epsilon:
        """Return an ε that says itself what it does not cover: for who prints it without us."""
        return replace(spent, not_covered=self.not_covered)


NOT_KNOWN = Coverage(
    not_covered=("whatever experiment.json would name, which is missing or not the run's",)
)


def not_known(facts: Mapping[str, Any]) -> Coverage:
    """Return what is said without a document: of a ledger's first line, its facts and mode.

    A training of one's own has no document, and says there itself what is not covered.
    """
    said = facts.get(KEY)
    own = isinstance(said, list) and all(isinstance(phrase, str) for phrase in said)
    found = tuple(map(str, said)) if own and said else NOT_KNOWN.not_covered
    return Coverage(not_covered=(*found, FLOATS) if in_floats(facts) else found)


def coverage_of(document: Mapping[str, Any]) -> Coverage:
    """Return what the ε of a run does not cover, from its `experiment.json`.

    Raises:
        ValueError: If the document holds no plan.
    """
    plan = read_plan(document.get("plan"))
    if OWN in document:
        return not_known(document) if plan.is_private else Coverage(reason=NO_NOISE)
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

    A seeded simulation promises nothing that floating point could break: ε is called simulated.
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
        plan: The promise.
        corpus: What the run folder says of the data, with their "provenance".
        side_information: Its "source" and "description", or None without any.
        options: The experiment's options by their command-line names.
        start: What the run folder says of what training started from.
        secure: Whether it is a secure run, which simulated noise of its start does not protect.
        in_floats: Whether it is a secure run of sums or noise in floating point.
    """
    if not plan.is_private:
        return Coverage(reason=_no_promise(plan, side_information, options))
    found = private_knowledge(plan.unit, corpus, side_information)
    if as_object(as_object(corpus).get("provenance")).get("roster_looks_at_data"):
        found += ("who is on the roster, a choice that looked at their records",)
    if equal := as_object(corpus).get("public_of_rostered"):
        found += (f"figures on public examples, {equal} of which equal rostered users'",)
    if equal := as_object(corpus).get("public_train_of_rostered"):
        found += (f"a start from public examples, {equal} of which equal rostered users'",)
    found += private_start(options)
    found += file_start(plan, start, options, secure=secure)
    return Coverage(not_covered=(*found, FLOATS) if in_floats else found)


def private_start(options: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return what a start knows of rostered users, by the experiment's options."""
    options = as_object(options)
    if (options.get("start"), options.get("public-text")) == ("public", "all-posts"):
        return ("a start from all of public users' posts, with rostered users' titles and tags",)
    return ()


def public_only_of(options: Mapping[str, Any] | None) -> str:
    """Return what the public-only model of a run learnt from; "" where it was public."""
    if as_object(options).get("public-text") != "all-posts":
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
    whom = words_of(unit).protected
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
    """Refuse what only a simulation may know.

    Raises:
        ValueError: If anything was taken from those whom the plan protects.
    """
    found = private_knowledge(unit, corpus, side_information) + private_start(options)
    if found:
        raise ValueError(
            f"a secure run may not use {'; '.join(found)}: no ε covers that; take it from public "
            "data, do without it, or run a simulation, whose reports say so"
        )


def _no_promise(
    plan: AnyPlan, side: Mapping[str, Any] | None, options: Mapping[str, Any] | None
) -> str:
    options, side = as_object(options), as_object(side)
    if options.get("noise") in (None, "none"):
        return NO_NOISE
    # The plan of such a run has no noise, so that it is not taken for a guarantee.
    sigma = options.get("noise-multiplier")
    mechanism = plan.mechanism
    sensitivity = mechanism.sensitivity if isinstance(mechanism, Mechanism) else 0.0
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
