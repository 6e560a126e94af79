"""Tables and figures as values."""

from __future__ import annotations

import pytest
from tiny_tables import figure, row, table


def test_kinds():
    assert (table().kind, figure().kind) == ("table", "figure")


def test_a_figure_has_its_series_for_rows():
    one = row("a")
    assert figure(one).rows == figure(one).series == (one,)


def test_a_curve_without_points():
    with pytest.raises(ValueError, match="tiny-curves: a curve of 0 points; give at least 1"):
        figure(points=0)
