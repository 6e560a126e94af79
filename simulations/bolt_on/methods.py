"""Runs of the study of bolt-on: from everything that decides one to a row of values.

Every ε is of one example that is there or not, whose place in the order stays empty then: how many
there are is public (add-remove). The papers' neighbours differ by a replaced example, which is two
of ours: what is stated here as pure ε they would call 2ε. Under (ε, δ) that of one Gaussian release
is 2.06 to 2.16 times as large at the same δ = 1/11,862², for ε 0.1 to 4, and sampled batches have a
ratio of their own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import median
from typing import Any, Literal

from fedpriv.mechanisms import Clip
from fedpriv.mechanisms.gaussian import Unprotected
from fedpriv.mechanisms.perturbation import Unperturbed
from fedpriv.privacy.plan import Plan
from fedpriv.runs.progress import Pace
from fedpriv.training.bolt_on import BoltOn
from fedpriv.training.permutation_sgd import Passes
from fedpriv.training.step_schedules import ConstantStep, StronglyConvexStep
from simulations.linear_models.comparators import bst14, dp_sgd, scs13
from simulations.linear_models.problems import problem
from simulations.linear_models.study import Axis, Grid, Settings
from simulations.linear_models.training import (
    Model,
    Remembered,
    perturbed_objective,
    released_once,
    run,
)
from simulations.reproduction.items import Split
from simulations.reproduction.study import Row, Spec

Guarantee = Literal["pure", "approximate"]

EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
PASSES = (1, 5, 10)
BATCH = 50

LABELS = {
    "bolt-on": "bolt-on, convex",
    "bolt-on-strong": "bolt-on, strongly convex",
    "scs13": "SCS13",
    "bst14-published": "BST14 as published",
    "bst14": "BST14 with the least noise",
    "dp-sgd": "DP-SGD",
    "objective": "objective perturbation",
}

#: Under which guarantee a method is.
METHODS: Mapping[Guarantee, tuple[str, ...]] = {
    "pure": ("bolt-on", "bolt-on-strong", "scs13", "objective"),
    "approximate": (
        "bolt-on", "bolt-on-strong", "bst14-published", "bst14", "dp-sgd", "objective",
    ),
}  # fmt: skip

#: Losses whose example has a gradient along one line, on which objective perturbation rests.
OF_ONE_LINE = ("logistic", "huber")

#: 2/β of a loss, the longest step of bolt-on.
_LONGEST = {"logistic": 8.0, "one-vs-all": 8.0, "softmax": 4.0, "huber": 0.4}
_DECADES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


def grids_of(loss: str) -> Mapping[str, Grid]:
    """Return the settings of each method: one number, of which five values are the first grid."""
    rates = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    first: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0)
    if loss == "huber":  # so steep in its corner
        rates, first = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2), (0.01, 0.03, 0.1, 0.2, 0.4)
    longest = "2/β, beyond which its sensitivity is not proved"
    shares = (0.001, 0.0025, 0.006, 0.015, 0.04, 0.1, 0.25, 0.6, 0.9, 0.98)
    return {
        "bolt-on": Grid({
            "rate": Axis(values=(*rates, _LONGEST[loss]), first=first, most=longest)
        }),
        "bolt-on-strong": Grid({
            "regulariser": Axis(
                values=(1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0),
                first=(1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
            )
        }),
        "scs13": Grid({"rate": Axis(values=_DECADES, first=(0.3, 1.0, 3.0, 10.0, 30.0))}),
        **{
            name: Grid({"radius": Axis(values=_DECADES, first=(1.0, 3.0, 10.0, 30.0, 100.0))})
            for name in ("bst14-published", "bst14")
        },
        "dp-sgd": Grid({"rate": Axis(values=_DECADES, first=(0.03, 0.1, 0.3, 1.0, 3.0))}),
        "objective": Grid({
            "shift_share": Axis(
                values=shares, first=(0.6, 0.25, 0.1, 0.04, 0.015),
                most="nothing of ε is left for its linear term",
            )
        }),
    }  # fmt: skip


def delta_of(num_examples: int) -> float:
    """Return 1/m², as the talk has it."""
    return 1.0 / num_examples**2


def _model_place(asked: Spec) -> tuple[Any, ...]:
    return tuple(asked[name] for name in ("problem", "loss", "split", "rows", "tiny"))


@lru_cache(maxsize=4)
def model_of(problem_key: str, loss: str, split: Split, rows: int | None, tiny: bool) -> Model:
    """Return the model of a spec."""
    own = problem(problem_key, tiny=tiny)
    return Model.of(loss, own.part(split) if rows is None else own.smaller(rows))


def perform(asked: Spec) -> Row:
    """Run a spec; its figures, its ε, and the CPU time of training alone."""
    model = model_of(*_model_place(asked))
    started = time.process_time()
    outcome = _METHODS[asked["method"]](model, asked)
    seconds = time.process_time() - started
    return {
        "accuracy": round(model.accuracy(outcome.params), 5),
        "objective": round(model.mean_loss(outcome.params), 5),
        "true_epsilon": outcome.epsilon,
        "delta": outcome.delta,
        "synthetic": model.data.synthetic,
        "data": model.data.name,
        "num_train": model.num_train,
        "seconds": round(seconds, 3),
    }


@lru_cache(maxsize=64)
def _remembered(
    place: tuple[Any, ...], passes: int, batch: int, settings: tuple[tuple[str, Any], ...]
) -> Remembered:
    """Return permutation SGD, whose end is found once a seed and remembered."""
    return Remembered(sgd=permutation_sgd(model_of(*place), passes, batch, dict(settings)))


def permutation_sgd(model: Model, passes: int, batch: int, settings: Settings) -> Any:
    """Return permutation SGD: of a constant step, or min(1/β, 1/γt) within R = 1/λ."""
    train: Any = model.task.train
    weight = settings.get("regulariser", 0.0)
    schedule = ConstantStep(rate=settings["rate"]) if not weight else StronglyConvexStep()
    taken = Passes(
        passes=passes,
        batch_size=min(batch, model.num_train),
        schedule=schedule,
        radius=1.0 / weight if weight else None,
    )
    return train.permutation_sgd(taken, regulariser=weight)


def _bolt_on(model: Model, asked: Spec) -> Any:
    works = _remembered(
        _model_place(asked),
        asked["passes"],
        asked["batch"],
        tuple(sorted(asked["settings"].items())),
    )
    works.seed = asked["seed"]
    plan = plan_of(model, works.sgd, asked["guarantee"], asked["epsilon"])
    return run(model, plan, BoltOn(), works, asked["seed"])


def plan_of(model: Model, sgd: Any, guarantee: Guarantee | None, epsilon: float) -> Plan:
    """Return the plan of one release; without a guarantee of one without noise."""
    number = model.num_train
    moved = sgd.passes.sensitivity(sgd.constants, number)
    delta = delta_of(number) if guarantee == "approximate" else None
    noise = Unperturbed() if guarantee is None else None
    return released_once(number, moved, epsilon, delta, noise)


def _per_step(model: Model, asked: Spec) -> Any:
    made = stepwise(model, asked["method"], asked["epsilon"], asked["passes"], asked["batch"],
                    **asked["settings"])  # fmt: skip
    return run(model, made.plan, made.algorithm, model.sums(), asked["seed"])


def stepwise(
    model: Model, method: str, epsilon: float, passes: int, batch: int, **settings: Any
) -> Any:
    """Return a method that adds noise to every step."""
    shared: dict[str, Any] = {
        "num_examples": model.num_train,
        "epsilon": epsilon,
        "bound": Clip(l2_clip_norm=1.0),
        "batch_size": batch,
        **settings,
    }
    delta = delta_of(model.num_train)
    if method == "scs13":
        return scs13(passes=passes, **shared)
    if method in ("bst14", "bst14-published"):
        params = model.task.init_params(_NO_KEY)
        return bst14(
            delta=delta,
            passes=passes,
            dimension=sum(array.size for array in params.values()),
            composition="pld" if method == "bst14" else "strong",
            **shared,
        )
    return dp_sgd(delta=delta, steps=passes * model.num_train // batch, **shared)


def _objective(model: Model, asked: Spec) -> Any:
    made, work = perturbed_objective(
        model,
        epsilon=asked["epsilon"],
        delta=delta_of(model.num_train) if asked["guarantee"] == "approximate" else None,
        shift_share=asked["settings"]["shift_share"],
    )
    return run(model, made.plan, made.algorithm, work, asked["seed"])


_METHODS = {
    "objective": _objective,
    "bolt-on": _bolt_on,
    "bolt-on-strong": _bolt_on,
    "scs13": _per_step,
    "bst14-published": _per_step,
    "bst14": _per_step,
    "dp-sgd": _per_step,
}
_NO_KEY: Any = None


PAIRS = 11
#: Methods whose training is timed with noise and without.
TIMED = {"bolt-on": "bolt-on (pure ε)", "scs13": "SCS13 (pure ε)", "dp-sgd": "DP-SGD"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """CPU seconds of two ways of training, and their ratio by pairs.

    Attributes:
        name: What is compared.
        with_noise: Seconds, run by run.
        without: Likewise.
    """

    name: str
    with_noise: Sequence[float]
    without: Sequence[float]

    def cells(self) -> list[str]:
        """Return a row of a table: medians, and the ratio's median and range."""
        ratios = sorted(a / b for a, b in zip(self.with_noise, self.without, strict=True))
        return [
            self.name,
            f"{median(self.with_noise):.3f}",
            f"{median(self.without):.3f}",
            f"{median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})",
        ]


def timed(
    problem_key: str, loss: str, *, passes: int = 1, pairs: int = PAIRS, tiny: bool = False
) -> list[Timed]:
    """Return what noise costs in time, at ε = 1 and one setting of each method.

    Args:
        problem_key: The problem.
        loss: Of the model.
        passes: k.
        pairs: How many, alternating.
        tiny: Of synthetic data.
    """
    model = model_of(problem_key, loss, "test", None, tiny)
    sgd = permutation_sgd(model, passes, BATCH, {"rate": 0.1})
    plans = plan_of(model, sgd, "pure", 1.0), plan_of(model, sgd, None, 1.0)
    pace = Pace(3 * pairs, of="pairs")
    found = [_timed(TIMED["bolt-on"], model, plans, BoltOn(), sgd, pairs, pace)]
    for method in ("scs13", "dp-sgd"):
        made = stepwise(model, method, 1.0, passes, BATCH, rate=1.0)
        bare = replace(made.plan.live_mechanism, privatizer=Unprotected(stddev=0.0))
        plain = replace(made.plan, mechanism=bare, target_epsilon=None, delta=1e-6)
        plans = made.plan, plain
        works = model.sums()
        found.append(_timed(TIMED[method], model, plans, made.algorithm, works, pairs, pace))
    return found


def _timed(
    name: str,
    model: Model,
    plans: tuple[Plan, Plan],
    algorithm: Any,
    works: Any,
    pairs: int,
    pace: Pace,
) -> Timed:
    trainings = [lambda seed, p=plan: run(model, p, algorithm, works, seed) for plan in plans]
    times: tuple[list[float], list[float]] = [], []
    for training in trainings:  # what is compiled and accounted once is not counted
        training(0)

    def both(seed: int) -> None:
        for which in (0, 1) if seed % 2 else (1, 0):
            started = time.process_time()
            trainings[which](seed)
            times[which].append(round(time.process_time() - started, 4))

    for seed in range(pairs):
        pace.work(name, partial(both, seed))
    return Timed(name=name, with_noise=times[0], without=times[1])
