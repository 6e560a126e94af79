"""The comparison as a page, as JSON, CSV, LaTeX and SVG: grouped by seed, with what ε covers."""

import base64
import csv
import hashlib
import html
import io
import json
import math
import re
from xml.etree import ElementTree

import pytest

from fedpriv import json_lines
from fedpriv.measures import ACCURACY, LOSS, Measure
from fedpriv.report.comparison.groups import Column, differences, mismatches, read_groups
from fedpriv.report.comparison.page import check_outputs, render, write_file
from fedpriv.report.comparison.plots import as_svg
from fedpriv.report.comparison.tables import as_csv, as_latex, as_rows
from fedpriv.report.run_record import read_run
from tests.harness.refusals import refuses
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


@pytest.fixture
def groups(make_run):
    return read_groups(
        [
            *(make_run(f"a{seed}", seed=seed, public_only=0.18) for seed in range(4)),
            make_run("b", name="=cmd & 50%_x", public_only=0.18),
            make_run("c", name="free", noise_multiplier=None, public_only=0.18),
            make_run("d", name="part", rounds=3, planned=9),
        ]
    )


def columns(row):
    """Names of a row's columns: an interval has two, which a spreadsheet reads as numbers."""
    ends = [name.removesuffix("_interval") for name in row]
    return [
        column
        for name, end in zip(row, ends, strict=True)
        for column in ([name] if name == end else [f"{end}_low", f"{end}_high"])
    ]


@pytest.mark.slow
def test_csv_holds_the_rows_of_json(groups) -> None:
    read = list(csv.DictReader(io.StringIO(as_csv(groups))))
    rows = as_rows(groups)
    assert list(read[0]) == columns(rows[0]) and len(read) == 4
    assert [float(read[0][f"gain_{end}"]) for end in ("low", "high")] == rows[0]["gain_interval"]
    assert read[0]["seeds"] == "0; 1; 2; 3" and float(read[0]["gain"]) == rows[0]["gain"]
    assert float(read[0]["accuracy_public_only"]) == 0.18
    assert read[1]["name"] == "'=cmd & 50%_x"  # a spreadsheet would run it
    assert (read[2]["epsilon"], read[2]["private"]) == ("", "false")
    assert read[3]["finished"] == "false" and read[0]["relation"] == "add-remove"


def test_latex_says_what_its_epsilon_means_and_escapes(groups) -> None:
    text = as_latex(groups)
    for part in (
        r"=cmd \& 50\%\_x", r"\ensuremath{\infty}", r"\ensuremath{\pm}", r"\ensuremath{\delta} = ",
        "add-remove relation, unit: user, PLD accountant", "public-only & 18.0",
        "majority class & 11.9", r"not covered by \ensuremath{\varepsilon}",
    ):  # fmt: skip
        assert part in text, part
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 7 and len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1
    assert text.isascii()


def test_svg_says_what_its_epsilon_is_and_what_it_does_not_cover(groups) -> None:
    drawn = " ".join(re.findall(r"<text[^>]*>([^<]*)", as_svg(groups)))
    for said in (
        "δ = ",
        "add-remove",
        "unit: user",
        "PLD",
        "Accuracy is measured on rostered users: a",
        "not covered by ε.",
    ):
        assert said in drawn


def test_svg_says_of_a_private_start_that_it_is_not_covered(make_run) -> None:
    posts = {"start": "public", "task.public_text": "all-posts"}
    folder = make_run("a", public_only=0.18, options=posts)
    drawn = " ".join(re.findall(r"<text[^>]*>([^<]*)", as_svg(read_groups([folder]))))
    drawn = html.unescape(drawn)
    assert "does NOT cover: a start from all of public users' posts" in drawn


def test_svg_has_each_part_of_its_own(make_run) -> None:
    drawn = as_svg(read_groups([make_run("a"), make_run("b", synthetic=True)]))
    assert len(ElementTree.fromstring(drawn)) == 2 and "(synthetic)" in drawn


def test_without_anything_private_there_is_nothing_to_draw(make_run) -> None:
    groups = read_groups([make_run(noise_multiplier=None)])
    with refuses(ValueError, "ε"):
        as_svg(groups)
    assert "against ε</h2>" not in render(groups)


def test_what_cannot_be_written_is_said_before_the_work(tmp_path) -> None:
    with pytest.raises(ValueError):
        check_outputs([tmp_path / "a.csv", tmp_path / "plot.pdf"])
    (tmp_path / "x.csv").mkdir()
    with pytest.raises(ValueError):
        check_outputs([tmp_path / "x.csv"])
