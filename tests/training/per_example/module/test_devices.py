"""A module on a device: the same sums, one module for all places, and refusals before a run."""

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn

from fedpriv.mechanisms import Clip
from fedpriv.training.devices import usable_device
from fedpriv.training.per_example.example_sum import ExampleGradients, gradients_on
from fedpriv.training.per_example.linear import UnbiasedSoftmaxGradients
from fedpriv.training.per_example.module import ModuleGradients
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import KEY, cross_entropy, example_sum, gap
from tests.training.per_example.module.models import (
    CLASSES,
    EVERYBODY,
    NUM,
    bounds_of,
    built,
    floats,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "convolutions", "long sequences"])
def test_the_sums_are_the_same(name):
    here, params = built(name)
    there = here.on_device("cpu")
    assert there is not here and there.way == here.way
    for bound, said in bounds_of(params):
        expected = example_sum(here, params, EVERYBODY, bound, KEY, context=said)
        found = example_sum(there, params, EVERYBODY, bound, KEY, context=said)
        assert gap(found, expected) == 0.0


class Moved(nn.Linear):
    """Counts where it was moved to, and raises there what it is told to."""

    def __init__(self, fails=False):
        super().__init__(12, CLASSES)
        self.moves, self.fails = [], fails

    def to(self, device):
        self.moves.append(str(device))
        return self

    def forward(self, x):
        if self.fails and self.moves and self.moves[-1] == "meta":
            raise RuntimeError("expected all tensors to be on the same device")
        return super().forward(x)


def of(module, loss=cross_entropy):
    x, y = floats(12)(np.random.default_rng(0)), np.zeros(NUM, np.int64)
    return ModuleGradients(module, loss, x, y)


@pytest.fixture
def elsewhere(monkeypatch):
    """A device of another name, on which tensors are those of the CPU."""
    monkeypatch.setattr(
        "fedpriv.training.per_example.module.usable_device",
        lambda name: torch.device("meta" if name == "cuda:0" else name),
    )
    real = ModuleGradients._batch

    def batch(self, part):
        device, self._device = self._device, torch.device("cpu")
        try:
            return real(self, part)
        finally:
            self._device = device

    monkeypatch.setattr(ModuleGradients, "_batch", batch)


def test_module_and_loss_go_where_they_are_used(elsewhere):
    class Weighted(nn.CrossEntropyLoss):
        moves: tuple[str, ...] = ()

        def to(self, device):
            self.moves += (str(device),)
            return self

    module, loss = Moved(), Weighted()
    here = of(module, loss)
    assert not module.moves
    there = here.on_device("cuda:0")
    assert there._module is module and there._own == here._own
    assert module.moves and set(module.moves) == {"meta"} and set(loss.moves) == {"meta"}


def test_what_the_module_raises_on_the_device_alone_is_said_at_once(elsewhere, monkeypatch):
    # Parameters do not move here, so whoever uses the module has to say so each time.
    monkeypatch.setattr(ModuleGradients, "_move", lambda self: self._module.to(self._device))
    with refuses(ValueError, "cuda:0", "RuntimeError"):
        of(Moved(fails=True)).on_device("cuda:0")


def test_what_it_raises_everywhere_is_the_trials_business():
    class Picky(nn.Linear):
        def forward(self, x):
            if not bool((x == 0).all()):  # has no use for synthetic inputs
                raise RuntimeError("zeros alone")
            return super().forward(x)

    assert of(Picky(12, CLASSES)).on_device("cpu") is not None


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    made, _ = built("mlp")
    for device in ("cuda:0", "tpu"):
        with refuses(ValueError, device):
            gradients_on(device, made)


def test_gradients_of_ones_own_need_not_know_of_devices():
    class Own(ExampleGradients):
        def stacks(self, params, index, key=None):
            return iter(())

        def gradient(self, params, index, key=None):
            return params

    own = Own()
    assert gradients_on(None, own) is own
    with refuses(ValueError, "Own"):
        gradients_on("cpu", own)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mlp", "convolutions", "long sequences", "lstm", "resnet"])
def test_a_gpu_gives_the_cpus_sums(name, device):
    """To a part in 10^4; and the CPU's own sums are the CPU's again afterwards."""
    here, params = built(name)
    there, where = here.on_device(device), usable_device(device)
    for bound, said in bounds_of(params):
        expected = example_sum(here, params, EVERYBODY, bound, KEY, context=said)
        found = example_sum(there, params, EVERYBODY, bound, KEY, context=said)
        assert {p.device for p in there._module.parameters()} == {where}
        assert gap(found, expected) < 1e-4
        again = example_sum(here, params, EVERYBODY, bound, KEY, context=said)
        assert gap(again, expected) == 0.0
    assert {p.device.type for p in here._module.parameters()} == {"cpu"}


def test_a_model_without_a_bias_has_none_on_a_device():
    rng = np.random.default_rng(0)
    x, y = sparse.csr_matrix(rng.normal(size=(9, 4)).astype(np.float32)), rng.integers(0, 3, 9)
    here, params = UnbiasedSoftmaxGradients(x, y, 3), {"kernel": np.ones((4, 3), np.float32)}
    expected = example_sum(here, params, np.arange(9), Clip(l2_clip_norm=0.3))
    found = example_sum(here.on_device("cpu"), params, np.arange(9), Clip(l2_clip_norm=0.3))
    assert found.keys() == {"kernel"} and gap(found, expected) < 1e-5
