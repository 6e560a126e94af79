"""Pages whose code needs files: datasets.md, studies.md, and your-own.md on public starts."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from fedpriv.checkpoints.tensor_files import write_tensors
from fedpriv.experiments.load import load_experiment
from fedpriv.studies.record import read_study
from fedpriv.studies.study import load_study
from tests.cli.typed import figures, run
from tests.docs.shell_blocks import execute, python

DATASETS = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text("utf-8")
RNG = np.random.default_rng(0)


@pytest.fixture
def files(tmp_path, tff_writer):
    """The files that the page names, small."""
    image = pytest.importorskip("PIL.Image", reason="the extra `data` is not installed")
    text = "".join(
        f"{name},{age},120,{age % 2}\n" for name, age in zip("abab", range(40, 44), strict=True)
    )
    (tmp_path / "visits.csv").write_text(f"patient,age,pressure,returned\n{text}")
    folder = tmp_path / "leaf" / "femnist" / "data" / "train"
    folder.mkdir(parents=True)
    own = {"x": RNG.random((2, 784)).tolist(), "y": [3, 40]}
    document = {"users": ["f1"], "num_samples": [2], "user_data": {"f1": own}}
    (folder / "all_data_0.json").write_text(json.dumps(document))
    made = tff_writer.example(pixels=RNG.random((28, 28), np.float32), label=np.array([3]))
    tff_writer.write(tmp_path / "emnist_all.sqlite.lzma", {"w": [made]}, split="digits_only_train")
    for number in range(30):
        place = tmp_path / "photographs" / f"person-{number}" / "cat"
        place.mkdir(parents=True)
        image.new("RGB", (40, 30)).save(place / "one.jpg")
    return tmp_path


@pytest.mark.slow
def test_the_python_of_data_sets_runs(files, shared_data, monkeypatch, capsys):
    monkeypatch.chdir(files)
    monkeypatch.setenv("FEDPRIV_DATA", str(shared_data))
    spaces = execute(python(DATASETS), {})
    assert len(spaces["users"]) == 100 and spaces["classes"] == ("cat",)
    assert "100 users, 60,000 examples of 10 labels" in capsys.readouterr().out


def test_options_of_data_sets_are_there():
    known = load_experiment("mnist-users").options()
    for name in ("users", "partition", "alpha", "shards", "skew", "partition_seed"):
        assert f"task.{name}" in known and f"`{name}`" in DATASETS


STUDIES = (Path(__file__).parents[2] / "docs/studies.md").read_text("utf-8")


@pytest.fixture
def place(tiny_corpus, tmp_path, monkeypatch):
    """A folder with the page's files; the corpus that experiments find is the tiny one."""
    for kind, name, text in re.findall(r"```(toml|python)\n# (\S+)\n(.*?)```", STUDIES, re.DOTALL):
        assert name.endswith({"toml": ".toml", "python": ".py"}[kind])
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.setenv("FEDPRIV_DATA", str(tiny_corpus.directory))
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_files_of_studies_are_run(place):
    run("study", "my_study.py:study", "--out", "a", "--workers", "2")
    assert [trial.failure for trial in read_study("a").trials] == [None] * 4
    assert load_study("searched.toml").search.compose
    assert "C = 0.1" in (place / "a" / "index.html").read_text("utf-8")
    run("study", "searched.toml", "--out", "b", "--workers", "1")
    found = read_study("b")
    assert len(found.document["searched"]) == 2 and len(found.trials) == 2
    assert len(found.document["privacy"]) > 2


OWN = Path(__file__).parents[2] / "docs" / "your-own.md"
_ASKED = "public=next(people(100, 101))[1],"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The page's `own.py` with what the section adds, in the working directory."""
    text = OWN.read_text("utf-8")
    code = (OWN.parents[1] / "examples" / "own-model" / "own.py").read_text("utf-8")
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
def test_commands_of_public_starts(own, tmp_path):
    commands = re.findall(r"^fedpriv (run own:experiment --start .*)$", own, re.MULTILINE)
    assert [command.split()[-1] for command in commands] == ["public", "model.safetensors"]
    shapes = {"0.weight": (16, 8), "0.bias": (16,), "1.weight": (16,), "1.bias": (16,),
              "3.weight": (2, 16), "3.bias": (2,)}  # fmt: skip
    tensors = {name: np.full(shape, 0.1, np.float32) for name, shape in shapes.items()}
    write_tensors(tmp_path / "model.safetensors", tensors, {})
    for number, command in enumerate(commands):
        summary = figures(*command.split(), "--rounds", "2", "--out", f"r{number}")
        assert summary["start"]["kind"] == ("public", "file")[number]
        gain = summary["accuracy_public"] - summary["accuracy_public_only"]
        assert summary["gain"] == pytest.approx(gain)
        made = json.loads((tmp_path / f"r{number}" / "experiment.json").read_text("utf-8"))
        start = made["experiment"]["start"], made["experiment"].get("start.file")
        assert start == (("public", None), ("file", "model.safetensors"))[number]
        for named in ("accuracy_public_only", "gain"):
            assert f"`{named}`" in own
