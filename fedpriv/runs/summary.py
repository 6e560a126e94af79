"""Summary of a finished run: what `summary.json` holds and the command line shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from fedpriv import json_lines
from fedpriv.experiments.experiment import Components
from fedpriv.measures import PUBLIC_ONLY, Measure, figures_of
from fedpriv.privacy.statement.stated import summary_values
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.records import RoundRecord, figures_as_json, measured
from fedpriv.runs.selection import Selection
from fedpriv.training.evaluate import measure_of
from fedpriv.training.failures import mostly_failed
from fedpriv.tree import Params


def make_summary(
    components: Components,
    folder: RunFolder,
    returned: Params,
    record: RoundRecord | None,
    first_failure: str | None = None,
    selection: Selection | None = None,
    backend: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a run's summary.

    Args:
        components: What was run.
        folder: Where it was kept.
        returned: The model that the run returns.
        record: Of the last round, where that made the model; else None, and it is measured again.
        first_failure: The kind and the places of the first error that made a user contribute zero
            since the run was started or resumed, where it was seen in this process.
        selection: How it was selected; None where it is the last.
        backend: What it says of itself.
    """
    state, measures = folder.ledger.state, components.task.measures
    figures = _measured(components, state.mode, returned, record)
    return {
        **summary_values(state, folder.document),
        **figures,
        **gain_of(measures, figures, folder.document.get("baseline", {})),
        "selection": None if selection is None else selection.to_json(),
        **_diagnosed(folder.path),
        "first_failure": first_failure if state.mode == "simulation" else None,
        "backend": backend,
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


def _measured(
    components: Components,
    mode: str,
    returned: Params,
    record: RoundRecord | None,
) -> dict[str, float | None]:
    """Return the measures of the returned model: of rostered users, then of public ones."""
    measures, seen = figures_of(components.task.measures), None
    if record is None:
        measure = measure_of(components.task)
        public = measured(measures, measure(returned, public=True))
        if mode == "simulation":
            seen = measured(measures, measure(returned, public=False))
    else:
        public = record.released.measured
        seen = record.diagnostics and record.diagnostics.measured
    names = [measure.name for measure in measures]
    return {
        **figures_as_json({name: None if seen is None else seen.get(name) for name in names}),
        **figures_as_json({name: public.get(name) for name in names}, "_public"),
    }


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
