"""The command, and Ray's workers under it, killed at random moments; the command is resumed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fedpriv.datasets.importers.synthetic import Shape, synthesize
from fedpriv.privacy.statement.verify import verify_run
from tests.trust.kills.books import Books, Figures

ROOT = Path(__file__).resolve().parents[3]
SPY = Path(__file__).resolve().parent / "spy"
PATIENCE = 900.0  # against a hang, and not a slow machine
SEPARATION, MOST = 8, 1000  # rows between two of one user, and how many of them at most
METHODS = {
    "plain": "dp-fedavg-tags", "tree": "dp-fedavg-tags", "replayed": "bolt-on-tags",
    "adaptive": "agd-tags",
}  # fmt: skip


def options_of(method: str, rounds: int) -> dict[str, object]:
    """Return the options of one of `METHODS`: more rounds than are played before the last kill."""
    if method == "replayed":  # one round, which takes longer than any kill waits
        return {"passes": 160, "users-per-update": 1}
    if method == "adaptive":  # its budget is of more iterations without a rejection
        return {
            "iterations": rounds, "target-epsilon": 8.0, "delta": 0.001, "eval-every": rounds,
            "start": "fresh",
        }  # fmt: skip
    plain = {
        "rounds": rounds, "noise-multiplier": 1.0, "cohort": 8, "delta": 0.001,
        "l2-clip-norm": 0.5, "eval-every": rounds,
    }  # fmt: skip
    if method == "plain":
        return plain
    limits = {"min-separation": SEPARATION, "max-participations": MOST}
    return {**plain, **limits, "noise": "tree", "sampling": "separated"}


def environment(draws: Path, ledger: Path) -> dict[str, str]:
    """Return the environment of a process whose draws are written down."""
    found = [str(SPY), str(ROOT), os.environ.get("PYTHONPATH", "")]
    kept = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
    return kept | {
        "FEDPRIV_DRAWS": str(draws),
        "FEDPRIV_LEDGER": str(ledger),
        "PYTHONPATH": os.pathsep.join(filter(None, found)),
        "OMP_NUM_THREADS": "1",
    }


def waited(true: Callable[[], bool], process: subprocess.Popen | None = None) -> bool:
    """Wait until something is true; return whether the process was alive until then."""
    until = time.monotonic() + PATIENCE
    while not true():
        if process is not None and process.poll() is not None:
            return False
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.01)
    return True


class Command:
    """`fedpriv run`, again and again on one folder.

    Args:
        scratch: For the corpus, the folder and the log.
        backend: `serial` or `ray`.
        rounds: Planned: more than are ever played before the last kill.
        method: One of `METHODS`.
        secure: Whether keys are the operating system's, and not of a seed.
    """

    def __init__(
        self, scratch: Path, *, backend: str, rounds: int, method: str = "plain",
        secure: bool = False,
    ) -> None:  # fmt: skip
        scratch.mkdir(parents=True, exist_ok=True)
        self.folder, self.out = scratch / "run", scratch / "said"
        mode = "secure" if secure else "simulated"
        self.books = Books(
            folder=self.folder, draws=scratch / "draws",
            figures=Figures(what=f"`fedpriv run`, {backend}, {method}, {mode}"),
            limit=(MOST, SEPARATION) if method == "tree" else None,
        )  # fmt: skip
        corpus = scratch / "corpus"
        shape = Shape(
            num_users=70, num_sentences=900, public_users=10, num_words=200, num_tags=12,
            num_topics=4,
        )  # fmt: skip
        synthesize(corpus, shape=shape, max_words=150, max_tags=10)
        options = options_of(method, rounds)
        given = [text for name, value in options.items() for text in ("-s", f"{name}={value}")]
        given += ["--secure"] if secure else ["-s", "seed=11"]
        workers = ["--backend", "ray", "--workers", "2"] if backend == "ray" else []
        self.first = [METHODS[method], "--corpus", str(corpus), "--out", str(self.folder)]
        self.first += [*given, *workers]
        self.again = ["--resume", str(self.folder), *workers]

    def start(self) -> subprocess.Popen:
        """Begin the run, or go on with it."""
        begun = (self.folder / "experiment.json").exists()
        with self.out.open("ab") as said:
            return subprocess.Popen(
                [sys.executable, "-m", "fedpriv", "run", *(self.again if begun else self.first)],
                env=environment(self.books.draws, self.books.ledger), stdout=said, stderr=said,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def until_drawn(self, process: subprocess.Popen, draws: int) -> None:
        """Wait for so many more cohorts and sums."""
        wanted = self.books.num_draws() + draws
        if not waited(lambda: self.books.num_draws() >= wanted, process):
            raise RuntimeError(f"it ended by itself: {self.out.read_text()[-3000:]}")

    def kill(self, process: subprocess.Popen) -> None:
        """SIGKILL the command at once, and then what it leaves behind of its session."""
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        for pid in session_of(process.pid):
            end(pid)
        self.books.killed("server")

    def end(self) -> Figures:
        """Go on to the plan's end and check the folder."""
        process = self.start()
        if process.wait() != 0:
            raise RuntimeError(f"it failed: {self.out.read_text()[-3000:]}")
        return self.books.end(ok=verify_run(self.folder).ok)


def kill_commands(
    scratch: Path, method: str, kills: int, choice: random.Random, *, secure: bool
) -> Figures:
    """SIGKILL the command so many times."""
    began = time.monotonic()
    command = Command(scratch, backend="serial", rounds=40 * kills, method=method, secure=secure)
    for _ in range(kills):
        process = command.start()
        if method == "replayed":
            command.until_drawn(process, 1)  # its cohort, before all passes
            time.sleep(choice.uniform(0.0, 1.0))
        else:  # a cohort and a sum a round, and up to eight rounds: fewer than are planned
            command.until_drawn(process, choice.randint(1, 16))
            time.sleep(choice.uniform(0.0, 0.02))
        command.kill(process)
    figures = command.end()
    figures.seconds = round(time.monotonic() - began, 1)
    return figures


def kill_workers(scratch: Path, kills: int, servers: int, choice: random.Random) -> Figures:
    """SIGKILL Ray's workers so many times while rounds go on, and the command a few times."""
    began = time.monotonic()
    command = Command(scratch, backend="ray", rounds=150 * (kills + servers))
    left, process = kills, command.start()
    for server in range(servers + 1):
        share = left // (servers + 1 - server)
        for _ in range(share):
            command.until_drawn(process, choice.randint(2, 12))
            time.sleep(choice.uniform(0.0, 0.05))
            os.kill(choice.choice(workers_of(command, process)), signal.SIGKILL)
            command.books.killed("worker", alive=True)
            # It shows in a round that goes on: two more are released.
            wanted = command.books.num_releases() + 2
            if not waited(lambda w=wanted: command.books.num_releases() >= w, process):
                said = f"{process.returncode} after {command.books.num_releases()} releases"
                raise RuntimeError(f"it ended: {said}: {command.out.read_text()[-3000:]}")
        left -= share
        if server < servers:
            command.until_drawn(process, choice.randint(1, 8))
            command.kill(process)
            process = command.start()
    if process.wait() != 0:
        raise RuntimeError(f"it failed: {command.out.read_text()[-3000:]}")
    figures = command.books.end(ok=verify_run(command.folder).ok)
    figures.seconds = round(time.monotonic() - began, 1)
    return figures


def session_of(leader: int) -> list[int]:
    """Return every process of a session that still runs."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = entry.read_text().rpartition(") ")[2].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state != "Z":
            found.append(int(entry.parent.name))
    return found


def workers_of(command: Command, process: subprocess.Popen) -> list[int]:
    """Return the workers that a command has now, by what they have written down of themselves."""
    found: list[int] = []

    def some() -> bool:
        found[:] = command.books.workers() & set(session_of(process.pid)) - {process.pid}
        return bool(found)

    if not waited(some, process):
        raise RuntimeError(f"it ended without a worker: {command.out.read_text()[-3000:]}")
    return sorted(found)


def end(pid: int) -> None:
    """SIGKILL one process that may be gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
