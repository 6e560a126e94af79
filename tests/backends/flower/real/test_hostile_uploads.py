"""Answers that trickle or never end, over a real SuperLink's HTTP."""

from __future__ import annotations

import json

import pytest

from fedpriv.privacy.statement.verify import verify_run
from tests.backends.flower.real import processes, small_app
from tests.backends.flower.real.hostile_node import KINDS, HostileNode

# A deadline that two honest nodes keep beside other work, too.
ROUNDS, DEADLINE, HONEST = 2, 60.0, 2
NODES = HONEST + len(KINDS)


@pytest.mark.slow
@pytest.mark.flower
def test_uploads_without_an_end_cost_their_own_users(flower, tmp_path, monkeypatch, draws_of):
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
    try:
        for node in hostile:
            node.start()
        log = flower.run(app, processes.run_config(out=str(run), rounds=ROUNDS, deadline=DEADLINE))
    finally:
        for node in hostile:
            node.stop()
    assert not [node.failed for node in hostile if node.failed], log[-4000:]
    assert len((run / "rounds.jsonl").read_text().splitlines()) == ROUNDS, log[-4000:]
    draws_of(run)
    oracle = small_app.in_process(small, out, ROUNDS, lambda _, user: user not in honest)
    seen = [json.loads(line) for line in (run / "diagnostics.jsonl").read_text().splitlines()]
    took = [line["seconds"] for line in seen]
    assert all(node.asked == ROUNDS for node in hostile)
    assert [line["num_failed"] for line in seen] == oracle.lost
    assert max(took) <= 1.1 * DEADLINE
    small_app.check_same_end(run, out, ROUNDS)
    assert verify_run(run).ok
