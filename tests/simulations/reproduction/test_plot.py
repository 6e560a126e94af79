"""Plots: what is drawn where. How they look, a person has to judge."""

import numpy as np
import pytest

from fedpriv.measures import LOSS
from simulations.reproduction import plot as plots
from simulations.reproduction.plot import draw
from tests.simulations.reproduction.tiny_tables import SEEDS, done_for, figure, row, table

BOTH = {"ours": "as here", "right": "done right"}


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draw, and return the matplotlib figure beside what was written."""
    kept = []
    drawing = plots.drawing

    def keep(width, height):
        kept.append(drawing(width, height))
        return kept[-1]

    monkeypatch.setattr(plots, "drawing", keep)

    def draw_it(one, done, **more):
        path = tmp_path / "deep" / "p.png"
        draw(one, done, path, seeds=more.pop("seeds", SEEDS), **more)
        return kept[-1], path.read_bytes()

    return draw_it


def words(drawing):
    """Everything written in a drawing."""
    from matplotlib.text import Text

    return "\n".join(text.get_text() for text in drawing.findobj(Text))


def title(drawing):
    return drawing.legends[0].get_title().get_text().replace("\n", " ")


@pytest.mark.slow
def test_the_same_runs_give_the_same_svg(tmp_path):
    one = table(row("a"))
    done = done_for(one)
    for name in ("one.svg", "two.SVG"):
        draw(one, done, tmp_path / name, seeds=SEEDS)
    first = (tmp_path / "one.svg").read_bytes()
    assert b"<svg" in first and first == (tmp_path / "two.SVG").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("make", [table, figure], ids=["table", "figure"])
@pytest.mark.parametrize("synthetic", [True, False])
def test_synthetic_data_are_in_the_title_and_only_they(make, synthetic, drawn):
    one = make(row("a", synthetic=synthetic))
    drawing, _ = drawn(one, done_for(one))
    assert ("SYNTHETIC" in title(drawing)) == synthetic


@pytest.mark.slow
@pytest.mark.parametrize("make", [table, figure], ids=["table", "figure"])
def test_no_epsilon_without_its_terms(make, drawn):
    one = make(row("a"), row("b", **{"noise-multiplier": 2.0}), row("c", noise="none"))
    text = words(drawn(one, done_for(one))[0]).replace("\n", " ")
    assert text.count("ε = ") == text.count("at δ = 0.001 (add-remove, per example, PLD") == 2


@pytest.mark.slow
def test_means_and_spreads_of_the_seeds(drawn):
    one = table(row("a"), scale=100.0)
    done = done_for(one)
    [axes] = drawn(one, done)[0].axes
    values = [100 * line["accuracy"] for line in done.values()]
    [bars] = axes.containers
    assert bars.lines[0].get_xdata() == pytest.approx([np.mean(values)])
    [[left, right]] = [segment[:, 0] for segment in bars.lines[2][0].get_segments()]
    assert right - left == pytest.approx(2 * np.std(values, ddof=1))
    assert axes.get_xlabel() == "Accuracy, % on test, right is better"


@pytest.mark.slow
def test_means_over_seeds_with_a_band(drawn):
    one = figure(row("a"), scale=100.0)
    done = done_for(one)
    [panel] = drawn(one, done)[0].axes
    curves = np.array([line["curve"] for line in done.values()])
    [line] = panel.lines
    assert line.get_xdata().tolist() == [2, 4, 5]
    middle, spread = 100 * curves[:, :, 1].mean(0), 100 * curves[:, :, 1].std(0, ddof=1)
    assert line.get_ydata() == pytest.approx(middle)
    [band] = panel.collections
    corners = band.get_paths()[0].vertices
    assert corners[:, 1].max() == pytest.approx((middle + spread).max())
    assert corners[:, 1].min() == pytest.approx((middle - spread).min())


@pytest.mark.slow
def test_a_seed_that_diverged_leaves_a_gap(drawn):
    one = figure(row("a"), measure=LOSS)
    done = done_for(one)
    next(iter(done.values()))["curve"][1] = [4, None, None]
    [line] = drawn(one, done)[0].axes[0].lines
    assert np.isnan(line.get_ydata()).tolist() == [False, True, False]
