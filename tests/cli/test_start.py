"""`fedpriv run --start`: fresh, public, or a file."""

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import fedpriv as fp
from fedpriv import cli
from fedpriv.checkpoints.tensor_files import write_tensors
from tests.harness.command_line import CliRunner
from tests.harness.refusals import refuses
from tests.running.public_start.test_runs import of_users

NAME = "mine_that_starts:experiment"


@pytest.fixture
def run(tmp_path, monkeypatch):
    module = ModuleType("mine_that_starts")
    module.experiment = lambda: of_users(rounds=1)
    monkeypatch.setitem(sys.modules, "mine_that_starts", module)
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        return CliRunner().invoke(cli.app, ["run", NAME, "--out", "r", "--json", *arguments])

    return call


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["fresh", "public"])
def test_a_choice(run, choice):
    said = run("--start", choice)
    assert said.exit_code == 0, said.output
    found = json.loads(said.stdout)
    assert found["start"]["kind"] == choice and found["gain"] is not None


@pytest.mark.parametrize("as_path", [str, Path], ids=["str", "Path"])
def test_a_file_is_given_to_the_api_and_by_set_as_to_the_flag(tmp_path, as_path):
    write_tensors(tmp_path / "m.safetensors", {"weight": np.ones((2, 4), np.float32)}, {})
    (tmp_path / "m.safetensors").rename(tmp_path / "weights")
    for name in ("weights", "gone.safetensors"):  # which may be on another machine
        options = of_users(rounds=1).with_options({"start": as_path(tmp_path / name)}).options()
        assert (options["start"], options["start.file"]) == ("file", str(tmp_path / name))
    with refuses(ValueError, tmp_path / "gone.safetensors"):
        fp.run(of_users(rounds=1), tmp_path / "r", start=as_path(tmp_path / "gone.safetensors"))
    with refuses(ValueError, "public.st"):
        fp.run(of_users(rounds=1), tmp_path / "r", start="public.st")
    with refuses(ValueError, "start-file"):
        of_users().with_options({"start": as_path(tmp_path / "weights"), "start-file": "other"})
    assert not (tmp_path / "r").exists()


def test_neither(run, tmp_path):
    said = run("--start", "pubic")
    assert isinstance(said.exception, ValueError) and "'pubic'" in str(said.exception)
    assert not (tmp_path / "r").exists()
