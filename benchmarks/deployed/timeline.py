"""Where a deployed round's time goes: consecutive steps of each node, which sum to the round."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stamps import stamps

#: What ends each step, in order, and what the step is. A mark that a kind of process does not make
#: is where the one before it is: its step takes no time.
STEPS = {
    "receiving": "server's push, until the SuperNode looks for a message",
    "received": "model to the SuperNode",
    "process": "until SuperExec looks for a task",
    "started": "new process: Python and Flower",
    "imported": "message to the process, bundle's check, imports",
    "answering": "from there to the app",
    "train-begins": "corpus opened, trainer made",
    "train-ends": "its users trained",
    "sending": "answer to the SuperNode, which looks for it",
    "sent": "answer to the SuperLink",
    "summed": "server's look for it and its way; waiting for other nodes",
}
_SAID = (
    (re.compile(r"Receiving: train message"), "receiving"),
    (re.compile(r"Received successfully"), "received"),
    (re.compile(r"Start `flwr-clientapp` process"), "started"),
    (re.compile(r"Sending: train message"), "sending"),
    (re.compile(r"Sent successfully"), "sent"),
)

Lines = Sequence[tuple[float, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round.

    Attributes:
        begins: When its nodes were asked, in seconds of the system's clock.
        seconds: Until the last answer was added.
        steps: Seconds of each step, a mean over the nodes.
    """

    begins: float
    seconds: float
    steps: Mapping[str, float]


def rounds(server_log: str, nodes: Sequence[Lines]) -> list[Round]:
    """Return the rounds of a run.

    Args:
        server_log: With the server's stamps.
        nodes: What the processes of each node said, and when.
    """
    asked, summed = [], []
    for line in server_log.splitlines():
        if (found := stamps(line)) is not None and found[0] in ("asked", "summed"):
            (asked if found[0] == "asked" else summed).append(found[1])
    marks = [_marks(lines) for lines in nodes]
    found = []
    for begins, ends in zip(asked, summed, strict=True):
        totals: dict[str, float] = defaultdict(float)
        took_part = 0
        for several in marks:
            seen = {
                name: max((at for at in times if begins <= at <= ends), default=None)
                for name, times in several.items()
            }
            if seen.get("train-ends") is None:
                continue
            took_part += 1
            at = begins
            for name in STEPS:
                mark = ends if name == "summed" else seen.get(name)
                mark = at if mark is None else max(at, mark)
                totals[name] += mark - at
                at = mark
        steps = {name: totals[name] / max(took_part, 1) for name in STEPS}
        found.append(Round(begins=begins, seconds=ends - begins, steps=steps))
    return found


def _marks(lines: Lines) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for at, line in lines:
        if (stamp := stamps(line)) is not None:
            found[stamp[0]].append(stamp[1])
        for pattern, name in _SAID:
            if pattern.search(line):
                found[name].append(at)
    return found
