"""A mistake in a real simulation: one line, and a run that is listed as failed."""

from __future__ import annotations

import re
import subprocess

import pytest


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.ray
def test_a_mistake_is_one_line_and_the_simulation_is_listed_as_failed(
    processes, flower, tiny_corpus, tmp_path
):
    app = processes.copy_app(tmp_path / "app")
    flower.start_superlink(simulation=True)
    config = processes.run_config(
        experiment="adadps-tag", corpus=str(tiny_corpus), out=str(tmp_path / "run")
    )
    log = flower.run(app, config, processes.simulated(2))
    plain = re.sub(r"\x1b\[\d+m", "", log)
    (line,) = [line for line in plain.splitlines() if "did you mean" in line]
    assert "ERROR fedpriv.server: " in line and "'adadps-tags'" in line
    for never in ("Traceback", "raised an exception", "Exit Code", "visit: <"):
        assert never not in plain, plain[-3000:]
    listed = subprocess.run(
        [str(processes.BIN / "flwr"), "list", "--format", "json"],
        cwd=app, env=flower.env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "failed" in listed.stdout and "completed" not in listed.stdout, listed.stdout
