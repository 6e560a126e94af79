"""A figure against ε: where points and lines stand."""

from __future__ import annotations

import re

import pytest

from fedpriv.report.plots.drawing import Reference
from fedpriv.report.plots.tradeoff import Point, dots, tradeoff_plot


def _plot(points, **options) -> str:
    defaults = {"name": "p", "alternative": "a plot.", "width": 720, "height": 360, "share": True}
    return tradeoff_plot(points, **(defaults | options))


def _ticks(svg: str) -> list[str]:
    return re.findall(r">([\d.]+)</text>", svg)


@pytest.mark.parametrize(
    ("spent", "ticks"), [((1.0, 8.0), ["0.5", "1", "2", "4", "8", "16"]), ((2.0,), ["1", "2", "4"])]
)
def test_epsilon_is_on_a_scale_of_doublings(spent, ticks) -> None:
    svg = _plot([Point(label="a", epsilon=e, value=0.2) for e in spent])
    assert [tick for tick in _ticks(svg) if "%" not in tick] == ticks


def test_a_huge_range_has_few_ticks() -> None:
    svg = _plot([Point(label="a", epsilon=e, value=0.2) for e in (1e-4, 1e4)])
    assert 3 <= len([tick for tick in _ticks(svg) if "%" not in tick]) <= 10


def test_references_are_labelled_in_the_drawing_and_for_those_who_do_not_see_it() -> None:
    known = [Reference(value=0.18, label="public-only", text="18 %", dotted=True)]
    svg = _plot([Point(label="a", epsilon=2.0, value=0.2)], references=known)
    assert ">public-only 18 %<" in svg and 'aria-label="a plot. public-only 18 %."' in svg


def test_only_points_of_one_series_are_joined() -> None:
    points = [Point(label="a", epsilon=e, value=0.2, series=e) for e in (1, 2)]
    joined = [Point(label="a", epsilon=e, value=0.2, series=0) for e in (1, 2)]
    assert _plot(joined).count("opacity: 0.55") == 1 and "opacity: 0.55" not in _plot(points)


def test_the_legend_shows_unfinished_runs_hollow() -> None:
    text = dots([Point(label="<a>", epsilon=1, value=1, hollow=True)])
    assert "fill:var(--paper)" in text and "&lt;a&gt;" in text
    assert "fill:var(--s1)" in dots([Point(label="a", epsilon=1, value=1)])


def test_shares_end_at_nothing_and_at_all() -> None:
    """Red before: with few seeds the axis went to -25 %."""
    for value in (0.1, 0.9):
        wide = _plot([Point(label="a", epsilon=1, value=value, half_width=0.4)])
        percents = [float(tick) for tick in re.findall(r">([-−\d.]+)\u202f%<", wide)]
        assert percents and min(percents) >= 0 and max(percents) <= 100
    free = _plot([Point(label="a", epsilon=1, value=0.1, half_width=0.4)], share=False)
    assert ">-0.2<" in free  # what is no share may be below 0
