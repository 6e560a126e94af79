"""docs/your-own.md on public starts: its commands, on examples/own-model."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from fedpriv.checkpoints.tensor_files import write_tensors
from tests.harness.command_line import fedpriv

PAGE = Path(__file__).parents[2] / "docs" / "your-own.md"
_ASKED = "public=next(people(100, 101))[1],"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The page's `own.py` with what the section adds, in the working directory."""
    text = PAGE.read_text("utf-8")
    code = (PAGE.parents[1] / "examples" / "own-model" / "own.py").read_text("utf-8")
    assert (
        _ASKED in code and "ModuleTask(..., public=measured_on, public_train=learnt_from)" in text
    )
    learnt = "public_train=next(people(101, 102))[1],"
    (tmp_path / "own.py").write_text(code.replace(_ASKED, f"{_ASKED} {learnt}"), "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield text[text.index("## Starting from public examples") :].partition("\n## ")[0]
    sys.modules.pop("own", None)


@pytest.mark.slow
def test_its_commands(own, tmp_path):
    commands = re.findall(r"^fedpriv (run own:experiment --start .*)$", own, re.MULTILINE)
    assert [command.split()[-1] for command in commands] == ["public", "model.safetensors"]
    shapes = {"0.weight": (16, 8), "0.bias": (16,), "1.weight": (16,), "1.bias": (16,),
              "3.weight": (2, 16), "3.bias": (2,)}  # fmt: skip
    tensors = {name: np.full(shape, 0.1, np.float32) for name, shape in shapes.items()}
    write_tensors(tmp_path / "model.safetensors", tensors, {})
    for number, command in enumerate(commands):
        done = fedpriv(*command.split(), "--rounds", "2", "--out", f"r{number}", "--json")
        assert done.exit_code == 0, done
        summary = json.loads(done.stdout)
        assert summary["start"]["kind"] == ("public", "file")[number]
        gain = summary["accuracy_public"] - summary["accuracy_public_only"]
        assert summary["gain"] == pytest.approx(gain)
        made = json.loads((tmp_path / f"r{number}" / "experiment.json").read_text("utf-8"))
        start = made["experiment"]["start"], made["experiment"].get("start.file")
        assert start == (("public", None), ("file", "model.safetensors"))[number]
        for named in ("accuracy_public_only", "gain"):
            assert f"`{named}`" in own
