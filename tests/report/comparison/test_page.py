"""Comparisons: grouping by seed, honest warnings, JSON that parses."""

import base64
import hashlib
import json
import math
import re

import pytest

from fedpriv import json_lines
from fedpriv.measures import ACCURACY, LOSS, Measure
from fedpriv.report.comparison.groups import Column, differences, mismatches, read_groups
from fedpriv.report.comparison.page import render, write_file
from fedpriv.report.comparison.tables import as_rows
from fedpriv.report.run_record import read_run
from tests.harness.resealed import reseal

ROSTERED = Column(measure=ACCURACY, diagnosed=True)


def test_runs_that_differ_in_the_seed_are_one_group(make_run) -> None:
    folders = [make_run(f"a{seed}", seed=seed) for seed in range(4)]
    other = make_run("b", name="dp-fedavg-tags", options={"precondition": "none"})
    groups = read_groups([folders[0], other, *folders[1:]])
    assert [(g.name, len(g.runs)) for g in groups] == [("adadps-tags", 4), ("dp-fedavg-tags", 1)]
    values = [read_run(folder).diagnosed[-1]["accuracy"] for folder in folders]
    measured = groups[0].measure(ROSTERED)
    mean = sum(values) / 4
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / 3)
    assert measured.mean == pytest.approx(mean)
    # Student's t with three degrees of freedom, two-sided 95 %.
    assert measured.half_width == pytest.approx(3.182446 * deviation / math.sqrt(4), rel=1e-6)
    assert groups[1].measure(ROSTERED).half_width is None
    assert differences([[group] for group in groups]) == {"precondition": ["local", "none"]}


def test_json_rows_are_plain_json(make_run) -> None:
    groups = read_groups([make_run("a"), make_run("b", name="adas-tags", noise_multiplier=None)])
    private, free = json.loads(json.dumps(as_rows(groups), allow_nan=False))
    assert private["private"] and private["epsilon"] > 0 and private["accountant"] == "PLD"
    assert private["relation"] == "add-remove" and private["delta"] > 0
    assert not free["private"] and free["epsilon"] is None and free["delta"] is None


@pytest.mark.slow
def test_unlike_runs_are_called_unlike(make_run) -> None:
    groups = read_groups([make_run("a"), make_run("b", corpus={"roster_sha256": "cd" * 32})])
    assert mismatches(groups) == ["roster"]
    assert "Not like with like" in render(groups)
    alike = read_groups([make_run("c"), make_run("d", options={"task.inputs": "unit-norm"})])
    assert mismatches(alike) == []
    assert "Not like with like" not in render(alike)
    known = {"provenance": {"private_side_information": ["vocabulary"]}}
    gaps = read_groups([make_run("g"), make_run("h", name="h", corpus=known)])
    assert mismatches(gaps) == ["what ε covers"]
    assert "The ε of h does NOT cover: vocabulary taken from rostered users." in render(gaps)
    alike = render(
        read_groups([make_run("i", corpus=known), make_run("j", name="j", corpus=known)])
    )
    plot = alike.partition("Accuracy against ε")[2].partition("<svg")[0]
    assert "The ε of each private run does NOT cover: vocabulary taken" in plot
    delta = make_run("e", name="e", delta=1e-4)
    assert "δ" in mismatches(read_groups([make_run("f"), delta]))


@pytest.mark.slow
def test_the_page_is_escaped_and_says_what_epsilon_does_not_cover(make_run, tmp_path) -> None:
    evil = "<script>$x$</script>"
    groups = read_groups([make_run("a", name=evil), make_run("b", synthetic=True, name="b")])
    write_file(groups, tmp_path / "deep" / "compare.html")
    page = (tmp_path / "deep" / "compare.html").read_text()
    # The one script is the page's, and the policy names it.
    [script] = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page and page.count("<script") == 1
    assert "&lt;script&gt;$x$" in page
    assert "http:" not in page and "https:" not in page
    assert "is covered by none of them" in page and "not covered by ε" in page
    assert "Synthetic data" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def as_language_model(folder):
    """Rewrite a folder as one whose task measures perplexity: ten times what was a share."""
    measure = Measure(name="perplexity", label="perplexity", higher_is_better=False)
    reseal(folder, measures=[measure.to_json(), LOSS.to_json()], baseline={})
    for name in ("rounds.jsonl", "diagnostics.jsonl"):
        rows = json_lines.read(folder / name)
        for row in rows:
            for key in [key for key in row if key.startswith(("accuracy", "recall"))]:
                value, new = row.pop(key), key.replace("accuracy", "perplexity")
                if new != key:
                    row[new] = value and 10 * value
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return folder


@pytest.mark.slow
def test_tasks_that_measure_something_else_show_that(make_run) -> None:
    folders = [as_language_model(make_run(f"lm{seed}", name="lm", seed=seed)) for seed in range(4)]
    groups = read_groups(folders)
    [row] = as_rows(groups)
    assert row["perplexity"] > 1 and "accuracy" not in row and len(row["perplexity_interval"]) == 2
    page = render(groups)
    assert "<h2>Perplexity on rostered users</h2>" in page and "Lower is better" in page
    assert "ccuracy" not in page.replace("accuracy-", "") and "ecall" not in page
    assert mismatches(groups) == []
    mixed = read_groups([*folders, make_run("tags")])
    assert "what is measured" in mismatches(mixed)
    rows = as_rows(mixed)
    assert rows[0]["accuracy"] is None and rows[1]["perplexity"] is None
    both = render(mixed)
    assert "Accuracy on rostered users" in both and "Perplexity on rostered users" in both


def test_runs_without_any_accuracy_still_compare(make_run) -> None:
    folder = make_run(rounds=1)
    (folder / "rounds.jsonl").write_text("")
    (folder / "diagnostics.jsonl").unlink()
    groups = read_groups([folder])
    assert as_rows(groups)[0]["accuracy"] is None and "adadps-tags" in render(groups)
