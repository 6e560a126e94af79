"""The tables of tag prediction: a fair grid, honest cells."""

import pytest

from fedpriv.experiments.experiment import Experiment
from simulations.tag_grid import METHODS, SETTINGS, Cell, grid
from simulations.tag_summary import interval, table
from simulations.tag_tables import best, chosen_options

TUNED = [name for name, setting in SETTINGS.items() if setting.tuned_as is None]


@pytest.mark.parametrize("inputs", ["tff", "unit-norm"])
@pytest.mark.parametrize("setting", TUNED)
class TestGrid:
    def test_baselines_get_at_least_as_many_configurations_as_adadps(self, setting, inputs):
        sizes = {m: len(grid(Cell(setting=setting, inputs=inputs, method=m))) for m in METHODS}
        most = max(size for method, size in sizes.items() if method.startswith("adadps"))
        for baseline in ("dp-fedavg", "dp-fedadam", "dp-normfedavg"):
            assert sizes[baseline] >= most > 0

    def test_every_configuration_is_an_experiment(self, setting, inputs):
        for name in METHODS:
            cell = Cell(setting=setting, inputs=inputs, method=name)
            for options in grid(cell):
                chosen = chosen_options(cell, options)
                made = Experiment(name=name, description="").with_options(chosen)
                assert chosen.items() <= made.options().items()


def result(method, accuracy, setting="private-8", norm=10.0, seed=0):
    return {
        "setting": setting, "inputs": "tff", "method": method, "seed": seed,
        "accuracy": accuracy, "options": {"l2-clip-norm": norm},
    }  # fmt: skip


def test_the_best_configuration_is_taken_over_and_rescaled():
    tuning = [result("adadps-local", 0.2), result("adadps-local", 0.3, norm=20.0)]
    found = {
        s: best(tuning, Cell(setting=s, inputs="tff", method="adadps-local-momentum"))
        for s in ("private-8", "private-2")
    }
    assert found == {"private-8": {"l2-clip-norm": 20.0}, "private-2": {"l2-clip-norm": 10.0}}
    with pytest.raises(ValueError, match="never tuned"):
        best(tuning, Cell(setting="paper", inputs="tff", method="dp-fedavg"))


def test_intervals_are_students():
    # Three values: t(0.975, 2) = 4.302653, standard deviation 1.
    assert interval([1.0, 2.0, 3.0]) == (2.0, pytest.approx(4.302653 / 3**0.5, rel=1e-6))
    assert interval([2.0]) == (2.0, 0.0)


def test_what_was_not_run_is_a_dash_and_the_best_private_figure_is_bold():
    results = [result("adadps-local", 0.25), result("dp-fedavg", 0.11), result("adas", 0.4)]
    text = table(results, ("private-8",))
    assert "| AdaDPS, local | **25.0 ± 0.0** | – |" in text
    assert "| DP-FedAvg | 11.0 ± 0.0 | – |" in text
    assert "not private | 40.0 ± 0.0 | – |" in text
