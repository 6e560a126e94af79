"""A centralised experiment of sixty examples that is found again when it is resumed."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy import sparse

from fedpriv.datasets.dataset import Dataset
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.preconditioning import PublicStatistics
from fedpriv.mechanisms import SideInformation
from fedpriv.mechanisms.preconditioners import Statistics
from fedpriv.tasks.dataset_tasks import linear_task
from fedpriv.training.per_example.linear import LogisticGradients

NAME = f"{__name__}:synthetic_experiment"
STEPS, KEPT_EVERY, KILLS = 24, 3, (3, 9, 18)
DIM = 5
SIDE = SideInformation(
    multiplier={"weight": np.linspace(0.3, 3.0, DIM, dtype=np.float32)},
    source="public",
    description="given",
)


def data(seed=0, public_seed=1):
    def part(seed, size):
        x = np.random.default_rng(seed).normal(size=(size, DIM)).astype(np.float32)
        return sparse.csr_matrix(x), (x[:, 0] > 0).astype(np.int64)

    sizes = {"train": (seed, 60), "test": (2, 20), "public": (public_seed, 12)}
    parts = {name: part(*size) for name, size in sizes.items()}
    arrays = {f"{'xy'[n]}_{name}": a for name, both in parts.items() for n, a in enumerate(both)}
    return Dataset(name="sixty", **arrays, provenance={}, synthetic=True)


class Seen(LogisticGradients):
    """Notes which examples a gradient was asked of."""

    looks: list[tuple[int, ...]] = []  # noqa: RUF012 - emptied by the fixture

    def gradient(self, params, index, key=None):
        Seen.looks.append(tuple(index.tolist()))
        return super().gradient(params, index, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestOfSixty(PublicStatistics):
    """Statistics of one's own."""

    kind: ClassVar[str] = "largest-of-sixty"

    def statistics(self):
        return Statistics(second=lambda v, g: np.maximum(np.float32(0.9) * v, np.abs(g)))


class World:
    """What lies on the disk when the experiment is found again."""

    data = data()
    silent = False


def task(experiment, corpus):
    side = {"given": lambda: SIDE}
    made = linear_task(World.data, Seen, {"weight": (DIM,), "bias": (1,)}, side)
    made = replace(made, public_measure=None)  # what is looked at are the guides' batches alone
    return replace(made, data_sha256=None) if World.silent else made


def synthetic_experiment():
    return CentralExperiment(
        name="synthetic-experiment",
        description="A test.",
        task=task,
        batch_size=6,
        steps=STEPS,
        eval_every=KEPT_EVERY,
        delta=1e-3,
    ).with_options({"noise_multiplier": 1.0, "learning_rate": 0.5, "optimizer": "sgd"})


KINDS = {
    "none": {},
    "none, momentum": {"optimizer": "momentum"},
    "warm start": {"warm-start-epochs": 2},
    "side-information": {},
    "public-rmsprop, step": {},
    "public-rmsprop, epoch": {"refresh": "epoch"},
    "public-adam, step": {},
    "public-adam, epoch": {"refresh": "epoch"},
    "public-adagrad, step": {},
    "public-adagrad, epoch": {"refresh": "epoch"},
    "largest-of-sixty": {},
    "largest-of-sixty, epoch": {"refresh": "epoch"},
    "ideal": {},
    "r-pub": {},
    "r-pub, epoch": {"refresh": "epoch"},
    "r-pub, momentum": {"optimizer": "ema-momentum"},
    "mirror-descent": {},
    "delayed": {},
    "past-releases": {"optimizer": "adam"},
}


def experiment(kind):
    preconditioner = kind.partition(",")[0].replace("warm start", "none")
    made = synthetic_experiment().with_options({"preconditioner": preconditioner, **KINDS[kind]})
    small = {
        "preconditioner.public_batch": 4,
        "preconditioner.side_information": "given",
        "preconditioner.delay_plain": 5,  # of nine rounds: killed among plain and preconditioned
        "preconditioner.delay_preconditioned": 4,
    }
    return made.with_options({n: value for n, value in small.items() if n in made.options()})
