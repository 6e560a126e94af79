"""An own file: gradient descent that pays for its directions and for its step sizes."""

from pathlib import Path

from fedpriv.experiments.load import load_experiment
from fedpriv.runs.prepared import start_run

SOURCE = """
from dataclasses import dataclass, replace

import numpy as np

from fedpriv.datasets.stackexchange.rosters import roster_sha256
from fedpriv.experiments import FederatedExperiment, GaussianNoise
from fedpriv.measures import Measure
from fedpriv.mechanisms import Clip
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import FilterPlan
from fedpriv.privacy.sampling import Everybody
from fedpriv.tasks.task import Task, TaskDescription
from fedpriv.training.algorithm import Algorithm, ArrayState
from fedpriv.training.evaluate import Metrics
from fedpriv.training.algorithm import Context, Line, SumRequest
from fedpriv.training.work import UserTrainer

SIZES = (0.0, 0.25, 0.5, 1.0)
ROSTER = tuple(f"user-{number:02d}" for number in range(12))
ALL, CLIP = Everybody(num_users=12), Clip(l2_clip_norm=8.0)


class Points:
    def examples(self, user_id):
        return np.array([1, 2, 3], np.float32) + np.float32(0.1) * (ROSTER.index(user_id) - 5)

    def num_examples(self, user_id):
        return 1


class Gradient(UserTrainer):
    def train(self, params, context, examples, key):
        return {"w": examples - params["w"]}


class Losses(UserTrainer):
    def template(self, request):
        return {"losses": np.zeros(len(SIZES), np.float32)}

    def train(self, params, context, examples, key):
        tried = [params["w"] + size * context.line.direction["w"] for size in context.line.sizes]
        return {"losses": np.array([np.linalg.norm(examples - w) for w in tried], np.float32)}


class Near(Task):
    roster, roster_sha256, data = ROSTER, roster_sha256(ROSTER), Points()
    measures = (Measure(name="distance", label="distance", higher_is_better=False),)
    data_sha256 = staticmethod(lambda: {"private": "points"})

    def init_params(self, key):
        return {"w": np.zeros(3, np.float32)}

    def trainer(self, schedule, multiplier, device="cpu"):
        return {"train": Gradient(), "losses": Losses()}

    def synthetic_batch(self):
        return np.ones(3, np.float32)

    def evaluate(self, params, *, public, part=(0, 1)):
        far = np.linalg.norm(params["w"] - (1.0 if public else 2.0))
        return Metrics.of(1, distance=float(far))

    def describe(self):
        return TaskDescription(name="points", synthetic=True, roster="all", num_users=12)


def answered(noise_multiplier):
    return Mechanism(
        sampler=ALL, bound=CLIP, privatizer=Gaussian(noise_multiplier=noise_multiplier)
    )


@dataclass(frozen=True)
class Descent(Algorithm):
    \"\"\"A cheap gradient of rho 1/50, then a dear choice among step sizes of rho 1/8.\"\"\"

    def step(self, state, door):
        asked = SumRequest(params=state.params, mechanism=answered(5.0), name="gradient")
        direction = door.ask(asked)["w"]
        line = Line(direction={"w": direction}, sizes=np.array(SIZES, np.float32))
        asked = SumRequest(
            params=state.params, context=Context(line=line), work="losses",
            mechanism=answered(2.0), name="losses",
        )
        best = int(np.argmin(door.ask(asked)["losses"]))
        return state.after({"w": state.params["w"] + np.float32(SIZES[best]) * direction})


class ByFilter(FederatedExperiment):
    def make_components(self, task):
        made = super().make_components(task)
        plan = FilterPlan(
            num_users=12, rho=1.0, delta=1e-3, roster_sha256=made.plan.roster_sha256
        )
        return replace(made, plan=plan, algorithm=Descent())


def experiment():
    return ByFilter(
        name="descent", description="Prices on the way.", task=lambda experiment, corpus: Near(),
        noise=GaussianNoise(multiplier=1.0), cohort=12.0,
        delta=1e-3,
    )
"""
NAME = "own_descent:experiment"
# Six rounds cost 6 (1/50 + 1/8) = 0.87. The seventh's gradient fits, and its losses do not.
ROUNDS, CHARGES, SPENT = 6, 13, 0.89


def start(out):
    return start_run(load_experiment(NAME), NAME, None, Path(out))


def changed(old, new):
    """Write one text for another in the own file."""
    source = Path("own_descent.py").read_text("utf-8")
    assert old in source
    Path("own_descent.py").write_text(source.replace(old, new) + "\n# changed\n", "utf-8")
