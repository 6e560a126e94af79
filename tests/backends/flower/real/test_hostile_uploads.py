"""Answers that trickle, never end, or have 10 GB, over a real SuperLink's HTTP."""

from __future__ import annotations

import contextlib
import json
import threading

import psutil
import pytest

from fedpriv.privacy.statement.verify import verify_run
from tests.backends.flower.real import processes, small_app
from tests.backends.flower.real.hostile_node import KINDS, HostileNode

# A deadline that two honest nodes keep beside other work, too.
ROUNDS, DEADLINE, HONEST = 2, 60.0, 2
NODES = HONEST + len(KINDS)
MB = 1 << 20


class Memory:
    """Looks at how much memory a process has, until it is told that all is over."""

    def __init__(self, pid):
        self.pid, self.seen = pid, []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        while not self.over.wait(0.2):
            pid = self.pid()
            if pid is not None:  # of none psutil takes its own
                with contextlib.suppress(psutil.NoSuchProcess):
                    self.seen.append(psutil.Process(pid).memory_info().rss / MB)

    def stop(self):
        """Return how much it grew at most."""
        self.over.set()
        self.thread.join()
        return max(self.seen) - self.seen[0]


@pytest.mark.slow
@pytest.mark.flower
def test_uploads_without_an_end_cost_their_own_users_and_no_memory(
    flower, tmp_path, monkeypatch, draws_of
):
    """Two honest SuperNodes, and one hostile node of each kind."""
    app = small_app.write_app(tmp_path / "app")
    monkeypatch.syspath_prepend(str(app))
    import small  # pyright: ignore[reportMissingImports]

    out, run = tmp_path / "in-process", tmp_path / "run"
    honest = {user for place, user in enumerate(small.ROSTER) if place % NODES < HONEST}
    superlink = flower.start_nodes(HONEST, of=NODES)
    hostile = [
        HostileNode(
            superlink=f"127.0.0.1:{superlink}", kind=kind, user_ids=small.ROSTER[place::NODES]
        )
        for place, kind in enumerate(KINDS, HONEST)
    ]
    pid = tmp_path / "run.pid"
    memory = Memory(lambda: int(pid.read_text()) if (run / "ledger.jsonl").exists() else None)
    try:
        for node in hostile:
            node.start()
        log = flower.run(app, processes.run_config(out=str(run), rounds=ROUNDS, deadline=DEADLINE))
    finally:
        for node in hostile:
            node.stop()
        grown = memory.stop()
    assert not [node.failed for node in hostile if node.failed], log[-4000:]
    assert len((run / "rounds.jsonl").read_text().splitlines()) == ROUNDS, log[-4000:]
    draws_of(run)
    oracle = small_app.in_process(small, out, ROUNDS, lambda _, user: user not in honest)
    seen = [json.loads(line) for line in (run / "diagnostics.jsonl").read_text().splitlines()]
    took = [line["seconds"] for line in seen]
    counts = json.loads((tmp_path / "run.counts").read_text())
    assert all(node.asked == ROUNDS for node in hostile)
    assert [line["num_failed"] for line in seen] == oracle.lost
    assert max(took) <= 1.1 * DEADLINE
    small_app.check_same_end(run, out, ROUNDS)
    assert verify_run(run).ok
    assert counts["too-large"] == ROUNDS  # the gigantic one's; the others are missing
    # 524 MB of each round's two gigantic answers would be here, were they read; what a server that
    # has computed its first noise takes is a third of that.
    assert grown < 300
