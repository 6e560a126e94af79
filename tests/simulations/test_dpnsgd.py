"""DP-NSGD beside DP-SGD: the squares of the heat maps, and the page they make."""

from __future__ import annotations

import pytest

from fedpriv.data.dataset import hold_out_public
from fedpriv.reproduction import Run, perform
from simulations import dpnsgd
from simulations.adadps import mnist


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Made-up digits."""
    digits = hold_out_public(mnist.synthetic_digits(200, 50), share=0.3)
    mnist.task.cache_clear()
    monkeypatch.setattr(mnist, "dataset", lambda: digits)
    yield
    mnist.task.cache_clear()


class TestHeatMaps:
    def test_every_square_is_another_run(self):
        runs = list(dpnsgd.grid(reduced=False))
        assert len({run.identity for run in runs}) == len(runs) == 2 * 7 * 5

    def test_page_and_plot_of_made_up_accuracies(self, tmp_path):
        done = {}
        for run in [*dpnsgd.grid(reduced=True)]:
            size = max(run.experiment.normalise_regulariser, run.experiment.l2_clip_norm)
            flat = run.experiment.bound == "normalise"
            accuracy = 0.9 - 0.01 * run.experiment.learning_rate if flat else 0.3 + 0.5 * size
            done[run.identity] = {
                "accuracy": accuracy,
                "epsilon": 4.0,
                "delta": 1e-5,
                "relation": "add-remove",
                "unit": "example",
                "accountant": "PLD",
                "synthetic": True,
            }
        with pytest.raises(ValueError, match="are missing"):
            dpnsgd.best(dict(list(done.items())[1:]), "normalise", reduced=True)
        assert dpnsgd.best(done, "clip", reduced=True)[1] == 1.0
        text = dpnsgd.page(done, reduced=True)
        assert "SYNTHETIC" in text and "add-remove, per example, PLD" in text
        assert dpnsgd.spread(dpnsgd.heat_map(done, "normalise", reduced=True)) == 0.0
        assert dpnsgd.spread(dpnsgd.heat_map(done, "clip", reduced=True)) > 0.4
        dpnsgd.plot(done, tmp_path / "maps.png", reduced=True)
        assert (tmp_path / "maps.png").stat().st_size > 10_000

    def test_one_square_trains(self):
        run = next(iter(dpnsgd.grid(reduced=True)))
        made = run.experiment.with_options({"epochs": "none", "steps": 2, "batch-size": 8})
        found = perform(Run(experiment=made, split="validation", seed=1, reduced=True))
        assert 0.0 <= found["accuracy"] <= 1.0 and found["epsilon"] <= 4.0
