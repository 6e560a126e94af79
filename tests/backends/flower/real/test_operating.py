"""What an operator sees and types: a node that is killed, a run that is stopped and goes on.

The commands that flower-apps.md and three-nodes.md have for that, on their own run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from fedpriv.runs.status import run_status
from tests.backends.flower.real import processes
from tests.backends.flower.real.processes import BIN
from tests.harness.waiting import wait_until


def flwr(flower, *words):
    done = subprocess.run(
        [str(BIN / "flwr"), *words], cwd=flower.home, env=flower.env,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.flower
def test_a_killed_node_is_seen_and_a_stopped_run_goes_on(flower, tiny_corpus, tmp_path):
    app, run = processes.copy_app(tmp_path / "app"), tmp_path / "run"
    superlink = flower.start_nodes(2, corpus=tiny_corpus)
    config = processes.run_config(
        experiment="dp-fedavg-tags", corpus=str(tiny_corpus), out=str(run), cohort=24, rounds=500,
        noise_multiplier=5.0, eval_every=500,
    )  # fmt: skip

    def start(name, given):
        flower.start(name, ["flwr", "run", ".", "--stream", "--run-config", given], cwd=app)

    def rounds():
        ledger = run / "ledger.jsonl"
        return run_status(run).round_num if ledger.is_file() and ledger.read_bytes() else 0

    def stop():
        """End the run by `flwr ls` and `flwr stop`, as the pages have them."""
        found = json.loads(flwr(flower, "ls", "here", "--format", "json"))
        (number,) = [one["run-id"] for one in found["runs"] if "running" in one["status"]]
        flwr(flower, "stop", str(number), "here")
        wait_until(lambda: not run_status(run).held)

    start("first", config)
    wait_until(lambda: rounds() >= 1)
    assert run_status(run).nodes_online == 2
    os.killpg(flower.processes[2].pid, signal.SIGKILL)
    wait_until(lambda: run_status(run).nodes_online == 1)
    said = "1 of 2 registered nodes are online"
    wait_until(lambda: said in flower.log("first"))
    stop()
    stopped = run_status(run)
    assert stopped.state == "stopped" and stopped.nodes_online is None
    lost = stopped.lost_attempts
    assert lost <= 1
    flower.start_supernode(
        9, superlink, processes.run_config(
            partition_id=1, num_partitions=2, corpus=str(flower.home / "node-1" / "corpus")
        ),
    )  # fmt: skip
    start("second", str(run / "resume.toml"))
    wait_until(lambda: rounds() > stopped.round_num)
    now = run_status(run)
    assert (now.state, now.nodes_online, now.lost_attempts) == ("training", 2, lost)
    stop()
