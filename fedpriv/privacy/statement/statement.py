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
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from fedpriv.checkpoints.tensor_files import AVERAGE, LAST, PUBLIC_MODEL, PUBLIC_MODELS, START
from fedpriv.measures import figures_of, grouped, read_measures
from fedpriv.mechanisms.bounds import Clip, Normalise
from fedpriv.mechanisms.event import Relation
from fedpriv.privacy.epsilon import (
    Epsilon,
    format_delta,
    format_epsilon,
    format_odds_factor,
    format_percent,
    format_posterior,
    format_rdp,
)
from fedpriv.privacy.ledger.chain import ANCHORED, WITHOUT_ANCHOR
from fedpriv.privacy.plan import BY_EXAMPLE, AnyPlan, unit_name, unit_words
from fedpriv.privacy.sampling import PoissonSampler
from fedpriv.privacy.statement.coverage import (
    KEY,
    NO_NOISE,
    as_object,
    coverage_of,
    is_from_file,
    private_knowledge,
    private_start,
    trained_before,
    with_start,
)
from fedpriv.privacy.statement.sealed import (
    AUDIT_FILE,
    NOT_AUDITED,
    AuditRecord,
    SealedRun,
    read_audit,
    read_object,
    read_sealed,
    user_defined_of,
)
from fedpriv.untrusted_text import plain

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

    def paragraphs(self, title: str) -> tuple[str, ...]:
        """Return the paragraphs of the section of a title; none where there is no such section."""
        return next((part.paragraphs for part in self.sections if part.title == title), ())

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
    document: Mapping[str, Any],
    *,
    num_charges: int,
    num_lost: int = 0,
    anchored: bool | None = None,
    audit: AuditRecord | None = None,
    summary: Mapping[str, Any] | None = None,
) -> Statement:
    """Return the statement of a run, finished or under way.

    Args:
        plan: The plan.
        document: `experiment.json`: what it misses is left out, and without a mode the run is a
            simulation.
        num_charges: Charges spent.
        num_lost: Of these, attempts that released nothing.
        anchored: Whether the ledger is marked outside its folder; None says nothing of it.
        audit: What an audit of this run's mechanism found.
        summary: Of the finished run, for which model it returns.
    """
    corpus, start = as_object(document.get("corpus")), as_object(document.get("start"))
    options = as_object(document.get("experiment"))
    side = as_object(document.get("side_information")) or None
    covers = coverage_of(document, plan)
    spent = covers.explained(plan.epsilon(num_charges))
    simulated = document.get("mode") != "secure"
    both = with_start(plan, spent, start, secure=not simulated)
    weak = not spent.value <= NO_MEANINGFUL_PROTECTION_ABOVE
    label = "no privacy" if math.isinf(spent.value) else "no meaningful protection" if weak else ""
    shown = f"simulated {spent}" if simulated and plan.is_private else str(spent)
    refuted = "REFUTED by its audit" if audit is not None and audit.refuted else ""
    marks = "; ".join(filter(None, (label, refuted)))
    facts = _corpus_facts(corpus) | _charge_facts(plan)
    return Statement(
        headline=covers.qualified(shown) + (f": {marks}" if marks else ""),
        not_covered=covers.not_covered,
        no_meaningful_protection=weak,
        simulated=simulated,
        protects=protection_to_json(plan, corpus),
        sections=_sections(
            **facts,
            user_defined=user_defined_of(plan, document),
            side=None if side is None else _Facts(side),
            side_description=str((side or {}).get("description", "unknown")).rstrip("."),
            private_knowledge=private_knowledge(plan.unit, corpus, side),
            plan=plan,
            words=unit_words(plan.unit),
            spent=spent,
            label=label,
            covers=covers,
            with_start=both,
            num_charges=num_charges,
            num_lost=num_lost,
            simulated=simulated,
            hardened=document.get("hardened") is True,
            anchored=anchored,
            audit=audit,
            backend=document.get("backend", "serial"),
            options=_Facts(options),
            started_from=_started_from(options, start),
            returned=describe_returned_model(summary or {})[0],
            # The sampler's error, as a power of ten that it is below.
            sampler_error=math.ceil(12 + math.log10(2) * (1 - 256) + spent.value / math.log(10))
            if plan.is_private
            else None,
        ),
        audit=audit,
        with_start=both,
    )


class _Facts(dict[str, Any]):
    """A JSON object in which a template finds None where nothing is."""

    def __missing__(self, key: str) -> None:
        return None


def _sections(**facts: Any) -> tuple[Section, ...]:
    """Return the sections of `statement.md` that have something to say."""
    found: list[Section] = []
    for block in re.split(r"\n\s*\n", _template().render(facts)):
        text = " ".join(line.strip() for line in block.strip().split("\n"))
        if text.startswith("## "):
            found.append(Section(title=text.removeprefix("## "), paragraphs=()))
        elif text:
            found[-1] = replace(found[-1], paragraphs=(*found[-1].paragraphs, text))
    return tuple(section for section in found if section.paragraphs)


@cache
def _template() -> Any:
    import jinja2  # not for commands that print no statement

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # A value cannot begin a paragraph or a section.
        finalize=lambda value: re.sub(r"[\n\r]+", " ", str(value)),
    )
    environment.filters |= {
        "epsilon": format_epsilon,
        "rdp": format_rdp,
        "delta": format_delta,
        "odds_factor": format_odds_factor,
        "posterior": format_posterior,
        "grouped": grouped,
        "thousands": lambda value: f"{value:,}" if isinstance(value, int) else str(value),
        "sentence": lambda value: str(value).rstrip("."),
        "share": lambda value, other="": (
            format_percent(value) if isinstance(value, int | float) else other
        ),
        "repr": repr,
    }
    environment.globals |= {
        "NO_NOISE": NO_NOISE,
        "infinity": math.inf,
        "weak_above": NO_MEANINGFUL_PROTECTION_ABOVE,
        "without_anchor": WITHOUT_ANCHOR,
        "no_epsilon_covers": NO_EPSILON_COVERS,
        "audit_file": AUDIT_FILE,
    }
    file = Path(__file__).with_name("statement.md")
    return environment.from_string(file.read_text(encoding="utf-8"))


def _corpus_facts(corpus: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the template says of the data and of words in them."""
    provenance = as_object(corpus.get("provenance"))
    vocabulary = as_object(as_object(provenance.get("features")).get("vocabulary"))
    count = vocabulary.get("words")
    descriptions = [
        (title, provenance[name])
        for title, name in _TITLES
        # A data set may count its words under the name under which a corpus describes them.
        if isinstance(provenance.get(name), str) and provenance[name]
    ]
    private_counts = "private" in str(provenance.get("word_counts_source", ""))
    # Examples may hold others' titles: a secure run does not keep how many do.
    share = provenance.get("foreign_text_share")
    foreign_titles = isinstance(share, int | float) and share > 0
    if share is None:
        foreign_titles = provenance.get("own_text_only") is False
    described = vocabulary.get("source") == "public" or (descriptions and not private_counts)
    all_posts = "threads for training" not in str(provenance.get("tag_users", ""))
    return {
        "corpus": _Facts(corpus),
        "provenance": _Facts(provenance),
        "about_data": describe_data(corpus),
        "vocabulary": _Facts(vocabulary),
        "num_words": f" {count:,} words" if isinstance(count, int) else " words",
        "descriptions": descriptions,
        "private_counts": private_counts,
        "foreign_titles": foreign_titles,
        "answers_tags": all_posts and described and provenance.get("tags") and foreign_titles,
        "frozen": sorted(as_object(corpus.get("frozen"))),
        "published": published_weights(corpus),
    }


def published_weights(corpus: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return name and SHA-256 of the published weights that a model, or its inputs, are made by.

    Args:
        corpus: As a run folder describes it.
    """
    provenance = as_object(corpus.get("provenance"))
    found = dict(as_object(corpus.get("published")))
    if "encoder_sha256" in provenance:  # of an encoder that made the inputs
        found[str(provenance["encoder"])] = provenance["encoder_sha256"]
    return sorted(found.items())


def describe_weights(corpus: Mapping[str, Any]) -> str:
    """Return the names of the published weights in a line; "" where there are none."""
    names = ", ".join(plain(name) for name, _ in published_weights(corpus))
    return f"{names} (published; ε does not cover what they were trained on)" if names else ""


def name_data(corpus: Mapping[str, Any], unit: str) -> str:
    """Return a run's data by name and size, marked where they are synthetic.

    Args:
        corpus: What `experiment.json` says of the data.
        unit: Of privacy.
    """
    kind = "corpus" if unit_name(unit) == "user" else "data"
    name, number = corpus.get("name"), corpus.get("num_users")
    counted = f", {number:,} {unit_words(unit).total}s" if isinstance(number, int) else ""
    made = "SYNTHETIC " if corpus.get("synthetic") else ""
    return f"{made}{f'{kind} {plain(name)}' if name else 'own data'}{counted}"


def describe_data(corpus: Mapping[str, Any]) -> str:
    """Return what a run folder notes of its data and their files, in a sentence; "" for nothing.

    Args:
        corpus: What `experiment.json` says of the data.
    """
    provenance = as_object(corpus.get("provenance"))
    note, files = provenance.get("note"), sorted(as_object(provenance.get("source")))
    if not isinstance(note, str) or not note:
        return ""
    source = f" (files {', '.join(files)})" if files else ""
    return f"The data {str(corpus.get('name'))!r}{source}: {note.rstrip('.')}."


def _charge_facts(plan: AnyPlan) -> dict[str, Any]:
    """Return what one charge of a plan did: "kind", and what the template says of it.

    Kinds: "drawn" (a cohort or batch whose clipped sum got Gaussian noise), "owned" (examples of
    owners), "perturbed" (a finished result), "objective", "in turn" (groups), or "" of any other,
    whose description says all.
    """
    mechanism = plan.mechanism
    found: dict[str, Any] = {
        "mechanism": mechanism,
        "kind": "",
        "sampling": "",
        "description": "",
    }
    words = {Clip: "clipped", Normalise: "normalised"}
    if mechanism is None:
        return found
    record = mechanism.recorded
    event, name = record.event, record.noise
    if plan.unit in ("owner", BY_EXAMPLE) and event.is_private:
        found["kind"] = "owned"
    elif name in PERTURBING:
        found["kind"] = "perturbed"
    elif name.startswith("objective-"):
        found["kind"] = "objective"
    elif event.kind == "cyclic-poisson-gaussian":
        found["kind"] = "in turn"
    elif (
        name == "gaussian"
        and event.noise_multiplier is not None
        and not mechanism.charged_once
        and (bound := type(getattr(mechanism.bound, "bound", mechanism.bound))) in words
    ):
        found |= {"kind": "drawn", "bounded": words[bound]}
        if event.kind == "fixed-size-gaussian":
            found["sampling"] = "fixed"
        elif isinstance(mechanism.sampler, PoissonSampler):
            found["sampling"] = "poisson"
    return found | {"event": event, "record": record, "description": record.description}


def _started_from(options: Mapping[str, Any], start: Mapping[str, Any]) -> str | None:
    """Return what training started from besides the task's own params."""
    if private_start(options):
        return "posts"
    if options.get("start") == "public":
        return "public"
    if not is_from_file(start, options):
        return None
    return "file" if trained_before(start) is None else "run"


def run_statement(run: SealedRun | str | os.PathLike[str]) -> Statement:
    """Return the statement of a run or of its folder, from its `experiment.json` and its ledger.

    A user-defined training loop has a ledger alone.

    Raises:
        ValueError: If either is missing or damaged, the document is not the one that the ledger
            seals, or `audit.json` is another run's.
    """
    run = run if isinstance(run, SealedRun) else read_sealed(run)
    state = run.state
    return privacy_statement(
        state.plan,
        run.description,
        num_charges=len(state.charges),
        num_lost=len(state.lost),
        anchored=bool(state.extra.get(ANCHORED)),
        audit=read_audit(run),
        summary=_summary(run.folder),
    )


def _summary(folder: Path) -> Mapping[str, Any]:
    """Return a run's summary; nothing of one that is under way or cannot be read."""
    try:
        return read_object(folder / "summary.json")
    except (OSError, ValueError):
        return {}


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
    found: dict[str, Any] = {"unit": unit_name(plan.unit), "relation": plan.relation.value}
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
    if plan.unit in ("owner", BY_EXAMPLE) and plan.event is not None:
        found[f"examples_per_{unit_name(plan.unit)}"] = plan.event.devices or 1
    return found


def _neighbours(plan: AnyPlan, of_all: bool) -> str:
    if plan.unit == "owner":
        return "blank one owner's examples"
    if plan.unit == BY_EXAMPLE:
        return "blank all of one user's examples"
    if plan.unit == "example":
        return "one example there or not"
    moved = "one person's words, wherever they stand," if of_all else "one user's records"
    if plan.relation is Relation.REPLACE_ONE:
        return f"{moved} replaced by any others"
    return f"{moved} blanked or not" if of_all else f"{moved} there or not"


#: Privatizers of a finished result, by name.
PERTURBING = ("sphere", "output-gaussian")


SHARE_DROPPED = "share_dropped_for_owners"
"""Under what name a corpus says how much was left out, where all owners of an example count."""

_TITLES = (
    ("Vocabulary", "words"),
    ("Tag list", "tags"),
    ("Word counts", "word_counts"),
    ("Weights of words", "word_weights"),
)


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
        gain = f"{100 * one['gain']:+.1f} points" if share else f"{one['gain']:+.3g}"
        error = f"{100 * one['stderr']:.1f}" if share else f"{one['stderr']:.3g}"
        return f"{measures[0].label} {gain}, standard error {error},"

    ahead = f"{describe_candidate(name)} ({compared(judged[name])} over public-only on {whom}"
    if not public:
        shown = judged[name]["lower"] > 0.0
        return f"{ahead}, which cost no ε){'' if shown else ', expected to be better'}", False
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
