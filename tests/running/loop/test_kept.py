"""What a run keeps: what is released and what is not apart, no user's name, no NaN."""

import json
import logging
import os

import numpy as np
import pytest
from torch import nn

from fedpriv import json_lines
from fedpriv.runs.prepared import start_run
from tests.harness.tag_runs import RELEASED, start
from tests.harness.toy_users import toy_experiment

DIAGNOSTIC = {
    *("round_num", "attempt", "cohort_size", "num_failed", "accuracy", "recall_at_5", "loss"),
    *("seconds", "covered_by_epsilon"),
}


@pytest.fixture(scope="module")
def secure(tiny_corpus, tmp_path_factory):
    """The folder of a secure run."""
    out = tmp_path_factory.mktemp("secure") / "run"
    start(tiny_corpus, out, secure=True).run()
    return out


def read(folder, name):
    return json.loads((folder / name).read_text("utf-8"))


def test_released_and_diagnostics_are_kept_apart(tiny_corpus, tmp_path):
    prepared = start(tiny_corpus, tmp_path / "run")
    seen = []
    summary = prepared.run(on_round=seen.append)
    released = json_lines.read(tmp_path / "run" / "rounds.jsonl")
    diagnostics = json_lines.read(tmp_path / "run" / "diagnostics.jsonl")
    assert [set(line) for line in released] == [RELEASED] * 6
    assert [set(line) for line in diagnostics] == [DIAGNOSTIC] * 6
    assert all(line["covered_by_epsilon"] is False for line in diagnostics)
    plan = prepared.components.plan
    spent = [plan.epsilon(i).value for i in range(1, 7)]
    assert [line["epsilon"] for line in released] == spent
    measured = [line["round_num"] for line in released if line["accuracy_public"] is not None]
    assert measured == [2, 4, 6]
    assert [record.released.round_num for record in seen] == [1, 2, 3, 4, 5, 6]
    assert summary["rounds"] == summary["charges"] == 6
    assert summary["epsilon"] == released[-1]["epsilon"] == plan.epsilon(6).value
    summary.pop("run_dir")
    assert summary == read(tmp_path / "run", "summary.json")


def test_in_secure_mode_there_are_no_diagnostics(secure):
    summary = read(secure, "summary.json")
    assert len(json_lines.read(secure / "rounds.jsonl")) == 6
    assert not (secure / "diagnostics.jsonl").exists()
    # What is measured on rostered users is a diagnostic too.
    assert summary["accuracy"] is summary["recall_at_5"] is None
    assert summary["majority_class_accuracy"] is None
    assert summary["accuracy_public"] is not None
    assert read(secure, "experiment.json")["baseline"]["majority_class_accuracy"] is None


def test_what_is_not_to_be_published_is_the_owners_alone(tiny_corpus, tmp_path):
    umask = os.umask(0o022)
    try:
        start(tiny_corpus, tmp_path / "run").run()
    finally:
        os.umask(umask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "run").iterdir()}
    private = {"diagnostics.jsonl", "by_user.safetensors"}
    assert {name for name, mode in modes.items() if mode == 0o600} == private


def test_no_file_names_a_user(tiny_corpus, secure, finished):
    for folder in (secure, finished):
        files = [file for file in folder.rglob("*") if file.is_file()]
        assert len(files) > 5
        for file in files:
            content = file.read_bytes()
            for user in tiny_corpus.view().roster:
                assert f'"{user}"'.encode() not in content, file


def test_no_log_line_of_a_secure_run_names_a_user_or_counts_them(tiny_corpus, tmp_path, caplog):
    with caplog.at_level(logging.DEBUG):
        start(tiny_corpus, tmp_path / "run", secure=True).run()
    said = [record.getMessage() for record in caplog.records if "fedpriv" in record.name]
    for told in (*tiny_corpus.view().roster, "cohort"):
        assert not any(told in line for line in said), said


def test_the_summary_of_a_run_without_privacy_has_no_epsilon(tiny_corpus, tmp_path):
    summary = start(tiny_corpus, tmp_path / "run", noise="none").run()
    assert summary["epsilon"] is summary["epsilon_rdp"] is None
    lines = json_lines.read(tmp_path / "run" / "rounds.jsonl")
    assert {line["epsilon"] for line in lines} == {None}
    text = (tmp_path / "run" / "summary.json").read_text()
    assert "Infinity" not in text and "NaN" not in text


def test_a_task_without_classes_writes_json_without_nan(tmp_path):
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(6, 4, width)).astype(np.float32) for width in (2, 1))
    users = {f"u{number}": (x[number], y[number]) for number in range(6)}
    task = {"users": users, "test": users["u0"], "public": users["u1"]}
    task |= {"module": lambda: nn.Linear(2, 1), "loss": nn.functional.mse_loss}
    experiment = toy_experiment(task, rounds=2, cohort=3.0)
    summary = start_run(experiment, "line", None, tmp_path / "run").run()
    assert "accuracy" not in summary and summary["mean_squared_error_public"] > 0
    assert json_lines.read(tmp_path / "run" / "diagnostics.jsonl")[-1]["loss"] > 0
    for file in (tmp_path / "run").glob("*.json*"):
        assert "NaN" not in file.read_text() and "Infinity" not in file.read_text()
