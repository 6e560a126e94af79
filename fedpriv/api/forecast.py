"""Forecast of a run before it is started: noise on the mean, memory and time.

Noise on the mean for other cohorts and rounds at the same ε, memory and time of a round. It makes
no prediction of accuracy.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fedpriv.api.running import chosen_experiment, find_corpus
from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import Components, Experiment, Settings
from fedpriv.experiments.options import Option
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.privacy.epsilon import Epsilon, rounded_up
from fedpriv.privacy.noise_grid import NoiseGrid, NoisePoint, noise_grid
from fedpriv.privacy.plan import AnyPlan, Plan, unit_words
from fedpriv.privacy.sampling import Everybody, FixedSizeSampler, PoissonSampler
from fedpriv.privacy.statement.coverage import KEY, Coverage, coverage
from fedpriv.ranges import positive_int
from fedpriv.rng import Key
from fedpriv.runs.loop import first_state
from fedpriv.sums import BITS
from fedpriv.training.algorithm import TRAIN, SumRequest
from fedpriv.training.bounded_sum import template_with
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.training.work import Attempt, Users, Work, as_works
from fedpriv.tree import Params

#: Users are added until a try takes so long; few of them would time the start of everything.
_LONG_ENOUGH = 0.5
_MB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCost:
    """Memory and time of a round on this machine.

    Attributes:
        num_params: Numbers in the model.
        cohort: Expected cohort; None where it is decided on the way.
        workers: Processes or threads that share it.
        server_bytes: Arrays of the model's size that the server holds at once.
        worker_bytes: Those that a worker holds while it trains a user and adds it up; users are
            added one by one, so it does not grow with the cohort. Without their examples, and
            trainers that take several users at once.
        frozen_bytes: Of the model's weights that are not trained, which each worker holds.
        step_bytes: Of what the model computes in between for a local batch of examples as long as
            most; 0, as above, where the task does not say.
        peak_bytes: The most memory that this process ever had, all its data included; None where
            the system does not say or nothing was timed.
        seconds: Of a round; None where it is not known.
        user_seconds: Of a user: training, bounding, adding.
        server_seconds: Of drawing the noise and what precedes the question.
        timed: How many users were timed.
        reason: Why the time is not known, else empty.
    """

    num_params: int
    cohort: float | None
    workers: int
    server_bytes: int
    worker_bytes: int
    frozen_bytes: int = 0
    step_bytes: int = 0
    peak_bytes: int | None = None
    seconds: float | None = None
    user_seconds: float | None = None
    server_seconds: float | None = None
    timed: int = 0
    reason: str = ""

    def memory(self, unit: str = "user") -> str:
        """Return the memory in words."""
        shared = f", {self.workers} workers" if self.workers > 1 else ""
        said = (
            f"about {_megabytes(self.server_bytes)} on the server and "
            f"{_megabytes(self.worker_bytes)} a worker{shared} for arrays of the model's "
            f"{self.num_params:,} params, whatever the cohort; {unit}s' data come on top"
        )
        if self.frozen_bytes:
            said += f"; {_megabytes(self.frozen_bytes)} a worker for weights that are not trained"
        if self.step_bytes:
            said += f"; about {_megabytes(self.step_bytes)} for what a local batch keeps"
        if self.peak_bytes is not None:
            held = _megabytes(self.peak_bytes)
            said += f"; this process, with all of its data, has held {held} at most"
        return said

    def time(self, unit: str = "user") -> str:
        """Return the time in words."""
        one = "a user" if unit == "user" else "an example"
        if self.seconds is None or self.user_seconds is None or self.server_seconds is None:
            return f"not known: {self.reason}"
        return (
            f"about {self.seconds:.2g} s on this machine: {1e3 * self.user_seconds:.2g} ms "
            f"{one} (of {self.timed:,} timed) x {self.cohort:,g} / {self.workers} "
            f"worker{'s' if self.workers > 1 else ''} + {self.server_seconds:.2g} s on the server; "
            "without evaluation and messages. Timed on private data: a diagnostic, not covered by ε"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        said = "estimate on this machine; user_seconds is of private data and not covered by ε"
        return {**asdict(self), "is": said}


def round_cost(
    components: Components, params: Params, *, workers: int = 1, timed: bool = True
) -> RoundCost:
    """Return an estimate of what a round takes on this machine.

    The memory is counted. The time is that of training, bounding and summing some members of the
    roster, drawn at random, in this process; their sum is thrown away.

    Args:
        components: Of an experiment.
        params: Before the first round; not changed.
        workers: How many share a cohort, taken to work side by side without loss.
        timed: Whether rostered users' data may be read for the time.

    Raises:
        ValueError: If workers is not a positive whole number.
    """
    workers = positive_int("workers", workers)
    plan = components.plan
    size = sum(array.size for array in params.values())
    if not isinstance(plan, Plan):
        held = 4 * size
        return RoundCost(
            num_params=size, cohort=None, workers=workers, server_bytes=4 * held,
            worker_bytes=5 * held, reason="the plan decides on the way who is asked",
        )  # fmt: skip
    mechanism = plan.live_mechanism
    cohort = mechanism.expected_cohort_size
    exact = mechanism.bound.granularity is not None
    summed = size * (4 if exact else 8)
    if exact and cohort / workers > 2 ** (31 - BITS) - 1:
        summed += 8 * size  # an int32 sum is carried over
    state = components.algorithm.init(params)
    frozen, example = components.task.model_memory()
    local = getattr(components.experiment, "local", None)
    examples = min(local.batch_size, local.max_examples_per_user) if local else 0
    counted = RoundCost(
        num_params=size,
        cohort=cohort,
        workers=workers,
        server_bytes=_nbytes(state) + 4 * size + summed + 8 * size,  # state, step, sum, noise
        worker_bytes=3 * 4 * size + summed,  # params, local params, update, sum
        frozen_bytes=frozen,
        step_bytes=examples * example,
    )
    return (
        _timed(components, plan, state, counted)
        if timed
        else replace(counted, reason="not asked for")
    )


def timed_as(cost: RoundCost, other: RoundCost) -> RoundCost:
    """Return a cost with the times of another one, of the same method and task, for its cohort."""
    if other.user_seconds is None or other.server_seconds is None or cost.cohort is None:
        return replace(cost, reason=other.reason or cost.reason)
    return replace(
        cost,
        peak_bytes=other.peak_bytes,
        seconds=other.user_seconds * cost.cohort / cost.workers + other.server_seconds,
        user_seconds=other.user_seconds,
        server_seconds=other.server_seconds,
        timed=other.timed,
        reason="",
    )


def _timed(components: Components, plan: Plan, state: Any, counted: RoundCost) -> RoundCost:
    work = as_works(components.trainer).get(TRAIN)
    algorithm, key = components.algorithm, Key.simulation(0).fold("round cost")
    if work is None or not isinstance(algorithm, FederatedAveraging):
        return replace(counted, reason="the algorithm asks for works of its own")
    mechanism = plan.live_mechanism
    started = time.perf_counter()
    public, state = algorithm.begin(state, key.fold("guide"))
    request = algorithm.request(state, public)
    server = time.perf_counter() - started
    if not mechanism.charged_once:  # else rows are drawn by a run
        template = template_with(work.template(request), mechanism.bound, request.context.clip_norm)
        took = 0.0
        for _ in range(2):  # the first compiles
            started = time.perf_counter()
            mechanism.draw(template, key.fold("noise"))
            took = time.perf_counter() - started
        server += took
    try:
        attempt = Attempt(bound=mechanism.bound, key=key)
        user, number = _user_seconds(components, work, request, attempt)
    except ValueError as error:
        return replace(counted, reason=str(error))
    return replace(
        counted,
        peak_bytes=_peak_bytes(),
        seconds=user * mechanism.expected_cohort_size / counted.workers + server,
        user_seconds=user,
        server_seconds=server,
        timed=number,
    )


def _user_seconds(
    components: Components, work: Work, request: SumRequest, attempt: Attempt
) -> tuple[float, int]:
    """Return the mean time of one member of the roster, and of how many it is.

    Raises:
        ValueError: If they fail.
    """
    roster = components.task.roster
    order = attempt.key.fold("users").generator().permutation(len(roster))
    number = 1
    while True:
        ids = [roster[int(index)] for index in order[:number]]
        started = time.perf_counter()
        found = work.answer(request, attempt, Users(ids, components.task.data))
        took = time.perf_counter() - started
        if found.num_failed:
            raise ValueError(f"{found.num_failed} of {number} fail, as they would in the run")
        # The first try compiles and loads: it is never the one that counts.
        if number == len(roster) or (number > 1 and took >= _LONG_ENOUGH):
            return took / number, number
        number = min(4 * number, len(roster))


def _nbytes(state: Any) -> int:
    return sum(array.nbytes for arrays in state.save() for array in arrays.values())


def _peak_bytes() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _megabytes(number: int) -> str:
    return f"{number / _MB:.3g} MB" if number < 1024 * _MB else f"{number / 1024 / _MB:.3g} GB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Forecast of an experiment.

    Attributes:
        name: Of the experiment.
        data: What its task's data are called.
        synthetic: Whether they are synthetic.
        epsilon: Of the whole plan.
        coverage: What it does not cover.
        cautions: What the plan allows and weakens its ε, a sentence each.
        planned: Noise on the mean of the plan itself; None where it has no Gaussian noise.
        l2_clip_norm: C; None likewise.
        grid: Noise on the mean for other cohorts and rounds at the plan's ε; None where it is not
            known.
        reason: Why there is no grid, else empty.
        cost: Memory and time of a round.
        unit: What one neighbour is.
        settings: What was chosen from the data's size; None where nothing was.
        selects: Whether the returned model is selected on public examples.
    """

    name: str
    data: str
    synthetic: bool
    epsilon: Epsilon
    coverage: Coverage
    cautions: tuple[str, ...]
    planned: NoisePoint | None
    l2_clip_norm: float | None
    grid: NoiseGrid | None
    reason: str
    cost: RoundCost
    unit: str
    settings: Settings | None = None
    selects: bool = False

    def __repr__(self) -> str:
        privacy = self.coverage.qualified(f"{self.epsilon}, not yet spent")
        words = unit_words(self.unit)
        lines = [
            f"experiment  {self.name}, on {'SYNTHETIC ' if self.synthetic else ''}{self.data}",
            f"privacy     {privacy}",
            *(f"caution     {said}" for said in self.cautions),
        ]
        if self.planned is not None and self.planned.noise_on_mean is not None:
            lines.append(
                f"this plan   {words.drawn} {self.planned.cohort:,g}, {self.planned.rounds:,} "
                f"{words.turn}s: "
                f"noise on the mean {self.planned.text} thousandths of "
                f"C = {self.l2_clip_norm:g}"
            )
        if self.settings is not None:
            lines.append(f"chosen      {self.settings}")
            expected = self.settings.caution(selects=self.selects) or (
                "a gain over public examples alone (the noise of one release of everybody is "
                f"{self.settings.noise_length:.2g} times as long as a clipped update)"
            )
            lines.append(f"expected    {expected}")
        return "\n".join([
            *lines,
            f"memory      {self.cost.memory(self.unit)}",
            f"{'a ' + words.turn:<11} {self.cost.time(self.unit)}",
            "",
            str(self.grid) if self.grid is not None else f"noise on the mean: {self.reason}",
        ])  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, as `fedpriv plan --json` prints them."""
        planned = ("cohort", "rounds", "noise_multiplier", "noise_on_mean")
        return {
            "experiment": self.name,
            "data": self.data,
            "synthetic": self.synthetic,
            **self.epsilon.to_json(),
            KEY: list(self.coverage.not_covered),
            "cautions": list(self.cautions),
            **{name: getattr(self.planned, name, None) for name in planned},
            "l2_clip_norm": self.l2_clip_norm,
            "settings": None if self.settings is None else self.settings.to_json(),
            "grid": None if self.grid is None else self.grid.to_json(),
            "grid_reason": self.reason,
            "round": self.cost.to_json(),
        }


def forecast(
    experiment: str | Experiment,
    *,
    corpus: str | Path | None = None,
    params: Params | None = None,
    grid_cohorts: Sequence[float] | None = None,
    grid_rounds: Sequence[int] | None = None,
    workers: int = 1,
    timed: bool = True,
    console: Console | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    **options: Option,
) -> Forecast:
    """Return the forecast of an experiment; nothing is charged, released or written.

    Args:
        experiment: As for `fedpriv.run`.
        corpus: As for `fedpriv.run`.
        params: Where it starts; None for the start of the experiment.
        grid_cohorts: Cohorts to look at; None for doublings from a twentieth of the roster.
        grid_rounds: Numbers of rounds; None for 25 to 400.
        workers: How many would share a cohort.
        timed: Whether some rostered users' data may be trained on, for the time alone.
        console: Where it is said that a corpus is synthetic or being prepared, if anywhere.
        progress: Called with how many cells of the grid are done, of how many.
        **options: Options of the experiment to change, such as `rounds=50`.

    Raises:
        ValueError: If the experiment does not fit together.
    """
    chosen, _ = chosen_experiment(experiment, options)
    found = find_corpus(chosen, corpus, console=console, importing=console)
    components = build(chosen, found)
    chosen = components.experiment or chosen
    plan, task = components.plan, components.task
    root = Key.simulation(chosen.seed)
    start = first_state(components, root).params if params is None else params
    # The accountant may take hundreds of megabytes: the process's peak is asked for before.
    cost = round_cost(components, start, workers=workers, timed=timed)
    described = task.describe()
    side = components.side_information
    covered = coverage(
        plan,
        corpus=described.to_json(),
        side_information=side and {"source": side.source, "description": side.description},
        options=chosen.options(),
    )
    private = plan if isinstance(plan, Plan) and plan.is_private else None
    reason = _no_grid(plan)
    grid = None
    if private and not reason:
        grid = noise_grid(
            private, _target(private), cohorts=grid_cohorts, rounds=grid_rounds, progress=progress
        )
    return Forecast(
        name=chosen.name,
        data=str(described.name),
        synthetic=bool(described.synthetic),
        epsilon=covered.explained(plan.guaranteed()),
        coverage=covered,
        cautions=tuple(plan.warnings) if plan.is_private else (),
        planned=_planned(private) if private else None,
        l2_clip_norm=private.live_mechanism.l2_bound if private else None,
        grid=grid,
        reason=reason,
        cost=cost,
        unit=chosen.unit,
        settings=components.settings,
        selects=chosen.options().get("task.select") == "public",
    )


_NO_TARGET = (
    "not known: the plan's ε is 0 at its δ, which no noise is calibrated to; give a target ε, or a "
    "smaller δ"
)


def _target(plan: Plan) -> float:
    """Return the ε that other plans are compared at: the plan's target, or else its own."""
    return plan.target_epsilon or rounded_up(plan.total().value, 4)


def _no_grid(plan: AnyPlan) -> str:
    """Return why other cohorts cannot be calibrated to a plan's ε, or ""."""
    if not isinstance(plan, Plan):
        return "not known: the plan decides its noise on the way"
    if not plan.is_private:
        return "there is none; give a target ε to see how much one would ask for"
    mechanism = plan.live_mechanism
    if not isinstance(mechanism.privatizer, Gaussian):
        return f"not known: the grid is of independent Gaussian noise, not {mechanism.event.kind}"
    if not isinstance(mechanism.sampler, PoissonSampler | FixedSizeSampler | Everybody):
        return f"not known for cohorts drawn by {type(mechanism.sampler).__name__}"
    return "" if _target(plan) else _NO_TARGET


def _planned(plan: Plan) -> NoisePoint | None:
    mechanism = plan.live_mechanism
    if not isinstance(mechanism.privatizer, Gaussian):
        return None
    noise = mechanism.stddev / mechanism.l2_bound / mechanism.denominator
    return NoisePoint(
        cohort=mechanism.expected_cohort_size,
        rounds=plan.affordable_rounds,
        noise_multiplier=mechanism.noise_multiplier,
        noise_on_mean=noise,
    )
