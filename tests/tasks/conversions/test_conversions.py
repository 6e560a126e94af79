"""AUC loss against counting every pair and a private run that learns."""

import itertools
import math

import numpy as np
import pytest

from fedpriv.experiments.build import build
from fedpriv.experiments.ready_made.conversions import dp_sgd_conversions
from fedpriv.rng import Key
from fedpriv.runs.prepared import start_run
from fedpriv.tasks.dataset_tasks import auc_total
from tests.harness.refusals import refuses


def test_auc_loss_counts_pairs_and_ties_by_halves():
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 5, 40).astype(float), rng.integers(0, 2, 40)
    wrong = 0.0
    ones, zeros = scores[labels == 1], scores[labels == 0]
    for high, low in itertools.product(ones, zeros):
        wrong += 1.0 if low > high else 0.5 if low == high else 0.0
    found = auc_total(scores, labels)
    assert (found.sum, found.count) == (wrong, len(ones) * len(zeros))
    assert auc_total(np.array([0.0, 1.0]), np.array([0, 1])).value == 0.0
    assert auc_total(np.array([1.0, 0.0]), np.array([0, 1])).value == 1.0


@pytest.mark.slow
def test_a_private_run_ranks_better_than_chance(tmp_path):
    """Scores that know nothing fall below 0.4 in fewer than one in 10^9 such sets of labels."""
    experiment = dp_sgd_conversions().with_options({"log-rows": 10_000, "buckets": 300})
    prepared = start_run(experiment, None, None, tmp_path / "run")
    summary, task = prepared.run(), prepared.components.task
    assert summary["synthetic"] is True
    counted = task.evaluate(task.init_params(Key.simulation(0)), public=True)
    pairs = counted.totals["auc_loss"].count
    stddev = math.sqrt((counted.num_examples + 1) / (12 * pairs))  # Mann and Whitney's, of chance
    assert 0.5 - 6 * stddev > 0.4
    assert summary["auc_loss_public"] < 0.4


@pytest.mark.slow
def test_outputs_together_would_leave_its_headline_unmeasured():
    small = {"log-rows": 60, "buckets": 20, "batch-size": 10.0, "aggregate": "opa"}
    with refuses(ValueError, "AUC", "ema", "upa"):
        build(dp_sgd_conversions().with_options(small), None)
