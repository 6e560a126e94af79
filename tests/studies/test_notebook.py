"""The notebook of a study: valid JSON of nbformat 4, whose cells run."""

from __future__ import annotations

import json
import re

import matplotlib as mpl
import pytest

from fedpriv.studies.notebook import notebook_of, write_notebook
from fedpriv.studies.record import read_study


def run_cells(document, folder, monkeypatch):
    """Run the code cells one after the other as a kernel started in a folder would."""
    mpl.use("agg")
    import matplotlib.pyplot as plt

    monkeypatch.chdir(folder)
    drawn = []
    monkeypatch.setattr(plt, "show", lambda: drawn.append(plt.gcf()))
    names: dict[str, object] = {}
    for cell in document["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    plt.close("all")
    return names, drawn


def test_it_is_a_notebook_of_format_4(make_study):
    study = make_study(seeds=1, noise={8.0: 0.72}, document={"name": "a <b> & \u202eb"})
    path = study.directory / "study.ipynb"
    write_notebook(study, path)
    document = json.loads(path.read_text("utf-8"))
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    assert set(document) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    ids = [cell["id"] for cell in document["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in ids)
    for cell in document["cells"]:
        keys = {"id", "cell_type", "metadata", "source"}
        if cell["cell_type"] == "code":
            keys |= {"outputs", "execution_count"}
            assert cell["outputs"] == [] and cell["execution_count"] is None
        assert set(cell) == keys and all(isinstance(line, str) for line in cell["source"])
    assert "\u202e" not in "".join(document["cells"][0]["source"])


def test_a_name_is_a_title_and_nothing_else(make_study):
    evil = "a\n\n# b <img src=x onerror=alert(1)> [c](http://d) $e$ `f`"
    study = make_study(seeds=1, noise={8.0: 0.72}, document={"name": evil})
    document = json.loads(notebook_of(study, study.directory / "study.ipynb"))
    [line] = document["cells"][0]["source"]
    assert line.startswith("# a \\# b ") and "<" not in line
    assert not re.search(r"(?<!\\)[\[\]$`]", line)


@pytest.mark.slow
@pytest.mark.parametrize("inside", [True, False])
def test_its_cells_run(make_study, tmp_path, monkeypatch, inside):
    failures = {("AdaDPS", 8.0, 1): "ValueError: diverged"}
    study = make_study(noise={2.0: 1.0, 8.0: 0.68}, failures=failures)
    path = (study.directory if inside else tmp_path) / "study.ipynb"
    write_notebook(read_study(study.directory), path)
    names, drawn = run_cells(json.loads(path.read_text("utf-8")), path.parent, monkeypatch)
    assert names["measure"] == "accuracy" and len(names["results"]) == 6
    first, curves = drawn
    labels = [text.get_text() for text in first.axes[0].get_legend().get_texts()]
    assert labels == ["AdaDPS", "DP-FedAvg"]
    said = {text.get_text() for text in first.axes[0].texts}
    assert said == {"majority class", "public-only", "non-private"}
    assert len(curves.axes[0].lines) == 3  # of four trials one failed


@pytest.mark.slow
def test_a_study_of_one_seed_without_references_is_drawn_too(make_study, monkeypatch):
    study = make_study(seeds=1, noise={8.0: 0.72}, nonprivate=False, by_user=False)
    path = study.directory / "study.ipynb"
    write_notebook(study, path)
    _, drawn = run_cells(json.loads(path.read_text("utf-8")), study.directory, monkeypatch)
    assert len(drawn) == 2
