"""DP-NSGD and DP-SGD: the squares of the heat maps, and the page they make."""

from __future__ import annotations

import pytest

from fedpriv.datasets.dataset import hold_out_public
from simulations.adadps.setups import mnist
from simulations.dpnsgd import figure2, figure3, images
from simulations.dpnsgd.figure3 import heat_maps
from simulations.reproduction.runs import Run, final_runs, perform


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Synthetic images."""
    digits = hold_out_public(mnist.synthetic_digits(200, 50), share=0.3)
    pictures = images.synthetic_images(40, 20)
    for cached in (mnist.task, images.cifar_task):
        cached.cache_clear()
    monkeypatch.setattr(mnist, "dataset", lambda: digits)
    monkeypatch.setattr(images, "cifar", lambda: pictures)
    yield
    for cached in (mnist.task, images.cifar_task):
        cached.cache_clear()


def filled(maps):
    """Normalised flat in r, clipped the better the larger c."""
    done = {}
    for grid in maps:
        for run in grid.tuning():
            options = run.experiment.options()
            rate, size = options["optimizer.learning_rate"], options["bound.l2_clip_norm"]
            flat = options["bound"] == "normalise"
            done[run.identity] = {
                "accuracy": 0.9 - 0.01 * rate if flat else 0.3 + 0.5 * size,
                "epsilon": 4.0,
                "delta": 1e-5,
                "relation": "add-remove",
                "unit": "example",
                "accountant": "PLD",
                "synthetic": True,
            }
    return done


class TestHeatMaps:
    def test_every_square_is_another_run(self):
        runs = [run for grid in heat_maps() for run in grid.tuning()]
        assert len({run.identity for run in runs}) == len(runs) == 2 * 7 * 5

    def test_page_and_plot_of_synthetic_accuracies(self, tmp_path):
        maps = normalised, clipped = heat_maps(reduced=True)
        done = filled(maps)
        assert clipped.best(done)[1] == 1.0
        assert figure3.spread(normalised, done) == 0.0 and figure3.spread(clipped, done) > 0.4
        text = figure3.page("mnist", maps, done, "maps.png")
        assert "SYNTHETIC" in text and "reduced" in text and "add-remove, per example, PLD" in text
        figure3.draw_maps("mnist", maps, done, tmp_path / "maps.png")
        assert (tmp_path / "maps.png").stat().st_size > 10_000

    def test_a_missing_square(self):
        maps = heat_maps(reduced=True)
        done = filled(maps)
        del done[next(iter(done))]
        with pytest.raises(ValueError, match=r"1 runs of DP-NSGD.* are missing"):
            maps[0].best(done)

    @pytest.mark.parametrize("key", ["mnist", pytest.param("cifar10", marks=pytest.mark.slow)])
    def test_one_square_trains(self, key):
        for grid in heat_maps(key, True):
            made = grid.make(0.1, 0.5, "validation")
            made = made.with_options({"epochs": "none", "steps": 2, "batch-size": 8})
            found = perform(Run(experiment=made, split="validation", seed=1, reduced=True))
            assert 0.0 <= found["accuracy"] <= 1.0 and found["synthetic"]
            assert found["epsilon"] <= (4.0 if key == "mnist" else 8.0)

    def test_the_rule_is_the_only_difference(self):
        one, other = (grid.make(0.1, 0.5, "test").options() for grid in heat_maps("mnist"))
        different = {name for name in {*one, *other} if one.get(name) != other.get(name)}
        assert {name.partition(".")[0] for name in different} == {"bound"}


def test_figure_2_is_without_noise_and_says_so():
    [figure] = figure2.REPRODUCTIONS
    for run in final_runs(figure, {}, seeds=(0,), reduced=True):
        made = run.experiment.with_options({"epochs": "none", "steps": 3, "batch-size": 8})
        found = perform(Run(experiment=made, split="test", seed=0, reduced=True, curve=1))
        assert found["epsilon"] is None and len(found["curve"]) == 3
    assert all("(not private)" in row.label for row in figure.rows)
