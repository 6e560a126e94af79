"""What is to be trained moves and matters, and what is saved is the whole model: else no run.

Each model here spends a whole ε with a loss and a figure that look like any other's.
"""

import copy
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.measures import LOSS
from fedpriv.models.lora import add_adapters
from fedpriv.tasks.checks import refuse_unsaved
from fedpriv.tasks.dataset_tasks import module_task
from fedpriv.tasks.task import Task, TaskDescription
from fedpriv.training.algorithm import Algorithm, ArrayState
from fedpriv.training.evaluate import Metrics
from fedpriv.training.local.module import ArrayExamples
from fedpriv.training.work import UserTrainer
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import cross_entropy, data_set, labelled, zeros
from tests.tasks.people import accepted, experiment, refused, task


def examples(seed, number=6, width=8):
    own = labelled(number, (width,), seed=seed)
    return ArrayExamples(own.x, (own.x[:, 0] > 0).astype(np.int64))


USERS = {f"u{number:02d}": examples(number) for number in range(12)}


def module_of(make, **changes):
    return task(module=make, **{"users": USERS, "public": None, **changes})


def federated(made, **options):
    return experiment(made, delta=0.01, **options)


def central(make, public=True, num_blank=0):
    own, more = examples(0, 90), {}
    own.x[60 : 60 + num_blank] = 0.0
    if public:
        more = {"x_public": own.x[60:], "y_public": own.y[60:]}
    data = data_set(own.x[:40], own.y[:40], test=(own.x[40:60], own.y[40:60]), **more)
    made = module_task(data, make, cross_entropy)
    options = {"steps": 2, "batch_size": 8, "noise_multiplier": 1.0}
    own = CentralExperiment(name="c", description="", task=lambda experiment: made)
    return own.with_options(options)


def of_users_examples(make):
    made = module_of(make, public=examples(99))  # which say the shape of single examples
    own = CentralExperiment(name="e", description="", task=lambda experiment: made)
    options = {"steps": 2, "batch_size": 8, "noise_multiplier": 1.0, "examples_per_user": 2}
    return own.with_options(options)


KINDS = {
    "user": lambda make: federated(module_of(make)),
    "user, public examples": lambda make: federated(module_of(make, public=examples(99))),
    "users at once": lambda make: federated(module_of(make, users_at_once=4)),
    "example": central,
    "example, none public": lambda make: central(make, public=False),
    "example of a user": of_users_examples,
}


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter whose second factor starts at zero, and a head."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 6), nn.Linear(6, 2)
        self.body.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.zeros(6, 2))

    def adapted(self, x):
        return x @ self.down.T @ self.up.T

    def forward(self, x):
        return self.head(torch.tanh(self.body(x) + self.adapted(x)))


class Frozen(Adapted):
    def __init__(self):
        super().__init__()
        self.up.requires_grad_(False)


class Detached(Adapted):
    def adapted(self, x):
        return super().adapted(x).detach()


class WithoutGradient(Adapted):
    def adapted(self, x):
        with torch.no_grad():
            return super().adapted(x)


class CopiedBeforehand(Adapted):
    """Computes with what was copied to where it computes when it was made."""

    def __init__(self):
        super().__init__()
        self.register_buffer("there", self.down.detach().to("cpu", copy=True))

    def adapted(self, x):
        return x @ self.there.T @ self.up.T


class OnlyWhileTrained(Adapted):
    def adapted(self, x):
        return super().adapted(x) if self.training else 0.0


class ForgetsItsHead(Adapted):
    """Keeps its head in a list, where PyTorch does not look for layers."""

    def __init__(self):
        super().__init__()
        self.heads = [nn.Linear(6, 2)]
        del self.head

    def head(self, hidden):
        return self.heads[0](hidden)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=name, marks=() if name == "user" else pytest.mark.slow)
        for name, kind in KINDS.items()
    ],
)
@pytest.mark.parametrize(
    ("make", "names"),
    [
        (Frozen, ["down"]),
        (Detached, ["down", 1]),
        (WithoutGradient, ["down", 1]),
        (CopiedBeforehand, ["down"]),
        (OnlyWhileTrained, ["down", 1]),
        (ForgetsItsHead, []),  # a trainer made anew has another
    ],
)
def test_such_a_module_is_refused(tmp_path, kind, make, names):
    error = refused(tmp_path / "run", kind(make), ValueError, *names)
    assert "\n" not in str(error)


def adapted(frozen):
    """A head on LoRA of which some matrices were frozen afterwards."""
    body = add_adapters(nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 6)), 2, ["0", "2"])
    made = nn.Sequential(body, nn.Linear(6, 2))
    for name, parameter in made.named_parameters():
        if any(part in name for part in frozen):
            parameter.requires_grad_(False)
    return made


@pytest.mark.parametrize("kind", ["user", "example"])
def test_adapters_that_are_all_frozen_are_not_taken_for_a_head_alone(tmp_path, kind):
    make = KINDS[kind]
    with refuses(ValueError, "0.0.lora_a.weight", 3, "rank=0"):
        make(lambda: adapted(["lora"]))
    accepted(tmp_path / "run", make(lambda: adapted(["lora_a", "0.2.lora_b"])))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_an_adapter_that_starts_at_zero_is_not(tmp_path, kind):
    """Its first factor has no gradient in the first step."""
    accepted(tmp_path / "run", kind(Adapted))


def test_weights_without_values_are_refused_by_name():
    with refuses(ValueError, "1.weight", "meta"):
        module_of(lambda: nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 2, device="meta")))


class Words(nn.Module):
    """Of a thousand words a user has a few; a recurrent layer, its biases and a tied output."""

    def __init__(self):
        super().__init__()
        self.words, self.state = nn.Embedding(1_000, 4), nn.LSTM(4, 4, batch_first=True)
        self.norm, self.bias = nn.LayerNorm(4), nn.Parameter(torch.zeros(1_000))

    def forward(self, x):
        hidden, _ = self.state(self.words(x))
        return self.norm(hidden[:, -1]) @ self.words.weight.T + self.bias


class Off(nn.Module):
    """A layer none of whose units is on at the start."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 4), nn.Linear(4, 2)
        nn.init.constant_(self.body.bias, -100.0)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


class Normalise(nn.Module):
    def __init__(self, bias=True, groups=1):
        super().__init__()
        self.body, self.norm = nn.Conv1d(1, 4, 3, bias=bias), nn.GroupNorm(groups, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.body(x[:, None]))).mean(2))


def at_zero():
    made = nn.Linear(8, 2)
    nn.init.zeros_(made.weight)
    nn.init.zeros_(made.bias)
    return made


WORDS = {
    u: ArrayExamples(np.arange(12).reshape(4, 3) + n, np.arange(4)) for n, u in enumerate("abc")
}
FINE = {
    "zeros": (at_zero, {}),
    "rows of words": (Words, {"users": WORDS}),
    "units that are off": (Off, {}),
    "bias before a normalisation": (Normalise, {}),
    "one weight a channel": (lambda: Normalise(bias=False, groups=4), {}),
    "dropout": (lambda: nn.Sequential(nn.Dropout(), nn.Linear(8, 2)), {}),
    "rates that are small": (lambda: nn.Linear(8, 2), {"local_learning_rate": 1e-6}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("make", "changes"), FINE.values(), ids=FINE)
def test_what_moves_a_little_or_later_is_not_refused(tmp_path, make, changes):
    options = {"cohort": len(changes.get("users", USERS)) / 2, "local_learning_rate": 0.1}
    given = {n: v for n, v in changes.items() if n not in options}
    options |= {n: v for n, v in changes.items() if n in options}
    accepted(tmp_path / "run", federated(module_of(make, **given), **options))


@pytest.mark.parametrize("blank", [2, 6], ids=["first", "all"])
def test_public_examples_that_are_blank_say_nothing_of_the_model(tmp_path, blank):
    public = examples(99)
    public.x[:blank] = 0.0
    accepted(tmp_path / "run", federated(module_of(lambda: nn.Linear(8, 2), public=public)))


class Experts(nn.Module):
    """Each example goes to one of eight layers, by where its inputs point."""

    def __init__(self):
        super().__init__()
        self.gate, self.layers = nn.Linear(8, 8), nn.ModuleList(nn.Linear(8, 2) for _ in range(8))

    def forward(self, x):
        shares = self.gate(x).softmax(1)
        chosen = shares * (shares == shares.amax(1, keepdim=True))
        return sum(chosen[:, n, None] * layer(x) for n, layer in enumerate(self.layers))


@pytest.mark.slow
def test_a_tensor_that_one_of_many_examples_uses_is_not_refused(tmp_path):
    """The first two of the batch use at most two of eight layers."""
    accepted(tmp_path / "run", federated(module_of(Experts, synthetic_batch=examples(5, 400))))


class AfterAll(nn.Module):
    """A number for each output that softmax does not see."""

    def __init__(self):
        super().__init__()
        self.score, self.shift = nn.Linear(8, 2), nn.Parameter(torch.ones(1))

    def forward(self, x):
        return nn.functional.log_softmax(self.score(x) + 0.0 * self.shift, 1)


def test_what_has_no_gradient_by_the_model_itself_is_to_be_frozen(tmp_path):
    refused(tmp_path / "run", federated(module_of(AfterAll)), ValueError, "shift", "requires_grad_")


@dataclass(frozen=True)
class Trains(UserTrainer):
    """What a user does in a task of one's own, by autograd on copies of the params."""

    where: torch.dtype = torch.float32

    def train(self, params, context, examples, key):
        own = {
            name: torch.tensor(array, requires_grad=True).to(self.where)
            for name, array in params.items()
        }
        logits = torch.from_numpy(examples.x).to(self.where) @ own["kernel"] + own["bias"]
        cross_entropy(logits, torch.from_numpy(examples.y)).backward()
        return {
            name: -tensor.grad.numpy() if tensor.is_leaf else np.zeros_like(params[name])
            for name, tensor in own.items()
        }


class Own(Task):
    """Softmax regression; its params by name, or by their order."""

    roster, measures = tuple(USERS), (replace(LOSS, diagnostic_only=False),)

    class data:
        @staticmethod
        def examples(user_id):
            raise AssertionError("a rostered user is looked at")

        @staticmethod
        def num_examples(user_id):
            return 6

    def __init__(self, trainer=Trains(), names=("kernel", "bias"), evaluated=None):
        self._trainer, self._names, self._evaluated = trainer, names, evaluated

    def init_params(self, key):
        shapes = dict(zip(self._names, ((8, 2), (2,)), strict=True))
        return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}

    def trainer(self, schedule, multiplier, device=None):
        return self._trainer

    def synthetic_batch(self):
        return examples(77)

    def evaluate(self, params, *, public, part=(0, 1)):
        if not public:
            return None
        own = examples(88)
        kernel, bias = (
            self._evaluated(params) if self._evaluated else (params[n] for n in self._names)
        )
        logits = torch.from_numpy(own.x @ kernel + bias)
        return Metrics.of(6, loss=float(cross_entropy(logits, torch.from_numpy(own.y))))

    def describe(self):
        return TaskDescription(name="own", synthetic=True, roster="all", num_users=len(USERS))


class ByPrefix(Trains):
    def train(self, params, context, examples, key):
        own = {n.partition("/")[2]: a for n, a in params.items()}
        found = super().train(own, context, examples, key)
        return {f"head/{name}": array for name, array in found.items()}


class Copied(Trains):
    """Trains a copy, made where it computes, and returns how far the original went."""

    def train(self, params, context, examples, key):
        there = copy.deepcopy(params)
        for name, change in super().train(params, context, examples, key).items():
            there[name] += change
        return {name: array - np.float32(params[name]) for name, array in params.items()}


def test_a_task_of_ones_own_is_tried_on_no_rostered_user(tmp_path):
    accepted(tmp_path / "run", federated(Own()))


@pytest.mark.parametrize("trainer", [Trains(torch.float64), Copied()], ids=["moved", "copied"])
def test_a_trainer_of_ones_own_that_updates_another_copy_is_refused(tmp_path, trainer):
    """What `.to()` moves to another type or device is no leaf, and its gradient is None."""
    refused(tmp_path / "run", federated(Own(trainer)), ValueError, "kernel", 1)


@pytest.mark.parametrize(
    ("made", "names"),
    [
        (Own(ByPrefix(), ("head/kernel", "head/bias")), ["head/kernel"]),
        (Own(evaluated=lambda params: params.values()), []),
        (Own(evaluated=lambda params: (params["kernel"], np.ones(2, np.float32))), ["bias"]),
    ],
    ids=["name", "order", "not evaluated"],
)
def test_a_task_of_ones_own_whose_head_is_lost_is_refused(tmp_path, made, names):
    refused(tmp_path / "run", federated(made), ValueError, *names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetful(ArrayState):
    def save(self):
        return {"kernel": self.params["kernel"]}, {}

    def load(self, round_num, released, rest, numbers):
        return replace(self, round_num=round_num, params={**self.params, **released})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale(ArrayState):
    def load(self, round_num, released, rest, numbers):
        return replace(self, round_num=round_num)


class Forgets(Algorithm):
    def __init__(self, state=Forgetful):
        self.state = state

    def init(self, params):
        return self.state(params=params)

    def step(self, state, door):
        raise NotImplementedError


@pytest.mark.parametrize(("state", "named"), [(Forgetful, "bias"), (Stale, "kernel")])
def test_a_state_of_ones_own_that_forgets_a_tensor_is_refused(state, named):
    params = {**zeros(kernel=(3, 2)), "bias": np.ones(2, np.float32)}
    with refuses(ValueError, named):
        refuse_unsaved(Forgets(state), params, lambda params: None)
    refuse_unsaved(Forgets(ArrayState), params, lambda params: None)


@pytest.mark.parametrize("num_blank", [2, 29])
def test_blank_public_examples_of_a_data_set_are_no_fault_of_the_model(tmp_path, num_blank):
    accepted(tmp_path / "run", central(lambda: nn.Linear(8, 2), num_blank=num_blank))


@pytest.mark.slow
def test_public_examples_that_are_all_blank_are_named(tmp_path):
    all_blank = central(lambda: nn.Linear(8, 2), num_blank=30)
    refused(tmp_path / "run", all_blank, ValueError, "weight")
