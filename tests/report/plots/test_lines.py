"""Parts of the plots that can be wrong without looking wrong."""

from __future__ import annotations

import re
from itertools import pairwise

import matplotlib
import pytest

from fedpriv.report.plots.drawing import Reference, spread
from fedpriv.report.plots.lines import Line, legend, line_plot
from fedpriv.report.wording import percent


def _plot(lines, **options) -> str:
    defaults = {
        "name": "p",
        "alternative": "a plot",
        "width": 444,
        "height": 280,
        "last_round": 10,
        "share": True,
        "write": percent,
    }
    return line_plot(lines, **(defaults | options))


def _labels(svg: str) -> list[tuple[float, str]]:
    """Return (height, text) of the labels at the ends, which are coloured like lines."""
    found = re.findall(r'<text style="([^"]*)"([^>]*)>([^<]*)</text>', svg)
    out = []
    for style, attributes, text in found:
        if "var(--s" in style:
            place = re.search(r"translate\(([-\d.]+) ([-\d.]+)\)|y=\"([-\d.]+)\"", attributes)
            assert place is not None, attributes
            out.append((float(place[2] or place[3]), text))
    return out


@pytest.mark.parametrize(
    "values", [[0.2, 0.2, 0.2], [0.0, 0.001, 0.3], [0.3, 0.29, 0.28, 0.27, 0.1, 0.1]]
)
def test_labels_at_the_ends_do_not_overlap(values) -> None:
    lines = [
        Line(label=str(i), x=[5, 10], y=[0.1, value], colour=f"s{i + 1}")
        for i, value in enumerate(values)
    ]
    heights = sorted(height for height, _ in _labels(_plot(lines)))
    assert len(heights) == len(values)
    assert min(b - a for a, b in pairwise(heights)) >= 14.5


def test_spread_keeps_order_gap_and_the_floor() -> None:
    for values in ([0.0, 0.1, 0.2, 5.0, 5.1], [1, 1, 1, 1], [3], []):
        places = spread(values, 1.0)
        assert places == sorted(places) and all(p >= 0 for p in places)
        assert all(b - a >= 1 - 1e-12 for a, b in pairwise(places))
    assert spread([1.0, 9.0], 1.0) == [1.0, 9.0]


def test_drawing_leaves_no_trace_in_matplotlib() -> None:
    before = dict(matplotlib.rcParams)
    _plot([Line(label="a", x=[1], y=[0.5])])
    assert dict(matplotlib.rcParams) == before


def test_an_interval_and_a_reference_fit_in_the_plot() -> None:
    line = Line(label="a", x=[1, 2], y=[0.1, 0.2], low=[0.0, 0.1], high=[0.3, 0.9])
    svg = _plot([line], references=[Reference(value=0.95, label="top", text="95 %")])
    ticks = [float(t.split("\u202f")[0]) for t in re.findall(r">([\d.]+\u202f%)<", svg)]
    assert max(ticks) >= 80
    assert ">top 95 %<" in svg and 'aria-label="a plot top 95 %."' in svg


def test_lines_without_points_are_left_out() -> None:
    assert _labels(_plot([Line(label="a", x=[], y=[])])) == []
    assert _labels(_plot([Line(label="a", x=[3], y=[0.0])])) != []


def test_the_legend_marks_what_is_dashed() -> None:
    assert "dasharray" in legend([Line(label="<a>", x=[1], y=[1], dashed=True)])
    plain = legend([Line(label="<a>", x=[1], y=[1])])
    assert "dasharray" not in plain and "&lt;a&gt;" in plain
