"""Public-only by the papers' split: the rows, and who is learnt from."""

import json
from pathlib import Path

import pytest

from simulations.adadps import figure6
from simulations.adadps.public_only import tags as script

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture(scope="module")
def found(tiny_corpus):
    return list(
        script.lines(
            tiny_corpus.default_roster,
            "unit-norm",
            rates=(0.1, 0.3, 1.0),
            most_passes=6,
            corpus=str(tiny_corpus.directory),
        )
    )


def test_every_row_says_what_it_is_of(found):
    assert [row["row"] for row in found] == ["majority class", "public-only", "all, not private"]
    assert all("by-sentence" in row["data"] and row["synthetic"] for row in found)
    assert all(0 < row["accuracy"] <= 1 for row in found)


def test_public_only_learns_from_public_users_alone_and_all_from_everybody(found, tiny_corpus):
    view = tiny_corpus.view(split=script.BY_SENTENCE)
    public = sum(view.num_examples(user, "all") for user in view.public_users)
    trained = sum(view.num_examples(user, "train") for user in view.roster)
    assert [row["num_examples"] for row in found[1:]] == [public, public + trained]


def test_the_command_prints_a_line_for_each(tiny_corpus, capsys):
    arguments = ["--corpus", str(tiny_corpus.directory), "--rosters", tiny_corpus.default_roster]
    script.main([*arguments, "--inputs", "tff", "--rates", "0.3", "--most-passes", "1"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 3 and {row["inputs"] for row in rows} == {"tff"}


def test_the_rows_of_figure_6_are_the_recorded_ones():
    recorded = {}
    for line in (RESULTS / "public-only.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        if row["data"].endswith("by-sentence"):
            recorded[row["data"].partition(",")[0], row["inputs"], row["row"]] = row["accuracy"]
    names = {"majority class": 0, "public-only": 1, "all, not private": 2}
    (table,) = figure6.REPRODUCTIONS
    for (roster, inputs, row), accuracy in recorded.items():
        setting = "paper" if roster.endswith("-400") else "private-8"
        assert table.given[names[row]].values[f"{setting} {inputs}"] == accuracy
    assert len(recorded) == 12
