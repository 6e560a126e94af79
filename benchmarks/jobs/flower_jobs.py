"""Flower's worker: the stock simulation loop with Flower's own DP wrapper.

`FedAvg` in `DifferentialPrivacyClientSideFixedClipping` (of the two wrappers the one whose clipping
the actors share), one SuperNode a user, one core a client, Message API. The strategy's `start()`
runs untouched; its central evaluation hook, which it calls between rounds, is the gate.
"""

from __future__ import annotations

import logging
import sys
import time
from importlib.metadata import version

import numpy as np
from flower_clients import make_client_app, resident_model
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    FedAvg,
    Strategy,
)
from flwr.simulation import run_simulation
from protocol import Gate, Job

GATE = Gate()
JOB = Job.from_json(sys.argv[1])


class Over(Exception):
    """The harness asks for no more rounds."""


def initial_arrays() -> ArrayRecord:
    """Return the model before round 1, as the job's client has it."""
    if JOB.client == "echo":
        columns = min(500, JOB.num_params)
        shape = (JOB.num_params // columns, columns)
        return ArrayRecord([np.zeros(shape, np.float32)])
    return ArrayRecord(resident_model(JOB).state_dict())


def make_strategy() -> Strategy:
    """Return FedAvg over the cohort, wrapped where the job is private."""
    strategy = FedAvg(
        fraction_train=JOB.cohort / JOB.num_users,
        fraction_evaluate=0.0,
        min_train_nodes=JOB.cohort,
        min_evaluate_nodes=0,
        min_available_nodes=JOB.num_users,
    )
    if JOB.l2_clip_norm is None:
        return strategy
    return DifferentialPrivacyClientSideFixedClipping(
        strategy,
        noise_multiplier=JOB.noise_multiplier,
        clipping_norm=JOB.l2_clip_norm,
        num_sampled_clients=JOB.cohort,
    )


def between_rounds(round_num: int, arrays: ArrayRecord) -> None:
    """Wait at the gate; `start` calls this before round 1 and after each round."""
    if not GATE.passes():
        raise Over


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the strategy until the harness has enough."""
    while len(list(grid.get_node_ids())) < JOB.num_users:
        time.sleep(0.1)
    GATE.ready(
        flwr=version("flwr"),
        ray=version("ray"),
        torch=version("torch"),
        numpy=version("numpy"),
        python=sys.version.split()[0],
    )
    make_strategy().start(
        grid=grid,
        initial_arrays=initial_arrays(),
        num_rounds=1_000_000,
        timeout=3600,
        evaluate_fn=between_rounds,
    )


def run() -> None:
    """Start the simulation; the run ends by an exception out of the strategy's loop."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    try:
        run_simulation(
            server_app=app,
            client_app=make_client_app(JOB),
            num_supernodes=JOB.num_users,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )
    except (Over, RuntimeError):
        print("ended", file=sys.stderr)


if __name__ == "__main__":
    run()
