"""The ablation as a command, on a tiny synthetic corpus."""

import json
import re
from dataclasses import replace

import pytest

from simulations.threads import ablation
from simulations.threads.methods import ABLATION, METHODS


@pytest.fixture
def short(monkeypatch):
    """Every method in two rounds."""
    methods = {
        name: replace(
            method, options={epsilon: {**o, "rounds": 2} for epsilon, o in method.options.items()}
        )
        for name, method in ABLATION.items()
    }
    monkeypatch.setattr(ablation, "ABLATION", methods)


def test_every_part_has_a_row_with_an_interval(short, tiny_corpus, tmp_path, capsys):
    out = tmp_path / "page.md"
    arguments = ["--corpus", tiny_corpus.directory, "--folds", 1, "--target-epsilon", 8]
    arguments += ["--results", tmp_path / "tags", "--out", out]
    ablation.main([str(argument) for argument in arguments])
    shown, progress = capsys.readouterr()
    assert shown.strip() == out.read_text("utf-8").strip()
    assert "Synthetic data" in shown and "PLD" in shown and "δ = n^-1.1" in shown
    for name, method in ABLATION.items():
        assert f"| {method.label}, {'over' if name == 'whole' else 'against'}" in shown
    assert "by-thread-0, seed 0: averaged, ε = 8, 2 rounds" in progress
    assert re.search(r"\(1 of \d+ runs, \d+:\d\d min so far, about \d+:\d\d min left\)", progress)
    rows = json.loads(out.with_suffix(".json").read_text("utf-8"))
    assert {row["model"] for row in rows} == {f"{name}, ε = 8" for name in ABLATION}
    for row in rows:  # nothing that has an ε goes without what it is of
        assert row["synthetic"] and row["data"] == "tiny-synthetic"
        assert "PLD" in row["promise"] and "δ = n^-1.1" in row["promise"]


@pytest.mark.parametrize("epsilon", [2.0, 8.0])
def test_what_is_taken_away_is_taken_away(epsilon, tiny_corpus):
    view = tiny_corpus.view()
    whole, *others = (method.at(epsilon, view, {}).options() for method in ABLATION.values())
    assert whole == METHODS["public start"].at(epsilon, view, {}).options()
    assert all(other != whole for other in others)
    assert {other["target-epsilon"] for other in others} == {epsilon}


def test_an_epsilon_without_settings_is_refused(tiny_corpus):
    with pytest.raises(ValueError, match="no settings for ε = 3"):
        ABLATION["whole"].at(3.0, tiny_corpus.view(), {})
