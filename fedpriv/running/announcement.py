"""What is said of a run before its first round and after its last, for terminals and logs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpriv.mechanisms.perturbation import relative_length
from fedpriv.privacy.epsilon import privacy_line
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plans.adaptive import AnyPlan
from fedpriv.privacy.statement.coverage import Coverage
from fedpriv.privacy.statement.statement import NO_MEANINGFUL_PROTECTION_ABOVE
from fedpriv.privacy.unit_words import words_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """The head of a run's output.

    Attributes:
        title: The experiment's name and description.
        promise: The ε of the whole plan, with all that makes it a statement.
        cautions: What to beware of; empty where there is nothing.
    """

    title: str
    promise: str
    cautions: tuple[str, ...]


def announcement(
    name: str,
    description: str,
    plan: AnyPlan,
    *,
    mode: str,
    covers: Coverage,
    untried: str = "",
    noticed: Sequence[str] = (),
) -> Announcement:
    """Return the head of a run: its figures are the plan's, whatever an experiment is called.

    Args:
        name: The experiment's.
        description: Likewise.
        plan: What is guaranteed.
        mode: "simulation" or "secure".
        covers: What the ε does not cover.
        untried: What could not be tried beforehand, and what to do about that; "" for nothing.
        noticed: What was noticed of the task besides, in a line each.
    """
    affordable, turn = plan.affordable_rounds, words_of(plan.unit).turn
    whole = covers.explained(plan.guaranteed())
    paid = (
        f"for {plan.budget}, however much of it is spent"
        if affordable is None
        else f"after {affordable:,} {turn}{'' if affordable == 1 else 's'}"
    )
    if math.isinf(whole.value) and not plan.is_private:
        said = f"no privacy (ε = ∞): {whole.reason}"
    else:
        line = privacy_line(
            value=whole.value,
            delta=whole.delta,
            unit=whole.unit,
            relation=whole.relation.value,
            accountant=whole.accountant,
            mode=mode,
        )
        said = f"{line} {paid}"
    cautions = []
    if plan.is_private:
        if not whole.value <= NO_MEANINGFUL_PROTECTION_ABOVE:
            cautions.append(
                f"no meaningful protection: ε is above {NO_MEANINGFUL_PROTECTION_ABOVE:g}; read "
                "the run as a comparison of methods, not as a safeguard"
            )
        cautions += plan.warnings
    planned, target = plan.planned_rounds, plan.target_epsilon
    if planned is not None and affordable is not None and affordable < planned:
        cautions.append(
            f"the target ε of {target:g} pays for {affordable:,} of the {planned:,} planned "
            f"{turn}s, and the run stops there"
        )
    if untried:
        cautions.append(untried)
    cautions += noticed
    if covers.mark:
        cautions.append(f"ε {covers.mark}")
    return Announcement(
        title=f"{name}: {description}" if description else name,
        promise=f"plan: {said}",
        cautions=tuple(cautions),
    )


def length_of_noise(plan: AnyPlan, num_params: int) -> tuple[str, ...]:
    """Return how long the noise on a finished result is, in a line; nothing of other plans."""
    if plan.mechanism is None or not isinstance(plan.mechanism, Mechanism):
        return ()
    found = relative_length(
        plan.mechanism.privatizer, num_params=num_params, num_users=plan.num_users
    )
    if found is None:
        return ()
    noun = words_of(plan.unit).contributor
    much = (
        f": expect noise alone; train fewer params, of more {noun}s, or at a higher ε"
        if found > 1.0
        else ""
    )
    times = f"{found:,.0f}" if found > 10.0 else f"{found:.2g}"
    return (
        f"the noise on the result is about {times} times as long as the furthest that training "
        f"can go ({num_params:,} params, {plan.num_users:,} {noun}s){much}",
    )


def failures(summary: Mapping[str, Any]) -> str:
    """Return how many of those whom a simulation drew failed, and of what; "" for none.

    Of examples only recorded steps are known. A secure run diagnoses nothing, and says nothing.
    """
    failed, mostly = summary.get("users_failed"), summary.get("rounds_mostly_failed")
    if not failed:
        return ""
    examples = summary.get("unit") == "example"
    noun, turn = ("training examples", "step") if examples else ("users", "round")
    recorded = f" in the recorded {turn}s" if examples else ""
    cause = summary.get("first_failure")
    why = f"a cause: {cause}" if cause else "the log has their causes"
    most = f"; in {mostly} {turn}s more than half" if mostly else ""
    return (
        f"{failed:,} of {summary['users_drawn']:,} drawn {noun} failed and contributed zero"
        f"{recorded}{most} ({why}; not covered by ε)"
    )


def early_end(summary: Mapping[str, Any]) -> str:
    """Return why a finished run released fewer rounds than were planned; "" where it did not.

    Where none were planned: what of the budget it has used.
    """
    planned = f"{summary['rounds_planned']} were planned"
    match summary["stopped_early"]:
        case "target-epsilon":
            target = f"{summary['target_epsilon']:g}"
            return f"{planned}, and one more would exceed the target ε of {target}"
        case "lost-attempts":
            return f"{planned}, and interrupted attempts used up the others' charges"
        case "nothing-left":
            return f"{planned}, and the algorithm had nothing left to ask"
    return "" if summary["rounds_planned"] is not None else summary["budget_used"]
