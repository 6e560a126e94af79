"""What is trained: the paper's tasks of examples, as far as their data can be had."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedpriv.checkpoints.aggregates import Rule, answers, mean_probabilities
from fedpriv.experiments.composing.options import Option
from fedpriv.experiments.experiment import Experiment
from fedpriv.measures import ACCURACY, Measure
from fedpriv.tasks.dataset_tasks import AUC_LOSS, auc_total
from simulations.by_example.conversions import dp_sgd_conversions
from simulations.by_example.images import dp_sgd_cifar
from simulations.scraps.checkpoints import Aggregates

#: Of several models' probabilities and of the labels, what answers together have.
OfOutputs = Callable[[Sequence[np.ndarray], np.ndarray], float]
#: Of the models' outputs, what is measured, by the name of an aggregate.
Outputs = Mapping[str, OfOutputs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A task, how it is trained, and what the paper says of it.

    Attributes:
        name: Of its reproduction.
        title: Of its page.
        about: How it differs from the paper's.
        make: Its experiment.
        options: Of the experiment.
        epsilons: That are measured; None is without noise.
        rates: Learning rates, all of which are shown.
        which: Aggregates of params.
        measure: What is compared, as a share.
        chance: Of it, what an answer has that looks at nothing.
        outputs: Aggregates of outputs.
        paper: Its figures: of what, and what it says.
        public: Options of a public run before, without privacy, from whose last model and whose
            average private runs start; None for none.
        seeds: Of every run.
    """

    name: str
    title: str
    about: str
    make: Callable[[], Experiment]
    options: Mapping[str, Option]
    epsilons: Sequence[float | None]
    rates: Sequence[float]
    which: Aggregates
    measure: Measure
    chance: float
    outputs: Outputs = field(repr=False)
    paper: Sequence[tuple[str, str]]
    public: Mapping[str, Option] | None = None
    seeds: int = 3


def _accuracy(rule: Rule) -> OfOutputs:
    def measured(probabilities: Sequence[np.ndarray], labels: np.ndarray) -> float:
        return float((answers(rule, probabilities) == labels).mean())

    return measured


def _auc_loss(probabilities: Sequence[np.ndarray], labels: np.ndarray) -> float:
    total = auc_total(mean_probabilities(probabilities)[:, 1], labels)
    return total.sum / total.count


_LABELS: Outputs = {"OPA": _accuracy("opa"), "OMV": _accuracy("omv")}
_PHOTOGRAPHS: Mapping[str, Option] = {"network": "wide", "multiplicity": 16, "batch-size": 4096.0,
                                      "epochs": 100.0, "aggregate": "none"}  # fmt: skip
_FEW: Mapping[str, Option] = {"multiplicity": 1, "batch-size": 250.0, "epochs": 2.0,
                              "aggregate": "none"}  # fmt: skip
_LOSSY = "the reduced, lossy CIFAR-10 (10,000 images) and a network of 78,186 parameters"


def cifar10(*, reduced: bool) -> Problem:
    """Return classification of CIFAR-10 from nothing."""
    own = f"Ours is {_LOSSY}." if reduced else "WRN-16-4 and 16 views; on a GPU."
    return Problem(
        name="scraps-cifar10",
        title="Recycling checkpoints on CIFAR-10",
        about=f"The paper trains WRN-16-4 by De et al.'s recipe. {own}",
        make=dp_sgd_cifar,
        options=_FEW if reduced else _PHOTOGRAPHS,
        epsilons=(8.0, None) if reduced else (8.0, 1.0, None),
        rates=(2.0,) if reduced else (4.0, 2.0),
        which=Aggregates(decays=(0.9, 0.95) if reduced else (0.99, 0.999, 0.9999), ks=(5, 10, 20)),
        measure=ACCURACY,
        chance=0.1,
        outputs=_LABELS,
        paper=(("ε = 1", "57.51 % with aggregates, +2.7 % of the last iterate (56.0, implied)"),),
    )


def cifar100(*, reduced: bool) -> Problem:
    """Return classification of one half of the classes, after public training on the other."""
    own = (
        f"Ours is {_LOSSY}: five classes after public training on the other five, since CIFAR-100 "
        "cannot be had everywhere. It stands in for the question and for no figure."
        if reduced
        else "Ours is fine-tuning on the last 50 classes after public training on the first 50."
    )
    halves: Mapping[str, Option] = {} if reduced else {"photographs": "cifar100"}
    options = {**(_FEW if reduced else _PHOTOGRAPHS), **halves}
    return Problem(
        name="scraps-cifar100",
        title="Recycling checkpoints of public training as a start, as on CIFAR-100",
        about="The paper fine-tunes on CIFAR-100 after pre-training on ImageNet, and starts from "
        f"the moving average of pre-training. {own}",
        make=dp_sgd_cifar,
        options={**options, "classes": "last-half"},
        epsilons=(8.0, 1.0),
        rates=(1.0,) if reduced else (2.0, 1.0),
        which=Aggregates(decays=(0.9,) if reduced else (0.99, 0.999), ks=(5, 10)),
        measure=ACCURACY,
        chance=0.2 if reduced else 0.02,
        outputs=_LABELS,
        paper=(
            ("ε = 1", "start from the average of pre-training: +5 % over De et al.; then "
             "aggregates +.89 %, 76.18 % (75.51 implied)"),
            ("ε = 8", "start from the average of pre-training: +3.2 % over De et al."),
        ),
        public={**options, "classes": "first-half", "noise": "none", "bound": "none",
                "aggregate": "ema", "ema-decay": 0.95 if reduced else 0.999,
                "learning-rate": 0.2, **({"epochs": 4.0} if reduced else {})},
    )  # fmt: skip


def conversions(*, reduced: bool) -> Problem:
    """Return prediction of conversions, of a synthetic log."""
    return Problem(
        name="scraps-pcvr",
        title="Recycling checkpoints of predicted conversions",
        about="The paper's log of ads is proprietary, and its model another. Ours is a logistic "
        "model of a SYNTHETIC log in Criteo's form; `-s log=FILE` of `fedpriv run "
        "dp-sgd-conversions` reads a real one.",
        make=dp_sgd_conversions,
        options={"log-rows": 2_000, "epochs": 2.0} if reduced else {"log-rows": 20_000},
        epsilons=(6.0, None) if reduced else (6.0, 1.0, None),
        rates=(64.0,) if reduced else (16.0, 64.0, 256.0),
        which=Aggregates(decays=(0.9, 0.95), ks=(5, 10, 20)),
        measure=AUC_LOSS,
        chance=0.5,
        outputs={"OPA": _auc_loss},
        paper=(("ε = 6", "AUC loss -.54 %, its variance over runs -62.6 %"),),
        seeds=3 if reduced else 20,
    )


PROBLEMS: Mapping[str, Callable[..., Problem]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "pcvr": conversions,
}


def within(problem: Problem, folder: str) -> Problem:
    """Return the problem with photographs of this folder."""
    public = None if problem.public is None else {**problem.public, "folder": folder}
    return replace(problem, options={**problem.options, "folder": folder}, public=public)
