"""Losses of modules: an example's is its own, whoever else is evaluated with it."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv import tree
from fedpriv.backends import SerialBackend
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.build import build
from fedpriv.mechanisms.bounds import Capped
from fedpriv.tasks.central import CentralTask
from fedpriv.training.algorithm import Context, Line
from fedpriv.training.dp_agd import LOSSES, CentralLosses, LossesAlong
from fedpriv.training.failures import KeepsStateError
from fedpriv.training.local.module import module_params
from fedpriv.training.per_example.module import ModuleGradients
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import Users, asked, contributed, cross_entropy, labelled

NUMBER, WIDTH, SIZES = 30, 6, np.linspace(0, 1, 3).astype(np.float32)
CAPPED = Capped(cap=3.0, num_coordinates=len(SIZES))


class Net(nn.Module):
    """A dense layer, and what a test does before it."""

    def __init__(self, before):
        super().__init__()
        self.layer, self.before = nn.Linear(WIDTH, 2), before

    def forward(self, x):
        return self.layer(self.before(self, x))


def coupled(net, x):
    return x - x.mean(0, keepdim=True)


def coupled_in_eval(net, x):
    return x if net.training else 10 * (x - x.mean(0, keepdim=True))


def looks_at_values(net, x):
    """No batching rule: what is not a single example's goes one after the other."""
    return x - x.mean(0) if float(x.detach().abs().max()) > 3.0 else x + x.mean(0)


def drawn(net, x):
    return x + torch.rand(x.shape)


def in_a_buffer(net, x):
    if not hasattr(net, "seen"):
        net.register_buffer("seen", torch.zeros(WIDTH))
    before = net.seen.clone()
    net.seen.add_(x.detach().mean(0))
    return x + before


def kept_in_eval(net, x):
    if net.training:
        return x
    net.mean = 0.5 * getattr(net, "mean", 0.0) + x.detach().mean(0)
    return x - net.mean


def elsewhere():
    kept = [torch.zeros(WIDTH)]

    def kept_elsewhere(net, x):
        if net.training:
            return x
        before, kept[0] = kept[0], x.detach().mean(0)
        return x + before

    return kept_elsewhere


def examples():
    x = labelled(NUMBER, (WIDTH,)).x
    return x, (x[:, 0] > 0).astype(np.int64)


def made(before, x=None):
    torch.manual_seed(0)
    net = Net(before)
    if before is in_a_buffer:
        net.register_buffer("seen", torch.zeros(WIDTH))
    own = examples()
    gradients = ModuleGradients(net, cross_entropy, own[0] if x is None else x, own[1])
    return gradients, module_params(net)


def numbers(gradients, params, ids=range(NUMBER)):
    """The sums that leave, in whole steps of the cap's grid."""
    direction = {name: np.full_like(array, 0.01) for name, array in params.items()}
    work = CentralLosses(losses=gradients)
    context = Context(line=Line(direction=direction, sizes=SIZES))
    found = contributed(work, params, ids=ids, bound=CAPPED, context=context)
    return np.asarray(found.total[LOSSES])


@pytest.mark.parametrize(
    "before",
    [
        lambda net, x: x,
        coupled,
        coupled_in_eval,
        looks_at_values,
        drawn,
        in_a_buffer,
        kept_in_eval,
    ],
    ids=["apart", "coupled", "in eval", "values", "drawn", "buffer", "kept"],
)
def test_one_example_moves_each_sum_by_at_most_the_cap_and_lowers_none(before):
    most = round(CAPPED.most / CAPPED.granularity)
    x, _ = examples()
    x[4] = 1e4
    gradients, params = made(before, x)
    whole = numbers(gradients, params)
    for who in (4, 17):
        without = numbers(gradients, params, [i for i in range(NUMBER) if i != who])
        assert ((whole - without >= 0) & (whole - without <= most)).all()
    # Another in its place moves nobody else's: the rest of the sum stays to the bit.
    alone = numbers(gradients, params, [4])
    x[4] = 0.5
    others = made(before, x)[0]
    moved = numbers(others, params) - numbers(others, params, [4])
    assert np.array_equal(whole - alone, moved)


def test_what_a_module_keeps_between_examples_is_refused_before_anything_is_charged():
    before = elsewhere()
    params = made(before)[1]
    task = CentralTask(
        name="toy", train=made(before)[0], num_train=NUMBER, init=lambda key: params,
        measure=lambda own: None, synthetic=True,
    )  # fmt: skip
    experiment = CentralExperiment(
        name="toy", description="A toy.", task=lambda own: task
    ).with_options({"method": "agd", "target_epsilon": 8.0, "delta": 1e-3, "iterations": 3})
    with refuses(KeepsStateError):
        build(experiment, None)


def test_losses_are_those_of_each_example_alone():
    """Of a module that is batched and of one that is not, an LSTM."""

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.below, self.above = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x):
            return self.above(self.below(x.reshape(len(x), 3, 2))[0][:, -1])

    x, y = examples()
    for net in (nn.Sequential(nn.Linear(WIDTH, 4), nn.Dropout(), nn.Linear(4, 2)), Words()):
        params = module_params(net)
        gradients = ModuleGradients(net, cross_entropy, x, y)
        nowhere = tree.zeros(params)
        found = gradients.losses_along(params, nowhere, [0.0, 1.0], np.arange(NUMBER))
        net.eval()
        outputs = net(torch.from_numpy(x))
        expected = cross_entropy(outputs, torch.from_numpy(y), reduction="none")
        assert found.dtype == np.float64 and found.shape == (NUMBER, 2)
        assert np.allclose(found, expected.detach().numpy()[:, None], rtol=1e-5)


class OneModule:
    """Losses of a task whose users share one module; it counts who is inside at once."""

    def __init__(self):
        self.inside, self.most = [], 0

    def losses_along(self, params, direction, sizes, examples):
        self.inside.append(1)
        self.most = max(self.most, len(self.inside))
        time.sleep(0.001)
        self.inside.pop()
        return np.full(len(sizes), len(examples), float)


@pytest.mark.parametrize("shared", [False, True])
def test_threads_share_a_task_that_says_so_and_no_other(shared):
    task, like = OneModule(), {"w": np.zeros(2, np.float32)}
    task.thread_safe = shared
    data = Users({f"u{n}": [n] for n in range(32)})
    backend = SerialBackend(trainer=LossesAlong(task=task, max_examples=5), data=data, threads=4)
    line = Context(line=Line(direction=like, sizes=SIZES))
    found = asked(backend, cohort=list(data), params=like, bound=CAPPED, context=line)
    assert found.num_failed == 0 and found.total[LOSSES].any()
    assert task.most == 1 or shared
