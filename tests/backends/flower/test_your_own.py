"""The page about one's own model: its code, as it stands there, on both backends."""

from __future__ import annotations

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedpriv.backends.flower.client import Host
from fedpriv.backends.flower.strategy import GridSettings, UserLevelStrategy
from fedpriv.cli import main
from fedpriv.experiments.catalogue import load_experiment
from fedpriv.experiments.experiment import build
from fedpriv.rng import Key
from fedpriv.running.loop import rounds
from fedpriv.running.prepared import serial

PAGE = Path(__file__).parents[3] / "docs" / "your-own.md"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The page's module, in a folder that is the working directory."""
    code, _ = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 30
    (tmp_path / "own.py").write_text(code, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("own", None)
    importlib.invalidate_caches()


def test_it_runs_as_a_command(own, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedpriv", "run", "own:experiment", "--out", "run", "--json"])
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["rounds"] == 20 and figures["synthetic"] and figures["epsilon"] > 0
    assert (own / "run" / "report.html").exists()


def test_both_backends_train_the_same_model(own, stub):
    experiment = load_experiment("own:experiment").with_options({"rounds": 3, "cohort": 30})
    components = build(experiment, None)
    root = Key.simulation(0)

    def final(backend):
        *_, (_, state) = rounds(components, backend, root)
        return state.params

    alone = final(serial(experiment, components))
    # Every node opens the task itself, as it would in a process of its own.
    hosts = {
        n + 1: Host.of(
            components.task, build(experiment, None).trainer, partition=n, num_partitions=7
        )
        for n in range(7)
    }
    strategy = UserLevelStrategy(
        roster=components.task.roster,
        settings=GridSettings(),
    )
    deployed = strategy.start(stub.StubGrid(hosts), final)
    for name, array in alone.items():
        np.testing.assert_allclose(deployed[name], array, rtol=1e-5, atol=1e-6)


def test_it_learns(own):
    experiment = replace(
        load_experiment("own:experiment"), noise="none", bound="none", noise_multiplier=None
    )
    components = build(experiment, None)
    *_, (record, _) = rounds(components, serial(experiment, components), Key.simulation(0))
    assert record.released.measured["accuracy"] > 0.8
