"""What a run's noise alone would do to the model it starts from, measured on public examples.

Where the server takes plain steps, the noise of T rounds adds up to Gaussian noise of
√T x stddev on the mean x the server's rate on every coordinate. That much is added to the starting
params, a few times with seeds of their own, and the public examples say what it costs. To second
order it is ½ x variance x the trace of the loss's Hessian there.

It is an estimate from above, and not a forecast of the result: no learning takes place, nothing
forgets the noise of early rounds (training pulls back what local steps can see of it), and the
curvature is that of the start.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.components import Components
from fedpriv.experiments.experiment import Experiment
from fedpriv.measures import LOSS, Measure
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.mechanisms.preconditioners import Fixed, NoPreconditioner
from fedpriv.privacy.plan import Plan
from fedpriv.rng import Key
from fedpriv.training.evaluate import Metrics
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.tree import Params

NUM_DRAWS = 3
_KEY = Key.simulation(0).fold("noise loss")  # draws of no run
ASSUMES = (
    "noise alone, no learning, at the start: an estimate from above for the plan's rounds, since "
    "training takes some of the noise back"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseLoss:
    """The expected change of a public figure from noise alone, or why it is not known.

    Attributes:
        measure: Its name in JSON: the loss where the task measures one, else the headline; None
            where nothing is known, as of all that follow.
        label: Its name in words.
        start: At the starting params.
        noised: Mean over draws with the noise of all rounds added.
        spread: Sample standard deviation over draws.
        stddev: Of the noise on each coordinate after all rounds, in the params' units.
        rounds: How many are added up.
        num_draws: How often it was drawn.
        reason: Why it is not known, else empty.
    """

    measure: str | None = None
    label: str | None = None
    start: float | None = None
    noised: float | None = None
    spread: float | None = None
    stddev: float | None = None
    rounds: int | None = None
    num_draws: int = 0
    reason: str = ""

    def __repr__(self) -> str:
        if self.start is None or self.noised is None or self.spread is None:
            return f"not known: {self.reason}"
        return (
            f"public {self.label} {self.start:.4g} at the start, {self.noised:.4g} "
            f"(± {self.spread:.2g} over {self.num_draws} draws) with the noise of {self.rounds:,} "
            f"rounds added ({self.stddev:.3g} a coordinate); {ASSUMES}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "assumes": ASSUMES}


def noise_loss(experiment: Experiment, components: Components, params: Params) -> NoiseLoss:
    """Return what the noise of all rounds does to params, measured on public examples.

    Args:
        experiment: Says how the server steps.
        components: Of the experiment.
        params: Where the run starts; not changed.

    Returns:
        The estimate, or the reason why there is none: noise that is not plain Gaussian noise on a
        mean, a server that is adaptive or remembers, a preconditioner that acts after the noise,
        or no public examples.
    """
    plan = components.plan
    reason = _not_plain(experiment, components)
    if reason or not isinstance(plan, Plan):
        return NoiseLoss(reason=reason or "the plan decides its noise on the way")
    mechanism, rounds = plan.live_mechanism, plan.affordable_rounds
    stddev = math.sqrt(rounds) * mechanism.stddev / mechanism.denominator
    assert isinstance(experiment, FederatedExperiment)
    stddev *= experiment.server.learning_rate
    start = _measured(components.task, params)
    if start is None:
        return NoiseLoss(reason="the task measures nothing on public examples")
    measure, before = start
    found: list[float] = []
    for draw in range(NUM_DRAWS):
        generator = _KEY.fold(draw).generator()
        noised = {
            name: array + np.float32(stddev) * generator.standard_normal(array.shape, np.float32)
            for name, array in params.items()
        }
        after = _measured(components.task, noised)
        if after is None or not math.isfinite(after[1]):
            return NoiseLoss(reason=f"the {measure.label} is not finite under so much noise")
        found.append(after[1])
    return NoiseLoss(
        measure=measure.name,
        label=measure.label,
        start=before,
        noised=statistics.fmean(found),
        spread=statistics.stdev(found),
        stddev=stddev,
        rounds=rounds,
        num_draws=NUM_DRAWS,
    )


def _not_plain(experiment: Experiment, components: Components) -> str:
    """Return why a run's noise does not just add up in the params, or ""."""
    plan = components.plan
    if experiment.unit == "example":
        return "centralised experiments measure on their test set alone, which plans do not look at"
    if experiment.refine is not None:
        return "the experiment refines its components by code of its own"
    if not isinstance(plan, Plan) or not plan.is_private:
        return "no noise is added, or its amount is decided on the way"
    if not isinstance(plan.live_mechanism.privatizer, Gaussian):
        return "the noise is not independent Gaussian noise"
    if isinstance(experiment, FederatedExperiment) and experiment.server.kind != "sgd":
        return (
            f"server {experiment.server.kind} rescales or remembers what is "
            "released, so noise does not just add up; it is known for sgd only"
        )
    algorithm = components.algorithm
    if not isinstance(algorithm, FederatedAveraging):
        return "its method is not averaging"
    preconditioner = algorithm.preconditioner
    kept = isinstance(preconditioner, Fixed) and not preconditioner.inverse
    if not kept and not isinstance(preconditioner, NoPreconditioner):
        return "the released mean is preconditioned after the noise"
    return ""


def _measured(task: Any, params: Params) -> tuple[Measure, float] | None:
    found: Metrics | None = task.evaluate(params, public=True)
    if found is None:
        return None
    measures = sorted(task.measures, key=lambda measure: measure.name != LOSS.name)
    for measure in measures:
        value = found.get(measure.name)
        if value is not None:
            return measure, value
    return None
