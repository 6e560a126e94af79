"""Every process collects the same tests: workers that do not agree end the whole suite."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def collected(hash_seed: int) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-m", "slow or not slow"]
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.slow
def test_two_processes_in_different_seconds_collect_the_same_tests():
    # Ids made from a clock, an address or the order of a set differ between two such processes.
    first, second = collected(1), collected(2)
    assert len(first) > 1000
    assert first == second
