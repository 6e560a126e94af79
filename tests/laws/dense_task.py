"""A small convolutional model on users of ragged sizes, for backends and their workers."""

import numpy as np
from torch import nn

from fedpriv.backends import SerialBackend
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.local.module import ArrayExamples
from fedpriv.training.local.schedule import Schedule

#: Steep, so that a last bit does not stay one.
SCHEDULE = Schedule(learning_rate=2.0, batch_size=4, epochs=2, max_examples=20)
SIZES = (7, 1, 4, 23, 2, 12, 0, 5, 9, 16, 3, 8)


def module():
    layers = [nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * 4 * 4, 3))


def users():
    for number, size in enumerate(SIZES):
        rng = np.random.default_rng(number)
        x = rng.normal(size=(size, 1, 6, 6)).astype(np.float32)
        yield f"user-{number:02d}", ArrayExamples(x, rng.integers(0, 3, size))


def task(users_at_once):
    return ModuleTask(
        name="dense",
        module=module,
        loss=nn.functional.cross_entropy,
        users=dict(users()),
        users_at_once=users_at_once,
        synthetic=True,
    )


def open_worker(device, users_at_once):
    """Return what a worker works with."""
    own = task(users_at_once)
    return SerialBackend(
        trainer=own.trainer(SCHEDULE, {}, device), data=own.data, measure=own.evaluate
    )
