"""Pages of runs whose figures are not finite."""

from __future__ import annotations

import json

from fedpriv.report.page import write_report


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


def test_a_measure_that_diverged_is_still_reported(make_run):
    folder = make_run(rounds=4, every=2)
    changed(folder / "rounds.jsonl", "accuracy_public", float("nan"))
    write_report(folder)
