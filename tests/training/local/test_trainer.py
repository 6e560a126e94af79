"""What one user of tag prediction does: nothing without examples, and no more than its cap."""

import numpy as np
from scipy import stats

from fedpriv import tree
from fedpriv.rng import Key
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.softmax import CompiledSoftmaxTrainer
from tests.harness.toys_of_training import KEY, assert_same, contributed
from tests.training.local.tag_examples import MULTIPLIER, PARAMS, make_examples


def test_an_empty_user_is_zero_and_does_not_fail():
    trainer = CompiledSoftmaxTrainer(schedule=LocalSgd(learning_rate=0.5), multiplier=MULTIPLIER)
    users = {"some": make_examples(5), "none": make_examples(0)}
    update = trainer.train(PARAMS, NO_CONTEXT, users["none"], KEY)
    tree.check_like(PARAMS, update)
    assert tree.l2_norm(update) == 0.0
    alone, both = (contributed(trainer, PARAMS, users, ids) for ids in (["some"], users))
    assert both.num_failed == 0
    assert_same(both.real(), alone.real())


class Counted:
    """Examples that remember who was asked for."""

    def __init__(self, number):
        self.inner, self.taken = make_examples(number, seed=4), []
        self.labels = self.inner.labels

    def __len__(self):
        return len(self.labels)

    def take(self, index):
        self.taken.append(np.asarray(index))
        return self.inner.take(index)


class TestCap:
    def test_work_does_not_follow_the_size_of_a_user(self):
        schedule = LocalSgd(learning_rate=0.1, batch_size=8, epochs=2, max_examples_per_user=20)
        for number, steps in ((5, 2), (20, 6), (21, 6), (2000, 6)):
            examples = Counted(number)
            CompiledSoftmaxTrainer(schedule=schedule).train(PARAMS, NO_CONTEXT, examples, KEY)
            (taken,) = examples.taken
            assert len(taken) == len(set(taken.tolist())) == min(number, 20)
            batches = schedule.batches(len(taken), np.random.default_rng(0))
            assert len(batches) == steps and max(map(len, batches)) <= 8

    def test_every_epoch_visits_every_chosen_example_once(self):
        schedule = LocalSgd(learning_rate=0.1, batch_size=8, epochs=3, max_examples_per_user=30)
        steps = schedule.batches(30, np.random.default_rng(0))
        for epoch in range(3):
            seen = np.concatenate(steps[4 * epoch : 4 * epoch + 4])
            assert sorted(seen.tolist()) == list(range(30))
        assert [len(step) for step in steps] == [8, 8, 8, 6] * 3
        assert steps[4].tolist() != steps[8].tolist()

    def test_the_subset_is_new_at_every_participation_and_reaches_everybody(self):
        """400 participations of 20 of 50: each example's count is Binomial(400, 0.4); α = 1e-6."""
        schedule = LocalSgd(learning_rate=0.1, max_examples_per_user=20)
        root = Key.simulation(0).fold("users")
        subsets, counts = set(), np.zeros(50)
        for round_num in range(1, 401):
            rng = root.fold(round_num).fold(1).fold("u").generator()
            chosen = schedule.choose(50, rng)
            subsets.add(tuple(sorted(chosen.tolist())))
            counts[chosen] += 1
        assert len(subsets) == 400
        deviation = np.abs(counts - 160) / np.sqrt(400 * 0.4 * 0.6)
        assert deviation.max() < stats.norm.isf(1e-6 / 2 / 50)
