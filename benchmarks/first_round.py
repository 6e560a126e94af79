"""Seconds from the command to the first round, on Ray, with compiled kernels at hand and without.

    python benchmarks/first_round.py                 5 starts of each kind, about three minutes

Every start is `fedpriv run adadps-tags --backend ray --workers 2 --rounds 1` in a fresh process,
from the moment it is started, Python's own start included. Ray's start is taken from the lines that
the command prints; the first round is done when its release is in the ledger, synced. "Cold" gives
the command an empty folder for compiled kernels; everything else (prepared corpus, files in the
system's cache) is warm in both, by one start that is not counted. Kinds alternate.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from harness import machine
from harness.main_job import NAME

RESULTS = Path(__file__).resolve().parent / "results"
WARM, COLD = "kernels at hand", "no compiled kernels"

# What the command prints when a step is over, in order; Ray's start lies between the first two.
_LINES = ("starting Ray", "Ray took", "its workers took")
_LIMIT = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Seconds of one start, one after the other.

    Attributes:
        before_ray: From the command to where Ray is asked for: imports, corpus, plan, run folder.
        ray: Ray's own start.
        workers: Until the workers have imported, opened the corpus and answered.
        first_round: Until the first round's release is in the ledger; pricing is in it.
    """

    before_ray: float
    ray: float
    workers: float
    first_round: float

    @property
    def after_ray(self) -> float:
        """From Ray up to the first round done."""
        return self.workers + self.first_round

    @property
    def without_ray(self) -> float:
        """From the command to the first round done, less Ray's own start."""
        return self.before_ray + self.after_ray

    @property
    def whole(self) -> float:
        """From the command to the first round done."""
        return self.without_ray + self.ray


def start(command: list[str], kernels: Path | None) -> Start:
    """Run the command once and return its times.

    Args:
        command: Of fedpriv, without a run folder.
        kernels: Folder for compiled kernels; None for the usual place.

    Raises:
        RuntimeError: If it ended, or did not get on, before its first round was done.
    """
    cache = {} if kernels is None else {"NUMBA_CACHE_DIR": str(kernels)}
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "run" / "ledger.jsonl"
        began = time.perf_counter()
        process = subprocess.Popen(
            [*command, f"--out={ledger.parent}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **cache},
        )
        printed: list[tuple[float, str]] = []

        def listen() -> None:
            for line in process.stderr or ():
                printed.append((time.perf_counter(), line))

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        try:
            done = _wait_for_release(process, ledger, began)
            process.wait(_LIMIT)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
            listener.join()
        text = "".join(line for _, line in printed)
        found = [[at for at, line in printed if line.startswith(mark)][:1] for mark in _LINES]
        if done is None or process.returncode or not all(found):
            raise RuntimeError(
                f"no first round, or no line {' or '.join(map(repr, _LINES))}, from {command} "
                f"(status {process.returncode}), which printed:\n{text}"
            )
    marks = [began, *(at for (at,) in found), done]
    steps = [after - before for before, after in pairwise(marks)]
    return Start(before_ray=steps[0], ray=steps[1], workers=steps[2], first_round=steps[3])


def _wait_for_release(process: subprocess.Popen, ledger: Path, began: float) -> float | None:
    """Return when the ledger held a release; None if the process ended, or took too long."""
    while time.perf_counter() - began < _LIMIT:
        ended = process.poll() is not None
        if ledger.exists() and b'"kind":"release"' in ledger.read_bytes():
            return time.perf_counter()
        if ended:
            return None
        time.sleep(0.005)
    return None


def page(starts: dict[str, list[Start]], command: str, about: str) -> str:
    """Return the table, medians and extremes."""
    columns = {
        "command to Ray": "before_ray",
        "Ray's own start": "ray",
        "its workers": "workers",
        "first round": "first_round",
        "command to first round, less Ray's start": "without_ray",
        "Ray up to first round": "after_ray",
        "all of it": "whole",
    }
    lines = [
        "# From the command to the first round",
        "",
        f"`{command}`, seconds, medians (lowest to highest) of "
        f"{len(starts[WARM])} fresh starts of each kind, alternating. The first round is done "
        "when its release is synced to the ledger. Files are in the system's cache and the corpus "
        "is prepared; without compiled kernels the command compiles them, and so do its workers.",
        "",
        about,
        "",
        f"| | {' | '.join(columns)} |",
        f"|---|{'---:|' * len(columns)}",
    ]
    for kind, several in starts.items():
        cells = []
        for field in columns.values():
            values = sorted(getattr(one, field) for one in several)
            cells.append(f"{median(values):.1f} ({values[0]:.1f} to {values[-1]:.1f})")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    lines += ["", "Asked: the first round within 5 s, Ray's own start apart.", ""]
    for kind, several in starts.items():
        after = median(one.after_ray for one in several)
        apart = median(one.without_ray for one in several)
        lines.append(
            f"- With {kind}: {after:.1f} s from Ray up to the first round; {apart:.1f} s from the "
            "command to it, less Ray's own start."
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the first round of a fresh command.")
    parser.add_argument("--corpus", default=None, help="as for `fedpriv run`")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    arguments = parser.parse_args()
    options = ["run", NAME, "--backend=ray", f"--workers={arguments.workers}", "--rounds=1"]
    options += [] if arguments.corpus is None else [f"--corpus={arguments.corpus}"]
    command = [sys.executable, "-m", "fedpriv", *options]
    about = machine.sentence(machine.describe())
    start(command, None)
    starts: dict[str, list[Start]] = {WARM: [], COLD: []}
    for repeat in range(1, arguments.repeats + 1):
        for kind, several in starts.items():
            with tempfile.TemporaryDirectory() as empty:
                several.append(start(command, Path(empty) if kind == COLD else None))
            one = several[-1]
            print(
                f"[{repeat}/{arguments.repeats}] {kind}: Ray up after "
                f"{one.before_ray + one.ray:.1f} s, first round after {one.whole:.1f} s",
                file=sys.stderr,
                flush=True,
            )
    text = page(starts, " ".join(["fedpriv", *options]), about)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "first_round.md").write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
