"""Parts of the charts that can be wrong without looking wrong."""

import re
from dataclasses import replace

import numpy as np
import pytest

from fedpriv.mechanisms.event import Relation
from fedpriv.privacy.noise_grid import NoiseGrid, NoisePoint, find_saturation_point
from fedpriv.report.charts import Line, Point, line_plot, tradeoff_plot
from fedpriv.report.noise_plot import write_noise_plot
from fedpriv.report.page import LAST, render, with_interval
from fedpriv.report.run_record import read_run
from fedpriv.report.wording import percent

VALUES = [0.62, 0.58, 0.65, 0.60, 0.55]


def drawn(lines, **options) -> str:
    defaults = {"alternative": "a plot", "width": 444, "height": 280, "last_round": 10}
    return line_plot(lines, **({**defaults, "share": True, "write": percent} | options))


def against_epsilon(points, **options) -> str:
    defaults = {"alternative": "a plot.", "width": 720, "height": 360, "share": True}
    return tradeoff_plot(points, **(defaults | options))


def line(values, **options) -> Line:
    return Line(label="x", x=list(range(1, len(values) + 1)), y=list(values), **options)


def test_values_are_at_their_place_between_the_ticks():
    svg = drawn([line([0.1, 0.2, 0.4])], last_round=4)
    ticks = {t: float(y) for y, t in re.findall(r' y="([\d.]+)"[^>]*>([\d.]+)\u202f%<', svg)}
    points = re.search(r'<polyline points="([^"]+)" fill="none"', svg)[1].split()
    heights = [float(point.split(",")[1]) for point in points]
    for share, height in (("10", heights[0]), ("20", heights[1]), ("40", heights[2])):
        assert ticks[share] - 4 == pytest.approx(height, abs=0.11)
    assert {"0", "1", "2", "3", "4"} <= set(re.findall(r">(\d)</text>", svg))


class TestInterval:
    """Error bars of a report: of released values, with what they do not cover."""

    def test_it_is_that_of_the_last_five(self):
        found, note = with_interval(line([0.1, *VALUES]), turn="step", share=True)
        assert found.low[-1] == pytest.approx(0.6 - 0.105724, abs=5e-7)
        assert found.high[-1] == pytest.approx(0.6 + 0.105724, abs=5e-7)
        # Where there are too few rounds before, it is no interval and meets the line.
        assert list(found.low[:4]) == list(found.high[:4]) == [0.1, 0.62, 0.58, 0.65]
        assert len(found.low) == len(found.high) == len(found.x)
        assert found.y == [0.1, *VALUES]
        for words in ("5 steps that were evaluated last", "does not cover sampling error", "lag 1"):
            assert words in note

    def test_shares_stay_within_0_and_1_and_numbers_do_not(self):
        wild = line([0.0, 1.0, 0.0, 1.0, 0.0])
        share, number = (with_interval(wild, turn="round", share=s)[0] for s in (True, False))
        assert share.low[-1] == 0.0 and share.high[-1] == 1.0
        assert number.low[-1] < 0.0 and number.high[-1] > 1.0

    def test_too_few_rounds_have_none_and_equal_ones_no_correlation(self):
        assert with_interval(line(VALUES[: LAST - 1]), turn="round", share=True) is None
        still, note = with_interval(line([0.5] * 5), turn="round", share=True)
        assert "lag 1" not in note and np.isfinite(still.low).all()

    def test_a_report_has_it_of_the_last_iterate_alone(self, make_run):
        words = "It does not cover sampling error"
        assert words in render(read_run(make_run("a", rounds=20, every=2)))
        averaged = make_run("b", rounds=20, every=2, options={"aggregate": "ema"})
        assert words not in render(read_run(averaged))


def test_a_file_of_its_own_needs_no_page():
    svg = against_epsilon([Point(label="<a>", epsilon=1, value=0.5)], title="A\nB", alone=True)
    assert "var(--" not in svg and "xmlns=" in svg and ">&lt;a&gt;<" in svg and ">B<" in svg


COHORTS = (20.0, 40.0, 80.0, 160.0)


LINES = ((25, 0.01), (100, 0.02))


def a_grid():
    means = {(c, rounds): (1 / c**2 + floor**2) ** 0.5 for c in COHORTS for rounds, floor in LINES}
    return NoiseGrid(
        num_users=400,
        target_epsilon=2.0,
        delta=1e-3,
        relation=Relation.ADD_REMOVE,
        unit="user",
        accountant="PLD",
        sampling="poisson",
        cohorts=COHORTS,
        rounds=(25, 100),
        points=tuple(
            NoisePoint(cohort=cohort, rounds=rounds, noise_multiplier=1.0, noise_on_mean=mean)
            for (cohort, rounds), mean in means.items()
        ),
        saturation_points=tuple(
            find_saturation_point(rounds, [(cohort, means[cohort, rounds]) for cohort in COHORTS])
            for rounds, _ in LINES
        ),
    )


PLANNED = NoisePoint(cohort=30.0, rounds=50, noise_multiplier=1.0, noise_on_mean=0.04)


def test_svg_has_lines_saturation_points_and_all_terms_of_epsilon(tmp_path):
    grid = a_grid()
    assert [point.side for point in grid.saturation_points] == ["at", "at"]
    write_noise_plot(grid, tmp_path / "a.svg", PLANNED)
    text = (tmp_path / "a.svg").read_text("utf-8")
    shown = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", text))
    for part in (
        "25 rounds", "100 rounds", "ε ≤ 2 at δ = 0.001 (add-remove, per user, by PLD)",
        "Ring = saturation point", "√2", "Star = this plan: cohort 30, 50 rounds", "thousandths",
    ):  # fmt: skip
        assert part in shown, part
    # One ring a line whose saturation point is between the cohorts: drawn without filling.
    rings = re.findall(r'<use [^>]*style="[^"]*fill-opacity: 0;[^"]*stroke: #', text)
    assert len(rings) == 2
    write_noise_plot(grid, tmp_path / "b.svg", PLANNED)
    assert (tmp_path / "b.svg").read_text("utf-8") == text


@pytest.mark.parametrize("name", ["a.pdf", "there.svg", "no/a.svg"])
def test_what_cannot_be_written_is_said(tmp_path, name):
    (tmp_path / "there.svg").write_text("mine", "utf-8")
    with pytest.raises(ValueError):
        write_noise_plot(a_grid(), tmp_path / name)
    assert (tmp_path / "there.svg").read_text("utf-8") == "mine"


def test_nothing_to_draw_is_said(tmp_path):
    nothing = NoisePoint(
        cohort=20.0, rounds=25, noise_multiplier=None, noise_on_mean=None, reason="out of reach"
    )
    empty = replace(a_grid(), points=(nothing,))
    with pytest.raises(ValueError):
        write_noise_plot(empty, tmp_path / "a.svg")
