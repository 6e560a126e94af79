import pytest
import torch

from fedpriv.training import devices
from fedpriv.training.devices import device_description, usable_device
from fedpriv.training.local.schedule import LocalSgd
from tests.harness.refusals import refuses
from tests.tasks.people import task


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(devices, "_set_up", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"Synthetic {device.index}")


def test_gpus_are_numbered_and_named(two_gpus):
    assert usable_device("cuda") == torch.device("cuda", 0)
    assert usable_device("cuda:1") == torch.device("cuda", 1)
    assert device_description(usable_device("cuda:1")) == "cuda:1 Synthetic 1"


@pytest.mark.parametrize("name", ["cuda:2", "cuda:256"])
def test_a_gpu_that_is_not_there(two_gpus, name):
    """PyTorch counts modulo 256: two workers would share a GPU, and the record err."""
    with refuses(ValueError, name, 2):
        usable_device(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "meta", "mps", "cpu:1", "cpu ", "CPU", "cuda:-1", "cuda:01"),
        *("cuda:\u0663", "cuda:0\0"),
        *(5, True, None, 1.5, b"cpu", ["cpu"], "cuda:" + "9" * 10_000, "x" * 10_000),
    ],
    ids=lambda name: repr(name)[:20],
)
def test_no_device_is_called_so(name, two_gpus):
    with pytest.raises(ValueError) as caught:
        usable_device(name)
    assert f"{name!r:.40}" in str(caught.value) and len(str(caught.value)) < 300


def test_no_gpu_at_all(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refuses(ValueError, "cuda:0"):
        usable_device("cuda:0")
    with refuses(ValueError, "cuda:0"):
        task().trainer(LocalSgd(learning_rate=0.1), {}, device="cuda:0")
