"""Options of a task of one's own: declared as a frozen dataclass, checked and swept like ours."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from torch import nn

from fedpriv.backends.flower.settings import open_node, read_experiment
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.parts import PositiveInt
from fedpriv.rng import Key
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.local.module import ArrayExamples
from tests.harness.refusals import refuses

NAME = f"{__name__}:experiment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """A hidden layer before two classes.

    Attributes:
        hidden: Width of the hidden layer.
    """

    rows: np.ndarray = field(default_factory=lambda: np.ones((3, 4), np.float32), compare=False)
    hidden: PositiveInt = 8
    dropout: float = 0.0

    def __call__(self, experiment):
        people = {name: ArrayExamples(x=self.rows, y=np.array([0, 1, 0])) for name in "abcdef"}
        return ModuleTask(
            name="halves",
            module=lambda: nn.Sequential(
                nn.Linear(4, self.hidden), nn.Dropout(self.dropout), nn.Linear(self.hidden, 2)
            ),
            loss=nn.functional.cross_entropy,
            users=people,
            synthetic=True,
        )


def experiment():
    return FederatedExperiment(
        name="own",
        description="A task of one's own.",
        task=Halves(rows=np.full((3, 4), 2, np.float32)),
        delta=0.01,
        rounds=1,
    ).with_options({"noise_multiplier": 1.0, "cohort": 3.0})


def widths(components):
    return components.task.init_params(Key.simulation(0))["0.weight"].shape


def test_they_are_set_like_ours_and_reach_the_model():
    made = load_experiment(NAME)
    assert (made.task.hidden, made.options()["task.hidden"]) == (8, 8)
    wide = made.with_options({"hidden": 32})
    assert wide.task.hidden == 32 and widths(build(wide)) == (32, 4)
    assert wide.task.rows is made.task.rows or (wide.task.rows == made.task.rows).all()
    assert wide.options() | {"task.hidden": 8} == made.options()
    assert made.with_options(wide.options()) == wide != made
    assert wide.with_options({"rounds": 2}).task.hidden == 32


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hidden": 0}, 0),
        ({"hidden": 2.5}, "hidden"),
        ({"hidden": "wide"}, "hidden"),
        ({"hiden": 3}, "hidden"),
        ({"rows": 3}, "rows"),
        ({"users": 3}, "users"),
        ({"roster": "x"}, "roster"),
    ],
)
def test_they_are_refused_like_ours(options, said):
    with refuses(ValueError, said):
        load_experiment(NAME).with_options(options)


def test_a_name_that_an_experiment_has_too_is_set_by_its_path():
    @dataclass(frozen=True)
    class Task:
        rounds: int = 3

        def __call__(self, experiment):
            raise AssertionError

    made = FederatedExperiment(name="a", description="", task=Task())
    assert made.with_options({"rounds": 7}).task.rounds == 3
    assert made.with_options({"task.rounds": 7}).task.rounds == 7


def test_under_flower_they_travel_as_one_key_of_toml():
    config = {"experiment": NAME, "rounds": 2, "options": "hidden = 7\ntask.dropout = 0.5"}
    made = read_experiment(config)
    assert (made.task.hidden, made.task.dropout, made.rounds) == (7, 0.5, 2)
    assert open_node(config, {}).task.init_params(Key.simulation(0))["0.weight"].shape == (7, 4)
    for text, said in (
        ("{hidden", "{hidden"),
        ("hiden = 7", "hidden"),
    ):
        with refuses(ValueError, said):
            read_experiment({**config, "options": text})
