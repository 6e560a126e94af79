"""The page about data sets by user: its Python runs on small files."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedpriv.experiments.load import load_experiment

PAGE = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text("utf-8")
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
def test_its_python_runs(files, shared_data, monkeypatch, capsys):
    monkeypatch.chdir(files)
    monkeypatch.setenv("FEDPRIV_DATA", str(shared_data))
    spaces = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(compile(block, "docs/datasets.md", "exec"), spaces)
    assert len(spaces["users"]) == 100 and spaces["classes"] == ("cat",)
    assert "100 users, 60,000 examples of 10 labels" in capsys.readouterr().out
    shutil.rmtree(files / "photographs")


def test_options_that_it_names_are_there():
    known = load_experiment("mnist-users").options()
    for name in ("users", "partition", "alpha", "shards", "skew", "partition_seed"):
        assert f"task.{name}" in known and f"`{name}`" in PAGE
