"""The records of a study as its folder holds them: every trial, finished, failed or not yet done.

==============================  ====================================================================
study.json                      the study: methods, epsilons, seeds, data, and the planned trials
trials.jsonl                    one line for each trial that ended; a key's last line counts
trials/KEY/                     the run folder of a trial
by_user/KEY.safetensors         diagnostics of a simulation for each user of its roster
index.html                      the page; its tables and plot are study.csv, study.svg and so on
==============================  ====================================================================
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv import json_lines
from fedpriv.checkpoints.tensor_files import read_tensors
from fedpriv.report.run_record import RunRecord, read_run

DOCUMENT = "study.json"
ENDED = "trials.jsonl"
RUNS = "trials"
BY_USER = "by_user"
PAGE = "index.html"
FORMAT = "fedpriv-study"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One trial of a study.

    Attributes:
        key: 16 hex digits; the name of its run folder.
        method: Label of the method.
        epsilon: The target ε; None where it is trained without privacy.
        data: Label of the data.
        seed: Of the run.
        run: What its run folder holds, finished or under way; None where there is none yet.
        failure: Why it failed, in one line; None where it did not.
        seconds: How long it took, of all attempts together; None while it has not ended.
        by_user: Diagnostics of a simulation, in the roster's order: "count" int64 (n_users,),
            "value" float64 (n_users,), the sum over a user's held-out examples of the headline
            measure, and "public_value" of the model of public data alone; None where the task
            cannot measure users one by one.
    """

    key: str
    method: str
    epsilon: float | None
    data: str
    seed: int
    run: RunRecord | None = field(repr=False)
    failure: str | None
    seconds: float | None
    by_user: Mapping[str, np.ndarray] | None = field(repr=False)

    @property
    def ended(self) -> bool:
        """Whether it was run to its end, or failed."""
        return self.failure is not None or self.seconds is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """The contents of a study's folder, read once.

    Attributes:
        directory: The folder.
        document: `study.json`.
        trials: In the order of the study.
    """

    directory: Path
    document: Mapping[str, Any]
    trials: tuple[TrialRecord, ...]


def read_study(directory: str | Path) -> StudyRecord:
    """Read a study's folder, finished or under way.

    Raises:
        ValueError: If it holds no study, one of a newer version, or a file in it is damaged
            anywhere but in the last line of `trials.jsonl`, which a killed process may have torn.
    """
    directory = Path(directory)
    file = directory / DOCUMENT
    if not file.is_file():
        raise ValueError(f"{directory} is not the folder of a study: it has no {DOCUMENT}")
    try:
        document = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error}); restore it") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{file} is not of a study: its format is not {FORMAT!r}")
    if document.get("version") != VERSION:
        raise ValueError(
            f"{file} is of version {document.get('version')!r}; this fedpriv reads {VERSION}"
        )
    ended = {str(row.get("key")): row for row in json_lines.read(directory / ENDED)}
    planned = document.get("trials")
    rows = list(ended.values()) if planned is None else planned
    if not isinstance(rows, list):
        raise ValueError(f"{file}: trials is {planned!r}, not a list")
    trials = tuple(_trial(directory, row, ended.get(str(row.get("key")), {})) for row in rows)
    return StudyRecord(directory=directory, document=document, trials=trials)


def _trial(directory: Path, row: Mapping[str, Any], end: Mapping[str, Any]) -> TrialRecord:
    key = str(row.get("key"))
    if len(key) != 16 or set(key) - set("0123456789abcdef"):
        raise ValueError(f"{directory}: {key!r} is no key of a trial (16 hex digits)")
    folder, file = directory / RUNS / key, directory / BY_USER / f"{key}.safetensors"
    epsilon, seconds = row.get("epsilon"), end.get("seconds")
    if epsilon is not None and not (isinstance(epsilon, int | float) and math.isfinite(epsilon)):
        raise ValueError(f"{directory}: trial {key} has ε {epsilon!r}, not a number")
    return TrialRecord(
        key=key,
        method=str(row.get("method")),
        epsilon=None if epsilon is None else float(epsilon),
        data=str(row.get("data")),
        seed=int(row.get("seed", 0)),
        run=read_run(folder) if (folder / "experiment.json").is_file() else None,
        failure=end.get("failure"),
        seconds=None if seconds is None else float(seconds),
        by_user=read_tensors(file)[0] if file.is_file() else None,
    )
