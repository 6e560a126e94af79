"""A file of one's own under Flower: in a simulation from any path, else installed or bundled."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from fedpriv.backends.flower.settings import read_experiment
from fedpriv.privacy.statement.verify import verify_run
from tests.backends.flower.real import processes

OWN = Path(__file__).parents[4] / "examples" / "own-model" / "own.py"


@pytest.fixture
def own(tmp_path):
    """The example's file where no process runs; it takes its model from beside it."""
    code = OWN.read_text("utf-8")
    before, model, after = re.split(r"(def model.*?\n\n\n)", code, flags=re.DOTALL)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "own.py").write_text(f"from beside_own import model\n{before}{after}", "utf-8")
    (folder / "beside_own.py").write_text(f"from torch import nn\n\n\n{model}", "utf-8")
    known = list(sys.path)
    yield folder / "own.py"
    sys.path[:] = known
    for name in [name for name in sys.modules if name.startswith(("own_", "beside_own"))]:
        del sys.modules[name]


def summary(run, log):
    assert (run / "summary.json").is_file(), log[-4000:]
    assert verify_run(run).ok
    return json.loads((run / "summary.json").read_text("utf-8"))


def test_a_file_is_found_at_its_path_with_what_lies_beside_it(own):
    made = read_experiment({"experiment": f"{own}:experiment", "rounds": 2})
    assert (made.name, made.rounds) == ("own", 2)


@pytest.mark.parametrize(
    "name", ["own.py:experiment", "/no/such/own.py:experiment", "no_such_own:experiment"]
)
def test_what_is_not_on_this_machine_is_refused(name):
    with pytest.raises(ValueError):
        read_experiment({"experiment": name})


@pytest.mark.slow
@pytest.mark.flower
def test_a_deployment_takes_it_from_the_bundle_and_says_so(flower, own, tmp_path):
    app, run = processes.copy_app(tmp_path / "app"), tmp_path / "run"
    # Installed for the server alone.
    known = [str(own.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    flower.start_nodes(2, PYTHONPATH=os.pathsep.join(known))
    log = flower.run(
        app,
        processes.run_config(experiment="own:experiment", rounds=1, out=str(tmp_path / "none")),
    )
    said = processes.plain(log)
    assert "nodes failed" in said and "install it on every machine, or put it into" in said
    assert not verify_run(tmp_path / "none").num_charges
    bundled = own.read_text("utf-8").replace("from beside_own", "from simulations.beside_own")
    (app / "simulations" / "own.py").write_text(bundled, "utf-8")
    beside = own.with_name("beside_own.py").read_text("utf-8")
    (app / "simulations" / "beside_own.py").write_text(beside, "utf-8")
    experiment = "simulations.own:experiment"
    log = flower.run(app, processes.run_config(experiment=experiment, rounds=1, out=str(run)))
    assert summary(run, log)["rounds"] == 1
