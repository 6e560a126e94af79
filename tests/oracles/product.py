"""The way from the oracles into the product: small problems, and runs whose draws are recorded.

Every test of this folder reaches fedpriv through this module alone.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from safetensors.numpy import load_file
from scipy import sparse
from torch import nn

import fedpriv
from fedpriv.checkpoints import aggregates
from fedpriv.checkpoints.tensor_files import write_tensors
from fedpriv.checkpoints.uncertainty import uncertainty
from fedpriv.cli import app, loaded
from fedpriv.datasets.projection import GaussianProjection
from fedpriv.experiments.agd import CentralDescent, FederatedDescent
from fedpriv.experiments.averaging import CentralExperiment, FederatedExperiment
from fedpriv.experiments.bolt_on import CentralBoltOn, FederatedBoltOn
from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import classes
from fedpriv.experiments.load import find_experiments, load_experiment
from fedpriv.experiments.options import entries
from fedpriv.mechanisms import Normalise, SideInformation, selection
from fedpriv.mechanisms.perturbation import Sphere
from fedpriv.privacy.accounting import rho_bs16
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.rng import Key
from fedpriv.runs import loop
from fedpriv.runs.backends import open_corpus, serial, serial_on
from fedpriv.runs.door import RunDoor
from fedpriv.runs.loop import rounds
from fedpriv.runs.prepared import resume_run, start_run
from fedpriv.tasks.central import CentralTask, zeros
from fedpriv.tasks.module_task import ModuleTask, PersonalLayers
from fedpriv.training.local.schedule import Schedule
from fedpriv.training.per_example.example_sum import CentralSum
from fedpriv.training.per_example.linear import SoftmaxGradients
from fedpriv.training.permutation_sgd import Constants, Passes, StepSchedule, softmax_constants
from tests.command_line import CliRunner

Tensors = Mapping[str, np.ndarray]
FEATURES, CLASSES = 4, 3


# -- small problems: softmax regression by user and by example --------------------------------


def examples(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of unequal scales, and labels that depend on them; float32 and int64."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(number, FEATURES)) * [3.0, 1.0, 0.3, 0.05]
    return x.astype(np.float32), (rng.random(number) * CLASSES + x[:, 0]).astype(int) % CLASSES


USERS = {f"u{n}": examples(size, n) for n, size in enumerate([3, 7, 1, 10, 5])}
TRAIN, PUBLIC = examples(40, 20), examples(12, 21)
SCALE = np.array([4.0, 1.0, 0.5, 0.1])
"""A of each feature, as side information."""


class Users(ModuleTask):
    """Five users of a linear layer, with side information on its features."""

    def side_information(self) -> SideInformation:
        return SideInformation(
            multiplier={"weight": np.tile(1.0 / SCALE, (CLASSES, 1)).astype(np.float32)},
            source="public",
            description="given",
        )

    def constants(self, *, regulariser: float) -> Constants:
        longest = max(np.linalg.norm(x, axis=1).max() for x, _ in USERS.values())
        return softmax_constants(regulariser=regulariser, inputs=float(np.hypot(longest, 1.0)))


def users_task(users: Tensors | None = None) -> ModuleTask:
    return Users(
        name="five users",
        module=lambda: nn.Linear(FEATURES, CLASSES),
        loss=nn.functional.cross_entropy,
        users=USERS if users is None else users,
        public=examples(6, 99),
        synthetic=True,
    )


def examples_task() -> CentralTask:
    (x, y), (public_x, public_y) = TRAIN, PUBLIC
    return CentralTask(
        name="forty examples",
        train=SoftmaxGradients(sparse.csr_matrix(x), y, CLASSES),
        num_train=len(y),
        init=zeros({"kernel": (FEATURES, CLASSES), "bias": (CLASSES,)}),
        measure=lambda params: None,
        public=SoftmaxGradients(sparse.csr_matrix(public_x), public_y, CLASSES),
        num_public=len(public_y),
        synthetic=True,
        data_sha256=lambda: {"private": "forty"},
    )


def by_user(users: Tensors | None = None, method: str = "averaging", **options: Any) -> Any:
    """An experiment on five users; of options the product's own names."""
    kinds = {"averaging": FederatedExperiment, "agd": FederatedDescent, "bolt-on": FederatedBoltOn}
    base = kinds[method](
        name="oracle", description="", task=lambda experiment: users_task(users), delta=1e-3
    )
    return base.with_options(floats_of(options) if method == "averaging" else options)


def floats_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options whose sums are of floats, if they have noise and do not say otherwise."""
    return {**({} if options.get("noise") == "none" else {"noise.exact-sum": False}), **options}


def by_example(method: str = "averaging", **options: Any) -> Any:
    """An experiment on forty examples."""
    kinds = {"averaging": CentralExperiment, "agd": CentralDescent, "bolt-on": CentralBoltOn}
    base = kinds[method](
        name="oracle", description="", task=lambda experiment: examples_task(), delta=1e-3
    )
    return base.with_options(options)


# -- runs -------------------------------------------------------------------------------------


@dataclass
class Round:
    """What one round drew, and what it released.

    Attributes:
        cohort: Ids of users, or positions of examples.
        batches: By user, the positions of each local step's examples among its own.
        draws: What was added to the sum; several where one sum is answered more than once.
        scores: The sums that each noisy choice was made of.
        chosen: The index of each choice.
        orders: Of each pass over all.
        groups: Positions of each micro-batch.
        public: Positions of the round's public batch.
        params: After the round.
        result: What the run would return after it.
    """

    cohort: Sequence[Any] = ()
    batches: dict[Any, list[np.ndarray]] = field(default_factory=dict)
    draws: list[dict[str, np.ndarray]] = field(default_factory=list)
    scores: list[np.ndarray] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    orders: Sequence[np.ndarray] = ()
    groups: list[np.ndarray] = field(default_factory=list)
    public: list[np.ndarray] = field(default_factory=list)
    params: dict[str, np.ndarray] = field(default_factory=dict)
    result: dict[str, np.ndarray] = field(default_factory=dict)


@contextmanager
def recorded(round_: Round) -> Iterator[None]:
    """Write down what is drawn within; where local steps are taken, in the cohort's order."""
    chosen: list[np.ndarray] = []
    cohort, draw, choose = RunDoor._cohort, Mechanism.draw_row, Schedule.choose
    steps, groups = Schedule.steps, CentralSum._groups
    gradient = SoftmaxGradients.gradient
    scores, choose_index, orders = selection._scores, selection.choose, Passes.orders

    def noted_cohort(self: Any, *given: Any) -> Any:
        round_.cohort = cohort(self, *given)
        return round_.cohort

    def noted_draw(self: Any, *given: Any) -> Any:
        found = draw(self, *given)
        noise = found[0]._held[0]
        if isinstance(noise, dict):
            round_.draws.append({name: np.array(array, float) for name, array in noise.items()})
        return found

    def noted_scores(total: Any, offset: Any) -> Any:
        found, most = scores(total, offset)
        round_.scores.append(np.array(found, float) * total.granularity)
        return found, most

    def noted_index(*given: Any) -> int:
        round_.chosen.append(choose_index(*given))
        return round_.chosen[-1]

    def noted_choice(self: Any, *given: Any) -> Any:
        chosen.append(choose(self, *given))
        return chosen[-1]

    def noted_steps(self: Any, *given: Any) -> Any:
        order, starts = found = steps(self, *given)
        picked, place = chosen[-1][order], len(round_.batches)
        if place < len(round_.cohort):  # of bolt-on users come again and again
            user = round_.cohort[place]
            round_.batches[user] = [picked[a:b] for a, b in pairwise(starts)]
        return found

    def noted_groups(self: Any, *given: Any) -> Any:
        round_.groups = groups(self, *given)
        return round_.groups

    def noted_orders(self: Any, *given: Any) -> Any:
        round_.orders = orders(self, *given)
        return round_.orders

    def noted_gradient(self: Any, params: Any, index: Any, key: Any = None) -> Any:
        round_.public.append(np.array(index))
        return gradient(self, params, index, key)

    with ExitStack() as stack:
        for owner, name, new in (
            (RunDoor, "_cohort", noted_cohort), (Mechanism, "draw_row", noted_draw),
            (Schedule, "choose", noted_choice), (Schedule, "steps", noted_steps),
            (CentralSum, "_groups", noted_groups), (SoftmaxGradients, "gradient", noted_gradient),
            (selection, "_scores", noted_scores), (selection, "choose", noted_index),
            (Passes, "orders", noted_orders),
        ):  # fmt: skip
            stack.enter_context(patch.object(owner, name, new))
        yield


def play(experiment: Any, seed: int = 0) -> tuple[dict[str, np.ndarray], list[Round]]:
    """Run an experiment in memory; return its params before round 1, and its rounds."""
    made, key, played = build(experiment), Key.simulation(seed), []
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


# -- the same problems for NumPy: one flat vector, and gradients of it -------------------------


def flat(tensors: Tensors) -> np.ndarray:
    """All tensors as one vector: the bias last, and classes by features before it."""
    weight = tensors["weight"] if "weight" in tensors else tensors["kernel"].T
    return np.concatenate([np.ravel(weight), np.ravel(tensors["bias"])])


def gradient(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Mean gradient of softmax cross-entropy at one vector of weights and biases."""
    weight, bias = w[: CLASSES * FEATURES].reshape(CLASSES, FEATURES), w[CLASSES * FEATURES :]
    logits = x @ weight.T + bias
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(y)), y] -= 1.0
    return np.concatenate([(shares.T @ x).ravel(), shares.sum(axis=0)]) / len(y)


def loss(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    """Mean softmax cross-entropy at one vector of weights and biases."""
    weight, bias = w[: CLASSES * FEATURES].reshape(CLASSES, FEATURES), w[CLASSES * FEATURES :]
    logits = x @ weight.T + bias
    most = logits.max(axis=1)
    own = np.log(np.exp(logits - most[:, None]).sum(axis=1)) + most - logits[np.arange(len(y)), y]
    return float(own.mean())


def gradient_of(examples: tuple[np.ndarray, np.ndarray]) -> Any:
    """From a vector and positions to the mean gradient of these examples."""
    x, y = np.asarray(examples[0], float), np.asarray(examples[1])

    def grad(w: np.ndarray, index: Any) -> np.ndarray:
        chosen = np.atleast_1d(np.asarray(index, int))
        return gradient(x[chosen], y[chosen], w)

    return grad


def of_shortened(w: np.ndarray, row: int) -> np.ndarray:
    """Gradient of one example whose input, with a constant 1, is shortened to length 1."""
    x, label = np.append(TRAIN[0][row].astype(float), 1.0), TRAIN[1][row]
    x /= max(1.0, np.linalg.norm(x))
    cut = CLASSES * FEATURES
    logits = np.column_stack([w[:cut].reshape(CLASSES, FEATURES), w[cut:]]) @ x
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    shares[label] -= 1.0
    own = np.outer(shares, x)
    return np.concatenate([own[:, :-1].ravel(), own[:, -1]])


def of_user(function: Any, w: np.ndarray, user: str) -> Any:
    """`gradient` or `loss` of all examples of a user."""
    return function(np.asarray(USERS[user][0], float), USERS[user][1], w)


def of_example(function: Any, w: np.ndarray, row: int) -> Any:
    """The same of one example."""
    return function(np.asarray(TRAIN[0][[row]], float), TRAIN[1][[row]], w)


def users_gradient(w: np.ndarray, batch: tuple[str, np.ndarray]) -> np.ndarray:
    """Mean gradient of a batch, which is a user and positions among its examples."""
    user, index = batch
    return gradient_of(USERS[user])(w, index)


def cohorts_of(played: Sequence[Round]) -> list[list[list[tuple[str, np.ndarray]]]]:
    """Of each round its users, of each its local batches."""
    return [
        [[(user, batch) for batch in one.batches[user]] for user in one.cohort] for one in played
    ]


def noise_of(played: Sequence[Round]) -> list[np.ndarray]:
    """What was added to each round's sum of updates; on a sum of gradients it counts negatively."""
    return [flat(one.draws[-1]) for one in played]


def groups_of(played: Sequence[Round]) -> list[list[np.ndarray]]:
    """Of each round the groups of examples that were bounded as one."""
    return [one.groups or [np.array([int(example)]) for example in one.cohort] for one in played]


def check(played: Sequence[Round], expected: Sequence[np.ndarray]) -> None:
    """Every round's params, to a part in a million."""
    assert len(played) == len(expected)
    for one, w in zip(played, expected, strict=True):
        assert np.linalg.norm(flat(one.params) - w) <= 1e-6 * np.linalg.norm(w)


def check_results(played: Sequence[Round], expected: Sequence[np.ndarray]) -> None:
    """What each round would return, to a part in a million."""
    for one, w in zip(played, expected, strict=True):
        assert np.linalg.norm(flat(one.result) - w) <= 1e-6 * np.linalg.norm(w)


def check_scores(played: Sequence[Round], expected: Sequence[np.ndarray]) -> None:
    """The sums that each choice was made of, to a part in a million."""
    seen = [scores for one in played for scores in one.scores]
    assert len(seen) == len(expected)
    for scores, omega in zip(seen, expected, strict=True):
        np.testing.assert_allclose(scores, omega, rtol=1e-6)


# -- numbers --------------------------------------------------------------------------------------


def choices(scores: Sequence[float], cap: float, epsilon: float, number: int) -> list[int]:
    """Draws of a permute-and-flip among sums of losses that one record raises by up to `cap`."""
    units = [round(score * 1000) for score in scores]
    rate, key = Fraction(epsilon) / Fraction(round(cap * 1000)), Key.simulation(0)
    draws = (selection.ExactDraws(key.fold(str(draw))) for draw in range(number))
    return [selection.choose(units, rate, "permute-and-flip", draw) for draw in draws]


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
    passes: int, batch: int, number: int, smoothness: float, *, step_schedule: str,
    step_rate: float | None = None, step_exponent: float = 0.5, regulariser: float = 0.0,
) -> float:  # fmt: skip
    """Δ₂ of a replaced example, of a loss with L₀ = 1 and this β; rounding left out."""
    schedule = StepSchedule(name=step_schedule, rate=step_rate, exponent=step_exponent)
    taken = Passes(passes=passes, batch_size=batch, schedule=schedule)
    constants = Constants(name="own", lipschitz=1.0, smoothness=smoothness, convexity=regulariser)
    return 2.0 * taken.displacement(constants, number).last


def sphere_draws(d: int, *, sensitivity: float, epsilon: float, number: int) -> np.ndarray:
    """Draws of spherical noise, (number, d)."""
    template, noise = {"w": np.zeros(d, np.float32)}, Sphere(epsilon=epsilon)
    keys = (Key.simulation(0).fold(str(draw)) for draw in range(number))
    return np.array([
        noise.draw({}, template=template, sensitivity=sensitivity, key=key)[0]["w"] for key in keys
    ])  # fmt: skip


def tuned(mistakes: Sequence[int], epsilon: float, number: int) -> list[int]:
    """Candidates that private tuning releases, under replacement of one example."""
    choice, key = selection.PrivateChoice(epsilon=0.5 * epsilon), Key.simulation(0)
    total = selection.candidates([{"w": np.zeros(1)}] * len(mistakes), list(mistakes), 1)
    drawn = (selection.ExactDraws(key.fold(str(draw))) for draw in range(number))
    return [choice.release(total, draws, 1.0).index for draws in drawn]


def projected(x: np.ndarray, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows in fewer dimensions, and the matrix that took them there."""
    made = GaussianProjection(inputs=x.shape[1], outputs=outputs)
    return made.apply(x), made.matrix


def normalised(value: float, regulariser: float) -> float:
    """A one-dimensional gradient under the bound of DP-NSGD."""
    bound = Normalise(l2_clip_norm=1.0, regulariser=regulariser)
    tensors, factor = bound.scaled({"w": np.array([value])})
    return float(factor * tensors["w"][0])


def priced_sigma(experiment: Any) -> float:
    """Deviation over sensitivity that the accountant prices a round's noise by."""
    plan = build(experiment).plan
    return plan.event.noise_multiplier / plan.relation.moved


def answers(rule: str, probabilities: np.ndarray) -> np.ndarray:
    """Classes that several models' probabilities (models, n, classes) answer by a rule."""
    return aggregates.answers(rule, [*probabilities])


def uncertainty_of(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, half-width at 95 %, and the variance of the mean."""
    found = uncertainty(values)
    return float(found.mean), float(found.half_width), float(found.variance / len(values))


# -- combinations of options ------------------------------------------------------------------


class Outcome(NamedTuple):
    """What a run of five users releases and records, and what its plan says.

    Attributes:
        start: Params before round 1.
        params: After each round.
        results: What the run would return after each round.
        cohorts: Users drawn in each round.
        measured: Values on held-out examples after each round; of a secure run on public ones.
        diagnosed: Whether a round has diagnostics, which a secure run must not keep.
        plan: As JSON.
    """

    start: dict[str, np.ndarray]
    params: list[dict[str, np.ndarray]]
    results: list[dict[str, np.ndarray]]
    cohorts: list[Sequence[str]]
    measured: list[dict[str, Any]]
    diagnosed: bool
    plan: str


def outcome(
    options: Mapping[str, Any], *, personal: bool = False, device: str | None = None,
    secure: bool = False,
) -> Outcome:  # fmt: skip
    """Run options on five users; where they are simulated, all private draws are of one key.

    Raises:
        ValueError: If the product refuses the options together.
    """
    task = Users(
        name="five users",
        module=lambda: nn.Linear(FEATURES, CLASSES),
        loss=nn.functional.cross_entropy,
        users=USERS,
        public=examples(6, 99),
        public_train=None if personal else examples(12, 98),
        test=None if personal else examples(1500, 97),
        personal=PersonalLayers(names=("bias",)) if personal else None,
        synthetic=True,
    )
    made = FederatedExperiment(name="oracle", description="", task=lambda _: task, delta=1e-3)
    components = build(made.with_options(floats_of(options)))
    key = Key.secure() if secure else Key.simulation(0)
    carry = serial if device is None else serial_on(device)
    backend = carry(components.experiment, components)
    start = {n: np.array(a, float) for n, a in components.init_params(key.fold("init")).items()}
    found = Outcome(start, [], [], [], [], False, json.dumps(components.plan.to_json()))
    forced = None if secure else Key.simulation(7)
    steps = rounds(components, backend, key, eval_every=1, noise=forced)
    while True:
        round_ = Round()
        with recorded(round_):
            try:
                record, state = next(steps)
            except StopIteration:
                return found
        found.params.append({n: np.array(a, float) for n, a in state.params.items()})
        result = components.algorithm.result(state)
        found.results.append({n: np.array(a, float) for n, a in result.items()})
        found.cohorts.append(tuple(round_.cohort))
        diagnosed = {} if record.diagnostics is None else record.diagnostics.measured
        found.measured.append({**record.released.measured, **diagnosed})
        found = found._replace(diagnosed=record.diagnostics is not None)


def write_start(path: Any) -> None:
    """Write the params of another model of the five users' shapes."""
    rng = np.random.default_rng(5)
    shapes = {"weight": (CLASSES, FEATURES), "bias": (CLASSES,)}
    write_tensors(path, {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()})


# -- runs that are kept -----------------------------------------------------------------------


class Crash(BaseException):
    """What stands for a killed process."""


@contextmanager
def _forced(crash_after: int | None) -> Iterator[None]:
    """Make all private draws of one key of the seed, and crash at a charge, counted from 1."""
    cohort, charges = RunDoor._cohort, count(1)

    def crashing(self: Any, *given: Any) -> Any:
        if next(charges) == crash_after:
            raise Crash
        return cohort(self, *given)

    def forced(root: Key, *_: Any) -> Key:
        return root if root.mode == "secure" else root.fold("baseline")

    with (
        patch.object(RunDoor, "_cohort", crashing),
        patch.object(loop, "noise_root", forced),
        patch.object(loop, "unkept_noise_root", forced),
    ):
        yield


class Kept(NamedTuple):
    """What a run leaves: params after each round that is kept, and values of its summary."""

    params: list[dict[str, np.ndarray]]
    values: dict[str, float | None]


VALUES = ("epsilon", "epsilon_rdp", "delta", "noise_multiplier", "rounds", "charges", "users")
"""Values of every run; the task's own measures are added to them."""


def keep(
    experiment: Any, folder: Path, *, corpus: Path | None = None, secure: bool = False,
    crashes: Sequence[int] = (),
) -> Kept:  # fmt: skip
    """Run an experiment into a folder.

    Args:
        experiment: Itself, or the name of a ready-made one and its options.
        folder: A new one.
        corpus: Of a ready-made experiment that wants one.
        secure: Without a seed.
        crashes: Charges, counted since the run was last started, at which it crashes and goes on.
    """
    opened = None if corpus is None else open_corpus(str(corpus))
    if isinstance(experiment, tuple):
        name, options = experiment
        experiment = load_experiment(name).with_options(options)
    prepared = None
    for crash_after in (*crashes, None):
        if prepared is None:
            prepared = start_run(experiment, None, opened, folder, secure=secure, keep_last=None)
        else:
            prepared = resume_run(folder, experiment=experiment, keep_last=None)
        with _forced(crash_after):
            try:
                summary = prepared.run()
            except Crash:
                continue
    files = sorted((folder / "checkpoints").glob("*.safetensors"))
    measures = [measure["name"] for measure in summary["measures"]]
    names = [*VALUES, *measures, *(f"{name}_public" for name in measures)]
    return Kept(
        [{n: np.array(a) for n, a in load_file(file).items()} for file in files],
        {name: summary.get(name) for name in names},
    )


def ready_made() -> list[str]:
    """Names of the ready-made experiments."""
    return sorted(find_experiments())


def synthetic_corpus(folder: Path) -> Path:
    """Write a corpus of 40 rostered and 20 public users."""
    fedpriv_command("data", "synthesize", "--users", "40", "--sentences", "1200",
                    "--public-users", "20", "--out", str(folder))  # fmt: skip
    return folder


def fedpriv_command(*argv: str) -> str:
    """Run a command in this process, with draws of the seed alone, and return what it prints.

    Raises:
        RuntimeError: If it fails.
    """
    with _forced(None):
        done = CliRunner().invoke(app, argv)
    if done.exit_code:
        raise RuntimeError(f"fedpriv {argv[0]}: {done.output[-500:]} {done.exception!r}")
    return done.stdout


def public_names() -> dict[str, list[str]]:
    """Names of the API, of commands and flags, of options by method, and of the run-config."""

    def flags(command: Any, path: str) -> Iterator[str]:
        yield path
        yield from (f"{path} {flag}" for one in command.params for flag in one.opts)
        for name, inner in getattr(command, "commands", {}).items():
            yield from flags(inner, f"{path} {name}")

    pyproject = tomllib.loads((Path(fedpriv.__file__).parents[1] / "pyproject.toml").read_text())
    options = [
        f"{' '.join(of)} {entry.path}" for of, made in classes().items() for entry in entries(made)
    ]
    return {
        "python": sorted(fedpriv.__all__),
        "commands": sorted(flags(loaded(), "fedpriv")),
        "options": sorted(set(options)),
        "run-config": sorted(pyproject["tool"]["flwr"]["app"]["config"]),
    }
