"""Summary of a finished run: what `summary.json` holds and the command line shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from fedpriv import json_lines
from fedpriv.experiments.experiment import Components
from fedpriv.measures import MAJORITY, PUBLIC_ONLY, Measure, figures_of
from fedpriv.privacy.ledger.state import LedgerState
from fedpriv.privacy.statement.coverage import (
    KEY,
    PUBLIC_EXAMPLES,
    coverage_of,
    public_only_of,
    with_start,
)
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.records import RoundRecord, measured
from fedpriv.runs.selection import Selection
from fedpriv.training.evaluate import measure_of
from fedpriv.training.failures import mostly_failed


def make_summary(
    name: str,
    components: Components,
    folder: RunFolder,
    state: Any,
    record: RoundRecord | None,
    first_failure: str | None = None,
    selection: Selection | None = None,
) -> dict[str, Any]:
    """Return a run's summary.

    Args:
        name: The experiment's.
        components: What was run.
        folder: Where it was kept.
        state: The last one that was released.
        record: Of the last round; None if nothing was left to run, and the model is measured anew.
        first_failure: The kind and the places of the first error that made a user contribute zero
            since the run was started or resumed, where it was seen in this process.
        selection: The model that the run returns, whose figures these are; None for the last.
    """
    plan, ledger = components.plan, folder.ledger
    corpus: Mapping[str, Any] = folder.document["corpus"]
    spent = plan.epsilon(ledger.charges)
    both = with_start(plan, spent, folder.document.get("start"), secure=ledger.mode == "secure")
    figures = _measured(components, ledger.mode, state, record, selection)
    return {
        "experiment": name,
        "label": folder.document.get("label"),
        "measures": [measure.to_json() for measure in components.task.measures],
        **figures,
        **{name: corpus.get(name) for name in MAJORITY},
        **gain_of(components.task.measures, figures, folder.document.get("baseline", {})),
        "public_only_of": public_only_of(folder.document.get("experiment")) or PUBLIC_EXAMPLES,
        "start": folder.document.get("start", {"kind": "fresh"}),
        "selection": None if selection is None else selection.to_json(),
        "epsilon": spent.value if plan.is_private else None,
        "epsilon_rdp": spent.rdp if plan.is_private else None,
        KEY: list(coverage_of(folder.document).not_covered),
        "with_start": None if both is None else both.to_json(),
        "delta": spent.delta,
        "relation": plan.relation.value,
        "unit": plan.unit,
        "accountant": spent.accountant,
        "mode": ledger.mode,
        "noise_multiplier": plan.noise_multiplier,
        "target_epsilon": plan.target_epsilon,
        "rounds": state.round_num,
        "rounds_planned": plan.planned_rounds,
        "stopped_early": stopped_early(ledger.state, state.round_num),
        "charges": ledger.charges,
        "budget_used": ledger.state.used.text,
        "users": plan.num_protected,
        **_diagnosed(folder.path),
        "first_failure": first_failure if ledger.mode == "simulation" else None,
        "corpus": corpus["name"],
        "roster": corpus.get("roster"),
        "split": dict[str, Any](corpus.get("provenance") or {}).get("split"),
        "synthetic": bool(corpus["synthetic"]),
        "run_dir": str(folder.path),
    }


def gain_of(
    measures: Sequence[Measure], figures: Mapping[str, float | None], baseline: Mapping[str, float]
) -> dict[str, float | None]:
    """Return what public examples alone reach by the headline measure, and what was gained over it.

    A gain is positive where the run is better, whichever way the measure goes. It is over the
    figure of rostered users, or where there is none (no held-out examples, or single examples and
    their test set) over the other one. Nothing where there was nothing public to learn from.
    """
    if not measures:
        return {}
    headline = measures[0]
    public, reached = baseline.get(headline.name + PUBLIC_ONLY), figures.get(headline.name)
    if reached is None:
        reached = figures.get(headline.released_name)
    if public is None:
        return {}
    gain = None
    if reached is not None:
        gain = reached - public if headline.higher_is_better else public - reached
    return {headline.name + PUBLIC_ONLY: public, "gain": gain}


def stopped_early(state: LedgerState, rounds_done: int) -> str | None:
    """Return why a finished run released fewer rounds than were planned.

    Args:
        state: Of its ledger.
        rounds_done: Rounds released.

    Returns:
        "target-epsilon" if one more charge would have exceeded the target, "lost-attempts" if
        interrupted attempts used up charges of the others, "nothing-left" if the algorithm had
        nothing left to ask, None if no round is missing, or none was planned.
    """
    planned, affordable = state.plan.planned_rounds, state.plan.affordable_rounds
    if planned is None or affordable is None or rounds_done >= planned:
        return None
    if state.ended is not None:
        return "nothing-left"
    return "target-epsilon" if affordable < planned else "lost-attempts"


def _measured(
    components: Components,
    mode: str,
    state: Any,
    record: RoundRecord | None,
    selection: Selection | None,
) -> dict[str, float | None]:
    """Return the measures of the returned model: of rostered users, then of public ones."""
    measures = figures_of(components.task.measures)
    if selection is not None or record is None or _unmeasured(record):
        measure = measure_of(components.task)
        params = components.algorithm.measured(state) if selection is None else selection.params
        public = measured(measures, measure(params, public=True))
        seen = measured(measures, measure(params, public=False) if mode == "simulation" else None)
    else:
        public = record.released.measured
        seen = dict[str, float | None]()
        if record.diagnostics is not None:
            seen |= record.diagnostics.measured
    values = {measure.name: seen.get(measure.name) for measure in measures}
    values |= {measure.released_name: public.get(measure.name) for measure in measures}
    # JSON has no NaN: a figure that diverged is None.
    return {n: v if v is not None and math.isfinite(v) else None for n, v in values.items()}


def _unmeasured(record: RoundRecord) -> bool:
    """Return whether the last round was not measured: an adaptive plan ends without notice."""
    sides = [record.released, *([] if record.diagnostics is None else [record.diagnostics])]
    return all(value is None for side in sides for value in side.measured.values())


def _diagnosed(folder: Path) -> Mapping[str, Any]:
    """Return what the diagnostics of all recorded rounds come to; without any, nothing."""
    lines = json_lines.read(folder / "diagnostics.jsonl")
    failed = [mostly_failed(line["num_failed"], line["cohort_size"]) for line in lines]
    if not lines:
        names = ("seconds_per_round", "users_drawn", "users_failed", "rounds_mostly_failed")
        return dict.fromkeys(names)
    return {
        "seconds_per_round": median(line["seconds"] for line in lines),
        "users_drawn": sum(line["cohort_size"] for line in lines),
        "users_failed": sum(line["num_failed"] for line in lines),
        "rounds_mostly_failed": sum(failed),
    }
