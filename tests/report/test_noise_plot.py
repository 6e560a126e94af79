"""The plot of noise over cohort: everything that it must say is in it."""

import re
from dataclasses import replace

import pytest

from fedpriv.privacy.event import Relation
from fedpriv.privacy.noise_grid import NoiseGrid, NoisePoint, find_saturation_point
from fedpriv.report.noise_plot import write_noise_plot

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
