"""What one user of tag prediction does: nothing without examples, and no more than its cap."""

import numpy as np
from scipy import stats

from fedpriv import tree
from fedpriv.mechanisms import Clip
from fedpriv.rng import Key
from fedpriv.training.local.schedule import Schedule
from fedpriv.training.local.softmax import CompiledSoftmaxTrainer
from fedpriv.training.work import as_work
from tests.training.local.tag_examples import MULTIPLIER, PARAMS, assert_close, make_examples


class TestEmpty:
    def test_an_empty_user_is_zero_and_does_not_fail(self):
        trainer = CompiledSoftmaxTrainer(
            schedule=Schedule(learning_rate=0.5), multiplier=MULTIPLIER
        )

        class Data:
            def examples(self, user_id):
                return make_examples(0 if user_id == "none" else 5)

        update = trainer.train(PARAMS, make_examples(0), Key.simulation(0))
        tree.check_like(PARAMS, update)
        assert tree.l2_norm(update) == 0.0
        results = [
            as_work(trainer).partial_sum(
                params=PARAMS,
                bound=Clip(l2_clip_norm=1.0),
                data=Data(),
                user_ids=users,
                key=Key.simulation(0),
            )
            for users in (["some"], ["none", "some"])
        ]
        assert results[1].num_failed == 0
        assert_close(results[1].real(), tree.to_dense(results[0].real()), rtol=0, atol=0)


class Counted:
    """Examples that remember who was asked for."""

    def __init__(self, number):
        self.number, self.taken = number, []
        self.inner = make_examples(min(number, 2000), seed=4)

    def __len__(self):
        return self.number

    @property
    def labels(self):
        return self.inner.labels

    def take(self, index):
        self.taken.append(np.asarray(index))
        return self.inner.take(index)


class TestCap:
    def test_work_does_not_follow_the_size_of_a_user(self):
        schedule = Schedule(learning_rate=0.1, batch_size=8, epochs=2, max_examples=20)
        trainer = CompiledSoftmaxTrainer(schedule=schedule)
        for number, steps in ((5, 2), (20, 6), (21, 6), (2000, 6)):
            examples = Counted(number)
            trainer.train(PARAMS, examples, Key.simulation(0))
            (taken,) = examples.taken
            assert len(taken) == len(set(taken.tolist())) == min(number, 20)
            batches = schedule.batches(len(taken), np.random.default_rng(0))
            assert len(batches) == steps and max(map(len, batches)) <= 8

    def test_every_epoch_visits_every_chosen_example_once(self):
        schedule = Schedule(learning_rate=0.1, batch_size=8, epochs=3, max_examples=30)
        steps = schedule.batches(30, np.random.default_rng(0))
        for epoch in range(3):
            seen = np.concatenate(steps[4 * epoch : 4 * epoch + 4])
            assert sorted(seen.tolist()) == list(range(30))
        assert [len(step) for step in steps] == [8, 8, 8, 6] * 3
        assert steps[4].tolist() != steps[8].tolist()

    def test_the_subset_is_new_at_every_participation_and_reaches_everybody(self):
        """400 participations of 20 of 50: each example's count is Binomial(400, 0.4); α = 1e-6."""
        schedule = Schedule(learning_rate=0.1, max_examples=20)
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
