import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.rng import Key
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.devices import (
    check_of_use,
    device_description,
    usable_device,
)
from fedpriv.training.local import vectorised
from fedpriv.training.local.module import ArrayExamples, ModuleTrainer, module_params
from fedpriv.training.local.schedule import Schedule
from fedpriv.training.local.vectorised import VectorisedTrainer


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"Synthetic {device.index}")


def test_gpus_are_numbered_and_named(two_gpus):
    assert usable_device("cuda") == torch.device("cuda", 0)
    assert usable_device("cuda:1") == torch.device("cuda", 1)
    assert device_description(usable_device("cuda:1")) == "cuda:1 Synthetic 1"


def test_a_gpu_that_is_not_there(two_gpus):
    with pytest.raises(ValueError, match=r"'cuda:2': there are 2 GPUs"):
        usable_device("cuda:2")


def test_no_gpu_at_all(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="--gpus-per-worker 0"):
        usable_device("cuda:0")
    task = ModuleTask(
        name="t",
        module=lambda: nn.Linear(3, 2),
        loss=nn.functional.cross_entropy,
        users={"a": ArrayExamples(np.zeros((2, 3), np.float32), np.zeros(2, np.int64))},
    )
    with pytest.raises(ValueError, match="install a build of torch"):
        task.trainer(Schedule(learning_rate=0.1), {}, device="cuda:0")


def test_a_trainer_says_itself_that_it_has_no_use_for_a_gpu():
    class Scattered:
        cpu_only = "it only looks things up"

    check_of_use("cuda:0", object())
    check_of_use("cpu", Scattered())
    with pytest.raises(ValueError, match=r"Scattered does not train on 'cuda:1': it only looks"):
        check_of_use("cuda:1", Scattered())


def test_off_the_cpu_users_are_trained_together(monkeypatch):
    """The rule itself; no kernel runs."""
    monkeypatch.setattr(vectorised, "users_that_fit", lambda *arguments: 77)
    schedule, x = Schedule(learning_rate=0.1), np.zeros((1, 3), np.float32)
    plain, drawn = nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.1))

    def rule(module, device):
        trainer = ModuleTrainer(
            module=module.to(device),
            loss=nn.functional.cross_entropy,
            schedule=schedule,
            device=device,
        )
        return vectorised.default_users_at_once(trainer, x)

    assert rule(plain, "cpu") == 1
    assert rule(plain, "meta") == 77
    assert rule(drawn, "meta") == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("users_per_chunk", [1, 8])
def test_a_gpu_gives_the_cpus_updates(users_per_chunk):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))
    params, rng = module_params(module), np.random.default_rng(0)
    users = [
        ArrayExamples(rng.normal(size=(n, 1, 6, 6)).astype(np.float32), rng.integers(0, 3, n))
        for n in (5, 1, 0, 12, 7)
    ]
    keys = [Key.simulation(i) for i in range(len(users))]
    made = dict(
        loss=nn.functional.cross_entropy, schedule=Schedule(learning_rate=0.1, batch_size=4)
    )
    expected = [
        ModuleTrainer(module=module, **made).train(params, e, k)
        for e, k in zip(users, keys, strict=True)
    ]
    alone = ModuleTrainer(module=module, device="cuda:0", **made)
    many = VectorisedTrainer(alone=alone, users_at_once=users_per_chunk)
    found = many.train_many(alone.start(params), users, keys)
    assert not found.failed
    for user, update in enumerate(expected):
        for name, array in update.items():
            np.testing.assert_allclose(
                found.tensors[name][user].cpu().numpy(), array, rtol=1e-3, atol=1e-5
            )
