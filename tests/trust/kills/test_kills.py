"""SIGKILLs: nothing is drawn unpaid or twice, and none costs more than its round."""

from __future__ import annotations

import json
import sys

import pytest

from fedpriv.experiments.load import load_experiment
from fedpriv.runs.prepared import start_run
from tests.harness.tag_runs import start
from tests.trust.kills.__main__ import (
    COMMANDS,
    PARTS,
    RAY_SERVERS,
    SERVER_APPS,
    SUPERNODES,
    WORKERS,
    play,
    table,
)
from tests.trust.kills.books import Books, Figures


def test_there_are_fifty_and_the_command_makes_a_hundred():
    assert sum(COMMANDS.values()) + WORKERS + RAY_SERVERS + SERVER_APPS + SUPERNODES >= 50


TREE = {"noise": "tree", "sampling": "separated", "cohort": 2}


@pytest.fixture(params=["retry", "discard", "replay"])
def after(request):
    """What becomes of an attempt that a crash ended."""
    return request.param


@pytest.fixture
def books(tiny_corpus, tmp_path, after):
    """Of a run of three rounds (a replayed one: one) that were drawn as they were charged."""
    folder = tmp_path / "run"
    if after == "replay":
        experiment = load_experiment("bolt-on-tags")
        start_run(experiment, "bolt-on-tags", tiny_corpus, folder).run()
    else:
        start(tiny_corpus, folder, rounds=3, **(TREE if after == "discard" else {})).run()
    books = Books(
        folder=folder,
        draws=tmp_path / "draws",
        figures=Figures(what="three"),
        limit=(2, 2) if after == "discard" else None,
    )
    for number in range(1 if after == "replay" else 3):
        charge = "of all" if after == "discard" else f"charge {number}"
        cohort = ["a", "b"] if number % 2 else ["c"]
        add(books, kind="cohort", charge=charge, key=f"key {number}", drawn=cohort)
        add(books, kind="noise", charge=charge, drawn=f"noise {number}")
        add(books, kind="sum", noise=f"noise {number}", drawn=f"sum {number}")
    return books


def add(books, **line):
    with books.draws.open("a") as file:
        file.write(json.dumps({"pid": 1, **line}) + "\n")


def lines_of(books, kind):
    lines = [json.loads(line) for line in books.draws.read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def test_books_that_are_right(books, after):
    books.killed("server")
    figures = books.figures
    number = 1 if after == "replay" else 3
    assert (figures.attempts, figures.releases, figures.lost) == (number, number, 0)
    assert not figures.hold  # until it is verified
    assert books.end(ok=True).hold
    assert f"| 1 server | {number} | 0 | 0 | 0 | 0 | 0 | 0 | yes |" in table([figures])


@pytest.mark.parametrize("kind", ["cohort", "noise"])
def test_what_nobody_has_charged_is_an_under_count(books, kind):
    add(books, kind=kind, charge=None, key="another", drawn="another")
    books.killed("server")
    assert books.figures.under_counts == 1 and not books.end(ok=True).hold


@pytest.mark.parametrize("after", ["retry", "replay"], indirect=True)
@pytest.mark.parametrize("kind", ["cohort", "noise"])
def test_so_is_a_second_draw_under_one_charge(books, kind):
    add(books, **{**lines_of(books, kind)[-1], "key": "another", "drawn": "another"})
    books.killed("server")
    assert books.figures.under_counts == 1 and not books.end(ok=True).hold


def test_noise_on_a_second_sum_is_reused(books):
    add(books, **{**lines_of(books, "sum")[-1], "drawn": "another"})
    books.killed("server")
    assert books.figures.reused_noise == 1 and not books.end(ok=True).hold


def test_noise_for_a_second_charge_is_reused(books):
    add(books, **{**lines_of(books, "noise")[-1], "charge": "another"})
    books.killed("server")
    assert books.figures.reused_noise == 1 and not books.end(ok=True).hold


def test_a_key_that_another_cohort_is_drawn_from_is_reused(books):
    add(books, **{**lines_of(books, "cohort")[-1], "drawn": ["d"]})
    books.killed("server")
    assert books.figures.reused_cohorts == 1 and not books.end(ok=True).hold


def test_a_replay_draws_all_again_and_a_stream_its_rows(books, after):
    for line in [line for kind in ("cohort", "noise", "sum") for line in lines_of(books, kind)]:
        if after == "replay" or line["kind"] == "noise":
            add(books, **line)
    books.killed("server")
    assert books.end(ok=True).hold == (after != "retry")
    assert books.figures.reused_noise == (3 if after == "retry" else 0)


@pytest.mark.parametrize("after", ["discard"], indirect=True)
@pytest.mark.parametrize(("row", "user", "over"), [(3, "b", 0), (3, "c", 2), (4, "c", 1)])
def test_a_row_too_many_or_too_soon_is_over_the_limit(books, row, user, over):
    """Of at most two rows at least two apart; `c` was in rows 0 and 2, `b` in row 1."""
    for number in range(3, row + 1):
        add(books, kind="noise", charge="of all", drawn=f"noise {number}")
    add(books, kind="cohort", charge="of all", key="key 3", drawn=[user])
    add(books, kind="sum", noise=f"noise {row}", drawn="sum 3")
    books.killed("server")
    assert books.figures.over_limit == over and books.end(ok=True).hold == (over == 0)


def test_two_rounds_lost_by_one_kill_do_not_hold():
    assert Figures(what="", kills={"server": 2}, lost=2, most_lost=1, verified=True).hold
    assert not Figures(what="", kills={"server": 2}, lost=2, most_lost=2, verified=True).hold
    assert not Figures(what="", kills={"worker": 2}, lost=1, most_lost=1, verified=True).hold


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.flower
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
@pytest.mark.parametrize("part", PARTS)
def test_no_kill_is_unpaid_reuses_anything_or_costs_more_than_a_round(tmp_path, part):
    figures = play(part, tmp_path / part, 0)
    print(table([figures]))
    assert figures.hold, figures.document()
