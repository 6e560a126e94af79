"""Fifty SIGKILLs: nothing is drawn unpaid or twice, and none costs more than its round."""

from __future__ import annotations

import hashlib
import json
import sys

import pytest

from fedpriv.rng import Key
from fedpriv.runs.noise_root import noise_root
from tests.running.loop.tag_runs import ledger_state, start
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


def test_there_are_fifty():
    assert COMMANDS + WORKERS + RAY_SERVERS + SERVER_APPS + SUPERNODES == 50


@pytest.fixture
def books(tiny_corpus, tmp_path):
    """Of a run of three rounds that were drawn as they were charged."""
    start(tiny_corpus, tmp_path / "run", rounds=3, seed=5).run()
    books = Books(
        folder=tmp_path / "run", draws=tmp_path / "draws", seed=5, figures=Figures(what="three")
    )
    of = noise_root(Key.simulation(5), ledger_state(books.folder).extra)
    lines = []
    for kind in ("cohort", "noise"):
        for number in (1, 2, 3):
            key = hashlib.sha256(of.fold(kind).fold(number).fold(1).to_bytes()).hexdigest()
            lines += [{"kind": kind, "key": key}]
            lines += [{"kind": kind, "key": key, "drawn": f"{kind} {number}"}]
    books.draws.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return books


def add(books, **line):
    with books.draws.open("a") as file:
        file.write(json.dumps(line) + "\n")


def test_books_that_are_right(books):
    books.killed("server")
    figures = books.figures
    assert (figures.charges, figures.releases, figures.lost) == (3, 3, 0)
    assert not figures.hold  # until it is verified
    figures.verified = True
    assert figures.hold and "| 1 server | 3 | 0 | 0 | 0 | 0 | 0 | yes |" in table([figures])


@pytest.mark.parametrize("kind", ["cohort", "noise"])
def test_what_nobody_has_charged_is_an_under_count(books, kind):
    books.figures.verified = True
    add(books, kind=kind, key="ab" * 32)
    books.killed("server")
    assert books.figures.under_counts == 1 and not books.figures.hold


def test_a_charge_that_comes_later_does_not_undo_it(books):
    whole = (books.folder / "ledger.jsonl").read_bytes()
    (books.folder / "ledger.jsonl").write_bytes(b"".join(whole.splitlines(True)[:-3]))
    books.killed("server")
    (books.folder / "ledger.jsonl").write_bytes(whole)
    books.killed("server")
    assert books.figures.under_counts == 2  # the last round's cohort, and its noise


@pytest.mark.parametrize("kind", ["cohort", "noise"])
def test_what_is_drawn_again_is_reused(books, kind):
    books.figures.verified = True
    again = [json.loads(line) for line in books.draws.read_text().splitlines()]
    add(books, **next(line for line in again if line["kind"] == kind))
    books.killed("server")
    figures = books.figures
    assert (figures.reused_noise, figures.reused_cohorts) == (kind == "noise", kind == "cohort")
    assert not figures.hold


def test_so_is_noise_of_another_key_and_the_same_values(books):
    add(books, kind="noise", key="of another", drawn="noise 2")
    books.killed("server")
    assert books.figures.reused_noise == 1


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
