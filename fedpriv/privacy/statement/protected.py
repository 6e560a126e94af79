"""Whom a plan protects, in words and in JSON values: unit, relation, whose words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv.privacy.event import Relation
from fedpriv.privacy.plans.adaptive import AnyPlan
from fedpriv.privacy.statement.coverage import as_object
from fedpriv.privacy.statement.provenance import SHARE_DROPPED


def protects(plan: AnyPlan, corpus: Mapping[str, Any]) -> dict[str, Any]:
    """Return whom a plan protects, as JSON values.

    Args:
        plan: The promise.
        corpus: What `experiment.json` says of the data.

    Returns:
        "unit" and "relation" of the plan; "neighbours" in words; "words", whose count: an
        "account"'s own examples, or a person's, of which others own a part too; with the latter
        "public_by_assumption" and the share of training sentences "dropped". Without a promise
        the unit and the relation alone.
    """
    found: dict[str, Any] = {"unit": plan.unit, "relation": plan.relation.value}
    if not plan.is_private:
        return found
    provenance = as_object(corpus.get("provenance"))
    of_all = provenance.get("owners") == "all"
    found |= {
        "neighbours": _neighbours(plan, of_all),
        "words": "person" if of_all else "account",
    }
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


def who(plan: AnyPlan, corpus: Mapping[str, Any]) -> list[str]:
    """Return who is protected, as paragraphs; none without a promise."""
    if not plan.is_private:
        return []
    provenance = as_object(corpus.get("provenance"))
    named = f", the roster {corpus['roster']!r}" if corpus.get("roster") else ""
    if plan.unit == "owner":
        return _owners(plan, corpus)
    if plan.unit == "example":
        text = [
            f"The unit is an example: one record of the training set, which holds "
            f"{plan.num_users:,}. Whoever has several records in it is protected for each of them "
            "alone, not for all together."
        ]
        if corpus.get("synthetic"):
            text.append("The examples are made up; no real person is at stake.")
        return text
    text = [
        f"The unit is a user: {_words(provenance)}. {plan.num_users:,} users are on a frozen, "
        f"published list{named}; who is on the list is public, what they wrote is protected."
    ]
    if provenance.get("roster_how"):
        text.append(f"How the list was chosen: {str(provenance['roster_how']).rstrip('.')}.")
    if provenance.get("roster_looks_at_data"):
        text.append(
            "That choice looked at the records of the users it holds, and ε does not cover "
            "what the list itself gives away."
        )
    if corpus.get("synthetic"):
        text.append("The users of this corpus are made up; no real person is at stake.")
    return text


def _words(provenance: Mapping[str, Any]) -> str:
    if provenance.get("owners") == "all":
        return (
            "all that one person wrote, wherever it stands among rostered users' training "
            "examples: its sentences, and the titles and tags of its questions in others' answers"
        )
    return "one account's whole example set as prepared, all of its records together"


def _owners(plan: AnyPlan, corpus: Mapping[str, Any]) -> list[str]:
    text = [
        "The unit is an owner: one person with all training examples that carry its words, in a "
        "sentence that it wrote or in the title and tags of its question. Neighbours blank one "
        f"owner's examples, every one of them whole; {plan.num_users:,} examples are on a fixed "
        "list of ids, who owns which is public, and neither changes."
    ]
    if corpus.get("synthetic"):
        text.append("The examples are made up; no real person is at stake.")
    return text
