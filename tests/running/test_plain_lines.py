"""Progress where no bar can move: lines by a clock that the test holds."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from fedpriv.runs.progress import Pace, PlainLines, plain_lines
from tests.running.test_progress import Clock


@pytest.fixture
def clock(monkeypatch):
    """A clock, and no thread that could look at it between two lines of a test."""
    monkeypatch.setattr(PlainLines, "_beat", lambda self: None)
    return Clock()


@pytest.fixture
def said():
    return []


def test_five_seconds_lie_between_two_lines(clock, said):
    with PlainLines(said.append, clock=clock) as tell:
        for tenth in range(301):
            clock.seconds = tenth / 10
            tell(f"{clock.seconds:g} s")
    assert said == ["0 s", "5 s", "10 s", "15 s", "20 s", "25 s", "30 s"]


@pytest.mark.parametrize(("hours", "pause"), [(0.1, 5), (0.5, 18), (1, 36), (10, 60)])
def test_long_work_is_said_less_often_and_each_minute_at_least(clock, said, hours, pause):
    with PlainLines(said.append, clock=clock) as tell:
        clock.seconds = 3600 * hours
        tell("first")
        for second in range(200):
            clock.seconds = 3600 * hours + second
            tell(f"after {second}")
    # A hundredth of the time that has passed when a line is due, so it may be a second longer.
    assert pause <= int(said[1].split()[1]) <= pause + 1


@pytest.mark.slow
def test_a_thread_reminds_and_is_gone_afterwards(said):
    before = threading.active_count()
    clock, heard = Clock(), threading.Event()

    def say(line):
        said.append(line)
        if len(said) == 2:
            heard.set()

    with PlainLines(say, clock=clock) as tell:
        tell("waiting")
        clock.seconds = 7
        assert heard.wait(60)
    assert said == ["waiting", "waiting (7 s so far)"]
    assert threading.active_count() == before


def test_lines_hold_no_control_characters_and_are_one_line_each():
    to = Console(file=io.StringIO(), width=20, color_system=None)
    with plain_lines(to) as tell:
        tell("[bold]a\x1b[31m\r\nlong name, longer than the console is wide")
    (line,) = to.file.getvalue().splitlines()
    assert line.isprintable() and line.startswith("[bold]a") and line.endswith("is wide")


def test_counted_work_is_said_before_it_is_done_and_how_long_the_rest_takes(capsys):
    now, rows = [0.0], []
    pace = Pace(4, of="cells", rows=rows, clock=lambda: now[0])
    assert pace.work("first", lambda: "made") == "made"  # adds no row: it was there
    now[0] = 30.0
    pace.work("second", lambda: rows.append(1))
    pace.work("third", lambda: rows.append(1))
    pace.keep()
    assert (pace.done, pace.kept) == (4, 2) and "4 of 4 cells" in str(pace)
    first, second, third = capsys.readouterr().err.splitlines()
    assert "first (0 of 4 cells)" in first and "second (1 of 4 cells)" in second
    for part in ("third", "2 of 4 cells", "30 s", "1:00 min"):  # so far, and left
        assert part in third
