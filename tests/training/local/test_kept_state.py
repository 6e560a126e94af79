"""Whatever a module keeps between users, one user moves the bounded sum by its bound.

Each attack is harmless, because users train on copies of module and loss; or it is refused before a
run, by synthetic users in several orders; or while a simulation runs, by one user trained again.
"""

import copy
import functools
import itertools
import os
import threading

import numpy as np
import pytest
import torch
from torch import nn

import fedpriv as fp
from fedpriv import tree
from fedpriv.mechanisms.bounds import Clip
from fedpriv.rng import Key
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.failures import KeepsStateError
from fedpriv.training.local.module import ArrayExamples, ModuleTrainer, module_params
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.vectorised import VectorisedTrainer
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import answered

KEY = Key.simulation(5)
BOUND = Clip(l2_clip_norm=1.0)
WIDTH, TIME, CLASSES = 6, 4, 3


class Keeping(nn.Module):
    """A classifier of sequences, and what an attack does between its layers."""

    def __init__(self):
        super().__init__()
        self.below, self.above = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)
        self.prepare()

    def prepare(self):
        pass

    def between(self, h):
        return h

    def forward(self, x):
        return self.above(self.between(torch.tanh(self.below(x.mean(1)))))


class RunningMean(Keeping):
    def prepare(self):
        self.mean = 0.0

    def between(self, h):
        self.mean = 0.9 * self.mean + 3.0 * h.detach().mean(0)
        return h + self.mean


class NewRunningMean(Keeping):
    """The attribute is not there at first."""

    def between(self, h):
        self.mean = 0.9 * getattr(self, "mean", 0.0) + 3.0 * h.detach().mean(0)
        return h + self.mean


class CarriedGRU(nn.Module):
    """A hidden state that goes on from batch to batch, as in truncated backpropagation."""

    def __init__(self):
        super().__init__()
        self.recur, self.score = nn.GRU(WIDTH, 8, batch_first=True), nn.Linear(8, CLASSES)
        nn.init.constant_(self.recur.get_parameter("bias_ih_l0")[8:16], 4.0)  # it remembers
        self.hidden = None

    def forward(self, x):
        if self.hidden is not None and self.hidden.shape[1] != len(x):
            self.hidden = self.hidden.mean(1, keepdim=True).expand(1, len(x), 8).contiguous()
        outputs, hidden = self.recur(x, self.hidden)
        self.hidden = hidden.detach()
        return self.score(outputs[:, -1])


class CarriedInABuffer(CarriedGRU):
    """The buffer is nothing at first, which `named_buffers` does not name."""

    def __init__(self):
        super().__init__()
        del self.hidden
        self.register_buffer("hidden", None)


class CountsInAList(Keeping):
    def prepare(self):
        self.calls = [0]

    def between(self, h):
        self.calls[0] += 1
        return h * self.calls[0]


class CountsInABuffer(Keeping):
    def prepare(self):
        self.register_buffer("calls", torch.zeros(1))

    def between(self, h):
        self.calls += 1
        return h * self.calls


class CountsUnkept(CountsInABuffer):
    def prepare(self):
        self.register_buffer("calls", torch.zeros(1), persistent=False)


class LastInput(Keeping):
    def prepare(self):
        self.last = None

    def between(self, h):
        last, self.last = self.last, h.detach()
        return h if last is None else h + 5.0 * last.mean(0)


class Memory:
    def __init__(self):
        self.inside = {"means": [torch.zeros(8)]}


class InAnObject(Keeping):
    def prepare(self):
        self.memory = {"of": [Memory()]}

    def between(self, h):
        inside = self.memory["of"][0].inside
        inside["means"][0] = 0.9 * inside["means"][0] + 3.0 * h.detach().mean(0)
        return h + inside["means"][0]


class InAFrozenParameter(Keeping):
    def prepare(self):
        self.mean = nn.Parameter(torch.zeros(8), requires_grad=False)

    def between(self, h):
        self.mean.data.mul_(0.9).add_(3.0 * h.detach().mean(0))
        return h + self.mean


class FreezesItself(Keeping):
    """One user's numbers end the training of everybody after it."""

    def between(self, h):
        if h.abs().max() > 0.999:
            self.below.weight.requires_grad_(False)
        return h


class OwnGenerator(Keeping):
    def prepare(self):
        self.stream = torch.Generator().manual_seed(0)

    def between(self, h):
        return h + 5.0 * torch.randn(h.shape, generator=self.stream)


class OwnNumpyGenerator(Keeping):
    def prepare(self):
        self.stream = np.random.default_rng(0)

    def between(self, h):
        return h + 5.0 * torch.from_numpy(self.stream.normal(size=h.shape)).float()


def with_a_hook():
    module, seen = Keeping(), {"mean": torch.zeros(8)}

    def hook(layer, inputs, outputs):
        seen["mean"] = 0.9 * seen["mean"] + 3.0 * outputs.detach().mean(0)
        return outputs + seen["mean"]

    module.below.register_forward_hook(hook)
    return module


class InTheClass(Keeping):
    seen = []  # noqa: RUF012 - that is the attack

    def between(self, h):
        self.seen.append(h.detach().mean(0))
        return h + 3.0 * sum(self.seen)


SEEN = []


class InAGlobal(Keeping):
    def between(self, h):
        SEEN.append(h.detach().mean(0))
        return h + 3.0 * sum(SEEN)


def kept_by_a_function(h):
    SEEN.append(h.detach().mean(0))


class UnusedGlobal(Keeping):
    """What is kept is not read yet."""

    def between(self, h):
        kept_by_a_function(h)
        return h


class GlobalNumpy(Keeping):
    def between(self, h):
        return h + 5.0 * torch.from_numpy(np.random.normal(size=h.shape)).float()


def closing_over():
    seen = []

    class InAClosure(Keeping):
        def between(self, h):
            seen.append(h.detach().mean(0))
            return h + 3.0 * sum(seen)

    return InAClosure()


class OnlyLarge(Keeping):
    """Kept of large inputs alone."""

    def forward(self, x):
        if x.abs().max() > 15:
            SEEN.append(self.below(x.mean(1)).detach().mean(0))
        return super().forward(x)


class OnlyMany(Keeping):
    """Kept of many examples alone, where nobody looks."""

    def between(self, h):
        if len(h) > 16:
            torch.seen = torch.seen + h.detach().mean(0) if hasattr(torch, "seen") else h.mean(0)
        return h + getattr(torch, "seen", 0.0)


class InTorch(Keeping):
    def between(self, h):
        torch.calls = getattr(torch, "calls", 0) + 1
        return h if torch.calls < 30 else h * (torch.calls % 7 + 1)


class InTheEnvironment(Keeping):
    def between(self, h):
        calls = int(os.environ.get("CALLS_KEPT", "0")) + 1
        os.environ["CALLS_KEPT"] = str(calls)
        return h if calls < 30 else h * (calls % 7 + 1)


@functools.lru_cache
def cached():
    return [0]


class InACache(Keeping):
    def between(self, h):
        cached()[0] += 1
        return h if cached()[0] < 30 else h * (cached()[0] % 7 + 1)


class InAWeightsAttribute(Keeping):
    def between(self, h):
        weight = self.below.weight
        weight.calls = getattr(weight, "calls", 0) + 1
        return h if weight.calls < 30 else h * (weight.calls % 7 + 1)


COUNT = itertools.count()


class InACount(Keeping):
    """It acts after a thousand calls."""

    def between(self, h):
        return h * max(1, next(COUNT) - 1_000)


def fitting_on_the_first():
    fitted = {}

    class Fitting(Keeping):
        def between(self, h):
            return h + 3.0 * fitted.setdefault("mean", h.detach().mean(0))

    return Fitting()


# What goes with a user's copies, and what the check before a run finds.
COPIED = [
    RunningMean, NewRunningMean, CarriedGRU, CarriedInABuffer, CountsInAList, CountsInABuffer,
    LastInput, InAnObject, OwnGenerator, OwnNumpyGenerator, FreezesItself,
]  # fmt: skip
REFUSED = [
    InAFrozenParameter, with_a_hook, InTheClass, InAGlobal, GlobalNumpy, closing_over, OnlyMany,
    InTorch, InTheEnvironment, InACache, InAWeightsAttribute, fitting_on_the_first,
]  # fmt: skip


class Users:
    def __init__(self, number=5):
        self.by_id = {f"u{n}": self._user(n) for n in range(number)}

    @staticmethod
    def _user(number):
        rng = np.random.default_rng(number)
        scale = 20.0 if number == 0 else 1.0  # the first is unlike the others
        x = (scale * rng.normal(size=(7, TIME, WIDTH))).astype(np.float32)
        return ArrayExamples(x, rng.integers(0, CLASSES, 7))

    def examples(self, user_id):
        return self.by_id[user_id]

    def num_examples(self, user_id):
        return len(self.by_id[user_id])


def cross_entropy(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


def moved(kind, users_at_once, loss=cross_entropy):
    """How far the bounded sum moves when the first user leaves."""
    data, sums = Users(), []
    for left_out in (0, 1):
        torch.manual_seed(2)
        trainer = ModuleTrainer(
            module=kind(), loss=loss, schedule=LocalSgd(learning_rate=0.5, batch_size=3)
        )
        params = module_params(trainer.module)
        if users_at_once > 1:
            trainer = VectorisedTrainer(alone=trainer, users_at_once=users_at_once)
        found = answered(
            trainer,
            params=params,
            bound=BOUND,
            data=data,
            user_ids=list(data.by_id)[left_out:],
            key=KEY,
        )
        assert found.num_failed == (kind is FreezesItself and left_out == 0)  # the one that did it
        sums.append(found.total)
    return tree.l2_norm({name: sums[0][name] - sums[1][name] for name in sums[0]})


@pytest.mark.slow
@pytest.mark.parametrize("users_at_once", [1, 2, 4])
@pytest.mark.parametrize("kind", COPIED)
def test_one_user_moves_the_sum_by_the_bound_whatever_the_module_keeps(kind, users_at_once):
    assert moved(kind, users_at_once) <= BOUND.l2_bound * (1 + 1e-6)


class KeepingLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.means = []

    def forward(self, outputs, targets):
        self.means.append(outputs.detach().mean())
        return nn.functional.cross_entropy(outputs, targets) * len(self.means)


class LossObject:
    def __init__(self):
        self.calls = 0

    def __call__(self, outputs, targets):
        self.calls += 1
        return nn.functional.cross_entropy(outputs, targets) * self.calls


@pytest.mark.parametrize("loss", [KeepingLoss, LossObject])
def test_nor_by_what_a_loss_keeps(loss):
    assert moved(Keeping, 1, loss()) <= BOUND.l2_bound * (1 + 1e-6)


def task(kind, loss=cross_entropy, **given):
    return ModuleTask(
        name="keeps", module=kind, loss=loss, users=Users().by_id, synthetic=True, **given
    )


@pytest.fixture
def as_new(monkeypatch):
    """Everything that the attacks count in is as it was."""
    monkeypatch.setattr(torch, "calls", 0, raising=False)
    monkeypatch.setattr(torch, "seen", torch.zeros(8), raising=False)
    monkeypatch.setenv("CALLS_KEPT", "0")
    cached.cache_clear()
    SEEN.clear()
    InTheClass.seen.clear()


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, {"public": Users._user(9)}])
@pytest.mark.parametrize("kind", REFUSED)
def test_it_is_refused_before_anything_is_charged(kind, given, as_new):
    with pytest.raises(KeepsStateError):
        fp.check_task(task(kind, **given))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [k for k in REFUSED if k is not InAWeightsAttribute])
def test_so_it_is_where_many_train_at_once(kind, as_new):
    """What of a batch of users is kept raises by itself when it is used in the next."""
    with pytest.raises((KeepsStateError, RuntimeError)):
        fp.check_task(task(kind, users_at_once=4))


@pytest.mark.parametrize("kind", [InAGlobal, fitting_on_the_first])
def test_two_of_them_by_default(kind, as_new):
    with pytest.raises(KeepsStateError):
        fp.check_task(task(kind))


def test_what_shows_late_ends_a_simulation(tmp_path):
    """After a thousand calls each further one counts: seen by the round after which one user is
    trained again, of rounds 1, 2, 4, ..., 64 and the last."""
    experiment = fp.FederatedExperiment(
        name="late", description="", task=lambda own: task(InACount)
    ).with_options(
        {"rounds": 70, "noise-multiplier": 1.0, "cohort": 4.0, "delta": 1e-2, "batch-size": 3}
    )
    fp.check_task(task(InACount))
    with pytest.raises(KeepsStateError):
        fp.run(experiment, out=tmp_path / "run")


class KeepingFunction:
    calls = 0


def counting(outputs, targets):
    KeepingFunction.calls += 1
    return nn.functional.cross_entropy(outputs, targets) * KeepingFunction.calls


def test_a_loss_that_keeps_something_elsewhere_is_refused():
    with pytest.raises(KeepsStateError):
        fp.check_task(task(Keeping, counting))


@pytest.mark.parametrize(
    ("kind", "name"), [(CountsInABuffer, "calls"), (CarriedInABuffer, "hidden")]
)
def test_a_buffer_of_the_state_that_training_changes_is_refused(kind, name, tmp_path):
    """Its change would be dropped, and the model be measured and exported without it."""
    with refuses(ValueError, name, "persistent"):
        fp.check_task(task(kind))
    for users_at_once in (None, 2):
        made = fp.FederatedExperiment(
            name="buffer",
            description="",
            task=lambda _, n=users_at_once: task(kind, users_at_once=n),
        )
        with refuses(ValueError, name, "persistent"):
            fp.run(made, tmp_path / "run", rounds=1, noise_multiplier=1.0, cohort=2, delta=0.01)
    assert not (tmp_path / "run").exists()


class Locked(Keeping):
    def prepare(self):
        self.lock = threading.Lock()


def test_what_cannot_be_copied_is_refused():
    with refuses(ValueError, "Locked"):
        fp.check_task(task(Locked))


class Cached(Keeping):
    """A constant that is made at the first call."""

    def between(self, h):
        if not hasattr(self, "scale"):
            self.scale = torch.linspace(0.5, 2.0, h.shape[1])
        return h * self.scale


class Dropping(Keeping):
    def between(self, h):
        return nn.functional.dropout(h, 0.5, self.training)


def test_a_copied_trainer_has_a_module_of_its_own():
    """What lies in an attribute of the copy's module is the copy's."""
    trainer = ModuleTrainer(
        module=InAnObject(), loss=cross_entropy, schedule=LocalSgd(learning_rate=0.5)
    )
    other = copy.deepcopy(trainer)
    params, data = module_params(trainer.module), Users()
    found = [
        one.train(params, NO_CONTEXT, data.examples("u1"), KEY) for one in (trainer, other, trainer)
    ]
    assert other.module is not trainer.module
    for update in found[1:]:
        assert all(np.array_equal(found[0][name], update[name]) for name in update)


@pytest.mark.parametrize("kind", [Keeping, Cached, CountsUnkept, Dropping, UnusedGlobal, OnlyLarge])
def test_others_are_not_refused(kind):
    fp.check_task(task(kind))
    assert moved(kind, 1) <= BOUND.l2_bound * (1 + 1e-6)


def test_a_module_that_is_made_once_keeps_nothing_of_a_users_losses():
    """DP-AGD asks users for losses, each on what the task's function makes."""
    torch.manual_seed(0)
    shared, data = RunningMean(), Users()
    one = task(lambda: shared)
    params = one.init_params(KEY)
    found = [
        one.losses_along(params, params, [0.0, 0.1], data.examples(user))
        for user in ("u1", "u0", "u1")
    ]
    assert np.array_equal(found[0], found[2])
