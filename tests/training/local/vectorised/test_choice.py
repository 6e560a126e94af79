"""When users are trained at once, and how many."""

import pytest

from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.local.module import ModuleTrainer
from fedpriv.training.local.trainer import Schedule
from fedpriv.training.local.vectorised import VectorisedTrainer, users_that_fit
from tests.training.local.vectorised.users import (
    built,
    cohort,
    cross_entropy,
    examples_of,
    mlp,
    trainers,
)


class TestChoice:
    def task(self, module, **changes):
        return ModuleTask(
            name="t",
            module=lambda: module,
            loss=cross_entropy,
            users=cohort((12,), (3, 4)),
            **changes,
        )

    def trainer(self, task, **changes):
        return task.trainer(Schedule(learning_rate=0.1), {}, **changes)

    def test_the_cpu_trains_one_by_one_unless_asked(self):
        assert isinstance(self.trainer(self.task(mlp()[0])), ModuleTrainer)
        assert isinstance(self.trainer(self.task(mlp()[0], users_at_once=1)), ModuleTrainer)
        many = self.trainer(self.task(mlp()[0], users_at_once=16))
        assert isinstance(many, VectorisedTrainer) and many.users_at_once == 16

    @pytest.mark.parametrize("number", [0, -1, True])
    def test_a_senseless_number_is_refused(self, number):
        with pytest.raises(ValueError, match="users_at_once"):
            self.task(mlp()[0], users_at_once=number)
        alone, _ = trainers(mlp()[0])
        with pytest.raises(ValueError, match="users_at_once"):
            VectorisedTrainer(alone=alone, users_at_once=number)

    def test_memory_decides_how_many_fit(self):
        module, shape = built("cnn")
        alone, _ = trainers(module, batch_size=8)
        x = examples_of(3, shape, seed=0).x
        few, many = (users_that_fit(alone, x, num_bytes) for num_bytes in (1 << 17, 1 << 18))
        assert 1 < few < many < 32
        assert users_that_fit(alone, x, 0) == 1
        assert users_that_fit(alone, x, 1 << 40) == 32
        larger, _ = trainers(module, batch_size=32)
        assert users_that_fit(larger, x, 1 << 18) < many
