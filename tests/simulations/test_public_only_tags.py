"""Public-only by sentence: the rows, and who is learnt from."""

import json

import pytest

from simulations.adadps.public_only import tags as script


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


def test_public_only_learns_from_public_users_alone_and_all_from_everybody(found, tiny_corpus):
    view = tiny_corpus.view(split=script.BY_SENTENCE)
    public = sum(view.num_examples(user, "all") for user in view.public_users)
    trained = sum(view.num_examples(user, "train") for user in view.roster)
    assert [row["num_examples"] for row in found[1:]] == [public, public + trained]


def test_the_command_prints_a_line_for_each(tiny_corpus, capsys):
    roster = tiny_corpus.default_roster
    given = {"corpus": str(tiny_corpus.directory), "rosters": (roster,), "inputs": ("tff",)}
    script.reproduce(**given, rates=(0.3,), most_passes=1)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["row"] for row in rows] == list(script.ROWS)
    assert all(row["data"] == f"{roster}, by-sentence" and row["synthetic"] for row in rows)
    assert {row["inputs"] for row in rows} == {"tff"}
    assert all(0 < row["accuracy"] <= 1 for row in rows)
