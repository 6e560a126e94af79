"""The command itself, killed at random moments and resumed."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from fedpriv import json_lines
from tests.harness.tag_runs import ROOT, charged, pairs


@pytest.mark.slow
def test_the_command_itself_killed_and_resumed(tiny_corpus, tmp_path):
    """The real command in a real process, killed at random moments of its rounds."""
    code = "from fedpriv.cli import main; main()"
    folder = tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def command(*arguments):
        return subprocess.Popen(
            [sys.executable, "-c", code, "run", *arguments, "--json"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    first = [
        "dp-fedavg-tags",
        "--corpus",
        str(tiny_corpus.directory),
        "--out",
        str(folder),
        "--rounds",
        "400",
        "--noise-multiplier",
        "1.0",
        "--delta",
        "0.001",
        "--set",
        "l2-clip-norm=0.5",
        "--set",
        "roster=tiny-60",
    ]
    choice = random.Random(5)
    for kill in range(3):
        process = command(*first) if kill == 0 else command("--resume", str(folder))
        known = len(json_lines.read(folder / "rounds.jsonl"))
        deadline = time.monotonic() + 900  # a hang, and not a slow machine
        wanted = known + choice.randint(1, 20)
        while len(json_lines.read(folder / "rounds.jsonl")) <= wanted and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
        process.communicate()
        assert process.returncode in (0, -signal.SIGKILL)
        assert set(pairs(json_lines.read(folder / "rounds.jsonl"))) <= set(charged(folder))
    process = command("--resume", str(folder))
    out, _ = process.communicate(timeout=900)
    summary = json.loads(out)
    assert process.returncode == 0 and summary["charges"] == 400
    assert summary["rounds"] >= 397
    assert summary["rounds"] == len(json_lines.read(folder / "rounds.jsonl"))
