"""Values that a run's documents state and its ledger decides.

The run writes them by these functions, and `fedpriv verify` builds them again and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv.measures import MAJORITY
from fedpriv.privacy.ledger.state import LedgerState
from fedpriv.privacy.plan import AnyPlan
from fedpriv.privacy.statement.coverage import (
    FLOATS,
    KEY,
    PUBLIC_EXAMPLES,
    coverage_of,
    coverage_without_document,
    in_floats,
    public_only_of,
    with_start,
)

ROUND_VALUES = ("epsilon", "epsilon_charges", "delta", KEY)
"""Names in a line of `rounds.jsonl` of what the ledger decides, besides its round and attempt."""


def round_values(plan: AnyPlan, charges: int) -> dict[str, Any]:
    """Return what a line of `rounds.jsonl` states of privacy; None for each without privacy.

    Args:
        plan: The run's.
        charges: Whose price is stated: at least those made by then.
    """
    if not plan.is_private:
        return {"epsilon": None, "epsilon_charges": None, "delta": None}
    spent = plan.epsilon(charges).value
    return {"epsilon": spent, "epsilon_charges": charges, "delta": plan.delta}


def gaps_of_rounds(
    document: Mapping[str, Any] | None, facts: Mapping[str, Any], mode: str
) -> tuple[str, ...]:
    """Return what the ε of a run's rounds does not cover, by `KEY` in each line.

    Args:
        document: `experiment.json`; None or empty of a user-defined training loop.
        facts: Further facts of its ledger's first line.
        mode: "simulation" or "secure".
    """
    if document:
        return coverage_of(document).not_covered
    described = {**facts, "mode": mode}
    if KEY in facts:
        return coverage_without_document(described).not_covered
    return (FLOATS,) if in_floats(described) else ()


def summary_values(state: LedgerState, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `summary.json` states that ledger and `experiment.json` decide.

    Args:
        state: Of the ledger.
        document: `experiment.json`, which the ledger seals.
    """
    plan, spent, corpus = state.plan, state.epsilon(), document["corpus"]
    both = with_start(plan, spent, document.get("start"), secure=state.mode == "secure")
    return {
        "experiment": document["name"],
        "label": document.get("label"),
        "measures": document["measures"],
        **{name: corpus.get(name) for name in MAJORITY},
        "public_only_of": public_only_of(document.get("experiment")) or PUBLIC_EXAMPLES,
        "start": document.get("start", {"kind": "fresh"}),
        "epsilon": spent.value if plan.is_private else None,
        "epsilon_rdp": spent.rdp if plan.is_private else None,
        KEY: list(coverage_of(document).not_covered),
        "with_start": None if both is None else both.to_json(),
        "delta": spent.delta,
        "relation": plan.relation.value,
        "unit": plan.unit,
        "accountant": spent.accountant,
        "mode": state.mode,
        # As a charge is priced: a plan that is read from a ledger may know no more of its noise.
        "noise_multiplier": None if plan.event is None else plan.event.noise_multiplier or 0.0,
        "target_epsilon": plan.target_epsilon,
        "rounds": state.rounds_done,
        "rounds_planned": plan.planned_rounds,
        "stopped_early": stopped_early(state),
        "charges": len(state.charges),
        "budget_used": state.used.text,
        "users": plan.num_protected,
        "corpus": corpus["name"],
        "roster": corpus.get("roster"),
        "split": dict[str, Any](corpus.get("provenance") or {}).get("split"),
        "synthetic": bool(corpus["synthetic"]),
    }


def stopped_early(state: LedgerState) -> str | None:
    """Return why a finished run released fewer rounds than were planned.

    Returns:
        "target-epsilon" if one more charge would have exceeded the target, "lost-attempts" if
        interrupted attempts used up charges of the others, "nothing-left" if the algorithm had
        nothing left to ask, None if no round is missing, or none was planned.
    """
    planned, affordable = state.plan.planned_rounds, state.plan.affordable_rounds
    if planned is None or affordable is None or state.rounds_done >= planned:
        return None
    if state.ended is not None:
        return "nothing-left"
    return "target-epsilon" if affordable < planned else "lost-attempts"
