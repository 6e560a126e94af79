"""When users are trained at once, and how many."""

from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.local.schedule import Schedule
from fedpriv.training.local.vectorised import users_that_fit
from tests.training.local.vectorised.users import (
    built,
    cohort,
    cross_entropy,
    examples_of,
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
