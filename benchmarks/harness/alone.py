"""The benchmarks without peers, each a command of its own: what `compare.py full` runs at its end.

What a command prints is shown as it comes. Those that keep no file of their own get one, below a
line about the machine, if they end well.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import machine

HERE = Path(__file__).resolve().parents[1]
_THREADS = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One benchmark as a command.

    Attributes:
        arguments: File next to `compare.py`, and its options.
        file: Of the results, where its output goes; None for a script that writes its own.
        pinned: Whether it runs on one core.
    """

    arguments: tuple[str, ...]
    file: str | None = None
    pinned: bool = False

    @property
    def name(self) -> str:
        """The command without folders, for messages."""
        return " ".join(self.arguments)


def scripts(results: Path, corpus: str | None) -> list[Script]:
    """Return all of them, the quick ones first."""
    data = () if corpus is None else (f"--corpus={corpus}",)
    out = f"--out={results}"
    return [
        Script(arguments=("round_time.py", *data), file="round_time.txt", pinned=True),
        Script(arguments=("floor.py", *data), file="floor.txt", pinned=True),
        Script(arguments=("first_round.py", *data, out)),
        Script(arguments=("dense_training.py",), file="dense_training.txt", pinned=True),
        Script(arguments=("per_example.py",)),
        Script(arguments=("growth.py", out)),
        Script(arguments=("growth.py", "--endurance", out)),
    ]


def run(chosen: list[Script], results: Path, tell: Callable[[str], None]) -> list[str]:
    """Run the scripts one after the other and return which failed; those change no results."""
    failed = []
    for script in chosen:
        tell(script.name)
        about = machine.sentence({**machine.describe(), "threads": _THREADS})
        status, output = _run(script)
        if status:
            tell(f"{script.name} ended with status {status}; its error is above")
            failed.append(script.name)
        elif script.file is not None:
            results.mkdir(parents=True, exist_ok=True)
            (results / script.file).write_text(f"{about}\n\n{output}", "utf-8")
    return failed


def _run(script: Script) -> tuple[int, str]:
    """Return a script's exit status and output, shown as it comes; a stop from outside ends it."""
    file, *options = script.arguments
    core = min(os.sched_getaffinity(0))
    process = subprocess.Popen(
        [sys.executable, str(HERE / file), *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": _THREADS, "PYTHONUNBUFFERED": "1"},
        # Its own group, so that what it started can be ended with it.
        start_new_session=True,
        preexec_fn=(lambda: os.sched_setaffinity(0, {core})) if script.pinned else None,
    )
    lines = []
    try:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
        return process.wait(), "".join(lines)
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        raise
