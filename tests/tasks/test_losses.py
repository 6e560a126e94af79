"""A loss that no model learns by is refused before a run folder is made, whatever trains it."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.measures import Measure
from fedpriv.tasks.dataset_tasks import module_task
from fedpriv.training.local.module_measures import REGRESSION, ModuleMeasure
from fedpriv.training.per_example.losses import check_loss
from fedpriv.training.per_example.module import ModuleGradients
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import CLIP, cross_entropy, data_set, example_sum, mse, zeros
from tests.tasks.people import accepted, refused, started, task


def person(number, classes=False):
    x = np.random.default_rng(number).normal(size=(6, 4))
    y = x @ [1.0, -2.0, 0.5, 0.0]
    return x, (y > 0).astype(int) if classes else y


def of(*, classes: Any = False, **changes: Any):
    """A task of a regression whose model has one output, or of a classification."""
    given = {
        "module": lambda: nn.Linear(4, 2 if classes else 1),
        "loss": cross_entropy if classes else mse,
        "users": {f"u{n:02d}": person(n, classes) for n in range(12)},
        "public": None,
    }
    return task(**{**given, **changes})


def flat():
    return nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))


WIDER = {f"u{n:02d}": (person(n)[0], person(n)[1][:, None]) for n in range(12)}


@pytest.mark.slow
@pytest.mark.parametrize("users_at_once", [None, 1, 4])
@pytest.mark.parametrize("public", [None, person(99)])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss": lambda outputs, targets: ((outputs - targets) ** 2).mean()},
        {"module": flat, "users": WIDER, "public": None},
        {"module": lambda: nn.Linear(4, 2)},
    ],
    ids=["mse", "by hand", "targets are wider", "two outputs"],
)
def test_predictions_of_one_example_with_targets_of_another(
    tmp_path, users_at_once, public, changes
):
    own = {"public": public, "users_at_once": users_at_once, **changes}
    refused(tmp_path / "run", of(**own), ValueError, "(n,)")


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"module": flat},
        {"loss": lambda outputs, targets: mse(outputs.squeeze(1), targets)},
        {"loss": lambda outputs, targets: mse(outputs[:, 0], targets)},
        {"loss": lambda outputs, targets: mse(outputs, targets.unsqueeze(1))},
        {"loss": lambda outputs, targets: mse(outputs.reshape_as(targets), targets)},
        {"loss": lambda outputs, targets: outputs.square().mean()},
        {"loss": lambda outputs, targets: mse(outputs.squeeze(1), targets, reduction="sum")},
        {"classes": True},
    ],
)
def test_who_compares_each_with_its_own_target_is_let_through(tmp_path, changes):
    public = person(99, changes.get("classes", False))
    started(tmp_path / "run", of(public=public, **changes)).run()


def test_a_measure_likewise(tmp_path):
    near = ModuleMeasure(
        measure=Measure(name="near", label="near", form="share"),
        compute=lambda outputs, targets: (outputs - targets).abs() < 0.5,
    )
    own = {"loss": lambda outputs, targets: mse(outputs.squeeze(1), targets), "public": person(99)}
    refused(tmp_path / "run", of(measures=(*REGRESSION, near), **own), ValueError, "near")
    accepted(tmp_path / "ok", of(measures=REGRESSION, **own))


def test_single_examples_and_centralised_tasks_likewise(tmp_path):
    """Alone each example is right, but the public gradient and the figures were not."""
    x, y = (np.asarray(array, np.float32) for array in person(0))
    gradients = ModuleGradients(nn.Linear(4, 1), mse, x, y)
    params = zeros(weight=(1, 4), bias=1)
    for refused_by in (
        lambda: gradients.gradient(params, np.arange(3)),
        lambda: example_sum(gradients, params, np.arange(3), CLIP),
        lambda: module_task(data_set(x, y), lambda: nn.Linear(4, 1), mse),
    ):
        with refuses(ValueError, "(n, 1)", "(n,)"):
            refused_by()


UNFIT = {
    "nan": lambda o, t: cross_entropy(o, t) * float("nan"),
    "inf": lambda o, t: cross_entropy(o, t) / 0.0,
    ".mean()": lambda o, t: cross_entropy(o, t, reduction="none"),
    "float": lambda o, t: cross_entropy(o, t).item(),
    "tuple": lambda o, t: (cross_entropy(o, t), 0),
    ".detach()": lambda o, t: cross_entropy(o, t).detach(),
}


@pytest.mark.parametrize("public", [None, person(99, True)])
@pytest.mark.parametrize(("name", "loss"), UNFIT.items(), ids=UNFIT)
def test_a_loss_that_is_no_number_to_learn_by(tmp_path, name, loss, public):
    refused(tmp_path / "run", of(classes=True, public=public, loss=loss), ValueError, name)


def weighted(outputs, targets):
    """Each example by a weight of its own: no mean over single examples."""
    weight = targets[:, 1]
    return (weight * (outputs[:, 0] - targets[:, 0]) ** 2).sum() / weight.sum().clamp(min=1e-3)


def partial_likelihood(outputs, targets):
    """Cox: every event against all who were still there, on purpose."""
    score, time, event = outputs[:, 0], targets[:, 0], targets[:, 1]
    still = (time[None, :] >= time[:, None]).to(score.dtype)
    risk = torch.log((still * torch.exp(score)[None, :]).sum(dim=1))
    return -(event * (score - risk)).mean()


def summed(outputs, targets):
    return ((outputs - targets) ** 2).sum()


PAIRS = {f"u{n:02d}": (person(n)[0], np.abs(np.stack([person(n)[1]] * 2, 1))) for n in range(12)}


@pytest.mark.slow
@pytest.mark.parametrize("loss", [weighted, partial_likelihood, summed])
def test_losses_of_as_many_axes_pair_nobody_with_others(tmp_path, loss):
    accepted(tmp_path / "run", of(loss=loss, users=PAIRS, public=PAIRS["u00"], measures=()))


def test_a_look_at_a_loss_leaves_everything_as_it_was():
    """Generators, and which layers are in evaluation mode."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    module[1].eval()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    check_loss(module, lambda o, t: (torch.rand(6, 1) * (o - t)).mean(), *WIDER["u00"])
    assert torch.equal(torch.rand(3), expected)
    assert [layer.training for layer in module] == [True, False, True] and module.training


def test_inputs_that_were_drawn_prove_no_loss_to_be_infinite(tmp_path):
    """The logarithm of what no user has; the same on public examples is refused."""

    class Log(nn.Module):
        def __init__(self):
            super().__init__()
            self.top = nn.Linear(4, 1)

        def forward(self, x):
            return self.top(torch.log(x))

    users = {f"u{n:02d}": (np.abs(person(n)[0]) + 0.1, person(n)[1][:, None]) for n in range(12)}
    accepted(tmp_path / "run", of(module=Log, users=users))
    own = of(module=Log, users=users, public=WIDER["u00"])
    refused(tmp_path / "other", own, ValueError, "nan")
