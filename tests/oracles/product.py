"""The way from the oracles into the product: small problems, and runs whose draws are recorded.

Tests of this folder reach fedpriv through this module, `runs` and `sums` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import torch
from scipy import sparse
from torch import nn

import fedpriv
from fedpriv.checkpoints.aggregates import WindowAggregate
from fedpriv.checkpoints.aggregates import answers as aggregate_answers
from fedpriv.checkpoints.uncertainty import uncertainty, variance_ratio  # noqa: F401 - as it is
from fedpriv.datasets.projection import GaussianProjection
from fedpriv.experiments.agd import CentralDescent, FederatedDescent
from fedpriv.experiments.averaging import CentralExperiment, FederatedExperiment
from fedpriv.experiments.bolt_on import CentralBoltOn, FederatedBoltOn
from fedpriv.experiments.build import build
from fedpriv.mechanisms import Clip, Normalise, SideInformation, selection, side_information
from fedpriv.mechanisms.bounds import WITHIN
from fedpriv.mechanisms.correlated.binary_tree import BinaryTree
from fedpriv.mechanisms.correlated.toeplitz import Banded, Buffered
from fedpriv.mechanisms.perturbation import Sphere
from fedpriv.mechanisms.privatizer import Draw, Participation
from fedpriv.parts import PositiveInt
from fedpriv.privacy.accounting import rho_bs16
from fedpriv.rng import Key
from fedpriv.runs.backends import serial
from fedpriv.runs.door import RunDoor
from fedpriv.runs.loop import rounds
from fedpriv.tasks.central import CentralTask, zeros
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.bolt_on import Tuned
from fedpriv.training.convex_losses import Constants
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.per_example.example_sum import CentralSum
from fedpriv.training.per_example.linear import (
    LogisticGradients,
    SoftmaxGradients,
    linear_metrics,
)
from fedpriv.training.periodic_shift import Shift
from fedpriv.training.permutation_sgd import Passes, loss_constants
from fedpriv.training.step_schedules import ConstantStep, StepSchedule
from simulations.adadps import toy as adadps_toy
from simulations.linear_models import comparators
from simulations.linear_models.comparators import strong_composition_sigma  # noqa: F401 - as it is
from simulations.linear_models.perturbation import ObjectiveNoise
from simulations.theory.bounds import FORMULAS, worst_drift  # noqa: F401 - as it is
from tests.harness.toys_of_training import answered, bounded
from tests.oracles.problems import (  # noqa: F401 - tests have them from here
    CLASSES,
    FEATURES,
    PUBLIC,
    SCALE,
    TRAIN,
    USERS,
    Tensors,
    check,
    check_results,
    check_scores,
    cohorts_of,
    examples,
    flat,
    gradient,
    gradient_of,
    groups_of,
    loss,
    noise_of,
    of_example,
    of_shortened,
    of_user,
    users_gradient,
)

# -- small problems: softmax regression by user and by example --------------------------------


def given(multiplier: Tensors) -> SideInformation:
    """Side information that needs no counting."""
    multiplier = {name: array.astype(np.float32) for name, array in multiplier.items()}
    return SideInformation(multiplier=multiplier, source="public", description="given")


class Users(ModuleTask):
    """Five users of a linear layer, with side information on its features."""

    def side_information(self) -> SideInformation:
        return given({"weight": np.tile(1.0 / SCALE, (CLASSES, 1))})

    def constants(self, *, regulariser: float) -> Constants:
        longest = max(np.linalg.norm(x, axis=1).max() for x, _ in USERS.values())
        return loss_constants(
            "softmax", regulariser=regulariser, inputs=float(np.hypot(longest, 1.0))
        )


def users_task(users: Tensors | None = None, decay: float = 0.0) -> ModuleTask:
    own = {"client_optimizer": partial(torch.optim.SGD, weight_decay=decay)} if decay else {}
    return Users(
        name="five users",
        module=lambda: nn.Linear(FEATURES, CLASSES),
        loss=nn.functional.cross_entropy,
        users=USERS if users is None else users,
        public=examples(6, 99),
        public_train=examples(12, 98),
        synthetic=True,
        **own,
    )


def examples_task() -> CentralTask:
    (x, y), (public_x, public_y) = TRAIN, PUBLIC
    return CentralTask(
        name="forty examples",
        train=SoftmaxGradients(sparse.csr_matrix(x), y, CLASSES),
        num_train=len(y),
        init=zeros({"kernel": (FEATURES, CLASSES), "bias": (CLASSES,)}),
        measure=lambda params: None,
        public_measure=lambda params, at: linear_metrics(
            params, sparse.csr_matrix(public_x[at]), public_y[at]
        ),
        public=SoftmaxGradients(sparse.csr_matrix(public_x), public_y, CLASSES),
        num_public=len(public_y),
        side={"given": lambda: given({"kernel": 1.0 / SCALE[:, None]})},
        synthetic=True,
        data_sha256=lambda: {"private": "forty"},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighted(WindowAggregate):
    """A user's own aggregate: the mean of the last models by weights, the newest last."""

    kind: ClassVar[str] = "weighted"
    weights: ClassVar[tuple[float, ...]] = (0.2, 0.3, 0.5)

    k: PositiveInt = 3

    def aggregated(self, past: Sequence[Tensors]) -> Tensors:
        shares = np.array(self.weights[-len(past) :], np.float32)
        return {
            name: np.tensordot(shares / shares.sum(), [one[name] for one in past], 1)
            for name in past[0]
        }


def by_user(
    users: Tensors | None = None, method: str = "averaging", *, decay: float = 0.0, **options: Any
) -> Any:
    """An experiment on five users; options have the product's own names."""
    kinds = {"averaging": FederatedExperiment, "agd": FederatedDescent, "bolt-on": FederatedBoltOn}
    base = kinds[method](
        name="oracle", description="", task=lambda experiment: users_task(users, decay), delta=1e-3
    )
    return base.with_options({"exact-sum": False, **options} if method == "averaging" else options)


def by_example(method: str = "averaging", **options: Any) -> Any:
    """An experiment on forty examples."""
    kinds = {"averaging": CentralExperiment, "agd": CentralDescent, "bolt-on": CentralBoltOn}
    base = kinds[method](
        name="oracle", description="", task=lambda experiment: examples_task(), delta=1e-3
    )
    return base.with_options(options)


def comparator(method: str, **given: Any) -> Any:
    """A comparator of linear models on the forty examples, of whose gradients C is 0.7."""
    task = examples_task()
    made = getattr(comparators, method)(
        num_examples=task.num_train, bound=Clip(l2_clip_norm=0.7), **given
    )
    trainer = CentralSum(gradients=task.train, num_examples=task.num_train)
    return _running(task, made, trainer, task.init_params)


def perturbed_objective(**given: Any) -> Any:
    """Objective perturbation of logistic regression on the forty examples, class 0 or not."""
    constants = loss_constants("logistic")
    made = comparators.objective_perturbation(
        num_examples=len(TRAIN[1]), num_params=FEATURES + 1, constants=constants, **given
    )
    sgd = _logistic(comparators.full_descent(num_examples=len(TRAIN[1]), steps=1, rate=0.01))
    found = {"strength": made.algorithm.strength, "tolerance": made.algorithm.tolerance}
    trainer = comparators.PerturbedMinimum(sgd=sgd, **found)
    return _running(examples_task(), made, trainer, zeros({"weight": (FEATURES,), "bias": (1,)}))


def tuning(rates: Sequence[float], epsilon: float) -> Any:
    """Private tuning of logistic regression in two passes, a candidate a step size."""
    passes = [Passes(passes=2, schedule=ConstantStep(rate=rate)) for rate in rates]
    algorithm = Tuned(choices=_logistic(*passes), choice=selection.PrivateChoice(epsilon=epsilon))
    made = SimpleNamespace(plan=algorithm.plan(), algorithm=algorithm)
    start = zeros({"weight": (FEATURES,), "bias": (1,)})
    return _running(examples_task(), made, algorithm.works(), start)


def _logistic(*passes: Passes) -> Any:
    """Trainings of the forty examples, class 0 or not; of one passes itself."""
    y = (TRAIN[1] == 0).astype(np.int64)
    train = LogisticGradients(sparse.csr_matrix(TRAIN[0]), y)
    first = train.permutation_sgd(passes[0], regulariser=0.0)
    return first if len(passes) == 1 else tuple(replace(first, passes=one) for one in passes)


def _running(task: Any, made: Any, trainer: Any, init_params: Any) -> Any:
    return SimpleNamespace(dropout_rate=0.0, task=task, plan=made.plan, plan_sha256="",
                           algorithm=made.algorithm, trainer=trainer, init_params=init_params,
                           experiment=None)  # fmt: skip


def _built(experiment: Any) -> Any:
    return experiment if isinstance(experiment, SimpleNamespace) else build(experiment)


# -- runs -------------------------------------------------------------------------------------


@dataclass
class Round:
    """What one round drew, and what it released.

    Attributes:
        cohort: Ids of users, or positions of examples.
        present: Those of the cohort who did not drop out.
        batches: By user, the positions of each local step's examples among its own.
        draws: What was added to the sum; several where one sum is answered more than once.
        term: What was added to the objective.
        scores: The sums that each noisy choice was made of.
        chosen: The index of each choice.
        judged: The whole numbers that the last choice was made of.
        orders: Of each pass over all.
        trainings: The orders of each of several trainings.
        groups: Positions of each micro-batch, or of each candidate's part, and the judges'.
        public: Positions of the round's public batch.
        params: After the round.
        result: What the run would return after it.
    """

    cohort: Sequence[Any] = ()
    present: Sequence[Any] = ()
    batches: dict[Any, list[np.ndarray]] = field(default_factory=dict)
    draws: list[dict[str, np.ndarray]] = field(default_factory=list)
    term: dict[str, np.ndarray] = field(default_factory=dict)
    scores: list[np.ndarray] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    judged: Sequence[int] = ()
    orders: Sequence[np.ndarray] = ()
    trainings: list[Sequence[np.ndarray]] = field(default_factory=list)
    groups: list[np.ndarray] = field(default_factory=list)
    public: list[np.ndarray] = field(default_factory=list)
    params: dict[str, np.ndarray] = field(default_factory=dict)
    result: dict[str, np.ndarray] = field(default_factory=dict)


@contextmanager
def recorded(round_: Round) -> Iterator[None]:
    """Write down what is drawn within; where local steps are taken, in the cohort's order."""
    chosen: list[np.ndarray] = []
    cohort, take, choose = RunDoor._cohort, Draw.take, LocalSgd.choose
    steps, groups, present = LocalSgd.steps, CentralSum._groups, RunDoor._present
    looked = SoftmaxGradients.gradient
    scores, choose_index, orders = selection._scores, selection.choose, Passes.orders
    term, parts, perturbed = (
        ObjectiveNoise.linear_term,
        Tuned.parts,
        selection.PrivateChoice.perturbed,
    )

    def noted_cohort(self: Any, *given: Any) -> Any:
        round_.cohort = cohort(self, *given)
        return round_.cohort

    def noted_present(self: Any, *given: Any) -> Any:
        round_.present = present(self, *given)
        return round_.present

    def noted_take(self: Any, *given: Any) -> Any:
        noise = take(self, *given)
        if isinstance(noise, dict):
            round_.draws.append({name: np.array(array, float) for name, array in noise.items()})
        return noise

    def noted_scores(total: Any, offset: Any) -> Any:
        found, most = scores(total, offset)
        round_.scores.append(np.array(found, float) * total.granularity)
        return found, most

    def noted_index(*given: Any) -> int:
        round_.judged = given[0]
        round_.chosen.append(choose_index(*given))
        return round_.chosen[-1]

    def noted_choice(self: Any, *given: Any) -> Any:
        chosen.append(choose(self, *given))
        return chosen[-1]

    def noted_steps(self: Any, *given: Any) -> Any:
        order, starts = found = steps(self, *given)
        picked, place = chosen[-1][order], len(round_.batches)
        if place < len(round_.present):  # of bolt-on users come again and again
            user = round_.present[place]
            round_.batches[user] = [picked[a:b] for a, b in pairwise(starts)]
        return found

    def noted_groups(self: Any, *given: Any) -> Any:
        round_.groups = groups(self, *given)
        return round_.groups

    def noted_orders(self: Any, *given: Any) -> Any:
        round_.orders = orders(self, *given)
        round_.trainings.append(round_.orders)
        return round_.orders

    def noted_parts(self: Any, key: Any) -> Any:
        round_.groups = [np.array(part) for part in parts(self, key)]
        return [part.tolist() for part in round_.groups]

    def noted_perturbed(self: Any, total: Any, **given: Any) -> Any:
        found = perturbed(self, total, **given)
        round_.draws.append({name: a - total.total[name] for name, a in found.items()})
        return found

    def noted_gradient(self: Any, params: Any, index: Any, key: Any = None) -> Any:
        round_.public.append(np.array(index))
        return looked(self, params, index, key)

    def noted_term(self: Any, **given: Any) -> Any:
        found = term(self, **given)
        round_.term = {name: np.array(array, float) for name, array in found.items()}
        return found

    with ExitStack() as stack:
        for owner, name, new in (
            (RunDoor, "_cohort", noted_cohort), (RunDoor, "_present", noted_present),
            (Draw, "take", noted_take),
            (RunDoor, "_trained_again", lambda *given: None),  # local steps of no sum
            (LocalSgd, "choose", noted_choice), (LocalSgd, "steps", noted_steps),
            (CentralSum, "_groups", noted_groups), (SoftmaxGradients, "gradient", noted_gradient),
            (selection, "_scores", noted_scores), (selection, "choose", noted_index),
            (Passes, "orders", noted_orders), (ObjectiveNoise, "linear_term", noted_term),
            (Tuned, "parts", noted_parts),
            (selection.PrivateChoice, "perturbed", noted_perturbed),
        ):  # fmt: skip
            stack.enter_context(patch.object(owner, name, new))
        yield


def play(experiment: Any, seed: int = 0) -> tuple[dict[str, np.ndarray], list[Round]]:
    """Run an experiment in memory; return its params before round 1, and its rounds."""
    made, key, played = _built(experiment), Key.simulation(seed), []
    start = {n: np.array(a, float) for n, a in made.init_params(key.fold("init")).items()}
    steps = rounds(made, serial(made.experiment, made), key, eval_every=10**9)
    while True:
        played.append(Round())
        with recorded(played[-1]):
            try:
                _, state = next(steps)
            except StopIteration:
                return start, played[:-1]
        played[-1].params = {n: np.array(a, float) for n, a in state.params.items()}
        result = made.algorithm.result(state)
        played[-1].result = {n: np.array(a, float) for n, a in result.items()}


# -- what a run drew, for NumPy -----------------------------------------------------------------


def counts_of(played: Sequence[Round]) -> list[float]:
    """What was added to each round's sum of ± h, of adaptive clipping."""
    return [float(one.draws[-1][WITHIN][0]) for one in played]


# -- numbers --------------------------------------------------------------------------------------


def choices(
    form: Any, scores: Sequence[float], cap: float, epsilon: float, number: int
) -> list[int]:
    """Draws of a choice among sums of losses that one record raises by up to `cap`."""
    units = [round(score * 1000) for score in scores]
    rate, key = Fraction(epsilon) / Fraction(round(cap * 1000)), Key.simulation(0)
    draws = (selection.ExactDraws(key.fold(str(draw))) for draw in range(number))
    return [selection.choose(units, rate, form, draw) for draw in draws]


def accounted(*, steps: int, sampling_prob: float, sigma: float, delta: float) -> float:
    """ε of Poisson-sampled Gaussian steps, add-remove."""
    users = 100_000
    rounds_ = fedpriv.Rounds(
        users=users, cohort=sampling_prob * users, rounds=steps, delta=delta, cap=None
    )
    return rounds_.account(noise_multiplier=sigma).epsilon.value


def rho(epsilon: float, delta: float) -> float:
    """ρ of an ε by Bun and Steinke's conversion."""
    return rho_bs16(epsilon, delta)


def replaced_by_bolt_on(
    passes: int, batch: int, number: int, smoothness: float, *, step: str,
    step_rate: float | None = None, step_exponent: float = 0.5, regulariser: float = 0.0,
    K: int = 1, average: bool = False,
) -> float:  # fmt: skip
    """Δ₂ of a replaced example, of a loss with L₀ = 1 and this β; rounding left out."""
    numbers = {"constant": {"rate": step_rate}, "decreasing": {"exponent": step_exponent},
               "square-root": {"exponent": step_exponent}}.get(step, {})  # fmt: skip
    [made] = (one for one in StepSchedule.kinds.values() if getattr(one, "kind", None) == step)
    schedule = made(**numbers)
    taken = Passes(passes=passes, batch_size=batch, schedule=schedule, average=average)
    constants = Constants(name="own", lipschitz=1.0, smoothness=smoothness, convexity=regulariser)
    return 2.0 * taken.displacement(constants, number, local_steps=K)


def sphere_draws(d: int, *, sensitivity: float, epsilon: float, number: int) -> np.ndarray:
    """Draws of spherical noise, (number, d)."""
    template, noise = {"w": np.zeros(d, np.float32)}, Sphere(epsilon=epsilon)
    keys = (Key.simulation(0).fold(str(draw)) for draw in range(number))
    return np.array([
        next(noise.draws(template=template, sensitivity=sensitivity, key=key))["w"] for key in keys
    ])  # fmt: skip


def tuned(mistakes: Sequence[int], epsilon: float, number: int) -> list[int]:
    """Candidates that private tuning releases, under replacement of one example."""
    choice, key = selection.PrivateChoice(epsilon=0.5 * epsilon), Key.simulation(0)
    total = selection.candidates([{"w": np.zeros(1)}] * len(mistakes), list(mistakes), 1)
    drawn = (selection.ExactDraws(key.fold(str(draw))) for draw in range(number))
    return [choice.release(total, draws, 1.0)[0] for draws in drawn]


def projected(x: np.ndarray, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows in fewer dimensions, and the matrix that took them there."""
    made = GaussianProjection(inputs=x.shape[1], outputs=outputs)
    return made.apply(x), made.matrix


def normalised(value: float, regulariser: float) -> float:
    """A one-dimensional gradient under the bound of DP-NSGD."""
    bound = Normalise(l2_clip_norm=1.0, regulariser=regulariser)
    return float(bounded(bound, {"w": np.array([value])})["w"][0])


def priced_sigma(experiment: Any) -> float:
    """Deviation over sensitivity that the accountant prices a round's noise by."""
    plan = _built(experiment).plan
    return plan.event.noise_multiplier / plan.relation.moved


def answers(rule: str, probabilities: np.ndarray) -> np.ndarray:
    """Classes that several models' probabilities (models, n, classes) answer by a rule."""
    return aggregate_answers(rule, [*probabilities])


def uncertainty_of(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, half-width at 95 %, and the variance of the mean."""
    found = uncertainty(values)
    return float(found.mean), float(found.half_width), float(found.variance / len(values))


def sensitivity_of(experiment: Any) -> float:
    """How far the mechanism says that one neighbour moves a round's sum."""
    return _built(experiment).plan.live_mechanism.sensitivity


def prices_of(experiment: Any) -> tuple[float, float]:
    """ρ of DP-AGD's noisy gradient and of its choice, at the start."""
    prices = _built(experiment).algorithm.prices
    return prices.gradient, prices.selection


def epsilon_of(experiment: Any) -> float:
    """ε of the whole plan."""
    return _built(experiment).plan.total().value


def grouped_sum(w: np.ndarray, cohort: Sequence[int], *, groups: int, C: float, seed: int) -> Any:
    """Sum over a cohort in so many micro-batches, each clipped to C."""
    task = examples_task()
    trainer = CentralSum(gradients=task.train, num_examples=task.num_train, num_groups=groups)
    cut = CLASSES * FEATURES
    params = {"kernel": w[:cut].reshape(CLASSES, FEATURES).T, "bias": w[cut:]}
    return flat(answered(trainer, 
        params={name: array.astype(np.float32) for name, array in params.items()},
        bound=Clip(l2_clip_norm=C), user_ids=[str(i) for i in cohort], key=Key.simulation(seed),
    ).total)  # fmt: skip


def toy(method: str, steps: int) -> tuple[Any, list[Any], list[np.ndarray], list[np.ndarray]]:
    """The toy of AdaDPS: its data, and of a run's steps params before, batches and noise."""
    data, one, params, batches = adadps_toy.toy(), Round(), [], []
    answer = CentralSum.answer

    def noted(self: Any, request: Any, attempt: Any, users: Any) -> Any:
        params.append(np.array(request.params["weight"], float))
        batches.append(np.array([int(i) for i in users.ids]))
        return answer(self, request, attempt, users)

    with recorded(one), patch.object(CentralSum, "answer", noted):
        adadps_toy.train(adadps_toy.METHODS[method], data, 123, steps=steps)
    return data, params, batches, [draw["weight"] for draw in one.draws]


_STRATEGIES = {"tree": BinaryTree, "banded": Banded, "blt": Buffered}


def correlated_sensitivity(kind: str, rows: int, apart: int, most: int, **numbers: Any) -> float:
    """How far one user moves C x, who has so many rows at most, so far apart at least."""
    limit = Participation(most=most, min_separation=apart, num_rows=rows)
    return _STRATEGIES[kind](num_rows=rows, **numbers).sensitivity(limit)


def correlated_rows(kind: str, rows: int, **numbers: Any) -> tuple[np.ndarray, np.ndarray]:
    """Standard normals in the order in which they were drawn, and the rows made of them."""
    strategy, rng = _STRATEGIES[kind](num_rows=rows, **numbers), np.random.default_rng(0)
    key, drawn = Key.simulation(0), []

    def fresh(own: Key) -> np.ndarray:
        drawn.append(rng.normal(size=3).astype(np.float32))
        return drawn[-1].copy()

    made = [row.copy() for row in strategy.rows(key, fresh)]
    return np.array(drawn, float), np.array(made, float)


def shares(kind: str, period: int, number: int) -> list[float]:
    """Share of questions in rounds of a shift that is periodic."""
    return [Shift(kind=kind, period=period).share(t) for t in range(1, number + 1)]


def multiplier(rule: str, *counts: Any, **given: Any) -> np.ndarray:
    """1/A of words by a rule: "rank", "frequency", "tf_idf" or "tf_idf_mass"."""
    return getattr(side_information, f"{rule}_multiplier")(*counts, **given)


def theory(formula: str, **given: Any) -> dict[str, float]:
    """Numbers of a bound that `python -m simulations theory-...` prints, by name."""
    return FORMULAS[formula][1](**given)
