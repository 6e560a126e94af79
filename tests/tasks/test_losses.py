"""A loss that no model learns by is refused before a run folder is made, whatever trains it."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.datasets.dataset import Dataset
from fedpriv.measures import Measure
from fedpriv.mechanisms.bounds import Clip
from fedpriv.runs.prepared import start_run
from fedpriv.tasks.dataset_tasks import module_task
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.local.module_measures import REGRESSION, ModuleMeasure
from fedpriv.training.per_example.losses import check_loss
from fedpriv.training.per_example.module import ModuleGradients
from tests.tasks.people import experiment

SPREADS = "compares outputs .* with targets .* by broadcasting"
mse = nn.functional.mse_loss


def person(number, classes=False):
    x = np.random.default_rng(number).normal(size=(6, 4))
    y = x @ [1.0, -2.0, 0.5, 0.0]
    return x, (y > 0).astype(int) if classes else y


def started(folder, *, classes: Any = False, **changes: Any):
    """A run of a regression whose model has one output, or of a classification."""
    task = ModuleTask(
        **{
            "name": "t",
            "module": lambda: nn.Linear(4, 2 if classes else 1),
            "loss": nn.functional.cross_entropy if classes else mse,
            "users": {f"u{n:02d}": person(n, classes) for n in range(12)},
            "synthetic": True,
            **changes,
        }
    )
    return start_run(experiment(task), "own:x", None, folder)


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
    """Red before: the model was trained towards everybody's mean target, with a finite loss."""
    with pytest.raises(ValueError, match=SPREADS):
        started(tmp_path / "run", **{"public": public, "users_at_once": users_at_once, **changes})
    assert not (tmp_path / "run").exists()


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
    started(tmp_path / "run", public=person(99, changes.get("classes", False)), **changes).run()


def test_a_measure_likewise(tmp_path):
    """Red before: 36 differences were counted of 6 examples."""
    near = ModuleMeasure(
        measure=Measure(name="near", label="near", form="share"),
        compute=lambda outputs, targets: (outputs - targets).abs() < 0.5,
    )
    loss = {"loss": lambda outputs, targets: mse(outputs.squeeze(1), targets)}
    with pytest.raises(ValueError, match=f"measure 'near' {SPREADS}"):
        started(tmp_path / "run", public=person(99), measures=(*REGRESSION, near), **loss)
    assert not (tmp_path / "run").exists()
    started(tmp_path / "ok", public=person(99), measures=REGRESSION, **loss).folder.close()


def test_single_examples_and_centralised_tasks_likewise(tmp_path):
    """Alone each example is right, but the public gradient and the figures were not."""
    x, y = (np.asarray(array, np.float32) for array in person(0))
    gradients = ModuleGradients(nn.Linear(4, 1), mse, x, y)
    params = {"weight": np.zeros((1, 4), np.float32), "bias": np.zeros(1, np.float32)}
    with pytest.raises(ValueError, match=SPREADS):
        gradients.gradient(params, np.arange(3))
    with pytest.raises(ValueError, match=SPREADS):
        gradients.bounded_sum(params, np.arange(3), Clip(l2_clip_norm=1.0))
    data = Dataset(name="d", x_train=x, y_train=y, x_test=x, y_test=y, provenance={})
    with pytest.raises(ValueError, match=SPREADS):
        module_task(data, lambda: nn.Linear(4, 1), mse)


cross_entropy = nn.functional.cross_entropy
UNFIT = {
    "loss is nan": lambda o, t: cross_entropy(o, t) * float("nan"),
    "loss is inf": lambda o, t: cross_entropy(o, t) / 0.0,
    r"tensor of shape \(\d,\); return one number": lambda o, t: cross_entropy(
        o, t, reduction="none"
    ),
    "returned a float; return a tensor": lambda o, t: cross_entropy(o, t).item(),
    "returned a tuple; return a tensor": lambda o, t: (cross_entropy(o, t), 0),
    "has no gradient": lambda o, t: cross_entropy(o, t).detach(),
}


@pytest.mark.parametrize("public", [None, person(99, True)])
@pytest.mark.parametrize("said", UNFIT)
def test_a_loss_that_is_no_number_to_learn_by(tmp_path, said, public):
    """Red before: NaN made every user contribute zero, the others ended in torch's own words."""
    with pytest.raises(ValueError, match=said):
        started(tmp_path / "run", classes=True, public=public, loss=UNFIT[said])
    assert not (tmp_path / "run").exists()


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
    """Red before: refused as broadcasting, which none of them does by mistake."""
    started(
        tmp_path / "run", loss=loss, users=PAIRS, public=PAIRS["u00"], measures=()
    ).folder.close()


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
    started(tmp_path / "run", module=Log, users=users).folder.close()
    with pytest.raises(ValueError, match="the loss is nan on public"):
        started(tmp_path / "other", module=Log, users=users, public=WIDER["u00"])
