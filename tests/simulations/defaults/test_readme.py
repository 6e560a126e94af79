"""The README's table is what its commands give."""

import json
from pathlib import Path

import pytest

from fedpriv.datasets.importers.locate import resolve_corpus
from fedpriv.experiments.load import load_experiment
from fedpriv.runs.prepared import start_run
from simulations.defaults.readme import table

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "docs" / "results" / "readme.json"


def test_the_readme_has_the_recorded_table():
    rows = json.loads(RECORDED.read_text("utf-8"))
    assert table(rows) in (ROOT / "README.md").read_text("utf-8")
    assert not rows["synthetic"]


@pytest.mark.slow
def test_the_readmes_command_gives_its_value(tmp_path):
    """A minute; where the real corpus is."""
    try:
        corpus = resolve_corpus("onstartups", allow_synthetic=False)
    except ValueError as error:
        pytest.skip(f"no real corpus: {error}")
    experiment = load_experiment("adadps-tags").with_options({"target-epsilon": 1.0})
    summary = start_run(experiment, "adadps-tags", corpus, tmp_path / "run").run()
    recorded = json.loads(RECORDED.read_text("utf-8"))["1"]
    assert summary["selection"]["selected"] == recorded["selected"]
    ends = recorded["accuracy"]["by_thread"]
    assert ends["low"] <= summary["accuracy"] <= ends["high"]
    assert summary["accuracy"] == pytest.approx(recorded["accuracy"]["value"], abs=0.005)
