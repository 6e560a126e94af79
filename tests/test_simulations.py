"""The tables of larger models run in their reduced size, on made-up data, and says so."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpriv.data.dataset import hold_out_public
from fedpriv.data.synthetic_reviews import synthetic_reviews
from fedpriv.reproduction import Run, perform
from simulations import dpnsgd, imdb, lstm, mnist, pooled_tags

CACHES = (
    imdb.reviews,
    lstm.dataset,
    lstm.task,
    mnist.dataset,
    mnist.task,
    pooled_tags.view,
    pooled_tags.pool,
    pooled_tags.task,
)


@pytest.fixture(autouse=True)
def small(monkeypatch, tiny_corpus):
    """Made-up data of a size for tests; what was cached of other data is forgotten."""
    for cached in CACHES:
        cached.cache_clear()
    digits = hold_out_public(mnist.synthetic_digits(200, 50), share=0.3)
    monkeypatch.setattr(mnist, "dataset", lambda: digits)
    reviews = synthetic_reviews(400, 50, num_words=200)
    monkeypatch.setattr(imdb, "reviews", lambda: reviews)
    monkeypatch.setattr(lstm, "SHORT", 5)
    seen = tiny_corpus.view(roster=tiny_corpus.default_roster)
    monkeypatch.setattr(pooled_tags, "view", lambda: seen)
    monkeypatch.setattr(pooled_tags, "split_public", lambda n, share: (
        np.arange(n - n // 3), np.arange(n - n // 3, n)
    ))  # fmt: skip
    yield
    for cached in CACHES:
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


TABLES = [*mnist.REPRODUCTIONS, *lstm.REPRODUCTIONS, *pooled_tags.REPRODUCTIONS]
CELLS = [
    pytest.param(table, row, column, id=f"{table.name}, {row.label}, {column}")
    for table in TABLES
    for row in (table.rows[0], table.rows[-1])  # the plainest and the one with most parts
    for column in row.cells
]


@pytest.mark.parametrize(("table", "row", "column"), CELLS)
def test_two_steps_of_a_cell(table, row, column):
    cell = row.cells[column]
    made = cell.make("validation", True).with_options(
        {**cell.grid[0], "epochs": "none", "steps": 2, "batch-size": 8, "public-batch": 4}
    )
    found = perform(Run(experiment=made, split="validation", seed=0, reduced=True))
    assert found["synthetic"] and found["unit"] == "example" and found["steps"] == 2
    assert math.isfinite(found[table.metric]) and found["epsilon"] > 0


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_tables_are_those_of_the_paper(table):
    """Figures of Tables 1 and 3, clip norms and rates of Table 5, σ to the clip norm."""
    assert [row.label for row in table.rows][:2] == ["DP-SGD", "DP-Adam"] and len(table.rows) == 5
    for row in table.rows:
        assert row.paper is not None
        assert len(row.cells["paper"].grid) == 1 and len(row.cells["right"].grid) >= 6
        for column, groups in (("paper", 4), ("right", 1)):
            made = row.cells[column].make("test", False)
            assert made.micro_batch == groups and made.batch_size == 64
            sigma = made.noise_multiplier * (2 if groups > 1 else 1)
            assert sigma == (0.95 if table is pooled_tags.TABLE1 else 1.0)


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
