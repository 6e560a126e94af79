"""DP-NSGD and DP-SGD: the squares of the heat maps, and the page they make."""

from dataclasses import replace

import pytest

from fedpriv.datasets.dataset import hold_out_public
from fedpriv.measures import LOSS
from fedpriv.rng import Key
from simulations.adadps.setups import mnist
from simulations.dpnsgd import figure2, figure3, images
from simulations.dpnsgd import grid as grids
from simulations.dpnsgd.figure3 import heat_maps, scheduled
from tests.harness.refusals import refuses

_CACHED = (images._task, images._curves_task)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Synthetic images."""
    digits = hold_out_public(mnist.synthetic_digits(200, 50), share=0.3)
    pictures = images.synthetic_images(40, 20)
    for cached in _CACHED:
        cached.cache_clear()
    monkeypatch.setattr(mnist, "dataset", lambda: digits)
    monkeypatch.setattr(images, "cifar", lambda: pictures)
    yield
    for cached in _CACHED:
        cached.cache_clear()


def filled(maps):
    """Normalise flat in r, clipped the better the larger c."""
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
                "steps": 10,
            }
    return done


@pytest.mark.slow
def test_every_square_is_another_run_but_where_c_is_1():
    """There η c is η, so the column of the third map is that of the second."""
    runs = [run for grid in heat_maps() for run in grid.tuning()]
    squares = len(figure3.RATES) * len(figure3.DECADES)
    assert len(runs) == 3 * squares
    assert len({run.identity for run in runs}) == 3 * squares - len(figure3.RATES)


def test_the_third_map_is_of_one_product():
    *_, by_product = heat_maps()
    for size in by_product.sizes:
        options = by_product.make(1.6, size, "validation").options()
        assert options["bound.l2_clip_norm"] == size
        assert options["optimizer.learning_rate"] * size == pytest.approx(1.6)


@pytest.mark.slow
def test_page_of_synthetic_accuracies():
    maps = normalised, clipped, _ = heat_maps(reduced=True)
    done = filled(maps)
    assert clipped.best(done)[1] == 1.0
    assert normalised.spread(done) == 0.0 and clipped.spread(done) > 0.4
    assert clipped.edges(done) == ["η (least)", "c (most)"]
    more = scheduled("mnist", True, maps, ("step", "cyclic"), done)
    assert [grid.sizes for grid in more] == [(normalised.best(done)[1],)] * 2 + [(1.0,)] * 2
    assert {grid.make(0.1, 10.0, "test").options()["schedule"] for grid in more} == {
        "step",
        "cyclic",
    }
    done |= filled(more)
    text = figure3.page("mnist", maps, more, done, picture="maps.png")
    assert "add-remove, per example, PLD" in text and "c (most)" in text


def test_a_missing_square():
    maps = heat_maps(reduced=True)
    done = filled(maps)
    del done[next(iter(done))]
    with refuses(ValueError, "1", maps[0].title):
        maps[0].best(done)


def test_the_rule_is_the_only_difference():
    one, other, _ = (grid.make(0.1, 0.5, "test").options() for grid in heat_maps("mnist"))
    different = {name for name in {*one, *other} if one.get(name) != other.get(name)}
    assert {name.partition(".")[0] for name in different} == {"bound"}


@pytest.mark.slow
def test_further_grids_are_made_of_what_the_first_chose(monkeypatch):
    monkeypatch.setattr(grids, "SEEDS", (0, 1))
    few = {"epochs": "none", "steps": 2, "batch-size": 8}

    def shortened(grid):
        make = grid.make
        return replace(grid, make=lambda *place: make(*place).with_options(few),
                       rates=grid.rates[:2], sizes=grid.sizes[:1])  # fmt: skip

    maps = [shortened(grid) for grid in heat_maps("mnist", True)[:1]]
    seen = []

    def then(done):
        seen.append(maps[0].best(done))
        return [
            shortened(grid) for grid in scheduled("mnist", True, maps, ("step", "cyclic"), done)
        ]

    done, more = grids.trained(maps, processes=1, device="cpu", then=then)
    assert {row["device"] for row in done.values()} == {"cpu"}
    # Two squares and two seeds of one map, and of each of its two schedules.
    assert len(done) == 3 * (2 + 2) and len(more) == 2
    assert len(seen) == 1


def test_the_training_loss_is_that_of_training_examples():
    data = mnist.dataset()
    task = images.with_training_loss(images.MNIST.task_of, data, number=data.num_train)
    params = task.init_params(Key.simulation(0))
    on_training = replace(data, x_test=data.x_train, y_test=data.y_train)
    found = task.measure(params)
    whole = images.MNIST.task_of(on_training).measure(params)
    assert found.get("training_loss") == pytest.approx(whole.get(LOSS.name), rel=1e-6)
    assert found.get("loss") != found.get("training_loss")
    assert found.num_examples == len(data.y_test)


def test_claims_are_computed():
    """Of values made so that each claim holds but the last."""

    def said(found):
        return [holds for _, holds in figure2.claims(found)]

    values = {
        ("normalised, r = 0.01", False): (0.3, 0.95, (1.0, 0.5, 0.9, 0.3)),
        ("normalised, r = 1", False): (0.1, 0.96, (1.0, 0.9, 0.8, 0.7)),
        ("clipped, c = 0.1", False): (0.9, 0.60, (1.0, 0.9, 0.8, 0.7)),
        ("clipped, c = 1", False): (0.1, 0.96, (1.0, 0.9, 0.8, 0.7)),
        ("normalised, r = 0.01", True): (0.3, 0.50, (1.0,)),
        ("normalised, r = 1", True): (0.1, 0.96, (1.0,)),
        ("clipped, c = 0.1", True): (0.9, 0.90, (1.0,)),
        ("clipped, c = 1", True): (0.1, 0.96, (1.0,)),
    }
    found = {
        place: [{
            "training_loss": loss, "accuracy": accuracy, "curve_of": ["training_loss"],
            "curve": [[step, value] for step, value in enumerate(2 * curve)],
        }]
        for place, (loss, accuracy, curve) in values.items()
    }  # fmt: skip
    one = "in this one seed"
    assert said(found) == [*[f"yes {one}"] * 4, f"NO {one}"]
    several = {place: 3 * rows for place, rows in found.items()}
    assert said(several) == ["yes", "yes", "yes", "yes", "NO"]
    row = found["clipped, c = 0.1", False][0]
    losses = [{**row, "training_loss": loss} for loss in (0.9, 0.2, 0.0)]
    wide = several | {("clipped, c = 0.1", False): losses}  # +0.27 of 1.18
    assert said(wide)[2] == "not distinguished by 3 seeds"
    alike = several | {("clipped, c = 1", False): several["normalised, r = 0.01", False]}
    assert said(alike)[0] == "not distinguished by 3 seeds"
    calmer = several | {
        ("clipped, c = 1", False): several["normalised, r = 0.01", False],
        ("normalised, r = 0.01", False): several["clipped, c = 1", False],
    }
    assert said(calmer)[0] == "NO"
