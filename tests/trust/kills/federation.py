"""A ServerApp and SuperNodes of a real federation on loopback, killed at random moments."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from types import ModuleType

import fedpriv as fp
from fedpriv.backends import SerialBackend
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.training.work import as_works
from tests.backends.flower.real import processes, small_app
from tests.trust.kills.books import Books, Figures
from tests.trust.kills.commands import environment, waited

NODES, ROUNDS, DEADLINE = 3, 100, 12.0


class Federation:
    """A SuperLink, its SuperNodes, and a ServerApp that is started again and again.

    Args:
        scratch: For everything that is written.
    """

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self.folder, self.pid = scratch / "run", scratch / "run.pid"
        figures = Figures(what="Flower, plain, simulated")
        self.books = Books(folder=self.folder, draws=scratch / "draws", figures=figures)
        self.app = small_app.write_app(scratch / "app")
        self.flower = processes.Flower(scratch / "flower-home")
        self.nodes: dict[int, int] = {}
        self.starts = 0

    def open(self) -> None:
        """Start the SuperLink and its nodes."""
        spied = environment(self.books.draws, self.books.ledger)
        given = {name: spied[name] for name in ("FEDPRIV_DRAWS", "FEDPRIV_LEDGER", "PYTHONPATH")}
        self.superlink = self.flower.start_superlink(simulation=False, **given)
        for number in range(NODES):
            self.start_node(number)

    def start_node(self, number: int) -> None:
        """Start a SuperNode for a third of the users."""
        self.starts += 1
        node = processes.run_config(partition_id=number, num_partitions=NODES)
        self.flower.start_supernode(100 * self.starts + number, self.superlink, node)
        self.nodes[number] = self.flower.processes[-1].pid

    def kill_node(self, number: int) -> None:
        """SIGKILL a SuperNode and all that it has started."""
        root = self.nodes.pop(number)
        for pid in [root, *processes._descendants(root)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        (process,) = [each for each in self.flower.processes if each.pid == root]
        process.wait(60)
        self.flower.processes.remove(process)
        self.books.killed("supernode", alive=True)

    def start(self) -> None:
        """Begin the run, or go on with it; wait for its process."""
        self.pid.unlink(missing_ok=True)
        self.starts += 1
        config = processes.run_config(
            out=str(self.folder), rounds=ROUNDS, deadline=DEADLINE, register_seconds=600.0
        )
        command = ["flwr", "run", ".", "--stream", "--run-config", config]
        self.said = f"run-{self.starts}"
        self.process = self.flower.start(self.said, command, cwd=self.app)
        if not waited(self._has_pid, self.process):
            raise RuntimeError(f"no ServerApp: {self.flower.log(self.said)[-3000:]}")

    def _has_pid(self) -> bool:
        return self.pid.exists() and self.pid.read_text().isdigit()

    def until_drawn(self, draws: int) -> None:
        """Wait for so many more cohorts and sums."""
        wanted = self.books.num_draws() + draws
        if not waited(lambda: self.books.num_draws() >= wanted, self.process):
            raise RuntimeError(f"it ended by itself: {self.flower.log(self.said)[-3000:]}")

    def until_released(self) -> None:
        """Wait for one more release."""
        wanted = self.books.num_releases() + 1
        if not waited(lambda: self.books.num_releases() >= wanted, self.process):
            raise RuntimeError(f"it ended by itself: {self.flower.log(self.said)[-3000:]}")

    def kill_server(self) -> None:
        """SIGKILL the ServerApp's process."""
        pid = int(self.pid.read_text())
        os.kill(pid, signal.SIGKILL)
        waited(lambda: processes.is_gone(pid))
        self.process.terminate()  # it would go on waiting for the log of a run that is no more
        self.process.wait(60)
        self.flower.processes.remove(self.process)
        self.books.killed("server (ServerApp)")

    def end(self) -> Figures:
        """Play the rest of the rounds in this process, and check the folder."""
        small = self._module()
        loop = fp.averaging(
            small.plan(ROUNDS), roster=small.ROSTER, params=small.PARAMS, out=self.folder
        )
        loop(SerialBackend(trainer=as_works(small.Step()), data=small.Users()))
        return self.books.end(ok=verify_run(self.folder).ok)

    def _module(self) -> ModuleType:
        sys.path.insert(0, str(self.app))
        try:
            import small  # pyright: ignore[reportMissingImports]
        finally:
            sys.path.remove(str(self.app))
            sys.modules.pop("small", None)
        return small


def kill_federation(scratch: Path, servers: int, nodes: int, choice: random.Random) -> Figures:
    """SIGKILL the ServerApp and SuperNodes so many times, in turn while there are both."""
    began = time.monotonic()
    federation = Federation(scratch)
    try:
        federation.open()
        for turn in range(max(servers, nodes)):
            federation.start()
            if turn < nodes:
                federation.until_drawn(choice.randint(1, 4))
                time.sleep(choice.uniform(0.0, 2.0))
                number = choice.randrange(NODES)
                federation.kill_node(number)
                federation.until_released()  # without it
                federation.start_node(number)  # known to the server once that is started again
            federation.until_drawn(choice.randint(1, 3))
            time.sleep(choice.uniform(0.0, 2.0))
            if turn < servers:
                federation.kill_server()
        figures = federation.end()
    finally:
        federation.flower.stop()
    assert not federation.flower.left()
    figures.seconds = round(time.monotonic() - began, 1)
    return figures
