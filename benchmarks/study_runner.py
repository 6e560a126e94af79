"""Whether the runner of studies costs anything: two workers against one, and itself against runs.

    python benchmarks/study_runner.py                16 equal trials twice, then one of 30 seconds

The first table is 16 equal trials (one method, 16 seeds) on one and on two workers: wall seconds of
the whole command and how many times as fast two are. The second is trials of about 30 seconds by
`fedpriv study` and the same runs by `fedpriv run`, in fresh processes and alternating: what the
runner adds, in percent. It writes its page once, so one trial and several are timed. Trials are tag
models on the embedded synthetic corpus or on --corpus. Nothing is asserted. On a machine that does
something else all are too low.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from harness import figures, machine

NAME = "dp-fedavg-tags"


def main() -> None:
    """Time studies and runs, print and keep the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--corpus", help="a prepared corpus; by default the synthetic one")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=60, help="of each of the equal trials")
    parser.add_argument("--long-rounds", type=int, default=400, help="of the trial of 30 s")
    parser.add_argument("--long-trials", type=int, default=4, help="of 30 s in one study")
    parser.add_argument("--repeats", type=int, default=3, help="of the second table")
    parser.add_argument("--users", type=int, default=300)
    parser.add_argument("--smallest", action="store_true", help="seconds: whether it works at all")
    parser.add_argument("--results", type=Path, help="folder; with --smallest a temporary one")
    given = parser.parse_args()
    given.results = figures.results_folder(given.results, smallest=given.smallest)
    if given.smallest:
        given.trials, given.rounds, given.long_rounds, given.repeats, given.users = 2, 2, 2, 1, 8
        given.long_trials = 2
    with tempfile.TemporaryDirectory(prefix="fedpriv-study-") as folder:
        found = {
            "workers": _workers(given, Path(folder)),
            "overhead of one trial": _overhead(given, Path(folder), 1),
            "overhead of several": _overhead(given, Path(folder), given.long_trials),
        }
    for name, rows in found.items():
        print(name, json.dumps(rows))
    document = {"machine": machine.describe(), "smallest": given.smallest, **found}
    (given.results / "study_runner.json").write_text(json.dumps(document, indent=2) + "\n", "utf-8")


def _workers(given: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Return wall seconds of equal trials on one and on two workers."""
    file = _study(given, folder / "equal.toml", seeds=given.trials, rounds=given.rounds)
    seconds = {}
    for number in (1, 2):
        out = folder / f"workers-{number}"
        seconds[number] = _timed("study", str(file), "--out", str(out), "--workers", str(number))
    return {
        "trials": given.trials,
        "one": round(seconds[1], 2),
        "two": round(seconds[2], 2),
        "times_as_fast": round(seconds[1] / seconds[2], 3),
    }


def _overhead(given: argparse.Namespace, folder: Path, trials: int) -> dict[str, float]:
    """Return wall seconds of trials by a study and of the same runs by themselves."""
    file = _study(given, folder / f"long-{trials}.toml", seeds=trials, rounds=given.long_rounds)
    corpus = ["--corpus", given.corpus] if given.corpus else []
    run = ["run", NAME, *corpus, "--rounds", str(given.long_rounds), "--users", str(given.users)]
    run += ["--target-epsilon", "8", "--keep-checkpoints", "1"]
    both: dict[str, list[float]] = {"study": [], "runs": []}
    for number in range(given.repeats):
        out = folder / f"study-{trials}-{number}"
        both["study"].append(_timed("study", str(file), "--out", str(out), "--workers", "1"))
        each = [folder / f"run-{trials}-{number}-{seed}" for seed in range(trials)]
        seconds = [_timed(*run, "--seed", str(s), "--out", str(o)) for s, o in enumerate(each)]
        both["runs"].append(sum(seconds))
    study, alone = median(both["study"]), median(both["runs"])
    return {
        "trials": trials,
        "study": round(study, 2),
        "runs": round(alone, 2),
        "percent_more": round(100 * (study / alone - 1), 2),
    }


def _study(given: argparse.Namespace, file: Path, *, seeds: int, rounds: int) -> Path:
    corpus = f"[data.one]\ncorpus = {json.dumps(given.corpus)}\n" if given.corpus else ""
    file.write_text(
        f'name = "{file.stem}"\nmethods = ["{NAME}"]\nepsilons = [8]\nseeds = {seeds}\n'
        f"[options]\nrounds = {rounds}\nusers = {given.users}\n{corpus}",
        "utf-8",
    )
    return file


def _timed(*command: str) -> float:
    """Return the wall seconds of a command of fedpriv in a fresh process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "fedpriv", *command],
        check=True,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
