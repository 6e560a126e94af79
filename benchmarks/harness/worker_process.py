"""The harness's side of a worker: start it, ask for rounds, weigh it, end it and its children."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.process_tree import Peak, cpu_seconds, descendants

# What colours and moves the cursor of a terminal.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class WorkerError(RuntimeError):
    """A worker died or said nothing in time; the message ends with its last words.

    Attributes:
        what: "died" or "hung for ... s".
        last_line: The last line of its log, empty if it has none.
    """

    def __init__(self, what: str, last_line: str, message: str) -> None:
        super().__init__(message)
        self.what, self.last_line = what, last_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some rounds in a row.

    Attributes:
        seconds: Wall time of each round.
        cpu_seconds: CPU time a round, of the worker and all it started.
        other_cores: Cores that were busy with something else meanwhile, on average.
    """

    seconds: list[float]
    cpu_seconds: float
    other_cores: float


class WorkerProcess:
    """A long-lived worker in a session of its own.

    Args:
        name: For messages and the log's name.
        command: The whole command.
        environment: Added to this process's own.
        log: Where standard error goes.
    """

    def __init__(
        self, name: str, command: list[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self.name, self._log = name, log
        self.started = time.perf_counter()
        self._seen: dict[int, str] = {}
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as error:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=error,
                # Unbuffered: `select` sees every line, and nothing is left to be written when it
                # has died.
                bufsize=0,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def ready(self, seconds: float = 300.0) -> dict[str, Any]:
        """Wait until set-up is over; return {"ready": versions} or {"skip": reason}."""
        return self._answer(seconds)

    def rounds(self, number: int, seconds: float = 900.0) -> Block:
        """Run rounds and return their times."""
        cpu, busy, wall = cpu_seconds(self._process.pid), _busy_seconds(), time.perf_counter()
        answer = self._ask(number, seconds)
        cpu = cpu_seconds(self._process.pid) - cpu
        busy, wall = _busy_seconds() - busy, time.perf_counter() - wall
        return Block(
            seconds=answer["seconds"],
            cpu_seconds=cpu / number,
            other_cores=max(0.0, (busy - cpu) / wall),
        )

    def peak_mib(self, number: int, seconds: float = 900.0) -> float:
        """Return the highest PSS of the whole tree while some rounds run; they are not timed."""
        with Peak(0.05, root=self._process.pid) as peak:
            self._ask(number, seconds)
        return peak.mib

    def stop(self, seconds: float = 20.0) -> None:
        """Let the worker end by itself, then end whatever of its tree still lives.

        A second call does nothing more.
        """
        self._remember()
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._remember()
        for sign in (signal.SIGTERM, signal.SIGKILL):
            # A number alone may have gone to somebody else's process meanwhile.
            living = [pid for pid, born in self._seen.items() if _born(pid) == born]
            for pid in living:
                try:
                    os.kill(pid, sign)
                except ProcessLookupError:
                    continue
            if living:
                time.sleep(1.0)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _remember(self) -> None:
        if self._process.poll() is None:
            for pid in descendants(self._process.pid):
                self._seen.setdefault(pid, _born(pid) or "")

    def _ask(self, number: int, seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._remember()
        try:
            self._process.stdin.write(json.dumps({"rounds": number}).encode() + b"\n")
        except BrokenPipeError:
            raise self._error("died") from None
        return self._answer(seconds)

    def _answer(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        until = time.monotonic() + seconds
        while True:
            left = max(0.0, until - time.monotonic())
            readable, _, _ = select.select([self._process.stdout], [], [], left)
            line = self._process.stdout.readline() if readable else b""
            if not line:
                raise self._error("died" if readable else f"hung for {seconds:g} s")
            if line.startswith(b"{"):  # a library may have printed something while it was loaded
                return json.loads(line)

    def _error(self, what: str) -> WorkerError:
        log = _CONTROL.sub("", self._log.read_text("utf-8", errors="replace"))
        lines = [line.strip() for line in log.splitlines() if line.strip()]
        message = [f"{self.name} {what}; its log is {self._log} and ends:", *lines[-15:]]
        return WorkerError(what, lines[-1] if lines else "", "\n".join(message))


def _born(pid: int) -> str | None:
    """Return when a process was started, in ticks since boot; None if it does not live."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def _busy_seconds() -> float:
    """Return the CPU time that this machine has spent on anything, summed over its cores."""
    values = [int(v) for v in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return (sum(values[:3]) + sum(values[5:8])) / os.sysconf("SC_CLK_TCK")
