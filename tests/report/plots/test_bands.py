"""Error bars of a report: of released figures, with what they do not cover."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpriv.report.page import render
from fedpriv.report.plots.bands import LAST, banded
from fedpriv.report.plots.lines import Line
from fedpriv.report.series import read_run

VALUES = [0.62, 0.58, 0.65, 0.60, 0.55]


def line(values):
    return Line(label="x", x=list(range(1, len(values) + 1)), y=list(values))


def test_the_interval_is_that_of_the_last_five():
    found = banded(line([0.1, *VALUES]), turn="round", share=True)
    assert found is not None
    assert found.line.low[-1] == pytest.approx(0.6 - 0.105724, abs=5e-7)
    assert found.line.high[-1] == pytest.approx(0.6 + 0.105724, abs=5e-7)
    # Where there are too few rounds before, it is no interval and meets the line.
    assert list(found.line.low[:4]) == list(found.line.high[:4]) == [0.1, 0.62, 0.58, 0.65]
    assert len(found.line.low) == len(found.line.high) == len(found.line.x)
    assert found.line.y == [0.1, *VALUES]


def test_shares_stay_within_0_and_1_and_numbers_do_not():
    wild = line([0.0, 1.0, 0.0, 1.0, 0.0])
    share, number = (banded(wild, turn="round", share=s) for s in (True, False))
    assert share.line.low[-1] == 0.0 and share.line.high[-1] == 1.0
    assert number.line.low[-1] < 0.0 and number.line.high[-1] > 1.0


def test_too_few_rounds_have_none():
    assert banded(line(VALUES[: LAST - 1]), turn="round", share=True) is None


def test_the_note_says_what_it_does_not_cover():
    note = banded(line(VALUES), turn="step", share=True).note
    for words in ("5 steps that were evaluated last", "released figures alone",
                  "does not cover sampling error", "lag 1"):  # fmt: skip
        assert words in note
    still = banded(line([0.5] * 5), turn="round", share=True).note
    assert "lag 1" not in still  # of figures that do not move there is none
    assert not math.isnan(float(np.sum(banded(line([0.5] * 5), turn="round", share=True).line.low)))


def test_a_report_has_them_of_the_last_iterate_alone(make_run):
    """Red if the aggregate's own figures got them: its windows overlap."""
    said = "It does not cover sampling error"
    assert said in render(read_run(make_run("a", rounds=20, every=2)))
    assert said not in render(
        read_run(make_run("b", rounds=20, every=2, options={"aggregate": "ema"}))
    )
