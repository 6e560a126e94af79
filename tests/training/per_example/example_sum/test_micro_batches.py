"""Micro-batches: how examples are grouped, and what their noise is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedpriv.experiments.build import build
from fedpriv.mechanisms import Clip
from fedpriv.training.per_example.example_sum import CentralSum
from fedpriv.training.per_example.linear import LinearRegressionGradients
from tests.training.per_example.example_sum.reviews import BASE, KEY, SHAPES, recording, task


class TestMicroBatches:
    """Groups of examples bounded by their mean: one example moves the sum by up to 2C."""

    EXPERIMENT = BASE.with_options({"micro-batch": 4})

    def total(self, examples, trainer, round_num=1):
        done = trainer.partial_sum(
            params={n: np.zeros(s, np.float32) for n, s in SHAPES.items()},
            bound=Clip(l2_clip_norm=0.01),  # everything is clipped
            user_ids=[str(i) for i in examples],
            key=KEY.fold(round_num),
        )
        return np.concatenate([done.total[n] for n in sorted(SHAPES)])

    def test_an_example_moves_the_sum_by_twice_the_bound_and_no_more(self):
        components = build(self.EXPERIMENT)
        assert components.trainer.num_groups == 5
        moved = []
        for round_num in range(20):
            drawn = list(range(round_num, 60))
            whole = self.total(drawn, components.trainer, round_num)
            for left_out in drawn[::7]:
                rest = self.total(
                    [i for i in drawn if i != left_out], components.trainer, round_num
                )
                moved.append(np.linalg.norm(whole - rest))
        assert max(moved) <= 2 * 0.01 * (1 + 1e-6)

    def test_more_than_the_bound_is_reached(self):
        """Two examples of one group that point apart: leaving one out turns the group around."""
        x = np.array([[3.0], [-2.0]], np.float32)
        gradients = LinearRegressionGradients(x, np.array([-1.0, -1.0]))
        trainer = CentralSum(gradients=gradients, num_examples=2, num_groups=1)
        sums = [
            trainer.partial_sum(
                params={"weight": np.zeros(1, np.float32)},
                bound=Clip(l2_clip_norm=0.01),
                user_ids=cohort,
                key=KEY,
            ).total["weight"][0]
            for cohort in (("0", "1"), ("1",))
        ]
        assert abs(sums[0] - sums[1]) == pytest.approx(0.02, rel=1e-5)

    def test_the_plan_pays_for_it(self):
        plan, plain = build(self.EXPERIMENT).plan, build(BASE).plan
        mechanism, alone = plan.live_mechanism, plain.live_mechanism
        assert mechanism.sensitivity == 2 * alone.sensitivity == 0.6
        assert mechanism.stddev == 2 * alone.stddev
        assert plan.epsilon(6) == plain.epsilon(6)
        assert mechanism.denominator == 5

    @pytest.mark.slow
    def test_the_papers_noise_is_half_as_much_of_that(self):
        """IMDB: σ = 1 to the clip norm is 0.5 to the sensitivity; the authors counted 1.51."""
        size = {"batch_size": 64, "steps": 12_500, "micro_batch": 4}
        imdb = BASE.with_options({**size, "noise_multiplier": 0.5, "delta": 4e-5})
        big = replace(task(), num_train=25_000)
        spent = build(imdb, task=big).plan.epsilon(12_500)
        assert spent.rdp == pytest.approx(12.7, abs=0.05)
        counted = build(imdb.with_options({"noise_multiplier": 1.0, "micro_batch": 1}), task=big)
        assert counted.plan.epsilon(12_500).rdp == pytest.approx(1.512, abs=1e-3)


class TestGroupsByCoin:
    """In which micro-batch an example is, its position and the round's key say, and nobody else."""

    def groups(self, drawn, key):
        gradients = recording(40, 5)
        CentralSum(gradients=gradients, num_examples=40, num_groups=4).partial_sum(
            params={n: np.zeros(s, np.float32) for n, s in SHAPES.items()},
            bound=Clip(l2_clip_norm=1.0),
            user_ids=[str(i) for i in drawn],
            key=key,
        )
        return gradients.groups[0]

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
