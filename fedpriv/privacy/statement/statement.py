"""The privacy statement of a run: its guarantee and the limits of it, in plain words.

Everything stated follows from the plan, the ledger's counts, the mode of the keys and the
provenance that the corpus published: who is protected, how ε was counted, where noise comes from
and what its last bits betray, where data, words and side information came from, and which model a
run returns. A statement is data (titles and paragraphs of plain text); reports and the command line
format it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.checkpoints.tensor_files import AVERAGE, LAST, PUBLIC_MODEL, PUBLIC_MODELS, START
from fedpriv.measures import figures_of, grouped, read_measures
from fedpriv.privacy.epsilon import (
    Epsilon,
    format_delta,
    format_epsilon,
    format_odds_factor,
    format_percent,
    format_posterior,
)
from fedpriv.privacy.event import Event, Relation
from fedpriv.privacy.ledger.anchor import ANCHORED, WITHOUT_ANCHOR
from fedpriv.privacy.mechanism import Mechanism, RecordedMechanism
from fedpriv.privacy.plan import AnyPlan, unit_words
from fedpriv.privacy.sampling import FixedSizeSampler, PoissonSampler
from fedpriv.privacy.statement.coverage import (
    KEY,
    NO_NOISE,
    OWN,
    Coverage,
    as_object,
    coverage,
    coverage_of,
    is_from_file,
    private_knowledge,
    private_start,
    trained_before,
    with_start,
)
from fedpriv.privacy.statement.sealed import (
    DOCUMENT,
    NOT_AUDITED,
    SEAL,
    AuditRecord,
    SealedRun,
    describe_audit,
    read_audit,
    read_object,
    read_sealed,
)
from fedpriv.privacy.trials import Trials

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
    label = "no privacy" if math.isinf(spent.value) else "no meaningful protection" if weak else ""
    shown = f"simulated {spent}" if simulated and plan.is_private else str(spent)
    refuted = "REFUTED by its audit" if audit is not None and audit.refuted else ""
    marks = "; ".join(filter(None, (label, refuted)))
    parts = (
        ("The guarantee", _guarantee(plan, spent, label, covers)),
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
        headline=covers.qualified(shown) + (f": {marks}" if marks else ""),
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
            f"{done} It guarantees nothing: ε is infinite, and whoever sees the "
            f"model may learn anything about any {plan.unit} in it."
        ]
    replaced = plan.relation is Relation.REPLACE_ONE
    change, about = f"whether {_NEIGHBOURS[plan.unit]}", f"whether a given {plan.unit} took part"
    if replaced:
        about = "which of two record sets was used"
        change = (
            "replacing all records of one rostered user by any others"
            if plan.unit == "user"
            else "replacing one example of the training set by any other"
        )
    shown = format_epsilon(spent.value)
    text = [
        f"ε = {shown} at δ = {format_delta(spent.delta)}: {change} changes the probability of "
        f"anything released by a factor of at most e^{shown}"
        f"{format_odds_factor(spent.value)}, except with probability δ."
        + (f" It {covers.mark}." if covers.mark else "")
    ]
    if math.isfinite(spent.value):
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
            f"Diagnostics: values on {words.protected}, {words.drawn} sizes, counts of "
            "failures and timings (diagnostics.jsonl, and values taken from it). They are "
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
    return [
        "The ledger is marked outside its folder (anchored): a folder that was written anew, a "
        "copy of it that was continued besides, an older backup and charges cut off its end are "
        "found where the run is verified with its anchor. Who could write to both is trusted."
        if anchored
        else "The ledger has no anchor outside its folder, so four things cannot be found: "
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


_NEIGHBOURS = {
    "user": "one rostered user's records were there or not",
    "owner": "all training examples that one person owns were blanked or not",
    "example": "one example of the training set was there or not",
}
"""The difference between two neighbours under add-remove, as a clause."""


def protection_to_json(plan: AnyPlan, corpus: Mapping[str, Any]) -> dict[str, Any]:
    """Return unit, relation and neighbours of a plan, as JSON values.

    Args:
        plan: The plan.
        corpus: What `experiment.json` says of the data.

    Returns:
        "unit" and "relation" of the plan; "neighbours" in words; "words", whose count: an
        "account"'s own examples, or a person's, of which others own a part too; with the latter
        "public_by_assumption" and the share of training sentences "dropped". Without a guarantee
        the unit and the relation alone.
    """
    found: dict[str, Any] = {"unit": plan.unit, "relation": plan.relation.value}
    if not plan.is_private:
        return found
    provenance = as_object(corpus.get("provenance"))
    of_all = provenance.get("owners") == "all"
    found |= {"neighbours": _neighbours(plan, of_all), "words": "person" if of_all else "account"}
    if of_all:
        found["public_by_assumption"] = [
            "the graph: which account wrote how many sentences in which thread, and who asked it"
        ]
        found["dropped"] = provenance.get(SHARE_DROPPED)
    if plan.unit == "owner" and plan.event is not None:
        found["examples_per_owner"] = plan.event.devices or 1
    return found


def _neighbours(plan: AnyPlan, of_all: bool) -> str:
    if plan.unit == "owner":
        return "blank one owner's examples"
    if plan.unit == "example":
        return "one example there or not"
    moved = "one person's words, wherever they stand," if of_all else "one user's records"
    if plan.relation is Relation.REPLACE_ONE:
        return f"{moved} replaced by any others"
    return f"{moved} blanked or not" if of_all else f"{moved} there or not"


def describe_protected(plan: AnyPlan, corpus: Mapping[str, Any]) -> list[str]:
    """Return who is protected, as paragraphs; none without a guarantee."""
    if not plan.is_private:
        return []
    provenance = as_object(corpus.get("provenance"))
    of_all = provenance.get("owners") == "all"
    named = f", the roster {corpus['roster']!r}" if corpus.get("roster") else ""
    words = (
        "all that one person wrote, wherever it stands among rostered users' training examples: "
        "its sentences, and the titles and tags of its questions in others' answers"
        if of_all
        else "one account's whole example set as prepared, all of its records together"
    )
    unit = {
        "owner": "The unit is an owner: one person with all training examples that carry its "
        "words, in a sentence that it wrote or in the title and tags of its question. Neighbours "
        f"blank one owner's examples, every one of them whole; {plan.num_users:,} examples are on "
        "a fixed list of ids, who owns which is public, and neither changes.",
        "example": "The unit is an example: one record of the training set, which holds "
        f"{plan.num_users:,}. Whoever has several records in it is protected for each of them "
        "alone, not for all together.",
        "user": f"The unit is a user: {words}. {plan.num_users:,} users are on a frozen, "
        f"published list{named}; who is on the list is public, what they wrote is protected.",
    }[plan.unit]
    text = [unit]
    if plan.unit == "user" and provenance.get("roster_how"):
        text.append(f"How the list was chosen: {str(provenance['roster_how']).rstrip('.')}.")
    if plan.unit == "user" and provenance.get("roster_looks_at_data"):
        text.append(
            "That choice looked at the records of the users it holds, and ε does not cover "
            "what the list itself gives away."
        )
    if corpus.get("synthetic"):
        whose = "users of this corpus" if plan.unit == "user" else "examples"
        text.append(f"The {whose} are synthetic; no real person is at stake.")
    return text


#: Privatizers of a finished result, by name.
PERTURBING = ("sphere", "output-gaussian")


def describe_accounting(
    plan: AnyPlan, spent: Epsilon, num_charges: int, num_lost: int, *, adaptive: bool = False
) -> list[str]:
    """Return the paragraphs on what each charge did and how they were added up.

    Args:
        plan: The plan.
        spent: ε of the charges.
        num_charges: Charges spent.
        num_lost: Of these, attempts that released nothing.
        adaptive: Whether the clip norm follows the users' norms.
    """
    if not plan.is_private:
        return []
    words = unit_words(plan.unit)
    lost = f"; {num_lost} of them lost to interruptions and spent all the same" if num_lost else ""
    rdp = (
        f" Rényi accounting (RDP) gives {format_epsilon(spent.rdp)}."
        if spent.rdp is not None and spent.accountant != "RDP"
        else ""
    )
    how = {
        "PLD": "privacy loss distributions (PLD), rounded up",
        "RDP": "Rényi accounting (RDP)",
        "composition": "adding up the ε of every answer, with no δ",
    }[spent.accountant]
    relation = f"ε is computed by {how}, with the {plan.relation.value} relation.{rdp}"
    before = (
        f"was charged on disk before its {words.contributor}s and its noise were drawn, and "
        "everything computed from released values is free."
    )
    mechanism = plan.mechanism
    if mechanism is None:  # every query brought its own
        return [
            f"What each answer costs was decided on the way, as long as all together stayed within "
            f"{plan.budget} of zero-concentrated DP. ε is that of the whole, whatever was spent "
            f"of it. {num_charges:,} answers are charged{lost}; every one {before}",
            relation,
        ]
    charged = (
        f"One charge pays for all {plan.planned_rounds:,} rounds' noise together. It {before} "
        "Every round's noise is used once; that of a round which an interruption left open is "
        "discarded, and its users count as having taken part."
        if plan.charged_once
        else f"{num_charges:,} of {plan.planned_rounds:,} planned {words.turn}s are charged{lost}. "
        f"Every {words.turn} {before}"
    )
    text = [*_describe_charge(plan, mechanism), *([_COUNTED] if adaptive else []), charged]
    return [*text, relation, *([_chosen(plan.trials)] if plan.trials is not None else [])]


_COUNTED = (
    "The clip norm adapts. What is called an update here is a vector of two parts: the update, "
    "over the clip norm of the round, and on which side of that norm it was. Both get the noise "
    "above in one answer and under one charge; the next clip norm is computed from the noisy "
    "count alone."
)


def _chosen(trials: Trials) -> str:
    return (
        f"This run is the best of a study: a random number of runs of this plan ({trials.name}), "
        "each with settings drawn anew by chance. How many there were was drawn once, before the "
        "first, and is not published; of the others nothing is. Settings were compared by values "
        "that are public or charged. ε is that of the whole study, this choice included (Papernot "
        "and Steinke 2022), for every round of the run alike, because the choice looked at the "
        "last. How long the study took is not hidden, and tells about how many runs there were."
    )


def _describe_charge(plan: AnyPlan, mechanism: Mechanism | RecordedMechanism) -> list[str]:
    """Return what one charge did, as paragraphs."""
    described = f"What was charged: {RecordedMechanism.of(mechanism).description}."
    event, name = mechanism.event, mechanism.privatizer.name
    assumed = ""
    if plan.unit == "owner" and event.is_private:
        assumed = _owned(plan)
    elif name in PERTURBING:
        assumed = _perturbed(plan)
    elif name.startswith("objective-"):
        assumed = _OBJECTIVE
    elif event.kind == "cyclic-poisson-gaussian":
        assumed = _drawn_in_turn(plan, event)
    elif (
        isinstance(mechanism, Mechanism)
        and event.noise_multiplier is not None
        and not mechanism.charged_once
    ):
        return [_drawn(plan, mechanism), _noised(plan, mechanism)]
    return [described, assumed] if assumed else [described]


_OBJECTIVE = (
    "A secret random linear term was added to the objective, and what was released is where its "
    "minimum was found, with noise for what was not exact about it. That is proved of a "
    "regularised linear model with inputs of bounded length, whose loss is smooth and falls with "
    "the margin, and of a gradient that was measured to be short; and of nothing else: no "
    "checkpoint, and no value measured on private data on the way, may leave."
)


def _perturbed(plan: AnyPlan) -> str:
    """Return what the ε of a perturbed result takes for granted."""
    words = unit_words(plan.unit)
    trusted = (
        " Every other user's device must do the prescribed work, and no other, in either case: a "
        "hostile one may drive two runs apart. Whoever fails or is missing where training starts "
        "counts as not there in every update; whoever does so later ends the run unreleased, and "
        "that it ended is covered by no ε."
        if plan.unit == "user"
        else ""
    )
    empty = (
        f" Under add-remove one that is not there leaves its place in the order empty: "
        f"how many {words.contributor}s there are is public, and the same in either case."
        if plan.relation is Relation.ADD_REMOVE
        else ""
    )
    return (
        f"Training itself adds no noise. Its result is perturbed once, by how far one "
        f"{words.contributor} can move it; that is proved of permutation SGD on a convex loss "
        "with inputs of bounded length, and of nothing else: no clipped update, no momentum, no "
        "checkpoint and no value measured on private data on the way may leave." + trusted + empty
    )


def _drawn_in_turn(plan: AnyPlan, event: Event) -> str:
    """Return what the price of draws within groups takes for granted."""
    words = unit_words(plan.unit)
    return (
        f"Groups of {words.contributor}s take turns, and every {words.turn} draws each "
        f"{words.contributor} of its group independently of the others with probability "
        f"{event.sampling_prob:.4g}. That makes ε smaller; the {words.who} draws, and ε holds as "
        f"long as the {words.drawn} stays secret. Which group is in turn need not."
    )


def _owned(plan: AnyPlan) -> str:
    """Return how an owner's examples are accounted together; an event of one has no devices."""
    event = plan.event
    assert event is not None
    most, prob = event.devices or 1, event.sampling_prob or 1.0
    return (
        f"Every step draws each of {plan.num_users:,} listed examples independently, with "
        f"probability {prob:.4g}, and bounds each alone. An owner has at most {most:,} of them, "
        "and how many of those are drawn is binomial: blanking them moves the sum by at most that "
        "many times the bound, and each step is accounted as that mixture of Gaussians. A blanked "
        "example keeps its place in the list and contributes zero, as one that is not drawn: the "
        "sum moves as under add-remove, and the number of examples, the probability and the "
        "denominator do not."
    )


def _drawn(plan: AnyPlan, mechanism: Mechanism) -> str:
    sampler, words = mechanism.sampler, unit_words(plan.unit)
    mean = grouped(mechanism.expected_cohort_size)
    if isinstance(sampler, FixedSizeSampler):
        return (
            f"Every {words.turn} draws {mean} of {plan.num_users:,} {words.contributor}s without "
            f"replacement. {words.draws.capitalize()} of fixed size earn much less than "
            "independent draws, and are accounted as what they are, under replacement of one "
            f"{plan.unit}."
        )
    if not isinstance(sampler, PoissonSampler):
        return f"{RecordedMechanism.of(mechanism).description}."
    drawn = (
        f"Every {words.turn} draws each {words.contributor} independently of the others with "
        f"probability {sampler.sampling_prob:.4g} ({mean} of {plan.num_users:,} on average; "
        f"Poisson sampling); the {words.who} draws, and ε holds as long as the {words.drawn} "
        "stays secret."
    )
    if sampler.cap is None:
        return drawn
    return (
        f"{drawn} When more than {sampler.cap:,} are drawn a uniform subset takes part; ε "
        "includes that."
    )


def _noised(plan: AnyPlan, mechanism: Mechanism) -> str:
    verb = "clipped to" if mechanism.bound.name == "clip" else "normalised to"
    many = mechanism.micro_batch > 1
    updates = (
        f"Means over about {mechanism.micro_batch} examples, each drawn into its own by chance, are"
        if many
        else f"Each {unit_words(plan.unit).contributor}'s update is"
    )
    divisor = "number of means" if many else "cohort, whoever replied"
    if plan.unit != "user" and not many:
        divisor = "number of examples, however many were drawn"
    noised = (
        f"{updates} {verb} an l2 norm of {mechanism.l2_bound:g}, the updates are summed "
        f"unweighted, and Gaussian noise of standard deviation {mechanism.stddev:.4g} (noise "
        f"multiplier {mechanism.noise_multiplier:.4g}) is added to the sum once. The sum is "
        f"divided by the planned {divisor}."
    )
    twice = (
        " One example changes the mean it is in, and so moves the sum by up to twice the bound, "
        f"{mechanism.sensitivity:g}: the noise multiplier is taken to that."
    )
    return noised + twice if many else noised


def describe_randomness(
    plan: AnyPlan, spent: Epsilon, simulated: bool, hardened: bool
) -> list[str]:
    """Return who could know the noise, and what its last bits betray, as paragraphs."""
    if not plan.is_private:
        return []
    words = unit_words(plan.unit)
    if simulated:
        return [
            "This is a seeded simulation, and its ε is simulated: anyone with the seed can "
            f"subtract the noise and redraw the {words.draws}. It is the ε the same plan would "
            "have in secure mode.",
            f"Floating point: not hardened. {_inexact_bits(plan)} can betray the sum.",
        ]
    after = "retry" if plan.mechanism is None else plan.mechanism.privatizer.after_crash
    kept = "nowhere" if after == "retry" else "in the run folder's secret/, which must stay secret"
    keys = (
        f"Keys come from the operating system's entropy and are kept {kept}; noise and "
        f"{words.draws} are drawn from ChaCha20 key streams, whose bits are taken to be uniform."
    )
    if not hardened:
        return [
            keys,
            f"Floating point: NOT hardened. {_inexact_bits(plan)} can betray the sum; ε is that of "
            "exact arithmetic, which this run did not have.",
        ]
    added = math.ceil(12 + math.log10(2) * (1 - 256) + spent.value / math.log(10))
    choice = (  # of an adaptive plan
        "What is chosen among sums is drawn from whole numbers and these bits alone, exactly. "
        if plan.mechanism is None
        else ""
    )
    return [
        keys,
        "Floating point: hardened. Sums are of whole numbers, and noise is a Gaussian rounded "
        "exactly to whole numbers: an answer is a rounding of what the Gaussian mechanism answers. "
        f"{choice}The sampler's error adds at most (1 + e^ε) · answers · coordinates · 2^-256 to "
        f"δ, for 10^12 of them together below 10^{added}.",
    ]


def _inexact_bits(plan: AnyPlan) -> str:
    """Return what of the noise is not exact; the type of a user-defined privatizer is not known."""
    mechanism = plan.mechanism
    if mechanism is not None and mechanism.privatizer.name == "gaussian":
        return "Noise is drawn in float32, whose last bits"
    return "The last bits of noise in floating point"


SHARE_DROPPED = "share_dropped_for_owners"
"""Under what name a corpus says how much was left out, where all owners of an example count."""

_TITLES = (
    ("Vocabulary", "words"),
    ("Tag list", "tags"),
    ("Word counts", "word_counts"),
    ("Weights of words", "word_weights"),
)


def describe_foreign_text(corpus: Mapping[str, Any]) -> list[str]:
    """Return how much of examples other accounts wrote, as paragraphs."""
    provenance = as_object(corpus.get("provenance"))
    share = provenance.get("foreign_text_share")
    others = provenance.get("foreign_text_share_by_rostered_users")
    if provenance.get("owners") == "all":
        return _of_all_owners(provenance)
    if provenance.get("own_text_only"):
        return [
            "Titles written by other accounts were dropped (own text only): an example holds "
            "words of its own account, and a label that follows the post's tags."
        ]
    if not _may_be_foreign(provenance):
        return []
    counted = (
        f"{format_percent(share)} of the rostered users' examples do"
        if isinstance(share, (int, float))
        else "how many do is counted on rostered users, and a secure run keeps no such count"
    )
    if isinstance(others, (int, float)):
        counted += f", and for {format_percent(others)} that somebody is another rostered user"
    return [
        "An answer's example carries the title and tags of the question it answers, written by "
        f"somebody else: {counted}.",
        "The guarantee is about an account's examples. It does not cover a person's words inside "
        "other accounts' examples; preparing the corpus with --own-text-only drops them. Without "
        "an account, others' answers to its questions would have neither title nor tags: those "
        "examples do change.",
    ]


def _of_all_owners(provenance: Mapping[str, Any]) -> list[str]:
    """Return how little another owner's words move, as paragraphs, where all owners count."""
    most, share = provenance.get("examples_per_owner"), provenance.get(SHARE_DROPPED)
    left_out = format_percent(share) if isinstance(share, (int, float)) else "an unknown share"
    bounded = (
        "Training examples whose title and tags another rostered user wrote were dropped whole, "
        f"{left_out} of the rostered users' training sentences. Each example that is left has one "
        "rostered owner: blanking all that a person wrote, its titles, tags and sentences wherever "
        "they stand, changes that user's update and no other."
        if most is None
        else f"No owner has more than {most:,} training examples: {left_out} of the rostered "
        "users' training sentences were left out, greedily in the order of a hash of their ids. "
        "Blanking all examples that a person owns, whether it wrote the sentence or asked the "
        "question, changes those and no other."
    )
    return [
        "An answer's example carries the title and tags of the question it answers, written by "
        f"somebody else, who owns it too. {bounded}",
        "The graph is taken to be fixed and public: which account wrote how many sentences in "
        "which thread, and which account asked it. ε does not cover it, and the share above is "
        "computed from it alone. Accounts whose words are blanked stay on the roster.",
    ]


def _may_be_foreign(provenance: Mapping[str, Any]) -> bool:
    """Return whether examples may hold others' titles: a secure run does not keep how many do."""
    share = provenance.get("foreign_text_share")
    if share is None:
        return provenance.get("own_text_only") is False
    return isinstance(share, (int, float)) and share > 0


def _describe_start(
    options: Mapping[str, Any] | None, start: Mapping[str, Any] | None = None
) -> list[str]:
    """Return what training started from besides the task's own params, as paragraphs."""
    options = as_object(options)
    if private_start(options):
        from_what = (
            "a model that learnt from all posts of users outside the roster. Titles and tags in "
            "them that rostered users wrote were not public, and ε does not cover them"
        )
    elif options.get("start") == "public":
        from_what = "a model that learnt from public examples"
    elif not is_from_file(start, options):
        return []
    elif trained_before(start) is not None:
        from_what = (
            "a model that another run released; what that run cost its users is in the first "
            "lines, and not in this ε"
        )
    else:
        from_what = (
            "params in a file; what they were learnt from, this run cannot know. If rostered "
            "users' data went into them, what that cost comes on top of this ε"
        )
    return [f"Start: training goes on from {from_what}."]


def describe_public_inputs(
    plan: AnyPlan,
    corpus: Mapping[str, Any],
    side: Mapping[str, Any] | None,
    options: Mapping[str, Any] | None = None,
    start: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return what was taken to be public, as paragraphs; what is known to be private is not."""
    provenance = as_object(corpus.get("provenance"))
    counted = "private" in str(provenance.get("word_counts_source", ""))
    text = [] if counted else _described(provenance)
    vocabulary = _vocabulary(provenance)
    if vocabulary.get("source") == "public":
        text.append(f"Vocabulary:{_num_words(vocabulary)} chosen by public examples.")
    counted_in = str(provenance.get("tag_users", ""))
    all_posts = "threads for training" not in counted_in
    if all_posts and text and provenance.get("tags") and _may_be_foreign(provenance):
        text.append(
            "An answer by a user outside the roster carries the tags its question was given, maybe "
            "by a rostered user; the order of the tags counts them as that answer's own."
        )
    if side is not None and side.get("source") != "private":
        text.append(f"Side information: {_description(side)}.")
    text += _describe_start(options, start)
    if frozen := sorted(as_object(corpus.get("frozen"))):
        text.append(
            f"Parameters that are not trained, and go out with the model as they were given: "
            f"{', '.join(frozen)}."
        )
    if not text:
        return []
    outside = corpus.get("num_public_users")
    named = "users outside the roster" if plan.unit == "user" else "public examples"
    counted = f"{outside:,}" if isinstance(outside, int) else outside
    who = f"the {counted} {named}" if outside else "whoever it came from"
    return [
        *text,
        f"That these were public beforehand is an assumption, not a result: {who} get "
        "no protection from this run.",
    ]


def describe_private_inputs(
    plan: AnyPlan, corpus: Mapping[str, Any], side: Mapping[str, Any] | None
) -> list[str]:
    """Return what the run knows of those whom its plan protects, as paragraphs."""
    found = private_knowledge(plan.unit, corpus, side)
    if not found:
        return []
    provenance = as_object(corpus.get("provenance"))
    text = [f"The run uses {'; '.join(found)}."]
    vocabulary = _vocabulary(provenance)
    if vocabulary.get("source") == "private":
        text.append(
            f"Vocabulary:{_num_words(vocabulary)} chosen by {unit_words(plan.unit).protected}."
        )
    if "private" in str(provenance.get("word_counts_source", "")):
        text += [
            *_described(provenance),
            "Vocabulary and counts were taken from users that include rostered ones.",
        ]
    if side is not None and side.get("source") == "private":
        text.append(
            f"Side information: {_description(side)}. It was computed from "
            f"{unit_words(plan.unit).protected}."
        )
    if plan.is_private:
        text.append(
            "What was taken is NOT covered by ε, and the values above do not hold for a run that "
            "uses it."
        )
    return text


def _described(provenance: Mapping[str, Any]) -> list[str]:
    # A data set may count its words under the name under which a corpus describes them.
    return [
        f"{title}: {provenance[name].rstrip('.')}."
        for title, name in _TITLES
        if isinstance(provenance.get(name), str) and provenance[name]
    ]


def _vocabulary(provenance: Mapping[str, Any]) -> Mapping[str, Any]:
    return as_object(as_object(provenance.get("features")).get("vocabulary"))


def _num_words(vocabulary: Mapping[str, Any]) -> str:
    count = vocabulary.get("words")
    return f" {count:,} words" if isinstance(count, int) else " words"


def _description(side: Mapping[str, Any]) -> str:
    return str(side.get("description", "unknown")).rstrip(".")


def describe_model_choice(
    options: Mapping[str, Any] | None, summary: Mapping[str, Any] | None = None
) -> list[str]:
    """Return how the model that a run returns is chosen, as paragraphs; nothing of the last.

    Args:
        options: The experiment's.
        summary: Of the finished run; it is not sealed, and so is quoted as that file's words.
    """
    if as_object(options).get("task.select") != "public":
        return []
    returned, _ = describe_returned_model(summary or {})
    return [
        "It is chosen on public examples, among models that were released and models that public "
        "examples alone make; no rostered user's record is looked at, so the choice costs no ε. "
        "Unless a released model is clearly better, the returned model is made of public examples "
        "alone; ε is spent on training all the same, and holds of every checkpoint.",
        *([f"By summary.json this run returned {returned}."] if returned else []),
    ]


def describe_returned_model(summary: Mapping[str, Any]) -> tuple[str, bool]:
    """Return which model a run returns and why, and whether private training did not help.

    Args:
        summary: Of the finished run; "" is said of one that returns its last model unasked, unless
            that is worse than public examples alone.
    """
    found = summary.get("selection")
    if not found:
        return _below(summary)
    measures = figures_of(read_measures(summary))
    judged, name = found.get("judged", {}), found["selected"]
    public = name in PUBLIC_MODELS
    whom = f"{found['examples']:,} public examples in {found['groups']:,} groups" if judged else ""
    if not judged:
        return f"{describe_candidate(name)}: {found['reason']}", public

    def compared(one: Mapping[str, float]) -> str:
        share = measures[0].form == "share"
        gain = f"{100 * one['gain']:+.1f}" if share else f"{one['gain']:+.3g}"
        error = f"{100 * one['stderr']:.1f} points" if share else f"{one['stderr']:.3g}"
        return f"{measures[0].label} {gain} ± {error}"

    ahead = f"{describe_candidate(name)} ({compared(judged[name])} over public-only on {whom}"
    if not public:
        return f"{ahead}, which cost no ε)", False
    released = [one for one in judged if one not in _MODELS]
    if not released:
        return (
            f"{describe_candidate(name)}: no released model is finite; lower the learning rates",
            True,
        )
    if name == START:
        return f"{ahead}): no released model is clearly better than it; {_HELP}", True
    best = max(released, key=lambda one: judged[one]["gain"])
    return (
        f"{describe_candidate(name)}: no released model is clearly better on {whom} (the best, "
        f"{describe_candidate(best)}, has {compared(judged[best])} over public-only); {_HELP}",
        True,
    )


def _below(summary: Mapping[str, Any]) -> tuple[str, bool]:
    """Return that an unselected model is worse than public examples alone; or nothing."""
    gain = summary.get("gain")
    if not isinstance(gain, int | float) or not gain < 0.0 or summary.get("epsilon") is None:
        return "", False
    measure = figures_of(read_measures(summary))[0]
    by = f"{100 * -gain:.1f} points" if measure.form == "share" else f"{-gain:.3g}"
    return f"a model {by} of {measure.label} below public examples alone; {_HELP}", True


_HELP = "more users, a larger ε or a smaller model would help"
_MODELS = {
    PUBLIC_MODEL: "a model of public examples alone",
    START: "the model of public examples that training started from",
}


def describe_candidate(name: str) -> str:
    """Return what a candidate of the selection is called in a sentence."""
    kind, _, factor = name.partition(" x ")
    released = {AVERAGE: "the average of the released models", LAST: "the last released model"}
    described = (_MODELS | released).get(kind, kind)
    return f"{described}, drawn back to {factor} of its way from the start" if factor else described
