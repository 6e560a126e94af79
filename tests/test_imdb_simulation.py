"""AdaDPS's IMDB tables: every method runs, every cell is tuned, and the noise is what it says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpriv.central_experiment import build_central
from fedpriv.data.synthetic_reviews import synthetic_reviews
from fedpriv.reproduction import Run, perform
from fedpriv.training.central_task import CentralTask, zeros
from simulations import imdb, imdb_tables

COLUMNS = ("paper", "right")
CELLS = [
    pytest.param(row.label, column, cell, id=f"{table.name}-{row.label}-{column}")
    for table in imdb_tables.REPRODUCTIONS
    for row in table.rows
    for column, cell in row.cells.items()
]


@pytest.fixture(scope="module", autouse=True)
def made_up():
    """Stand-in reviews, so that the tests need no download; nothing of them stays cached."""
    texts = synthetic_reviews(2_000, 200)

    def clear():
        imdb.dataset.cache_clear()
        imdb.task.cache_clear()

    with pytest.MonkeyPatch.context() as patch:
        clear()
        patch.setattr(imdb, "reviews", lambda: texts)
        yield texts
    clear()


class TestMethods:
    @pytest.mark.parametrize("column", COLUMNS)
    @pytest.mark.parametrize("method", imdb.METHODS, ids=lambda method: method.label)
    def test_thirty_steps(self, method, column):
        made = imdb.experiment(method, column).with_options({"epochs": None, "steps": 30})
        line = perform(Run(experiment=made, split="test", seed=0, reduced=True))
        assert line["synthetic"] is True and line["experiment"] == f"synthetic-reviews-{column}"
        assert line["steps"] == 30 and line["unit"] == "example" and line["delta"] == 4e-5
        assert 0 <= line["accuracy"] <= 1 and math.isfinite(line["loss"])
        assert (line["epsilon"] is not None) == method.private
        if made.guide == "side-information":
            assert line["side_information"] == ("private" if column == "paper" else "public")

    def test_labels_are_names(self):
        labels = [method.label for method in imdb.METHODS]
        assert len(set(labels)) == len(labels)

    def test_what_is_not_private_says_so(self):
        assert all("(not private)" in m.label for m in imdb.METHODS if not m.private)
        assert not any("(not private)" in m.label for m in imdb.METHODS if m.private)


class TestSplits:
    @pytest.mark.parametrize("column", COLUMNS)
    def test_validation_is_a_tenth_of_the_private_training_set(self, column):
        data = imdb.dataset(column)
        whole, held = imdb.task(column, "test"), imdb.task(column, "validation")
        assert whole.num_train == data.num_train == 1_980
        assert held.num_train == 1_980 - 198
        params = whole.init_params(None)
        assert held.evaluate(params, public=True).num_examples == 198
        assert whole.evaluate(params, public=True).num_examples == 200

    def test_public_reviews_are_no_private_ones(self):
        for column in COLUMNS:
            assert imdb.task(column, "test").num_public + imdb.dataset(column).num_train == 2_000

    def test_only_the_papers_column_takes_from_private_reviews(self):
        for kind in ("frequency", "tf-idf", "magnitude"):
            for column, source in (("paper", "private"), ("right", "public")):
                side = imdb.task(column, "test").side_information(kind)
                assert side.source == source
                multiplier = side.multiplier["weight"]
                assert multiplier.shape == (imdb.NUM_WORDS,) and (multiplier > 0).all()


class TestTables:
    @pytest.mark.parametrize(("label", "column", "cell"), CELLS)
    def test_every_cell_has_a_method_and_a_grid(self, label, column, cell):
        [method] = [method for method in imdb.METHODS if method.label == label]
        given = column == "paper" and method.paper is not None
        if given:
            clip, rate = method.paper
            assert all(s["l2-clip-norm"] == clip for s in cell.grid)
            assert all(s["learning-rate"] == rate for s in cell.grid)
        assert len(cell.grid) == 1 if given and "AdaDPS" not in label else len(cell.grid) >= 3
        options = [tuple(sorted(settings.items())) for settings in cell.grid]
        assert len(set(options)) == len(options)

    @pytest.mark.parametrize(("label", "column", "cell"), CELLS)
    def test_every_setting_fits(self, label, column, cell):
        for split in ("validation", "test"):
            made = cell.make(split, True)
            assert made.name.endswith(column)
            for settings in cell.grid:
                made.with_options(settings)

    def test_every_method_is_in_a_table(self):
        shown = {row.label for table in imdb_tables.REPRODUCTIONS for row in table.rows}
        assert shown == {method.label for method in imdb.METHODS}

    def test_orderings_are_of_rows(self):
        for table in imdb_tables.REPRODUCTIONS:
            labels = {row.label for row in table.rows}
            assert all({one, other} <= labels for one, other in table.orderings), table.name

    def test_orderings_are_those_of_the_papers_figures(self):
        for table in imdb_tables.REPRODUCTIONS:
            paper = {row.label: row.paper for row in table.rows}
            assert all(paper[one] > paper[other] for one, other in table.orderings), table.name

    def test_one_method_has_one_grid_in_every_table(self):
        """Or two tables would tune the same method twice and show two figures."""
        grids = {}
        for param in CELLS:
            label, column, cell = param.values
            assert grids.setdefault((label, column), cell.grid) == cell.grid

    def test_the_reduced_size_is_smaller(self):
        for reduced, epochs in ((False, 32), (True, 2)):
            made = imdb_tables.TABLE1.rows[0].cells["right"].make("test", reduced)
            assert made.epochs == epochs


def of_the_real_size(label, column):
    """The plan on 24,750 examples, 25,000 without the public hundredth."""
    [method] = [method for method in imdb.METHODS if method.label == label]
    stand_in = CentralTask(
        name="as large",
        train=imdb.task(column, "test").train,
        num_train=24_750,
        init=zeros({"weight": (imdb.NUM_WORDS,), "bias": (1,)}),
        measure=lambda params: None,
    )
    made = imdb.experiment(method, column, clip_norm=0.4)
    return build_central(made, stand_in)


class TestNoise:
    @pytest.mark.parametrize("column", COLUMNS)
    def test_its_deviation_is_the_clip_norm(self, column):
        """σ = 1 to the clip norm in both columns, whatever one example can do."""
        promised = of_the_real_size("DP-SGD", column).plan
        assert promised.stddev == pytest.approx(1.0 * 0.4)
        assert promised.sensitivity == pytest.approx(0.4 * (2 if column == "paper" else 1))

    def test_micro_batches_are_of_four(self):
        parts = of_the_real_size("DP-SGD", "paper")
        assert parts.plan.micro_batch == 4 and parts.plan.denominator == 16
        assert parts.trainer.num_groups == 16

    @pytest.mark.parametrize(("column", "rdp"), [("paper", 12.7), ("right", 1.51)])
    def test_epsilon(self, column, rdp):
        """As the paper counted it was 1.51; in micro-batches that is truly 12.7."""
        promised = of_the_real_size("DP-SGD", column).plan
        assert promised.num_rounds == 12_375 == math.ceil(32 * 24_750 / 64)
        spent = promised.epsilon(promised.num_rounds)
        assert abs(spent.rdp - rdp) < 0.1
        assert spent.value < spent.rdp and spent.delta == 4e-5

    def test_the_ideal_adds_the_noise_it_does_not_promise(self):
        for column in COLUMNS:
            parts = of_the_real_size("ideal (not private)", column)
            assert not parts.plan.is_private and parts.side_information.source == "private"
            assert parts.round.unpromised_stddev == pytest.approx(0.4)


def test_made_up_reviews_stand_in_where_the_real_ones_are_missing():
    """And say that they are made up, in the name too."""

    def missing():
        raise ValueError("not to be had")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(imdb, "load_imdb", missing)
        found = ORIGINAL.__wrapped__()
    assert found.synthetic and "synthetic" in found.name
    assert np.asarray(found.train.labels).size > 0


ORIGINAL = imdb.reviews
