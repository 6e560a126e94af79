"""A run folder whose files were changed is refused in one line, never by a traceback."""

from __future__ import annotations

import json
import shutil

import pytest

from fedpriv.report.comparison.groups import find_groups
from fedpriv.report.page import write_report
from fedpriv.report.run_record import read_run
from tests.harness.resealed import reseal
from tests.report.conftest import write_run

OTHERS = ["0.21", [1], {"a": 1}, True]


def changed(file, key, value, line=-1):
    """Put a value into a JSON file, or into a line of one."""
    lines = file.suffix == ".jsonl"
    rows = [json.loads(row) for row in file.read_text("utf-8").splitlines()] if lines else []
    document = rows[line] if lines else json.loads(file.read_text("utf-8"))
    at = document
    *way, last = key.split(".")
    for name in way:
        at = at[name]
    at[last] = value
    text = "".join(json.dumps(row) + "\n" for row in rows) if lines else json.dumps(document)
    file.write_text(text, "utf-8")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A folder that is read as it is."""
    folder = write_run(tmp_path_factory.mktemp("sound") / "run", rounds=4, every=2, public_only=0.2)
    write_report(folder)
    return folder


@pytest.mark.parametrize("value", OTHERS, ids=str)
@pytest.mark.parametrize(
    ("name", "key"),
    [
        *(("rounds.jsonl", key) for key in ("accuracy_public", "recall_at_5_public", "epsilon",
                                            "delta", "update_norm", "round_num", "attempt")),
        *(("diagnostics.jsonl", key) for key in ("accuracy", "recall_at_5", "loss", "seconds",
                                                 "cohort_size", "num_failed", "round_num")),
        *(("summary.json", key) for key in ("accuracy", "accuracy_public_only", "gain")),
        ("experiment.json", "baseline.majority_class_accuracy"),
    ],
)  # fmt: skip
def test_a_figure_that_is_no_number_is_named(sound, tmp_path, name, key, value):
    folder = shutil.copytree(sound, tmp_path / "run")
    changed(folder / name, key, value)
    reseal(folder)
    with pytest.raises(ValueError) as refusal:
        write_report(folder)
    said = str(refusal.value)
    assert name in said and key.rpartition(".")[2] in said and "\n" not in said


@pytest.mark.parametrize("value", ["text", [1], 3])
@pytest.mark.parametrize("key", ["corpus", "plan", "experiment", "baseline", "versions", "start"])
def test_what_is_no_object_is_named(make_run, key, value):
    folder = make_run(rounds=4)
    changed(folder / "experiment.json", key, value)
    reseal(folder)
    with pytest.raises(ValueError):
        read_run(folder)


def test_a_comparison_leaves_it_out_and_says_why(make_run):
    good, bad = make_run("good", rounds=4), make_run("bad", rounds=4)
    changed(bad / "rounds.jsonl", "accuracy_public", "high")
    groups, left_out = find_groups([good, bad])
    assert [run.directory for group in groups for run in group.runs] == [good]
    assert any("accuracy_public is 'high'" in line for line in left_out)


def test_a_measure_that_diverged_is_still_reported(make_run):
    folder = make_run(rounds=4, every=2)
    changed(folder / "rounds.jsonl", "accuracy_public", float("nan"))
    write_report(folder)
