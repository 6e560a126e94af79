"""Slots of a batch follow from the model, the device and the user's own size."""

import contextlib

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.rng import Key
from fedpriv.training.local import vectorised
from fedpriv.training.local.module import ArrayExamples, ModuleTrainer, module_params
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.vectorised import Cost, VectorisedTrainer
from tests.harness.toys_of_training import cross_entropy
from tests.tasks.people import task
from tests.training.local.vectorised.users import CLASSES, built, cohort, examples_of, trainers

KIND = (4, (12,), "float32", (), "int64")


def of(module, **changes):
    return task(module=module, users=cohort((12,), (3, 4)), public=None, **changes)


class Pooled(nn.Module):
    """A layer at each place of any length, and a head on their mean."""

    def __init__(self):
        super().__init__()
        self.wide, self.head = nn.Linear(256, 256), nn.Linear(256, 2)

    def forward(self, x):
        return self.head(self.wide(x).mean(dim=1))


class TestChoice:
    def test_operations_and_memory_of_an_example_are_counted(self):
        module, shape = built("mlp")
        alone, _ = trainers(module)
        cost = Cost.of(alone, examples_of(3, shape, seed=0).x)
        assert cost.flops == 3 * 2 * (12 * 9 + 9 * CLASSES)
        assert cost.num_bytes >= 4 * (12 + 9)  # the input and the hidden layer, float32
        assert Cost.of(alone, examples_of(0, shape, seed=0).x) == Cost()

    def test_work_and_memory_decide_how_many_fit(self, monkeypatch):
        module, _ = built("mlp")
        alone, _ = trainers(module)

        def slots(cost, width=4):
            many = VectorisedTrainer(alone=alone)
            monkeypatch.setattr(VectorisedTrainer, "cost", lambda self, shape, dtype: cost)
            return many.slots((width, *KIND[1:]))

        assert slots(Cost()) == 32
        assert slots(Cost(flops=2e9 / 4 / 8)) == 8 and slots(Cost(flops=2e9 / 4 / 8), 8) == 4
        assert slots(Cost(flops=1e12)) == 4
        assert slots(Cost(num_bytes=1 << 24)) == 8
        monkeypatch.setattr(vectorised, "_GPU_BYTES", 1)
        assert slots(Cost()) == 1

    def test_they_are_of_a_users_own_shape_whatever_others_are(self):
        """Another user's long text leaves this one's batches as they are."""

        def slots(longest):
            users = {
                name: (np.ones((3, length, 256), np.float32), np.arange(3) % 2)
                for name, length in (("ann", longest), ("bob", 8))
            }
            own = task(module=Pooled, users=users, public=None)
            many = own.trainer(LocalSgd(learning_rate=0.1), {}, device="cpu")
            return many.slots((4, (8, 256), "float32", (), "int64"))

        assert slots(8) == slots(2048) == 32

    @pytest.mark.slow
    def test_a_device_trains_many_and_none_one_by_one(self):
        schedule = LocalSgd(learning_rate=0.1)

        def made(device, **changes):
            return of(lambda: built("mlp")[0], **changes).trainer(schedule, {}, device=device)

        assert isinstance(made(None), ModuleTrainer)
        assert isinstance(made(None, users_at_once=1), ModuleTrainer)
        assert made(None, users_at_once=4).slots(KIND) == 4
        assert made("cpu").slots(KIND) == 32
        assert made("cpu", users_at_once=2).slots(KIND) == 2

    @pytest.mark.slow
    def test_whole_numbers_beyond_the_model_are_tried_before_a_gpu_sees_them(self, monkeypatch):
        """A label is refused; as large a count, of which the loss makes nothing else, is not."""
        params, key = module_params(built("mlp")[0]), Key.simulation(0)
        good = examples_of(3, (12,), seed=0)

        def counted(outputs, targets):
            return nn.functional.poisson_nll_loss(outputs[:, 0], targets.float())

        for loss, refused in ((cross_entropy, True), (counted, False)):
            own = of(lambda: built("mlp")[0], loss=loss)
            many = own.trainer(LocalSgd(learning_rate=0.1), {}, device="cpu")
            monkeypatch.setattr(VectorisedTrainer, "device", torch.device("cuda"))
            many.prepare(params, good, key)
            bad = ArrayExamples(good.x, np.full(3, CLASSES))
            with pytest.raises(IndexError) if refused else contextlib.nullcontext():
                many.prepare(params, bad, key)
            monkeypatch.undo()

    def test_weights_of_a_loss_are_where_the_module_is(self):
        loss = nn.CrossEntropyLoss(weight=torch.ones(CLASSES))
        schedule = LocalSgd(learning_rate=0.1)
        ModuleTrainer(module=built("mlp")[0], loss=loss, schedule=schedule, device="meta")
        assert loss.weight.device == torch.device("meta")
