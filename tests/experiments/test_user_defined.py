"""User-defined code in the place of what options say: it is named, and its options are not."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from fedpriv.experiments.build import build
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.report.comparison.groups import differences, read_groups, shared_options
from fedpriv.report.page import render
from fedpriv.report.run_record import read_run
from fedpriv.rng import Key
from fedpriv.runs.document import make_document
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.local.schedule import PlainSteps
from fedpriv.training.local.sgd import as_client_optimizer
from fedpriv.transform import Transform
from tests.harness.other_components import with_components
from tests.harness.resealed import reseal
from tests.report.conftest import write_run
from tests.studies.small import small, task


class OwnNoise(Gaussian):
    """Another privatizer."""


class Halved(Transform):
    def next(self, update, state):
        return {name: array / 2 for name, array in update.items()}, state


def quick():
    return small().with_options({"noise.multiplier": 1.0})


def with_optimizer(experiment):
    made = task(experiment)
    made._client_optimizer = as_client_optimizer(torch.optim.AdamW)
    return made


class OwnTask(ModuleTask):
    """A task that trains users in its own way."""

    def trainer(self, schedule, multiplier, device=None):
        return super().trainer(schedule, multiplier)


def own_task(experiment):
    made = task(experiment)
    made.__class__ = OwnTask
    return made


def halved(made):
    return replace(made, algorithm=replace(made.algorithm, optimizer=Halved()))


def with_noise(made):
    mechanism = made.plan.live_mechanism
    noise = OwnNoise(noise_multiplier=mechanism.noise_multiplier)
    return replace(made, plan=replace(made.plan, mechanism=replace(mechanism, privatizer=noise)))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, {}),
        ({"task": with_optimizer}, {"local.client_optimizer": "AdamW"}),
        ({"task": own_task}, {"local": "OwnTask"}),
    ],
)
def test_components_name_what_runs_in_the_place_of_options(changes, named):
    assert build(replace(quick(), **changes)).user_defined == named


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda made: made, {}),
        (halved, {"server": "Halved"}),
        (with_noise, {"noise": "OwnNoise"}),
    ],
)
def test_components_name_what_a_derived_class_runs(change, named):
    made = build(with_components(quick(), change))
    assert made.user_defined == {"experiment": "Derived", **named}


@dataclass(frozen=True, slots=True, kw_only=True)
class Nesterov(PlainSteps):
    """An optimiser of users' steps."""

    kind: ClassVar[str] = "nesterov-of-a-test"


def test_a_part_of_a_part_is_named():
    local = replace(quick().local, client_optimizer=Nesterov())
    found = replace(quick(), local=local).user_defined()
    assert found == {"local.client_optimizer": "Nesterov"}


def test_a_run_folder_names_it():
    components = build(replace(quick(), task=with_optimizer))
    begun = components.begin(Key.simulation(0))
    document = make_document(components, {}, None, begun)
    assert document["user_defined"] == {"local.client_optimizer": "AdamW"}
    assert document["experiment"]["local.client_optimizer"] == "sgd"
    plain = make_document(build(quick()), {}, None, begun)
    assert "user_defined" not in plain


def test_pages_say_of_no_option_that_it_was_what_ran(tmp_path):
    shown = {"local.client_optimizer": "momentum", "local.client_optimizer.client_decay": 0.9}
    for number, own in enumerate(({}, {"local.client_optimizer": "AdamW"})):
        folder = write_run(tmp_path / str(number), rounds=4, every=2, options=shown)
        reseal(folder, user_defined=own, name=f"method {number}")
    groups = read_groups([tmp_path / "0", tmp_path / "1"])
    assert "local.client_optimizer" not in shared_options(groups)
    differ = differences([[group] for group in groups])
    assert differ["local.client_optimizer"] == ["momentum", "user-defined: AdamW"]
    both = read_groups([tmp_path / "1"])
    assert shared_options(both)["local.client_optimizer"] == "user-defined: AdamW"
    assert "client_decay" not in "".join(shared_options(both))
    assert "user-defined: AdamW" in render(read_run(tmp_path / "1"))
