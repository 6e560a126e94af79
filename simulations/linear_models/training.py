"""One run of a method through the door, and what it came to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import logsumexp

from fedpriv.backends import SerialBackend
from fedpriv.datasets.dataset import Dataset, shape_of
from fedpriv.experiments.experiment import Components
from fedpriv.mechanisms.event import Relation
from fedpriv.privacy.plan import AnyPlan, Plan
from fedpriv.rng import Key
from fedpriv.runs.loop import rounds
from fedpriv.sums import PartialSum
from fedpriv.tasks.central import CentralTask
from fedpriv.tasks.dataset_tasks import linear_task
from fedpriv.training.algorithm import Algorithm, SumRequest
from fedpriv.training.bolt_on import output_noise, plan_of_release
from fedpriv.training.per_example.example_sum import CentralSum, ExampleGradients
from fedpriv.training.per_example.linear import (
    HingeGradients,
    HuberGradients,
    LogisticGradients,
    SoftmaxGradients,
)
from fedpriv.training.permutation_sgd import PermutationSgd
from fedpriv.training.work import Attempt, Trainers, Users, Work
from fedpriv.tree import Params
from simulations.linear_models.comparators import (
    Method,
    PerturbedMinimum,
    full_descent,
    objective_perturbation,
)

_MODELS: Mapping[str, Callable[[Any, np.ndarray], ExampleGradients]] = {
    "logistic": LogisticGradients,
    "hinge": HingeGradients,
    "huber": HuberGradients,
    "softmax": lambda x, y: SoftmaxGradients(x, y, 10),
    "one-vs-all": lambda x, y: LogisticGradients(x, y, 10),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A linear model on a data set.

    Attributes:
        loss: "logistic", "hinge", "huber", "softmax" or "one-vs-all".
        data: What it is trained and measured on.
        task: Both together.
    """

    loss: str
    data: Dataset = field(repr=False)
    task: CentralTask = field(repr=False)

    @classmethod
    def of(cls, loss: str, data: Dataset) -> Model:
        """Return the model, which starts at zero.

        Raises:
            ValueError: If there is no such loss.
        """
        if loss not in _MODELS:
            raise ValueError(f"loss {loss!r} is unknown; give one of {', '.join(_MODELS)}")
        width = shape_of(data.x_train)[1]
        shapes: dict[str, tuple[int, ...]] = {"weight": (width,), "bias": (1,)}
        if loss in ("softmax", "one-vs-all"):
            shapes = {"kernel": (width, 10), "bias": (10,)}

        def gradients(x: Any, y: np.ndarray) -> ExampleGradients:
            return _MODELS[loss](sparse.csr_matrix(x), y)

        parts = {name: getattr(data, name) for name in ("x_train", "x_test", "x_public")}
        made = {n: sparse.csr_matrix(x) for n, x in parts.items() if x is not None}
        task = linear_task(replace(data, **made), gradients, shapes)
        return cls(loss=loss, data=data, task=task)

    @property
    def num_train(self) -> int:
        """Examples in it, m."""
        return self.task.num_train

    def sums(self) -> CentralSum:
        """Return the sums of bounded gradients over batches."""
        return CentralSum(gradients=self.task.train, num_examples=self.num_train)

    def accuracy(self, params: Params) -> float:
        """Return the share of test examples that are classified right."""
        return accuracy(params, self.data.x_test, self.data.y_test)

    def mean_loss(self, params: Params, regulariser: float = 0.0) -> float:
        """Return the true objective on the training set: a diagnostic, not released."""
        train: Any = self.task.train
        still = {name: np.zeros_like(array) for name, array in params.items()}
        index = np.arange(self.num_train)
        found = float(train.losses_along(params, still, [0.0], index).mean())
        squares = sum(float(np.vdot(a, a.astype(np.float64))) for a in params.values())
        return found + 0.5 * regulariser * squares


def accuracy(params: Params, x: Any, y: np.ndarray) -> float:
    """Return the share of rows that are classified right; of two classes, above 0 is the second."""
    kernel = params["kernel"] if "kernel" in params else params["weight"][:, None]
    logits = np.asarray(x, np.float64) @ kernel.astype(np.float64) + params["bias"]
    found = logits.argmax(axis=1) if logits.shape[1] > 1 else (logits[:, 0] > 0).astype(int)
    return float(np.mean(found == y))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a run.

    Attributes:
        states: After every round.
        params: That it represents.
        epsilon: The plan's.
        delta: Likewise.
    """

    states: Sequence[Any] = field(repr=False)
    params: Params = field(repr=False)
    epsilon: float
    delta: float


def run(
    model: Model,
    plan: AnyPlan,
    algorithm: Algorithm,
    works: Trainers,
    seed: int,
    *,
    keep: bool = False,
) -> Outcome:
    """Run a method to its end.

    Args:
        model: What is trained.
        plan: What is guaranteed.
        algorithm: What asks.
        works: What it asks for.
        seed: Of cohorts, orders and noise.
        keep: Whether every state is kept, for diagnostics; else the last one is.
    """
    components = Components(
        task=model.task, plan=plan, algorithm=algorithm, trainer=works, side_information=None
    )
    backend, states = SerialBackend(trainer=works), []
    for _, state in rounds(
        components, backend, Key.simulation(seed), eval_every=10**9, ends_if_all_fail=False
    ):
        states = [*states, state] if keep else [state]
    if not states:  # the plan did not pay for a first step
        states = [algorithm.init(model.task.init_params(Key.simulation(seed)))]
    total = plan.total()
    assert total.delta is not None
    return Outcome(
        states=states,
        params=algorithm.result(states[-1]),
        epsilon=total.value if plan.is_private else math.inf,
        delta=total.delta,
    )


def released_once(
    num_examples: int, displacement: float, epsilon: float, delta: float | None, noise: Any = None
) -> Plan:
    """Return the plan of one release of a trained model, of add-remove neighbours.

    Args:
        num_examples: m.
        displacement: How far an example moves the model.
        epsilon: ε of the release.
        delta: δ of Gaussian noise; None for pure ε.
        noise: In its place, such as none.
    """
    noise = _noise_once(epsilon, delta) if noise is None else noise
    return plan_of_release(num_examples, displacement, noise, delta=delta, unit="example")


@lru_cache(maxsize=64)
def _noise_once(epsilon: float, delta: float | None) -> Any:
    return output_noise(epsilon, delta, Relation.ADD_REMOVE)


def perturbed_objective(
    model: Model, *, epsilon: float, delta: float | None, shift_share: float
) -> tuple[Method, PerturbedMinimum]:
    """Return objective perturbation of a model of two classes, and the work that finds minima.

    Args:
        model: What is trained.
        epsilon: ε of the release.
        delta: δ of Gaussian noise; None for pure ε.
        shift_share: Share of ε that log(1 + β/Λ) is: the less, the larger Λ, and the less noise.
    """
    train: Any = model.task.train
    once = full_descent(num_examples=model.num_train, steps=1, rate=1e-6)
    sgd: PermutationSgd = train.permutation_sgd(once, regulariser=0.0)
    rows: Any = sgd.rows
    made = objective_perturbation(
        num_examples=model.num_train,
        num_params=rows.shape[1],
        epsilon=epsilon,
        delta=delta,
        constants=sgd.constants,
        most_shift=shift_share,
    )
    algorithm: Any = made.algorithm
    work = PerturbedMinimum(sgd=sgd, strength=algorithm.strength, tolerance=algorithm.tolerance)
    return made, work


@dataclass(slots=True)
class Remembered(Work):
    """Permutation SGD whose order is of the seed alone, and whose end is computed once a seed.

    For studies that perturb the same training for several ε.
    """

    sgd: PermutationSgd
    found: dict[int, PartialSum] = field(default_factory=dict)
    seed: int = 0

    def answer(self, request: SumRequest, attempt: Attempt, users: Users) -> PartialSum:
        """Return the trained params, whose order hangs on no plan: a run replays alone."""
        if self.seed not in self.found:
            order = Key.simulation(self.seed).fold("order")
            self.found[self.seed] = self.sgd.answer(request, replace(attempt, key=order), users)
        known = self.found[self.seed]
        total = {name: np.array(array) for name, array in known.total.items()}
        return PartialSum(total=total, num_users=known.num_users)


def majority(data: Dataset) -> float:
    """Return the accuracy of the class that most test examples have."""
    return float(np.bincount(data.y_test).max() / len(data.y_test))


def public_only(data: Dataset, num_classes: int) -> float:
    """Return the accuracy of softmax regression on the public examples alone, which costs no ε.

    λ is the best of four on a fifth of them, kept back.
    """
    x: Any = data.x_public
    y: Any = data.y_public
    cut = max(1, len(x) // 5)
    tried = []
    for weight in (1e-4, 1e-3, 1e-2, 1e-1):
        found = softmax_fit(x[cut:], y[cut:], num_classes, weight)
        tried.append((accuracy(found, x[:cut], y[:cut]), -weight))
    weight = -max(tried)[1]
    return accuracy(softmax_fit(x, y, num_classes, weight), data.x_test, data.y_test)


def not_private(data: Dataset, num_classes: int) -> float:
    """Return the accuracy of softmax regression on the private examples, without any noise."""
    x: Any = data.x_train
    found = softmax_fit(x, data.y_train, num_classes, 1e-6)
    return accuracy(found, data.x_test, data.y_test)


def softmax_fit(x: np.ndarray, y: np.ndarray, num_classes: int, regulariser: float) -> Params:
    """Return the minimum of the mean cross-entropy + λ/2 ‖w‖², by L-BFGS, as float64."""
    rows = np.column_stack([np.asarray(x, np.float64), np.ones(len(x))])
    truth = np.eye(num_classes)[np.asarray(y)]

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        kernel = flat.reshape(rows.shape[1], num_classes)
        logits = rows @ kernel
        total = np.asarray(logsumexp(logits, axis=1))
        loss = float((total - (logits * truth).sum(axis=1)).mean())
        slope = rows.T @ (np.exp(logits - total[:, None]) - truth) / len(rows)
        grown = loss + 0.5 * regulariser * float(flat @ flat)
        return grown, (slope + regulariser * kernel).ravel()

    start = np.zeros(rows.shape[1] * num_classes)
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    kernel = found.x.reshape(rows.shape[1], num_classes)
    return {"kernel": kernel[:-1], "bias": kernel[-1]}
