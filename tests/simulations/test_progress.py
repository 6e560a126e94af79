"""Every item of `fedpriv reproduce` that is a program says how far it is, and how long is left."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import find_spec

import pytest

from fedpriv.runs.progress import Pace
from simulations.adadps import figure2, toy
from simulations.adadps.setups import mnist
from simulations.agd import methods as agd_methods
from simulations.agd import study as agd
from simulations.bolt_on import study as bolt_on
from simulations.dpnsgd import figure3, figure4
from simulations.reproduction.command import find_reproductions
from simulations.scraps import by_example, convex
from simulations.scraps.checkpoints import Aggregates
from simulations.scraps.tags import command as scraps_tags
from simulations.threads import ablation, by_thread

_FEW = ("--tiny", "--seeds", "1", "--target-epsilon", "1")
_SIDE = ("--study", *_FEW, "--side")
_NO_TRANSFORMERS = pytest.mark.skipif(
    find_spec("transformers") is None, reason="the extra `transformers` is not installed"
)

ITEMS = {
    "agd": (agd, ("--problem", "mnist-3-8", *_FEW, "--ablate", "mnist-3-8")),
    "bolt-on": (bolt_on, ("--study", "pair-svm", *_FEW, "--passes", "1")),
    "bolt-on-batches": (bolt_on, (*_SIDE, "batches")),
    "bolt-on-time": (bolt_on, (*_SIDE, "time")),
    "bolt-on-excess": (bolt_on, (*_SIDE, "excess")),
    "scraps-convex": (convex, ("--tiny", "--target-epsilon", "8")),
    "scraps-stackoverflow": (scraps_tags, ("aggregates", "--tiny", "--corpus", "CORPUS")),
    "scraps-pds": (scraps_tags, ("shift", "--tiny", "--corpus", "CORPUS")),
    "scraps-pcvr": (by_example, ("pcvr", "--reduced")),
    "adadps-figure2": (figure2, ("--reduced",)),
    "adadps-figure3": (toy, ("--reduced", "--plot", "PLOT")),
    "dpnsgd-figure3": (figure3, ("run", "--reduced", "--processes", "1", "--out", "FOLDER")),
    "dpnsgd-figure4-sst2": (figure4, ("--reduced", "--method", "dp-nsgd", "--out", "FOLDER")),
    "tags": (by_thread, ("--folds", "1", "--seeds", "1", "--corpus", "CORPUS")),
    "ablation-tags": (ablation, ("--folds", "1", "--seeds", "1", "--corpus", "CORPUS")),
}
_WITH_RESULTS = ("agd", "bolt-on", "scraps-s", "scraps-p", "dpnsgd", "tags", "ablation")
_SLOW = (
    "agd", "bolt-on-excess", "scraps-convex", "scraps-stackoverflow", "adadps-figure2",
    "dpnsgd-figure4-sst2", "tags", "ablation-tags",
)  # fmt: skip


@pytest.fixture
def small(monkeypatch):
    """Fewer steps where the tiniest size would take more than seconds."""
    for grid in agd_methods.GRIDS:
        few = agd_methods.GRIDS[grid][:1] if "sgd" in grid else agd_methods.GRIDS[grid][:2]
        monkeypatch.setitem(agd_methods.GRIDS, grid, few)
    few = {name: replace(method, steps=200) for name, method in toy.METHODS.items()}
    monkeypatch.setattr(toy, "METHODS", few)
    made = by_example.conversions(reduced=True)
    options = {"log-rows": 60, "epochs": 0.25, "batch-size": 10.0, "buckets": 20}
    which = Aggregates(decays=(0.8,), ks=(3,))
    made = replace(made, options={**made.options, **options}, which=which, seeds=2)
    monkeypatch.setitem(by_example.PROBLEMS, "pcvr", lambda reduced: made)
    digits = mnist.synthetic_digits(200, 50)
    monkeypatch.setattr(mnist, "dataset", lambda: digits)
    mnist.task.cache_clear()
    maps = figure3.heat_maps("mnist", True)

    def make(*place):
        few = {"epochs": "none", "steps": 2, "batch-size": 8}
        return maps.make(*place).with_options(few)

    maps_of_two_steps = replace(maps, make=make, decades=maps.decades[:1])
    monkeypatch.setattr(figure3, "heat_maps", lambda key, reduced: maps_of_two_steps)
    yield
    mnist.task.cache_clear()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.slow] * (name in _SLOW)
            + [_NO_TRANSFORMERS] * (name == "dpnsgd-figure4-sst2"),
        )
        for name in ITEMS
    ],
)
def test_says_how_much_is_done_and_how_long_is_left(
    name, tiny_corpus, tmp_path, capsys, monkeypatch
):
    """Red before: most said what they did, not how much of how much, nor the time left."""
    paces = []
    begin = Pace.__init__

    def begun(pace, *arguments, **more):
        begin(pace, *arguments, **more)
        paces.append(pace)

    monkeypatch.setattr(Pace, "__init__", begun)
    places = {"CORPUS": tiny_corpus.directory, "FOLDER": tmp_path, "PLOT": tmp_path / "plot.png"}
    module, given = ITEMS[name]
    arguments = [str(places.get(one, one)) for one in given]
    if name.startswith(_WITH_RESULTS):
        arguments += ["--results", str(tmp_path / "results.jsonl")]
    module.main(arguments)
    said = re.findall(r"\((\d+) of (\d+) \w+(, .* left)?\)$", capsys.readouterr().err, re.M)
    (total,) = {total for _, total, _ in said}
    assert said[0][0] == "0" and any(left for *_, left in said)
    # What was planned is what was done: none is forgotten, and none counted twice.
    assert f"{total} of {total}" in [" ".join(str(pace).split()[:3]) for pace in paces]


def test_minutes_are_listed_of_every_item():
    assert all(item.minutes[0] > 0 for item in find_reproductions().values())
