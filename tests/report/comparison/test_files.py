"""The comparison as CSV, LaTeX and SVG."""

import csv
import html
import io
import re
from xml.etree import ElementTree

import pytest

from fedpriv.report.comparison.groups import read_groups
from fedpriv.report.comparison.page import check_outputs, render
from fedpriv.report.comparison.plots import as_svg
from fedpriv.report.comparison.tables import as_csv, as_latex, as_rows
from tests.harness.refusals import refuses


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
