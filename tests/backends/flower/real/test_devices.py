"""A simulation whose clients are given GPUs by Ray, on a machine that has none."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import fedpriv as fp
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.runs.prepared import start_run
from tests.backends.flower.test_devices import OWN

GPUS = "init-args-num-gpus=1 client-resources-num-gpus=0.5"


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.ray
@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU that Ray hands out is there")
def test_what_ray_hands_out_is_used_unless_another_device_is_named(processes, flower, tmp_path):
    (tmp_path / "own.py").write_text(OWN, "utf-8")
    name = f"{tmp_path / 'own.py'}:experiment"
    app = processes.copy_app(tmp_path / "app")
    flower.start_superlink(simulation=True)
    federation = f"{processes.simulated(2)} {GPUS}"

    def run(out, **more):
        given = {"experiment": name, "out": str(tmp_path / out), "register-seconds": 600.0, **more}
        log = flower.run(app, processes.run_config(**given), federation)
        return " ".join(re.sub(r"\x1b\[\d+m", "", log).split())

    log = run("none")
    assert "2 nodes failed, the first with: " in log, log[-4000:]
    assert "device 'cuda:0': torch" in log and "sees no GPU here" in log
    assert not read_ledger(tmp_path / "none" / "ledger.jsonl")[1].charges
    log = run("cpu", device="cpu")
    assert (tmp_path / "cpu" / "summary.json").is_file(), log[-4000:]
    start_run(load_experiment(name), name, None, tmp_path / "serial").run()
    found, expected = (fp.load(tmp_path / place) for place in ("cpu", "serial"))
    for tensor, array in expected.params.items():
        np.testing.assert_allclose(found.params[tensor], array, rtol=0, atol=1e-6)
