"""A bundle whose nodes answer within a second or two: what they import is NumPy and Flower."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import fedpriv as fp
from fedpriv.backends import SerialBackend
from fedpriv.training.work import as_works
from tests.backends.flower.real import processes

SHARED = '''
import numpy as np

import fedpriv as fp
from fedpriv.training.work import UserTrainer

ROSTER = tuple(f"user-{number:02d}" for number in range(40))
PARAMS = {"w": np.zeros(1000, np.float32)}


def plan(rounds):
    asked = fp.Rounds(users=len(ROSTER), cohort=32, rounds=rounds, delta=0.01)
    return asked.plan(l2_clip_norm=0.5, noise_multiplier=1.0)


class Users:
    """Every user has a point of its own."""

    def examples(self, user_id):
        return np.random.default_rng(ROSTER.index(user_id)).normal(size=1000).astype(np.float32)

    def num_examples(self, user_id):
        return 1


class Step(UserTrainer):
    """Towards the user's point."""

    def train(self, params, context, examples, key):
        return {"w": 0.01 * (examples - params["w"])}


def fault(round_num, node):
    """What a node does: three of the ten crash and one hangs, others in each round.

    A process that is killed keeps its SuperNode waiting for a minute: that is always the same one,
    dead or killed again. The others are at fault in every third round.
    """
    if node == 0:
        return "is killed"
    place = (node - 1 + 3 * round_num) % 9
    return "crashes" if place < 2 else "hangs" if place == 2 else ""
'''

CLIENT = """
import os
import signal
import time

import small
from flwr.clientapp import ClientApp

from fedpriv.backends.flower.client import Host
from fedpriv.backends.flower.messages import read_request
from fedpriv.training.work import as_works

app = ClientApp()


def host(context):
    part, of = (int(context.node_config[key]) for key in ("partition-id", "num-partitions"))
    return Host(
        works=as_works(small.Step()), data=small.Users(), user_ids=frozenset(small.ROSTER[part::of])
    )


@app.query("users")
def users(message, context):
    return host(context).query(message)


@app.train()
def train(message, context):
    request = read_request(message.content)
    found = ""
    if context.run_config["faults"]:
        found = small.fault(request.attempt.round_num, int(context.node_config["partition-id"]))
    if found == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if found == "hangs":
        time.sleep(request.seconds + 2.0)  # and is then free for the next round
    if found:
        raise RuntimeError(found)
    return host(context).train(message)
"""

SERVER = """
import os
from pathlib import Path

import small
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp

import fedpriv as fp

app = ServerApp()


@app.main()
def main(grid, context):
    config, out = context.run_config, Path(context.run_config["out"])
    out.with_name(out.name + ".pid").write_text(str(os.getpid()))
    strategy = fp.flower.UserLevelStrategy(
        small.plan(config["rounds"]),
        roster=small.ROSTER,
        out=out,
        settings=fp.flower.GridSettings(
            round_deadline=config["deadline"],
            register_seconds=config["register-seconds"],
            allow_missing_users=config["allow-missing"],
        ),
    )
    arrays = ArrayRecord({name: Array(array) for name, array in small.PARAMS.items()})
    strategy.start(grid, arrays, num_rounds=config["rounds"])
"""

CONFIG = {
    "out": "", "rounds": 5, "deadline": 30.0, "register-seconds": 300.0, "allow-missing": False,
    "faults": False,
}  # fmt: skip


def write_app(folder: Path) -> Path:
    """Write the bundle to a folder."""
    return processes.write_app(folder, CONFIG, small=SHARED, client_app=CLIENT, server_app=SERVER)


def measure_deadline(flower, app: Path, folder: Path, least: float) -> float:
    """Return a deadline in seconds that nodes without a fault keep, however busy the machine is.

    It is three times what a round without faults took on the same SuperNodes, and not below
    `least`: on an idle machine it is `least`.
    """
    out = folder / "without-faults"
    log = flower.run(app, processes.run_config(out=str(out), rounds=1, deadline=600.0))
    rounds = (out / "diagnostics.jsonl").read_text("utf-8").splitlines()
    assert len(rounds) == 1 and json.loads(rounds[0])["num_failed"] == 0, log[-4000:]
    return max(least, 3 * json.loads(rounds[0])["seconds"])


class Without(SerialBackend):
    """Training in this process without the users of nodes that are lost, by `gone(round, user)`.

    `lost` has the number of users that were left out of each cohort.
    """

    trains_again = False  # as of nodes

    def __init__(self, small, gone) -> None:
        super().__init__(trainer=as_works(small.Step()), data=small.Users())
        self.gone, self.lost = gone, []

    def sum(self, request, attempt, cohort):
        came = [user for user in cohort if not self.gone(attempt.round_num, user)]
        self.lost.append(len(cohort) - len(came))
        return super().sum(request, attempt, came)


def in_process(small, out: Path, rounds: int, gone) -> Without:
    """Run a plan here, without who is gone; return the backend."""
    backend = Without(small, gone)
    plan = small.plan(rounds)
    fp.averaging(plan, roster=small.ROSTER, params=small.PARAMS, out=out)(backend)
    return backend


def check_same_end(run: Path, out: Path, rounds: int) -> None:
    """Assert that two runs released the same params at last, to the bit."""
    last = f"checkpoints/round-{rounds:06d}.safetensors"
    released, expected = load_file(run / last), load_file(out / last)
    assert np.array_equal(released["w"], expected["w"]) and np.any(released["w"])
