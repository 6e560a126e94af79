"""Five rounds on ten SuperNodes, of which three crash and one hangs in each."""

from __future__ import annotations

import json

import pytest

from fedpriv.privacy.statement.verify import verify_run
from tests.backends.flower.real import processes, small_app

ROUNDS, NODES = 5, 10


@pytest.mark.slow
@pytest.mark.flower
def test_five_rounds_with_crashes_and_hangs_end_within_their_deadline(
    flower, tmp_path, monkeypatch, draws_of
):
    """R6: each round is the one without the nodes that failed, to the last bit: same noise, same
    denominator. Nobody is waited for longer than the deadline and a tenth of it."""
    app = small_app.write_app(tmp_path / "app")
    monkeypatch.syspath_prepend(str(app))
    import small  # pyright: ignore[reportMissingImports]

    out = tmp_path / "in-process"
    node_of = {user: place % NODES for place, user in enumerate(small.ROSTER)}
    gone = lambda number, user: bool(small.fault(number, node_of[user]))  # noqa: E731
    flower.start_nodes(NODES)
    run, deadline = tmp_path / "run", small_app.measure_deadline(flower, app, tmp_path, least=30.0)
    log = flower.run(
        app, processes.run_config(out=str(run), rounds=ROUNDS, deadline=deadline, faults=True)
    )
    assert len((run / "rounds.jsonl").read_text().splitlines()) == ROUNDS, log[-4000:]

    draws_of(run)
    oracle = small_app.in_process(small, out, ROUNDS, gone)
    seen = [json.loads(line) for line in (run / "diagnostics.jsonl").read_text().splitlines()]
    took = [line["seconds"] for line in seen]
    for number in range(1, ROUNDS + 1):
        faults = sorted(filter(None, (small.fault(number, node) for node in range(NODES))))
        assert faults == ["crashes"] * 2 + ["hangs", "is killed"]
    assert [line["num_failed"] for line in seen] == oracle.lost
    assert len(took) == ROUNDS and max(took) <= 1.1 * deadline
    small_app.check_same_end(run, out, ROUNDS)
    verified = verify_run(run)
    assert verified.ok
    assert (verified.num_charges, verified.num_releases, verified.num_lost) == (ROUNDS, ROUNDS, 0)
