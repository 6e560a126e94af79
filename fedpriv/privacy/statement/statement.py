"""The privacy statement of a run: its guarantee and the limits of it, in plain words.

Everything stated follows from the plan, the ledger's counts, the mode of the keys and the
provenance that the corpus published. A statement is data (titles and paragraphs of plain text);
reports and the command line format it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.privacy.epsilon import (
    Epsilon,
    format_delta,
    format_epsilon,
    format_odds_factor,
    format_posterior,
)
from fedpriv.privacy.event import Relation
from fedpriv.privacy.ledger.anchor import ANCHORED, WITHOUT_ANCHOR
from fedpriv.privacy.plan import AnyPlan, unit_words
from fedpriv.privacy.statement.audited import NOT_AUDITED, AuditRecord, describe_audit, read_audit
from fedpriv.privacy.statement.coverage import (
    KEY,
    NO_NOISE,
    OWN,
    Coverage,
    as_object,
    coverage,
    coverage_of,
    with_start,
)
from fedpriv.privacy.statement.sealed import DOCUMENT, SEAL, SealedRun, read_object, read_sealed
from fedpriv.privacy.statement.sections import (
    describe_accounting,
    describe_foreign_text,
    describe_model_choice,
    describe_private_inputs,
    describe_protected,
    describe_public_inputs,
    describe_randomness,
    protection_to_json,
)

NO_EPSILON_COVERS = "What no ε covers"
"""Title of what goes with every ε; what is missing of one run's alone is in `not_covered`."""
NO_MEANINGFUL_PROTECTION_ABOVE = 10.0
"""ε above which a run is labelled. At ε = 10 the odds that somebody took part may be multiplied by
22 000: from even odds to 99.995 %, which no reader would call protection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A titled part of a statement.

    Attributes:
        title: A few words.
        paragraphs: Plain text, no markup.
    """

    title: str
    paragraphs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The guarantee of a run, in plain words.

    Attributes:
        headline: One line: the ε with all that makes it mean something, what it does not cover,
            and its label.
        not_covered: What ε does not cover, in plain phrases; empty where it covers everything.
        no_meaningful_protection: Whether ε is infinite or above 10.
        simulated: Whether the noise came from a seed.
        sections: The statement's parts, in reading order.
        protects: Whom, in JSON values: unit, relation, whose words, and what is public by
            assumption.
        audit: What an audit of the run's mechanism found; None if it was not audited.
        with_start: The ε of the run and of the model of the same users that it started from; None
            where it started from no such model.
    """

    headline: str
    not_covered: tuple[str, ...]
    no_meaningful_protection: bool
    simulated: bool
    sections: tuple[Section, ...]
    protects: Mapping[str, Any]
    audit: AuditRecord | None = None
    with_start: Epsilon | None = None

    def __repr__(self) -> str:
        parts = [self.headline]
        for part in self.sections:
            parts.append("\n".join([part.title, *(f"  {text}" for text in part.paragraphs)]))
        return "\n\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "headline": self.headline,
            KEY: list(self.not_covered),
            "no_meaningful_protection": self.no_meaningful_protection,
            "simulated": self.simulated,
            "audit": NOT_AUDITED if self.audit is None else self.audit.to_json(),
            "with_start": None if self.with_start is None else self.with_start.to_json(),
            "protects": dict(self.protects),
            "sections": [
                {"title": part.title, "paragraphs": list(part.paragraphs)} for part in self.sections
            ],
        }


def privacy_statement(
    plan: AnyPlan,
    *,
    num_charges: int,
    num_lost: int = 0,
    mode: str,
    backend: str = "serial",
    corpus: Mapping[str, Any] | None = None,
    side_information: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    start: Mapping[str, Any] | None = None,
    hardened: bool = False,
    anchored: bool | None = None,
    audit: AuditRecord | None = None,
    covers: Coverage | None = None,
    summary: Mapping[str, Any] | None = None,
) -> Statement:
    """Return the statement of a run, finished or under way.

    Args:
        plan: The plan.
        num_charges: Charges spent.
        num_lost: Of these, attempts that released nothing.
        mode: "simulation" or "secure".
        backend: The backend; "flower" adds what nodes and the network see.
        corpus: What `experiment.json` says of the corpus; missing facts are left out.
        side_information: Its "source" and "description", or None without preconditioning.
        options: The experiment's, by their command-line names; they tell noise that is added
            without a guarantee.
        start: What `experiment.json` says of what training started from.
        hardened: Whether a secure run's sums and noise are whole numbers, exactly rounded.
        anchored: Whether the ledger is marked outside its folder; None says nothing of it.
        audit: What an audit of this run's mechanism found.
        covers: What ε does not cover; None where corpus, side information and options tell it.
        summary: Of the finished run, for which model it returns.
    """
    corpus = corpus or {}
    covers = covers or coverage(
        plan,
        corpus=corpus,
        side_information=side_information,
        options=options,
        start=start,
        secure=mode == "secure",
        in_floats=mode == "secure" and not hardened,
    )
    spent = covers.explained(plan.epsilon(num_charges))
    simulated = mode != "secure"
    both = with_start(plan, spent, start, secure=not simulated)
    weak = not spent.value <= NO_MEANINGFUL_PROTECTION_ABOVE
    label = (
        ""
        if not weak
        else ("no privacy" if math.isinf(spent.value) else "no meaningful protection")
    )
    headline = covers.qualified(
        ("simulated " if simulated and plan.is_private else "") + str(spent)
    )
    said = [label] if label else []
    if audit is not None and audit.refuted:
        said.append("REFUTED by its audit")
    parts = (
        ("The promise", _guarantee(plan, spent, label, covers)),
        ("Who is protected", describe_protected(plan, corpus)),
        (
            "How ε was counted",
            [
                *describe_accounting(
                    plan,
                    spent,
                    num_charges,
                    num_lost,
                    adaptive=as_object(options).get("bound.clip_norm") == "adaptive",
                ),
                *_together(both, simulated),
                *_copies(plan, anchored),
            ],
        ),
        ("Randomness", describe_randomness(plan, spent, simulated, hardened)),
        ("Whose words are in an example", describe_foreign_text(corpus)),
        (
            "What was taken to be public",
            describe_public_inputs(plan, corpus, side_information, options, start),
        ),
        (
            f"What was taken from {unit_words(plan.unit).protected}",
            describe_private_inputs(plan, corpus, side_information),
        ),
        ("Which model is returned", describe_model_choice(options, summary)),
        ("Audit", describe_audit(plan, audit)),
        (NO_EPSILON_COVERS, _not_covered(plan, corpus, simulated)),
        ("What nodes are trusted with", _nodes(plan, backend)),
    )
    return Statement(
        headline=f"{headline}: {'; '.join(said)}" if said else headline,
        not_covered=covers.not_covered,
        no_meaningful_protection=weak,
        simulated=simulated,
        protects=protection_to_json(plan, corpus),
        sections=tuple(
            Section(title=title, paragraphs=tuple(texts)) for title, texts in parts if texts
        ),
        audit=audit,
        with_start=both,
    )


def run_statement(run_dir: str | os.PathLike[str]) -> Statement:
    """Return the statement of a run folder, from its `experiment.json` and its ledger.

    A user-defined training loop has a ledger alone.

    Raises:
        ValueError: If either is missing or damaged, the document is not the one that the ledger
            seals, or `audit.json` is another run's.
    """
    run = read_sealed(run_dir)
    state = run.state
    document = describe_from_ledger(run) if run.document is None else run.document
    return privacy_statement(
        state.plan,
        num_charges=len(state.charges),
        num_lost=len(state.lost),
        mode=state.mode,
        backend=str(document.get("backend", "serial")),
        corpus=as_object(document.get("corpus")),
        side_information=as_object(document.get("side_information")) or None,
        options=as_object(document.get("experiment")),
        start=run.start,
        hardened=document.get("hardened") is True,
        anchored=bool(state.extra.get(ANCHORED)),
        audit=read_audit(run.folder, run.records, state),
        covers=coverage_of(document) if OWN in document else None,
        summary=_summary(run.folder),
    )


def _summary(folder: Path) -> Mapping[str, Any]:
    """Return a run's summary; nothing of one that is under way or cannot be read."""
    try:
        return read_object(folder / "summary.json")
    except (OSError, ValueError):
        return {}


def describe_from_ledger(run: SealedRun) -> dict[str, Any]:
    """Return the description of a user-defined training loop from its ledger alone.

    Such are the folders of `fedpriv.averaging` in a Flower app, and of `fedpriv.bolt_on`.

    Raises:
        ValueError: If the ledger is of a run that has an `experiment.json`.
    """
    state = run.state
    if SEAL in state.extra:
        raise ValueError(
            f"{run.folder} has lost its {DOCUMENT}, of which its ledger holds the digest; restore "
            "that file"
        )
    return {
        **state.extra,
        "plan": state.plan.to_json(),
        "mode": state.mode,
        "measures": [],
        "corpus": {"num_users": state.plan.num_users},
        OWN: {"rounds_done": state.rounds_done, "finished": not state.pays_for_more},
    }


def _guarantee(plan: AnyPlan, spent: Epsilon, label: str, covers: Coverage) -> list[str]:
    if not plan.is_private:
        reason = spent.reason
        done = "This run adds no noise." if reason == NO_NOISE else f"In this run {reason}."
        return [
            f"{done} It promises nothing: ε is infinite, and whoever sees the "
            f"model may learn anything about any {plan.unit} in it."
        ]
    change = (
        f"whether {_describe_neighbour(plan)}"
        if plan.relation is not Relation.REPLACE_ONE
        else (
            "replacing all records of one rostered user by any others"
            if plan.unit == "user"
            else "replacing one example of the training set by any other"
        )
    )
    shown = format_epsilon(spent.value)
    text = [
        f"ε = {shown} at δ = {format_delta(spent.delta)}: {change} changes the probability of "
        f"anything released by a factor of at most e^{shown}"
        f"{format_odds_factor(spent.value)}, except with probability δ."
        + (f" It {covers.mark}." if covers.mark else "")
    ]
    if math.isfinite(spent.value):
        about = (
            f"whether a given {plan.unit} took part"
            if plan.relation is not Relation.REPLACE_ONE
            else "which of two record sets was used"
        )
        text.append(
            f"Put as a bet: somebody who knows everything else and gives even odds on "
            f"{about} may become {format_posterior(spent.value)} sure, and not surer, δ aside."
        )
    if label:
        text.append(
            f"That is {label}: we use these words for every ε above "
            f"{NO_MEANINGFUL_PROTECTION_ABOVE:g}. Read the run as a comparison of methods, "
            "not as a safeguard."
        )
    return text + [f"Note that {warning}." for warning in plan.warnings]


def _not_covered(plan: AnyPlan, corpus: Mapping[str, Any], simulated: bool) -> list[str]:
    if not plan.is_private:
        return []
    words = unit_words(plan.unit)
    text = [
        "Tuning: learning rates, clip norms and the choice among methods, where they were made "
        f"by looking at results on these {words.contributor}s"
        + ("." if plan.trials is None else " in other ways than by this study, which ε covers.")
    ]
    if simulated:
        text.append(
            f"Diagnostics: figures on {words.protected}, {words.drawn} sizes, counts of "
            "failures and timings (diagnostics.jsonl, and figures taken from it). They are "
            "computed from private data without noise; a deployment must not publish them."
        )
    if plan.unit != "user":
        text.append("The test set, on which released figures are measured, and public examples.")
    elif corpus.get("num_public_users"):
        text.append("Users outside the roster, on whom released figures are measured.")
    text.append(
        "The trainer, which sees everything before the noise and is trusted to forget it; how long "
        "it took is not hidden."
        if plan.unit != "user"
        else "The server and the network: the server is trusted to see updates before the noise "
        "and to forget them; message sizes and times are not hidden."
    )
    return text


def _together(both: Epsilon | None, simulated: bool) -> list[str]:
    if both is None:
        return []
    spent = f"simulated {both}" if simulated else str(both)
    return [
        f"With what the start cost the same users before: {spent}. ε and δ of the two are added."
    ]


def _copies(plan: AnyPlan, anchored: bool | None) -> list[str]:
    if not plan.is_private or anchored is None:
        return []
    if anchored:
        return [
            "The ledger is marked outside its folder (anchored): a folder that was written anew, a "
            "copy of it that was continued besides, an older backup and charges cut off its end "
            "are found where the run is verified with its anchor. Who could write to both is "
            "trusted."
        ]
    return [
        "The ledger has no anchor outside its folder, so four things cannot be found: "
        f"{'; '.join(WITHOUT_ANCHOR)}."
    ]


def _nodes(plan: AnyPlan, backend: str) -> list[str]:
    if not plan.is_private or backend != "flower":
        return []
    return [
        "A node learns which of its own users take part, and so does a network without TLS. "
        "Whoever sees that loses the amplification by sampling: ε is for those who see the "
        "released model only.",
        "Nodes are trusted for the split: one that hosts k users is trusted to bound each of them, "
        "for the server holds only its sum, to k times the bound.",
        "Whom a node hosts is believed of the node whose public key the operator bound those users "
        "to; where keys were not bound (allow-unauthenticated-nodes), of every node. A user that "
        "two nodes claim contributes zero.",
    ]


def _describe_neighbour(plan: AnyPlan) -> str:
    """Return the difference between two neighbours under add-remove, as a clause."""
    if plan.unit == "user":
        return "one rostered user's records were there or not"
    if plan.unit == "owner":
        return "all training examples that one person owns were blanked or not"
    return "one example of the training set was there or not"
