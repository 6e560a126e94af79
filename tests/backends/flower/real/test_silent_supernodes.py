"""Five rounds on ten SuperNodes, of which three crash and one hangs in each."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedpriv as fp
from fedpriv.backends import SerialBackend
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.training.work import as_works
from tests.backends.flower.real import small_app

ROUNDS, NODES = 5, 10


class Without(SerialBackend):
    """In this process, and without the users of nodes that are at fault."""

    def __init__(self, small):
        super().__init__(trainer=as_works(small.Step()), data=small.Users())
        self.node_of = {user: place % NODES for place, user in enumerate(small.ROSTER)}
        self.fault, self.lost, self.faults = small.fault, [], []

    def partial_sum(self, *, cohort, round_num, **given):
        found = {node: self.fault(round_num, node) for node in map(self.node_of.get, cohort)}
        came = [user for user in cohort if not found[self.node_of[user]]]
        self.lost.append(len(cohort) - len(came))
        self.faults.append(sorted(filter(None, found.values())))
        return super().partial_sum(cohort=came, round_num=round_num, **given)


@pytest.mark.slow
@pytest.mark.flower
def test_five_rounds_with_crashes_and_hangs_end_within_their_deadline(
    processes, flower, tmp_path, monkeypatch
):
    """R6: each round is the one without the nodes that failed, to the last bit: same noise, same
    denominator. Nobody is waited for longer than the deadline and a tenth of it."""
    app = small_app.write_app(tmp_path / "app")
    monkeypatch.syspath_prepend(str(app))
    import small  # pyright: ignore[reportMissingImports]

    # First, so that what is compiled once is there before nodes are asked.
    oracle, out = Without(small), tmp_path / "in-process"
    loop = fp.averaging(small.plan(ROUNDS), roster=small.ROSTER, params=small.PARAMS, out=out)
    loop(oracle)
    flower.start_nodes(NODES)
    run, deadline = tmp_path / "run", small_app.measure_deadline(flower, app, tmp_path, least=30.0)
    log = flower.run(
        app, processes.run_config(out=str(run), rounds=ROUNDS, deadline=deadline, faults=True)
    )
    assert len((run / "rounds.jsonl").read_text().splitlines()) == ROUNDS, log[-4000:]

    seen = [json.loads(line) for line in (run / "diagnostics.jsonl").read_text().splitlines()]
    took = [line["seconds"] for line in seen]
    for name, found in (("seconds", took), ("users lost", oracle.lost), ("at", oracle.faults)):
        print(f"{name}: {found}")
    print("counts:", (tmp_path / "run.counts").read_text())
    assert all(found == ["crashes"] * 2 + ["hangs", "is killed"] for found in oracle.faults)
    assert [line["num_failed"] for line in seen] == oracle.lost
    assert len(took) == ROUNDS and max(took) <= 1.1 * deadline
    last = f"round-{ROUNDS:06d}.safetensors"
    released, expected = (load_file(each / "checkpoints" / last) for each in (run, out))
    assert np.array_equal(released["w"], expected["w"]) and np.any(released["w"])
    verified = verify_run(run)
    assert verified.ok
    assert (verified.num_charges, verified.num_releases, verified.num_lost) == (ROUNDS, ROUNDS, 0)
