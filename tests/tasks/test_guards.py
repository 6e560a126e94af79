"""What is to be trained moves and matters, and what is saved is the whole model: else no run.

Each model here spends a whole ε with a loss and a figure that look like any other's.
"""

import copy
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.datasets.dataset import Dataset
from fedpriv.experiments.averaging import (
    CentralExperiment,
    ExampleSampling,
    FederatedExperiment,
)
from fedpriv.measures import LOSS
from fedpriv.models.lora import add_adapters
from fedpriv.rng import Key
from fedpriv.runs.prepared import start_run
from fedpriv.tasks.dataset_tasks import module_task
from fedpriv.tasks.guards import moved, refuse_unsaved
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.tasks.task import Task, TaskDescription
from fedpriv.training.algorithm import Algorithm, ArrayState, Saved
from fedpriv.training.evaluate import Metrics
from fedpriv.training.local.module import ArrayExamples

cross_entropy = nn.functional.cross_entropy


def examples(seed, number=6, width=8):
    x = np.random.default_rng(seed).normal(size=(number, width)).astype(np.float32)
    return ArrayExamples(x, (x[:, 0] > 0).astype(np.int64))


USERS = {f"u{number:02d}": examples(number) for number in range(12)}


def module_of(make, **changes):
    given = {"name": "t", "module": make, "loss": cross_entropy, "users": USERS, "synthetic": True}
    return ModuleTask(**{**given, **changes})


def federated(task, **options):
    options = {"rounds": 2, "cohort": 6.0, "noise_multiplier": 1.0, **options}
    return FederatedExperiment(
        name="own", description="", task=lambda experiment, corpus: task, delta=0.01
    ).with_options(options)


def central(make, public=True, num_blank=0):
    own, more = examples(0, 90), {}
    own.x[60 : 60 + num_blank] = 0.0
    if public:
        more = {"x_public": own.x[60:], "y_public": own.y[60:]}
    data = Dataset(
        name="d",
        x_train=own.x[:40],
        y_train=own.y[:40],
        x_test=own.x[40:60],
        y_test=own.y[40:60],
        provenance={},
        **more,
    )
    task = module_task(data, make, cross_entropy)
    return CentralExperiment(
        name="c", description="", task=lambda experiment: task, steps=2, batch_size=8
    ).with_options({"noise_multiplier": 1.0})


def of_users_examples(make):
    own = ExampleSampling(name="e", description="", task=lambda experiment: module_of(make))
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


def refused(experiment, folder, said):
    with pytest.raises(ValueError, match=said) as caught:
        start_run(experiment, "own:x", None, folder / "run")
    assert "\n" not in str(caught.value)
    assert not (folder / "run").exists()


def accepted(experiment, folder):
    start_run(experiment, "own:x", None, folder / "run").folder.close()


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
    ("make", "said"),
    [
        (Frozen, "no update moves tensor 'down', which is to be trained"),
        (Detached, r"no update moves tensor 'down' \(and 1 more\)"),
        (WithoutGradient, r"no update moves tensor 'down' \(and 1 more\)"),
        (CopiedBeforehand, "no update moves tensor 'down'.* on another device"),
        (OnlyWhileTrained, r"answers the same whatever tensor 'down' \(and 1 more\) is"),
        (ForgetsItsHead, "user before it|after it was saved"),  # a trainer made anew has another
    ],
)
def test_such_a_module_is_refused(tmp_path, kind, make, said):
    refused(kind(make), tmp_path, said)


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
    """Red before: a run under the name of LoRA trained the head, and nothing said so."""
    with pytest.raises(
        ValueError, match=r"'0\.0\.lora_a\.weight' \(and 3 more\).*rank=0"
    ) as caught:
        start_run(KINDS[kind](lambda: adapted(["lora"])), "own:x", None, tmp_path / "run")
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()
    accepted(KINDS[kind](lambda: adapted(["lora_a", "0.2.lora_b"])), tmp_path)


def test_a_gradient_names_what_outputs_depend_on_by_one_pass():
    for make, names in (
        (Adapted, {"down", "up", "head.weight", "head.bias"}),
        (OnlyWhileTrained, {"head.weight", "head.bias"}),
    ):
        task = module_of(make)
        params = moved(task.init_params(Key.simulation(0)), 0.1, "test")
        assert set(task.tensors_of_outputs(params)) == names


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_an_adapter_that_starts_at_zero_is_not(tmp_path, kind):
    """Its first factor has no gradient in the first step."""
    accepted(kind(Adapted), tmp_path)


def test_weights_without_values_are_refused_by_name():
    with pytest.raises(ValueError, match=r"'1.weight' is on the device 'meta'.* load its values"):
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


class Normalised(nn.Module):
    def __init__(self, bias=True, groups=1):
        super().__init__()
        self.body, self.norm = nn.Conv1d(1, 4, 3, bias=bias), nn.GroupNorm(groups, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.body(x[:, None]))).mean(2))


def zeros():
    made = nn.Linear(8, 2)
    nn.init.zeros_(made.weight)
    nn.init.zeros_(made.bias)
    return made


WORDS = {
    u: ArrayExamples(np.arange(12).reshape(4, 3) + n, np.arange(4)) for n, u in enumerate("abc")
}
FINE = {
    "zeros": (zeros, {}),
    "rows of words": (Words, {"users": WORDS}),
    "units that are off": (Off, {}),
    "bias before a normalisation": (Normalised, {}),
    "one weight a channel": (lambda: Normalised(bias=False, groups=4), {}),
    "dropout": (lambda: nn.Sequential(nn.Dropout(), nn.Linear(8, 2)), {}),
    "rates that are small": (lambda: nn.Linear(8, 2), {"rate": 1e-6}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("make", "changes"), FINE.values(), ids=FINE)
def test_what_moves_a_little_or_later_is_not_refused(tmp_path, make, changes):
    changes = dict(changes)
    rate = changes.pop("rate", 0.1)
    cohort = len(changes.get("users", USERS)) / 2
    task = module_of(make, **changes)
    accepted(federated(task, local_learning_rate=rate, cohort=cohort), tmp_path)


@pytest.mark.parametrize("blank", [2, 6], ids=["first", "all"])
def test_public_examples_that_are_blank_say_nothing_of_the_model(tmp_path, blank):
    """Red where a linear layer is refused since its inputs were zero."""
    public = examples(99)
    public.x[:blank] = 0.0
    accepted(federated(module_of(lambda: nn.Linear(8, 2), public=public)), tmp_path)


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
    accepted(federated(module_of(Experts, synthetic_batch=examples(5, 400))), tmp_path)


class AfterAll(nn.Module):
    """A number for each output that softmax does not see."""

    def __init__(self):
        super().__init__()
        self.score, self.shift = nn.Linear(8, 2), nn.Parameter(torch.ones(1))

    def forward(self, x):
        return nn.functional.log_softmax(self.score(x) + 0.0 * self.shift, 1)


def test_what_has_no_gradient_by_the_model_itself_is_to_be_frozen(tmp_path):
    refused(
        federated(module_of(AfterAll)), tmp_path, r"'shift'.* or freeze it \(requires_grad_\(False"
    )


@dataclass(frozen=True)
class Trains:
    """What a user does in a task of one's own, by autograd on copies of the params."""

    where: torch.dtype = torch.float32

    def train(self, params, examples, key):
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
    def train(self, params, examples, key):
        found = super().train({n.partition("/")[2]: a for n, a in params.items()}, examples, key)
        return {f"head/{name}": array for name, array in found.items()}


class Copied(Trains):
    """Trains a copy, made where it computes, and returns how far the original went."""

    def train(self, params, examples, key):
        there = copy.deepcopy(params)
        for name, change in super().train(params, examples, key).items():
            there[name] += change
        return {name: array - np.float32(params[name]) for name, array in params.items()}


def test_a_task_of_ones_own_is_tried_on_no_rostered_user(tmp_path):
    accepted(federated(Own()), tmp_path)


@pytest.mark.parametrize("trainer", [Trains(torch.float64), Copied()], ids=["moved", "copied"])
def test_a_trainer_of_ones_own_that_updates_another_copy_is_refused(tmp_path, trainer):
    """What `.to()` moves to another type or device is no leaf, and its gradient is None."""
    refused(federated(Own(trainer)), tmp_path, r"no update moves tensor 'kernel' \(and 1 more\)")


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (Own(ByPrefix(), ("head/kernel", "head/bias")), "'head/kernel' is missing from .*exported"),
        (Own(evaluated=lambda params: params.values()), "by their order and not by their names"),
        (
            Own(evaluated=lambda params: (params["kernel"], np.ones(2, np.float32))),
            "answers the same whatever tensor 'bias' is",
        ),
    ],
    ids=["name", "order", "not evaluated"],
)
def test_a_task_of_ones_own_whose_head_is_lost_is_refused(tmp_path, task, said):
    refused(federated(task), tmp_path, said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetful(ArrayState):
    def save(self):
        saved = ArrayState.save(self)
        return Saved(released={"kernel": saved.released["kernel"]})

    def load(self, round_num, saved):
        return replace(self, round_num=round_num, params={**self.params, **saved.released})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale(ArrayState):
    def load(self, round_num, saved):
        return replace(self, round_num=round_num)


class Forgets(Algorithm):
    def __init__(self, state=Forgetful):
        self.state = state

    def init(self, params):
        return self.state(params=params)

    def step(self, state, door):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (Forgetful, "tensor 'bias' is missing from the model that is exported"),
        (Stale, "tensor 'kernel' of the model of a run that is resumed is another one"),
    ],
)
def test_a_state_of_ones_own_that_forgets_a_tensor_is_refused(state, said):
    params = {"kernel": np.zeros((3, 2), np.float32), "bias": np.ones(2, np.float32)}
    with pytest.raises(ValueError, match=said):
        refuse_unsaved(Forgets(state), params, lambda params: None)
    refuse_unsaved(Forgets(ArrayState), params, lambda params: None)


@pytest.mark.parametrize("num_blank", [2, 29])
def test_blank_public_examples_of_a_data_set_are_no_fault_of_the_model(tmp_path, num_blank):
    """Red before: the first two alone were looked at."""
    accepted(central(lambda: nn.Linear(8, 2), num_blank=num_blank), tmp_path)


@pytest.mark.slow
def test_public_examples_that_are_all_blank_are_named(tmp_path):
    all_blank = central(lambda: nn.Linear(8, 2), num_blank=30)
    refused(all_blank, tmp_path, "no update moves tensor 'weight'.*inputs that are all zero")
