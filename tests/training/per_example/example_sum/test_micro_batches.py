"""Micro-batches: how examples are grouped, and what their noise is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from fedpriv.experiments.build import build
from fedpriv.training.per_example.example_sum import CentralSum
from fedpriv.training.per_example.linear import LogisticGradients
from tests.harness.toys_of_training import contributed, zeros
from tests.training.per_example.example_sum.reviews import BASE, DIM, KEY, SHAPES, task

EXPERIMENT = BASE.with_options({"micro-batch": 4})


def test_the_plan_pays_for_twice_the_bound():
    plan, plain = build(EXPERIMENT).plan, build(BASE).plan
    mechanism, alone = plan.live_mechanism, plain.live_mechanism
    assert mechanism.sensitivity == 2 * alone.sensitivity == 0.6
    assert mechanism.stddev == 2 * alone.stddev
    assert plan.epsilon(6) == plain.epsilon(6)
    assert mechanism.denominator == build(EXPERIMENT).trainer.num_groups == 5


@pytest.mark.slow
def test_the_papers_noise_is_half_as_much_of_that():
    """IMDB: σ = 1 to the clip norm is 0.5 to the sensitivity; the authors counted 1.51."""
    size = {"batch_size": 64, "steps": 12_500, "micro_batch": 4}
    imdb = BASE.with_options({**size, "noise_multiplier": 0.5, "delta": 4e-5})
    big = replace(task(), num_train=25_000)
    spent = build(imdb, task=big).plan.epsilon(12_500)
    assert spent.rdp == pytest.approx(12.7, abs=0.05)
    counted = build(imdb.with_options({"noise_multiplier": 1.0, "micro_batch": 1}), task=big)
    assert counted.plan.epsilon(12_500).rdp == pytest.approx(1.512, abs=1e-3)


class Grouping(LogisticGradients):
    """Notes the groups that are summed."""

    def stacks(self, params, index, key=None):
        self.groups = {frozenset(group.tolist()) for group in index}
        return super().stacks(params, index, key)


class TestGroupsByCoin:
    """In which micro-batch an example is, its position and the round's key say, and nobody else."""

    def groups(self, drawn, key):
        x = np.random.default_rng(5).normal(size=(40, DIM)).astype(np.float32)
        gradients = Grouping(sparse.csr_matrix(x), (x[:, 0] > 0).astype(np.int64))
        work = CentralSum(gradients=gradients, num_examples=40, num_groups=4)
        contributed(work, zeros(**SHAPES), ids=drawn, key=key)
        return gradients.groups

    def test_whoever_leaves_moves_nobody_else(self):
        drawn = list(range(0, 40, 2))
        whole = self.groups(drawn, KEY)
        assert sorted(i for group in whole for i in group) == drawn and len(whole) == 4
        for gone in drawn:
            rest = self.groups([i for i in drawn if i != gone], KEY)
            assert rest == {group - {gone} for group in whole} - {frozenset()}

    def test_nor_does_the_order_of_arrival(self):
        drawn = list(range(0, 40, 2))
        assert self.groups(drawn[::-1], KEY) == self.groups(drawn, KEY)

    def test_every_round_and_attempt_has_coins_of_its_own(self):
        keys = [KEY.fold(round_num).fold(attempt) for round_num in (1, 2) for attempt in (1, 2)]
        found = [frozenset(self.groups(range(40), key)) for key in keys]
        assert len(set(found)) == 4
