"""The records of a study as its folder holds them: every trial, finished, failed or not yet done.

==============================  ====================================================================
study.json                      the study: methods, epsilons, seeds, data, and the planned trials
trials.jsonl                    one line for each trial that ended; a key's last line counts
trials/KEY/                     the run folder of a trial
index.html                      the page; its tables and plot are study.csv, study.svg and so on
==============================  ====================================================================
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpriv import json_lines
from fedpriv.privacy.epsilon import target_label
from fedpriv.privacy.statement.sealed import read_object
from fedpriv.report.run_record import RunRecord, read_run

DOCUMENT = "study.json"
ENDED = "trials.jsonl"
RUNS = "trials"
PAGE = "index.html"
FORMAT = "fedpriv-study"
LOCK = ".lock"
#: Seconds that a lock is waited for: workers of a command that was killed leave by then.
_LOCK_SECONDS = 10.0


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
    """

    key: str
    method: str
    epsilon: float | None
    data: str
    seed: int
    run: RunRecord | None = field(repr=False)
    failure: str | None
    seconds: float | None

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
        earlier: Trials of other versions of the study whose run folders are in it too.
    """

    directory: Path
    document: Mapping[str, Any]
    trials: tuple[TrialRecord, ...]
    earlier: tuple[TrialRecord, ...] = ()


def read_study(directory: str | Path) -> StudyRecord:
    """Read a study's folder, finished or under way.

    Raises:
        ValueError: If it holds no study, or a file in it is damaged anywhere but in the last line
            of `trials.jsonl`, which a killed process may have torn.
    """
    directory = Path(directory)
    file = directory / DOCUMENT
    if not file.is_file():
        raise ValueError(f"{directory} is not the folder of a study: it has no {DOCUMENT}")
    document = read_object(file)
    if document.get("format") != FORMAT:
        raise ValueError(f"{file} is not of a study: its format is not {FORMAT!r}")
    ended = {str(row.get("key")): row for row in json_lines.read(directory / ENDED)}
    planned = document.get("trials")
    rows = list(ended.values()) if planned is None else planned
    trials = tuple(_trial(directory, row, ended.get(str(row.get("key")), {})) for row in rows)
    searched = document.get("searched")
    tried = searched if isinstance(searched, list) else []
    earlier: list[TrialRecord] = []
    if tried or not document.get("search"):  # of a search under way trials are not listed yet
        known = {trial.key for trial in trials} | {str(row.get("key")) for row in tried}
        earlier = earlier_trials(directory, known)
    return StudyRecord(
        directory=directory, document=document, trials=trials, earlier=tuple(earlier)
    )


def earlier_trials(directory: Path, known: Collection[str]) -> list[TrialRecord]:
    """Return the trials in a study's folder that are not of the study as it is now.

    Args:
        directory: The folder.
        known: Keys of the study's trials, those of a search included.
    """
    ended = {str(row.get("key")): row for row in json_lines.read(directory / ENDED)}
    there = {path.parent.name for path in (directory / RUNS).glob("*/experiment.json")}
    found = []
    for key in [*(key for key in ended if key in there), *sorted(there - set(ended))]:
        if key not in known:
            row = ended.get(key) or _row_of(read_run(directory / RUNS / key), key)
            found.append(_trial(directory, row, ended.get(key, {})))
    return found


def _row_of(run: RunRecord, key: str) -> dict[str, Any]:
    """Return the identity of a trial that has not ended, by its run folder."""
    level = run.options.get("target_epsilon") if run.private else None
    return {
        **{"key": key, "method": run.label, "epsilon": level},
        **{"data": "", "seed": run.options.get("seed") or 0},
    }


def name_trials(trials: Iterable[TrialRecord]) -> str:
    """Return trials by name in one line, their seeds together."""
    seeds: dict[str, list[int]] = {}
    for trial in trials:
        data = f", {trial.data}" if trial.data else ""
        seeds.setdefault(f"{trial.method}, {target_label(trial.epsilon)}{data}", []).append(
            trial.seed
        )
    return "; ".join(
        f"{name}, seed{'s' * (len(some) > 1)} {', '.join(map(str, some))}"
        for name, some in seeds.items()
    )


def _trial(directory: Path, row: Mapping[str, Any], end: Mapping[str, Any]) -> TrialRecord:
    key = str(row.get("key"))
    if len(key) != 16 or set(key) - set("0123456789abcdef"):
        raise ValueError(f"{directory}: {key!r} is no key of a trial (16 hex digits)")
    folder = directory / RUNS / key
    epsilon, seconds = row.get("epsilon"), end.get("seconds")
    return TrialRecord(
        key=key,
        method=str(row.get("method")),
        epsilon=None if epsilon is None else float(epsilon),
        data=str(row.get("data")),
        seed=int(row.get("seed", 0)),
        run=read_run(folder) if (folder / "experiment.json").is_file() else None,
        failure=end.get("failure"),
        seconds=None if seconds is None else float(seconds),
    )


@contextmanager
def held(out: Path, mode: int = 0o777) -> Iterator[None]:
    """Let no other process go on with the study meanwhile.

    Raises:
        ValueError: If one does.
    """
    out.mkdir(mode=mode, parents=True, exist_ok=True)
    handle = os.open(out / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    until = time.monotonic() + _LOCK_SECONDS
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() > until:
                    raise ValueError(
                        f"another process runs the study in {out}; wait for it, or stop it"
                    ) from error
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)
