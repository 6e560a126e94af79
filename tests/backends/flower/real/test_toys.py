"""The five toys of the door on real Flower processes; the server is killed after a charge."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.privacy.statement.verify import verify_run

TOYS = Path(__file__).parents[2] / "door"

CLIENT = """
import toys
from flwr.clientapp import ClientApp
from fedpriv.backends.flower.client import Host, serve

app = ClientApp()


def host(context):
    part, of = (int(context.node_config[key]) for key in ("partition-id", "num-partitions"))
    return Host.of(toys.TASK, toys.WORKS, partition=part, num_partitions=of, bounds=toys.BOUNDS)


serve(app, host)
"""

SERVER = """
import os
import signal
from pathlib import Path

import toy_methods
import toys
from flwr.serverapp import ServerApp

import fedpriv as fp

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    def die():
        out = Path(config["out"])
        out.with_name("pid").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)

    def loop(backend):
        for key in ("whole", "out"):
            if config[key]:
                with toy_methods.dying(config["die-after"] if key == "out" else None, die):
                    toy_methods.play(toy_methods.TOYS[config["toy"]], Path(config[key]), backend)

    loop(fp.flower.connect(grid, toys.ROSTER))
"""


@pytest.fixture
def methods():
    if str(TOYS) not in sys.path:
        sys.path.append(str(TOYS))
    return importlib.import_module("toy_methods")


@pytest.fixture
def app(processes, tmp_path):
    """A bundle of two short apps and the toys."""
    config = {"toy": "", "whole": "", "out": "", "die-after": 0}
    copies = {name: (TOYS / f"{name}.py").read_text("utf-8") for name in ("toys", "toy_methods")}
    return processes.write_app(
        tmp_path / "app", config, client_app=CLIENT, server_app=SERVER, **copies
    )


def spent(folder):
    """How many charges and rows are on the disk."""
    _, state, _ = read_ledger(folder / "ledger.jsonl")
    return len(state.charges) + len(state.rows)


# The fourth once more over SuperNodes, where each message is answered by a process of its own:
# its noise is drawn there.
@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.ray
@pytest.mark.parametrize(
    ("name", "die_after", "simulation"),
    [
        ("a", 3, True),
        ("b", 1, True),
        ("c", 3, True),
        ("d", 2, True),
        ("e", 2, True),
        ("d", 2, False),
    ],
    ids=["a", "b", "c", "d", "e", "d over SuperNodes"],
)
def test_it_runs_whole_and_after_a_kill(
    processes, flower, methods, app, tmp_path, name, die_after, simulation
):
    whole, out = tmp_path / "whole", tmp_path / "out"
    federation = processes.simulated(3) if simulation else ""
    if simulation:
        flower.start_superlink(simulation=True)
    else:
        flower.start_nodes(2)
    config = {"toy": name, "out": str(out)}
    killed = processes.run_config(**config, whole=str(whole), die_after=die_after)
    flower.run_until_killed(app, killed, tmp_path / "pid", federation)
    assert spent(out) == die_after
    assert verify_run(whole).ok
    log = flower.run(app, processes.run_config(**config), federation)
    found = verify_run(out)
    assert found.ok, (found, log[-4000:])
    assert found.num_releases > 0
    if name != "a":  # which asks as often as its prices allow
        lost = 0 if name == "b" else 1  # a single release is made again
        assert found.num_releases == verify_run(whole).num_releases - lost

    # What ran whole ended where it ends in this process: playing on finds nothing left to do.
    ended, alone = (methods.play(methods.TOYS[name], at) for at in (whole, tmp_path / "alone"))
    assert spent(whole) == spent(tmp_path / "alone")
    np.testing.assert_allclose(ended, alone, rtol=1e-5)
