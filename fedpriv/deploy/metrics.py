"""Metrics of a run in Prometheus' text format, read from its folder and served on loopback.

It is a process separate from the server and changes nothing: each request reads the folder as
`fedpriv status` does. Of a secure run nothing is said that counts a round's users or times it: an
ε takes the size of a cohort to be secret. Of a simulation, whose diagnostics no ε covers, cohort,
failures and times are, under names that begin with `fedpriv_diagnostics_`.

Source of the format: Prometheus, Exposition formats, text format 0.0.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedpriv import json_lines
from fedpriv.runs.status import run_status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_DIAGNOSTICS = {
    "cohort_size": ("cohort_size", "Users drawn in the last round; of simulations alone."),
    "num_failed": ("failed_users", "Of them, users that failed; of simulations alone."),
    "seconds": ("round_seconds", "Wall time of the last round; of simulations alone."),
}


def exposition(folder: Path) -> str:
    """Return a run's metrics in Prometheus' text format.

    Guarantees:
        * Of a secure run only what its plan, its ledger and the registered nodes say: nothing that
          counts a round's users, and no time, since a round takes longer the more users it has.
          Anyone who asks often still sees when `fedpriv_round` grows.

    Raises:
        ValueError: As `fedpriv.runs.status.run_status`.
    """
    return "".join(f"{line}\n" for line in _lines(folder))


def _lines(folder: Path) -> Iterator[str]:
    found = run_status(folder)
    run = {"experiment": found.experiment, "label": found.label, "mode": found.mode}
    yield from _gauge("up", "Whether a process holds the run.", found.held, run)
    yield from _gauge("failed", "Whether the last attempt failed.", found.failed, run)
    yield from _gauge("round", "Rounds that were released.", found.round_num, run)
    yield from _gauge("rounds_planned", "Rounds of the plan.", found.rounds_planned, run)
    yield from _gauge(
        "lost_attempts", "Attempts that were charged and not released.", found.lost_attempts, run
    )
    for name, epsilon in (("spent", found.spent), ("guaranteed", found.guaranteed)):
        if epsilon is not None:
            labels = {
                **run,
                "delta": repr(epsilon.delta),
                "unit": epsilon.unit,
                "relation": epsilon.relation.value,
                "accountant": epsilon.accountant,
            }
            what = "every charge" if name == "spent" else "the whole plan"
            yield from _gauge(f"epsilon_{name}", f"The epsilon of {what}.", epsilon.value, labels)
    yield from _gauge("nodes", "Nodes that host rostered users.", found.nodes, run)
    online = "Of these, nodes that are online; while a server trains."
    yield from _gauge("nodes_online", online, found.nodes_online, run)
    if found.mode != "simulation":
        return
    ended = found.last_round_ended
    yield from _gauge(
        "diagnostics_last_round_ended_seconds",
        "When the last round ended, in seconds since 1970; of simulations alone.",
        None if ended is None else datetime.fromisoformat(ended).timestamp(),
        run,
    )
    diagnostics = folder / "diagnostics.jsonl"
    if diagnostics.is_file():
        *_, last = [{}, *json_lines.read(diagnostics)]
        for key, (name, summary) in _DIAGNOSTICS.items():
            yield from _gauge(f"diagnostics_{name}", summary, last.get(key), run)


def _gauge(
    name: str, summary: str, value: float | None, labels: Mapping[str, str]
) -> Iterator[str]:
    """Yield a metric's lines; none for what is not known."""
    if value is None:
        return
    number = "+Inf" if math.isinf(value) else repr(float(value))
    shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    yield f"# HELP fedpriv_{name} {summary}"
    yield f"# TYPE fedpriv_{name} gauge"
    yield f"fedpriv_{name}{{{shown}}} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def read_place(text: str) -> tuple[str, int]:
    """Return host and port; a port alone is on loopback.

    Raises:
        ValueError: If it is neither.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise ValueError(f"--metrics {text!r} is no PORT or HOST:PORT; give one, such as 9464")
    return host or "127.0.0.1", int(port)


def serve(folder: Path, place: tuple[str, int], ready: Callable[[str], None]) -> None:
    """Answer GET /metrics until interrupted.

    Args:
        folder: Of the run, which must be there; its ledger may grow.
        place: Host and port; port 0 takes a free one.
        ready: Called with the address, once it answers.

    Raises:
        ValueError: If the folder holds no run.
        OSError: If nothing can listen there.
    """
    exposition(folder)

    class Answer(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            status, text = 404, "GET /metrics\n"
            if self.path == "/metrics":
                try:
                    status, text = 200, exposition(folder)
                except (ValueError, OSError) as error:
                    status, text = 503, f"the run cannot be read now ({type(error).__name__})\n"
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: every scrape would be a line."""

    with ThreadingHTTPServer(place, Answer) as server:
        host, port = server.server_address[:2]
        ready(f"http://{host!s}:{port}/metrics")
        server.serve_forever()
