"""Every study says how far it is, and publishes a page and a picture that say what they are of."""

import re
from dataclasses import replace
from importlib.util import find_spec

import pytest

from fedpriv.datasets.dataset import hold_out_public
from fedpriv.runs.progress import Pace
from simulations.adadps import toy
from simulations.adadps.public_only import examples
from simulations.adadps.setups import imdb, mnist
from simulations.agd import study as agd
from simulations.checkpoint_recycling import problems
from simulations.checkpoint_recycling.checkpoints import Aggregates
from simulations.dpnsgd import figure3, images
from simulations.linear_models.study import Axis, Grid
from simulations.reproduction.command import find_reproductions

#: Of every function a study that is listed, with what makes it smaller still.
ITEMS = {
    "agd-mnist-3-8": {"seeds": 1, "epsilons": (1.0,), "ablated": (1.0,)},
    "bolt-on-pair-svm": {"seeds": 1},
    "bolt-on-imdb": {"seeds": 1},
    "bolt-on-batches": {"seeds": 1},
    "bolt-on-time": {},
    "bolt-on-excess": {"seeds": 1},
    "recycling-convex": {"epsilons": (8.0,)},
    "recycling-stackoverflow": {},
    "recycling-pds": {},
    "recycling-uncertainty": {},
    "recycling-words": {"seeds": 1},
    "recycling-pcvr": {},
    "adadps-figure2": {},
    "adadps-figure3": {},
    "dpnsgd-figure2-mnist": {"seeds": 1},
    "dpnsgd-figure3-mnist": {},
    "dpnsgd-figure4-sst2": {"methods": ("dp-nsgd",)},
    "tags": {},
    "ablation-tags": {"seeds": 1},
    "defaults": {"epsilons": (8.0,)},
    "public-only-examples": {"draws": 2},
}
#: Without a picture in their smallest form.
_UNDRAWN = ("bolt-on-batches", "bolt-on-time", "ablation-tags")
#: δ, relation, unit and accountant, which a page with an ε has.
TERMS = ("δ", "add-remove|replace-one|zero-out", "per (user|example)|-level", "PLD|RDP|zCDP")
_NO_TRANSFORMERS = pytest.mark.skipif(
    find_spec("transformers") is None, reason="the extra `pretrained` is not installed"
)


@pytest.fixture
def small(monkeypatch):
    """Fewer steps where the tiniest size would take more than seconds."""
    few = {"splits": Axis(values=(7, 10), first=(7, 10))}
    monkeypatch.setattr(agd, "GRIDS", {**agd.GRIDS, "agd-paper": Grid(few)})
    monkeypatch.setattr(agd, "ABLATIONS", {"as chosen": {}, "γ = 0.5": {"growth": 0.5}})
    few = {name: replace(method, steps=200) for name, method in toy.METHODS.items()}
    monkeypatch.setattr(toy, "METHODS", few)
    made = problems.conversions(reduced=True)
    options = {"log-rows": 60, "epochs": 0.25, "batch-size": 10.0, "buckets": 20}
    which = Aggregates(decays=(0.8,), ks=(3,))
    made = replace(made, options={**made.options, **options}, which=which, seeds=2)
    monkeypatch.setitem(problems.PROBLEMS, "pcvr", lambda reduced: made)
    digits = mnist.synthetic_digits(200, 50)
    monkeypatch.setattr(mnist, "dataset", lambda: digits)
    few = {"rates": (0.001, 0.003), "most_passes": 2}
    alone = replace(
        examples.STUDIES["mnist"],
        data=lambda draw: hold_out_public(digits, share=0.2, seed=draw),
        public=few,
    )
    monkeypatch.setitem(examples.STUDIES, "mnist", alone)
    monkeypatch.setitem(images.SETUPS, "mnist", replace(images.MNIST, batch_size=8))
    cached = (mnist.task, images._task, images._curves_task)
    for function in cached:
        function.cache_clear()
    maps = figure3.heat_maps("mnist", True)

    def make(grid):
        few = {"epochs": "none", "steps": 2, "batch-size": 8}
        return lambda *place: grid.make(*place).with_options(few)

    of_two_steps = [replace(grid, make=make(grid), sizes=grid.sizes[:1]) for grid in maps]
    monkeypatch.setattr(figure3, "heat_maps", lambda key, reduced: of_two_steps)
    yield
    for function in cached:
        function.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=_NO_TRANSFORMERS if name == "dpnsgd-figure4-sst2" else ())
        for name in ITEMS
    ],
)
def test_progress_page_and_picture(name, tiny_corpus, tmp_path, capsys, monkeypatch):
    paces = []
    begin = Pace.__init__

    def begun(pace, *arguments, **more):
        begin(pace, *arguments, **more)
        paces.append(pace)

    monkeypatch.setattr(Pace, "__init__", begun)
    study, options = find_reproductions()[name], ITEMS[name]
    places = {"corpus": str(tiny_corpus.directory), "plot": tmp_path / "plot.svg",
              "out": tmp_path / "page.md", "corpora": str(tmp_path)}  # fmt: skip
    given = {name: value for name, value in places.items() if study.takes(name)}
    study.run(**{**study.options, **(study.reduced or {}), **options, **given})
    shown, progress = capsys.readouterr()
    said = re.findall(r"\((\d+) of (\d+) \w+(, .* left)?\)$", progress, re.M)
    (total,) = {total for _, total, _ in said}
    assert said[0][0] == "0" and any(left for *_, left in said)
    # What was planned is what was done: none is forgotten, and none counted twice.
    assert f"{total} of {total}" in [" ".join(str(pace).split()[:3]) for pace in paces]
    if study.takes("out"):
        page = (tmp_path / "page.md").read_text("utf-8")
        assert "SYNTHETIC" in page.upper() and "nan" not in page and "± inf" not in page
        assert not re.search(r"ε = \d", page) or all(re.search(term, page) for term in TERMS), page
        assert page.splitlines()[-1] in shown
    if study.takes("plot") and name not in _UNDRAWN:
        (picture, *_) = tmp_path.glob("plot*.svg")
        real = name == "adadps-figure2" and not imdb.reviews().synthetic
        assert ("SYNTHETIC" in picture.read_text("utf-8")) != real
