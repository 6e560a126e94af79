"""What the study of bolt-on runs: a spec in, a row of figures out.

Every ε is of one example that is there or not, whose place in the order stays empty then: how many
there are is public (add-remove). The papers' neighbours differ by a replaced example, which is two
of ours: what is stated here as ε they would call 2ε, of all methods.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import median
from typing import Any, Literal

from fedpriv.mechanisms import Clip
from fedpriv.mechanisms.bounds import Displaced
from fedpriv.mechanisms.gaussian import Unprotected
from fedpriv.mechanisms.perturbation import OutputGaussian, Sphere, Unperturbed
from fedpriv.privacy.accounting import calibrate
from fedpriv.privacy.event import Event, Relation
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import Everybody
from fedpriv.runs.progress import Pace
from fedpriv.training.bolt_on import BoltOn
from fedpriv.training.permutation_sgd import Passes, StepSchedule
from simulations.linear_models.comparators import bst14, dp_sgd, scs13
from simulations.linear_models.problems import problem
from simulations.linear_models.training import Model, Remembered, perturbed_objective, run
from simulations.reproduction.items import TUNING_SEED, Split
from simulations.reproduction.study import Row, Spec

Guarantee = Literal["pure", "approximate"]
Settings = Mapping[str, Any]

EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
PASSES = (1, 5, 10)
BATCH = 50

LABELS = {
    "bolt-on": "bolt-on, convex",
    "bolt-on-strong": "bolt-on, strongly convex",
    "scs13": "SCS13",
    "bst14": "BST14",
    "dp-sgd": "DP-SGD",
    "objective": "objective perturbation",
}

#: Under which guarantee a method is.
METHODS: Mapping[Guarantee, tuple[str, ...]] = {
    "pure": ("bolt-on", "bolt-on-strong", "scs13", "objective"),
    "approximate": ("bolt-on", "bolt-on-strong", "bst14", "dp-sgd", "objective"),
}

#: Losses whose example has a gradient along one line, on which objective perturbation rests.
OF_ONE_LINE = ("logistic", "huber")

#: Five settings each.
GRIDS: Mapping[str, tuple[Settings, ...]] = {
    "bolt-on": tuple({"rate": rate} for rate in (0.03, 0.1, 0.3, 1.0, 3.0)),
    "bolt-on-strong": tuple({"regulariser": w} for w in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)),
    "scs13": tuple({"rate": rate} for rate in (0.3, 1.0, 3.0, 10.0, 30.0)),
    "bst14": tuple({"radius": radius} for radius in (1.0, 3.0, 10.0, 30.0, 100.0)),
    "dp-sgd": tuple({"rate": rate} for rate in (0.03, 0.1, 0.3, 1.0, 3.0)),
    "objective": tuple({"shift_share": share} for share in (0.6, 0.25, 0.1, 0.04, 0.015)),
}

#: Of the Huber hinge, which is so steep in its corner that 2/β is 0.4.
HUBER_GRID: tuple[Settings, ...] = tuple({"rate": rate} for rate in (0.01, 0.03, 0.1, 0.2, 0.4))


def spec(
    problem_key: str,
    loss: str,
    guarantee: Guarantee | None,
    method: str,
    epsilon: float,
    passes: int,
    settings: Settings,
    *,
    split: Split = "test",
    seed: int = TUNING_SEED,
    batch: int = BATCH,
    rows: int | None = None,
    tiny: bool = False,
) -> Spec:
    """Return everything that decides one run; without a guarantee it has no noise."""
    return {
        "problem": problem_key,
        "loss": loss,
        "guarantee": guarantee,
        "method": method,
        "epsilon": epsilon,
        "passes": passes,
        "settings": dict(settings),
        "split": split,
        "seed": seed,
        "batch": batch,
        "rows": rows,
        "tiny": tiny,
    }


def delta_of(num_examples: int) -> float:
    """Return 1/m², as the talk has it."""
    return 1.0 / num_examples**2


@lru_cache(maxsize=4)
def model_of(problem_key: str, loss: str, split: Split, rows: int | None, tiny: bool) -> Model:
    """Return the model of a spec."""
    own = problem(problem_key, tiny=tiny)
    return Model.of(loss, own.part(split) if rows is None else own.smaller(rows))


def perform(asked: Spec) -> Row:
    """Run a spec; its figures, its ε, and the CPU time of training alone."""
    model = model_of(*(asked[n] for n in ("problem", "loss", "split", "rows", "tiny")))
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


def noiseless_works(asked: Spec) -> Any:
    """Return permutation SGD, whose end is found once a seed and remembered."""
    found = _remembered(
        *(asked[n] for n in ("problem", "loss", "split", "rows", "tiny", "passes", "batch")),
        tuple(sorted(asked["settings"].items())),
    )
    found.seed = asked["seed"]
    return found


@lru_cache(maxsize=64)
def _remembered(
    problem_key: str,
    loss: str,
    split: Split,
    rows: int | None,
    tiny: bool,
    passes: int,
    batch: int,
    settings: tuple[tuple[str, Any], ...],
) -> Remembered:
    model = model_of(problem_key, loss, split, rows, tiny)
    return Remembered(sgd=permutation_sgd(model, passes, batch, dict(settings)))


def permutation_sgd(model: Model, passes: int, batch: int, settings: Settings) -> Any:
    """Return permutation SGD: of a constant step, or min(1/β, 1/γt) within R = 1/λ."""
    train: Any = model.task.train
    weight = settings.get("regulariser", 0.0)
    schedule = (
        StepSchedule(rate=settings["rate"]) if not weight else StepSchedule(name="strongly-convex")
    )
    taken = Passes(
        passes=passes,
        batch_size=min(batch, model.num_train),
        schedule=schedule,
        radius=1.0 / weight if weight else None,
    )
    return train.permutation_sgd(taken, regulariser=weight)


def _bolt_on(model: Model, asked: Spec) -> Any:
    works = noiseless_works(asked)
    return run(model, plan_of(model, works.sgd, asked), BoltOn(), works, asked["seed"])


def plan_of(model: Model, sgd: Any, asked: Spec) -> Plan:
    """Return the promise of one release."""
    guarantee, epsilon, number = asked["guarantee"], asked["epsilon"], model.num_train
    noise: Any = Unperturbed()
    if guarantee == "pure":
        noise = Sphere(epsilon=epsilon)
    elif guarantee == "approximate":
        noise = OutputGaussian(noise_multiplier=_sigma_once(epsilon, delta_of(number)))
    return Plan(
        mechanism=Mechanism(
            sampler=Everybody(num_users=number),
            bound=Displaced(l2_bound=sgd.passes.sensitivity(sgd.constants, number)),
            privatizer=noise,
        ),
        num_rounds=1,
        delta=delta_of(number) if guarantee == "approximate" else None,
        unit="example",
    )


@lru_cache(maxsize=64)
def _sigma_once(epsilon: float, delta: float) -> float:
    return calibrate(
        lambda sigma: Event(kind="gaussian", noise_multiplier=sigma),
        1,
        target_epsilon=epsilon,
        delta=delta,
        relation=Relation.ADD_REMOVE,
    )


def _per_step(model: Model, asked: Spec) -> Any:
    made = stepwise(model, asked)
    return run(model, made.plan, made.algorithm, model.sums(), asked["seed"])


def stepwise(model: Model, asked: Spec) -> Any:
    """Return a method that adds noise to every step."""
    shared: dict[str, Any] = {
        "num_examples": model.num_train,
        "epsilon": asked["epsilon"],
        "bound": Clip(l2_clip_norm=1.0),
        "batch_size": asked["batch"],
    }
    delta, passes = delta_of(model.num_train), asked["passes"]
    if asked["method"] == "scs13":
        return scs13(passes=passes, **shared, **asked["settings"])
    if asked["method"] == "bst14":
        params = model.task.init_params(_NO_KEY)
        size = sum(array.size for array in params.values())
        return bst14(delta=delta, passes=passes, dimension=size, **shared, **asked["settings"])
    steps = passes * model.num_train // asked["batch"]
    return dp_sgd(delta=delta, steps=steps, **shared, **asked["settings"])


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
    "bst14": _per_step,
    "dp-sgd": _per_step,
}
_NO_KEY: Any = None


PAIRS = 11

Training = Callable[[int], object]
"""From a seed to a finished run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """CPU seconds of two ways of training, and their ratio by pairs.

    Attributes:
        name: What is compared.
        with_noise: Median seconds.
        without: Likewise.
        ratios: With over without, sorted.
    """

    name: str
    with_noise: float
    without: float
    ratios: tuple[float, ...]

    @property
    def shown(self) -> str:
        """A row of a table."""
        low, high = self.ratios[0], self.ratios[-1]
        return (
            f"| {self.name} | {self.with_noise:.3f} | {self.without:.3f} | "
            f"{median(self.ratios):.3f} ({low:.3f} to {high:.3f}) |"
        )


def timed(
    problem_key: str, loss: str, *, passes: int = 1, pairs: int = PAIRS, tiny: bool = False
) -> list[Timed]:
    """Return what noise costs in time, at ε = 1 and one setting of each method.

    Args:
        problem_key: The problem.
        loss: Of the model.
        passes: k.
        pairs: How many, alternating.
        tiny: Of made-up data.
    """
    model = model_of(problem_key, loss, "test", None, tiny)
    noised, plain = _bolt_on_trainings(model, problem_key, loss, passes)
    pace = Pace(3 * pairs, of="pairs")
    found = [_pair("bolt-on (pure ε)", noised, plain, pairs, pace)]
    for method, label in (("scs13", "SCS13 (pure ε)"), ("dp-sgd", "DP-SGD")):
        asked = spec(problem_key, loss, None, method, 1.0, passes, {"rate": 1.0})
        noised, plain = _stepwise(model, stepwise(model, asked))
        found.append(_pair(label, noised, plain, pairs, pace))
    return found


def _bolt_on_trainings(
    model: Model, problem_key: str, loss: str, passes: int
) -> tuple[Training, Training]:
    sgd = permutation_sgd(model, passes, 50, {"rate": 0.1})

    def one(guarantee: Any) -> Training:
        asked = spec(problem_key, loss, guarantee, "bolt-on", 1.0, passes, {"rate": 0.1})
        plan = plan_of(model, sgd, asked)
        return lambda seed: run(model, plan, BoltOn(), sgd, seed)

    return one("pure"), one(None)


def _stepwise(model: Model, made: Any) -> tuple[Training, Training]:
    mechanism = made.plan.live_mechanism
    bare = replace(mechanism, privatizer=Unprotected(stddev=0.0))
    plain = replace(made.plan, mechanism=bare, target_epsilon=None, delta=1e-6)
    works = model.sums()
    return (
        lambda seed: run(model, made.plan, made.algorithm, works, seed),
        lambda seed: run(model, plain, made.algorithm, works, seed),
    )


def _pair(name: str, noised: Training, plain: Training, pairs: int, pace: Pace) -> Timed:
    times: Mapping[str, list[float]] = {"noised": [], "plain": []}
    noised(0)  # what is compiled and accounted once is not counted
    plain(0)

    def both(seed: int) -> None:
        turn = [("noised", noised), ("plain", plain)]
        for which, training in turn if seed % 2 else reversed(turn):
            started = time.process_time()
            training(seed)
            times[which].append(time.process_time() - started)

    for seed in range(pairs):
        pace.work(name, partial(both, seed))
    ratios = sorted(a / b for a, b in zip(times["noised"], times["plain"], strict=True))
    return Timed(
        name=name,
        with_noise=median(times["noised"]),
        without=median(times["plain"]),
        ratios=tuple(ratios),
    )
