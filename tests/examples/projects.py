"""Copies of the examples, and the commands of their READMEs, typed in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.shell_blocks import Command, commands

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NAMES = ("flower-app", "own-data", "own-loop", "own-model", "study")


def copied(name: str, folder: Path) -> Path:
    """Copy an example's files to a folder of their own."""
    return Path(shutil.copytree(EXAMPLES / name, folder / name))


def commands_of(name: str) -> list[Command]:
    return commands((EXAMPLES / name / "README.md").read_text("utf-8"))


def typed(command: Command, folder: Path) -> str:
    """Run a command in a folder and return what it prints.

    Raises:
        AssertionError: If it fails.
    """
    done = subprocess.run(
        ["bash", "-euc", str(command)],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "MPLBACKEND": "agg",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
