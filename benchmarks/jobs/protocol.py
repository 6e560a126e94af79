"""The worker's side of a comparison: one job, described once, and a gate between its rounds.

Every tool runs its own loop in its own process. At the end of each round it comes to the gate,
which keeps the round's time and waits there until the harness asks for more. So blocks of rounds
of several tools alternate on one machine while the others sleep. Lines of JSON go over standard
input and output; whatever a library prints goes to standard error.

Only the standard library: this file is imported in every environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job that every tool is given; the same values go to all of them.

    Attributes:
        client: "dense" or "sparse" (tag prediction), "words" (next words; "words-torch" for the
            peers' client within fedpriv), "echo" (plumbing) or "cnn" (CIFAR-10).
        data: Folder of the exported users; empty for "echo".
        num_users: Size of the roster.
        cohort: Users a round.
        batch_size: Examples a local step.
        learning_rate: Of local SGD.
        l2_clip_norm: C; None for neither clipping nor noise.
        noise_multiplier: stddev over C of the noise on the sum.
        num_params: Of the "echo" client.
        workers: Processes, for tools that take a number.
    """

    client: str
    data: str = ""
    num_users: int = 400
    cohort: int = 20
    batch_size: int = 100
    learning_rate: float = 30.0
    l2_clip_norm: float | None = 20.0
    noise_multiplier: float = 1.0
    num_params: int = 0
    workers: int = 1

    def to_json(self) -> str:
        """Return the job as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Return the job that `to_json` wrote."""
        return cls(**json.loads(text))


class Gate:
    """Where a worker's loop stops between two rounds.

    Take it before the tool starts anything: from then on nothing but this object writes to the
    harness, and child processes do not inherit its pipe.
    """

    def __init__(self) -> None:
        self._commands = os.fdopen(os.dup(0), "r")
        self._answers = os.fdopen(os.dup(1), "w")
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        sys.stdout.flush()
        os.dup2(2, 1)
        self._seconds: list[float] = []
        self._asked = 0
        self._started: float | None = None

    def ready(self, **about: Any) -> None:
        """Say that set-up is over, with the versions that run."""
        self._say({"ready": about})

    def skip(self, reason: str) -> None:
        """Say that this job cannot be run here, and why."""
        self._say({"skip": reason})

    def passes(self) -> bool:
        """Come to the gate: before the first round and after each. False means to end the run."""
        now = time.perf_counter()
        if self._started is not None:
            self._seconds.append(now - self._started)
        if len(self._seconds) == self._asked:
            if self._asked:
                self._say({"seconds": self._seconds})
            self._seconds = []
            self._asked = int(json.loads(self._commands.readline() or "{}").get("rounds", 0))
        self._started = time.perf_counter()
        return self._asked > 0

    def _say(self, line: dict[str, Any]) -> None:
        self._answers.write(json.dumps(line) + "\n")
        self._answers.flush()
