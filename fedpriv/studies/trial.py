"""One trial of a study: run, or gone on with, in a folder of its own, and pruned."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedpriv import json_lines
from fedpriv.checkpoints.store import CheckpointStore
from fedpriv.experiments.start import PublicOnly
from fedpriv.privacy.epsilon import rounded_up_to, target_label
from fedpriv.runs.backends import open_corpus, serial, serial_on
from fedpriv.runs.prepared import PreparedRun, resume_run, start_run
from fedpriv.studies.record import RUNS
from fedpriv.studies.study import Trial

#: Seconds between two lines of news of one trial.
_NEWS_EVERY = 0.5
#: What public examples alone made of the task of this process's last trial: of the next one, which
#: is another method's more often than not, it is the same.
_PUBLIC: dict[tuple[str | None, int], PublicOnly] = {}
#: Of a target ε, for what calibration leaves.
_SLACK = 1e-6


def perform(
    trial: Trial,
    out: Path,
    *,
    device: str | None = None,
    tell: Callable[[dict[str, Any]], None] = lambda news: None,
) -> float:
    """Run a trial to its end and return its seconds, those of attempts that were killed included.

    A run folder that is there is gone on with by the rules of a resumed run: an attempt that was
    lost stays charged.

    Args:
        trial: The trial.
        out: The study's folder.
        device: As of `fedpriv.run`.
        tell: Called now and then with `{"round": ..., "rounds": ...}`.

    Raises:
        ValueError: As `fedpriv.run`; or if the plan's ε is above the trial's.
        Exception: What user-defined code raises.
    """
    started = time.perf_counter()
    folder = out / RUNS / trial.key
    make = serial if device is None else serial_on(device)
    before = 0.0
    if (folder / "experiment.json").is_file():
        before = sum(r.get("seconds") or 0.0 for r in json_lines.read(folder / "diagnostics.jsonl"))
        prepared = resume_run(folder, experiment=trial.experiment, make_backend=make, keep_last=1)
    else:
        public = _PUBLIC.get((trial.task_key, trial.seed))
        shutil.rmtree(folder, ignore_errors=True)  # begun, and killed before it was a run
        folder.parent.mkdir(parents=True, exist_ok=True)
        prepared = start_run(
            trial.experiment,
            trial.reference,
            None if trial.corpus is None else open_corpus(str(trial.corpus)),
            folder,
            make_backend=make,
            keep_last=1,
            label=trial.method,
            public=public,
        )
        if trial.task_key is not None and prepared.trial.public is not None:
            _PUBLIC.clear()  # it holds two models
            _PUBLIC[trial.task_key, trial.seed] = prepared.trial.public
    _check_level(trial, prepared)
    planned, reported = prepared.components.plan.planned_rounds, 0.0

    def on_round(record: Any) -> None:
        nonlocal reported
        now = time.monotonic()
        if now - reported > _NEWS_EVERY:
            reported = now
            tell({"round": record.released.round_num, "rounds": planned})

    prepared.run(on_round)
    CheckpointStore(folder / "checkpoints", keep_last=1, keep_every=None).prune()
    return round(before + time.perf_counter() - started, 3)


def _check_level(trial: Trial, prepared: PreparedRun) -> None:
    """Refuse a run that guarantees less than its row says.

    Raises:
        ValueError: If its ε is above the trial's.
    """
    plan = prepared.components.plan
    if trial.epsilon is None:
        return
    found = plan.guaranteed().value
    if not found <= trial.epsilon * (1.0 + _SLACK):
        prepared.folder.close()
        raise ValueError(
            f"its plan has ε {rounded_up_to(found, 4):.4g}, above the "
            f"{target_label(trial.epsilon)} of the trial: its noise is not calibrated by "
            "target-epsilon; let it be, or give the method `epsilons` of its own"
        )
