"""What an experiment would be like, before anything is charged, drawn or written.

Noise on the mean for other cohorts and rounds at the same ε, memory and time of a round, and what
the noise alone does to the starting model. It makes no prediction of accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fedpriv.api.forecast.noise_loss import NoiseLoss, noise_loss
from fedpriv.api.forecast.round_cost import RoundCost, round_cost
from fedpriv.api.running import chosen_experiment, find_corpus
from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.options import Option
from fedpriv.experiments.settings import Settings
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.privacy.epsilon import Epsilon, rounded_up
from fedpriv.privacy.noise_grid import NoiseGrid, NoisePoint, noise_grid
from fedpriv.privacy.plan import AnyPlan, Plan, unit_words
from fedpriv.privacy.sampling import Everybody, FixedSizeSampler, PoissonSampler
from fedpriv.privacy.statement.coverage import KEY, Coverage, coverage
from fedpriv.rng import Key
from fedpriv.runs.loop import first_state
from fedpriv.tree import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What an experiment would be like.

    Attributes:
        name: Of the experiment.
        data: What its task's data are called.
        synthetic: Whether they are made up.
        epsilon: Of the whole plan.
        coverage: What it does not cover.
        planned: Noise on the mean of the plan itself; None where it has no Gaussian noise.
        l2_clip_norm: C; None likewise.
        grid: Noise on the mean for other cohorts and rounds at the plan's ε; None where it is not
            known.
        reason: Why there is no grid, else empty.
        cost: Memory and time of a round.
        loss: What the noise alone does to the starting model.
        unit: What one neighbour is.
        settings: What was chosen from the data's size; None where nothing was.
        selects: Whether the returned model is selected on public examples.
    """

    name: str
    data: str
    synthetic: bool
    epsilon: Epsilon
    coverage: Coverage
    planned: NoisePoint | None
    l2_clip_norm: float | None
    grid: NoiseGrid | None
    reason: str
    cost: RoundCost
    loss: NoiseLoss
    unit: str
    settings: Settings | None = None
    selects: bool = False

    def __repr__(self) -> str:
        privacy = self.coverage.qualified(f"{self.epsilon}, not yet spent")
        words = unit_words(self.unit)
        lines = [
            f"experiment  {self.name}, on {'SYNTHETIC ' if self.synthetic else ''}{self.data}",
            f"privacy     {privacy}",
        ]
        if self.planned is not None and self.planned.noise_on_mean is not None:
            lines.append(
                f"this plan   {words.drawn} {self.planned.cohort:,g}, {self.planned.rounds:,} "
                f"{words.turn}s: "
                f"noise on the mean {self.planned.shown} thousandths of "
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
            f"noise alone {self.loss}",
            "",
            str(self.grid) if self.grid is not None else f"noise on the mean: {self.reason}",
        ])  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, as `fedpriv plan --json` prints them."""
        return {
            "experiment": self.name,
            "data": self.data,
            "synthetic": self.synthetic,
            **self.epsilon.to_json(),
            KEY: list(self.coverage.not_covered),
            "cohort": None if self.planned is None else self.planned.cohort,
            "rounds": None if self.planned is None else self.planned.rounds,
            "noise_multiplier": None if self.planned is None else self.planned.noise_multiplier,
            "noise_on_mean": None if self.planned is None else self.planned.noise_on_mean,
            "l2_clip_norm": self.l2_clip_norm,
            "settings": None if self.settings is None else self.settings.to_json(),
            "grid": None if self.grid is None else self.grid.to_json(),
            "grid_reason": self.reason,
            "round": self.cost.to_json(),
            "noise_loss": self.loss.to_json(),
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
    **options: Option,
) -> Forecast:
    """Return what an experiment would be like; nothing is charged, released or written.

    Args:
        experiment: As for `fedpriv.run`.
        corpus: As for `fedpriv.run`.
        params: Where it starts; None for its own start.
        grid_cohorts: Cohorts to look at; None for doublings from a twentieth of the roster.
        grid_rounds: Numbers of rounds; None for 25 to 400.
        workers: How many would share a cohort.
        timed: Whether some rostered users' data may be trained on, for the time alone.
        **options: Options of the experiment to change, such as `rounds=50`.

    Raises:
        ValueError: If the experiment does not fit together.
    """
    chosen, _ = chosen_experiment(experiment, options)
    return forecast_chosen(
        chosen,
        corpus=corpus,
        params=params,
        grid_cohorts=grid_cohorts,
        grid_rounds=grid_rounds,
        workers=workers,
        timed=timed,
    )


def forecast_chosen(
    chosen: Experiment,
    *,
    corpus: str | Path | None = None,
    params: Params | None = None,
    grid_cohorts: Sequence[float] | None = None,
    grid_rounds: Sequence[int] | None = None,
    workers: int = 1,
    timed: bool = True,
    console: Console | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Forecast:
    """Return what an experiment would be like, with its options chosen already.

    Args:
        chosen: The experiment.
        corpus: As for `forecast`.
        params: As for `forecast`.
        grid_cohorts: As for `forecast`.
        grid_rounds: As for `forecast`.
        workers: As for `forecast`.
        timed: As for `forecast`.
        console: Where it is said that a corpus is synthetic or being prepared, if anywhere.
        progress: Called with how many cells of the grid are done, of how many.

    Raises:
        ValueError: As `forecast`.
    """
    asked = None if corpus is None else str(corpus)
    found = find_corpus(chosen, asked, console=console, importing=console)
    components = build(chosen, found)
    chosen = components.experiment or chosen
    plan, task = components.plan, components.task
    root = Key.simulation(chosen.seed)
    start = first_state(components, root).params if params is None else params
    # The accountant may take hundreds of megabytes: the process's peak is asked for before.
    cost = round_cost(components, start, workers=workers, timed=timed)
    loss = noise_loss(chosen, components, start)
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
        grid = _grid(private, grid_cohorts, grid_rounds, progress)
    return Forecast(
        name=chosen.name,
        data=str(described.name),
        synthetic=bool(described.synthetic),
        epsilon=covered.explained(plan.guaranteed()),
        coverage=covered,
        planned=_planned(private) if private else None,
        l2_clip_norm=private.live_mechanism.l2_bound if private else None,
        grid=grid,
        reason=reason,
        cost=cost,
        loss=loss,
        unit=chosen.unit,
        settings=components.settings,
        selects=chosen.options().get("task.select") == "public",
    )


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
    return ""


def _grid(
    plan: Plan,
    cohorts: Sequence[float] | None,
    rounds: Sequence[int] | None,
    progress: Callable[[int, int], None],
) -> NoiseGrid:
    mechanism, sampler = plan.live_mechanism, plan.live_mechanism.sampler
    cap = sampler.cap if isinstance(sampler, PoissonSampler) else None
    target = plan.target_epsilon
    vector = mechanism.sensitivity / mechanism.l2_bound * mechanism.micro_batch
    return noise_grid(
        num_users=plan.num_users,
        target_epsilon=rounded_up(plan.total().value, 4) if target is None else target,
        cohorts=cohorts,
        rounds=rounds,
        delta=plan.delta,
        relation=plan.relation,
        sampling="fixed" if isinstance(sampler, FixedSizeSampler) else "poisson",
        cap_over_cohort=None if cap is None else cap / mechanism.expected_cohort_size,
        unit=plan.unit,
        sensitivity_over_vector=vector,
        progress=progress,
    )


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
