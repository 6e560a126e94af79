"""A centralised run whose process is killed in the middle of a step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from fedpriv import json_lines
from fedpriv.privacy.statement.verify import verify_run
from tests.running.central.resume.synthetic import charges

HELD = '''
import os, time
import numpy as np
from fedpriv.experiments import CentralExperiment, GaussianNoise
from fedpriv.experiments.preconditioning import AverageOfSquares
from fedpriv.tasks.central import CentralTask, zeros
from fedpriv.training.evaluate import Metrics
from fedpriv.training.per_example.linear import LinearRegressionGradients

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3)).astype(np.float32)


class Held(LinearRegressionGradients):
    """Waits in the middle of a step to be killed, if it is told to."""

    sums = 0

    def bounded_sum(self, params, index, bound, key=None):
        self.sums += 1
        if self.sums == int(os.environ.get("HELD_AT", "0")):
            time.sleep(3600)
        return super().bounded_sum(params, index, bound, key)


def measure(params):
    return Metrics.of(60, accuracy=0.5, loss=float(np.abs(params["weight"]).sum()))


def task(experiment, corpus):
    return CentralTask(
        name="sixty",
        train=Held(X, X[:, 0]),
        num_train=60,
        init=zeros({"weight": (3,)}),
        measure=measure,
        public=LinearRegressionGradients(X[:10], X[:10, 0]),
        num_public=10,
        data_sha256=lambda: {"private": "ab" * 32},
        synthetic=True,
    )


def synthetic_experiment():
    return CentralExperiment(
        name="held", description="", task=task, batch_size=6, steps=40,
        noise=GaussianNoise(multiplier=1.0),
        preconditioner=AverageOfSquares(), eval_every=7, delta=1e-3,
    )
'''


@pytest.mark.slow
def test_kill_9_in_the_middle_of_a_step(tmp_path):
    """The process is killed, not asked: charges are the rounds and the lost attempts."""
    (tmp_path / "held_central.py").write_text(HELD, "utf-8")
    folder, at = tmp_path / "r", 25
    found = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, found))}
    command = [sys.executable, "-m", "fedpriv"]
    process = subprocess.Popen(
        [*command, "run", "held_central:synthetic_experiment", "--out", str(folder), "--json"],
        env={**environment, "HELD_AT": str(at)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 1500  # a hang, and not a slow machine
        while charges(folder) != at:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()

    before = verify_run(folder)
    assert before.ok and before.num_charges == at
    done = subprocess.run(
        [*command, "run", "held_central:synthetic_experiment", "--resume", str(folder), "--json"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    summary, after = json.loads(done.stdout), verify_run(folder)
    # 22 to 25 were charged after the last step kept, 21, and are lost.
    assert after.ok and (after.num_charges, after.num_lost) == (40, 4)
    assert (summary["rounds"], summary["charges"]) == (36, 40)
    assert [line["round_num"] for line in json_lines.read(folder / "rounds.jsonl")] == [
        7,
        14,
        21,
        28,
        35,
        36,
    ]
