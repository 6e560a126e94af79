"""Training by users in simulation without a ledger: the same steps, clipping and noise, faster.

A study of settings asks for hundreds of runs, whose ε were computed beforehand: the noise of a
setting comes in as σ. Users are trained and bounded as in any run; noise is NumPy's Gaussian, and
no sum is on a grid, so a run equals one of `fedpriv run` in distribution and not in its bits.
Nothing of this protects anybody.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.load import load_experiment
from fedpriv.experiments.start import PublicOnly, public_only
from fedpriv.mechanisms import AdaptiveClip, Bound, Clip
from fedpriv.mechanisms.event import Event, Relation
from fedpriv.mechanisms.gaussian import Gaussian, Unprotected
from fedpriv.privacy.accounting import calibrate
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.sampling import PoissonSampler
from fedpriv.rng import Key
from fedpriv.tasks.tag_prediction import evaluate_tags
from fedpriv.training.algorithm import Context, SumRequest
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.softmax import CompiledSoftmaxTrainer
from fedpriv.training.work import Attempt, Users
from fedpriv.tree import Params, interpolate, to_dense

BATCH, MOST_EXAMPLES = 100, 256
_MOST_MEASURED = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a run; σ is the noise on the sum over the clip norm."""

    rounds: int
    rate: float
    norm: float
    q: float
    sigma: float
    decay: float = 0.9
    quantile: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A corpus with all that runs on it have in common.

    Attributes:
        experiment: What runs are of.
        task: Of tag prediction.
        found: What public examples alone make.
        multiplier: 1/A of each word, float32.
        measured: Rows of rostered users that are held out.
    """

    experiment: Experiment = field(repr=False)
    task: Any = field(repr=False)
    found: PublicOnly = field(repr=False)
    multiplier: np.ndarray = field(repr=False)
    measured: np.ndarray = field(repr=False)

    @property
    def num_users(self) -> int:
        """Number of users on the roster."""
        return len(self.task.roster)

    @property
    def view(self) -> Any:
        """The task's view."""
        return self.task.view

    @property
    def num_params(self) -> int:
        """Number of parameters of the model."""
        return (len(self.view.words) + 1) * len(self.view.tags)

    def accuracy(self, params: Params) -> float:
        """Return the accuracy on rostered users' examples held out, %."""
        found = evaluate_tags(params, self.view.columns, "unit-norm", self.measured)
        return 100.0 * (found.get("accuracy") or 0.0) if found else math.nan

    def start(self, factor: float | None) -> Params:
        """Return the public start: with a factor, or with the one that the public search chose."""
        begun, whole = self.task.init_params(Key.simulation(0)), self.whole_start()
        return interpolate(
            begun, whole, self.found.choices.by_loss.factor if factor is None else factor
        )

    def whole_start(self) -> Params:
        """Return the public start before anything is taken back."""
        own = self.found.choices.by_loss.factor
        return {name: array / np.float32(own) for name, array in self.found.start.items()}


def bench(corpus: Any, *, split: str = "test", options: dict[str, Any] | None = None) -> Bench:
    """Return a corpus with what runs on it have in common.

    Args:
        corpus: Any with tags.
        split: "test", or "validation" to tune.
        options: Further ones of the experiment.
    """
    experiment = load_experiment("adadps-tags").with_options(
        {
            "noise-multiplier": 1.0,
            "target-epsilon": None,
            "measured-on": split,
            **(options or {}),
        }
    )
    components = build(experiment, corpus)
    task = components.task
    found = public_only(task, Key.simulation(0).fold("init"))
    if found is None or components.side_information is None:
        raise ValueError(f"{corpus} has no public examples to learn from")
    rows = np.concatenate(list(task.view.rows(task.roster, split)))
    if len(rows) > _MOST_MEASURED:
        rows = np.sort(np.random.default_rng(0).choice(rows, _MOST_MEASURED, replace=False))
    return Bench(
        experiment=experiment,
        task=task,
        found=found,
        multiplier=components.side_information.multiplier["kernel"].reshape(-1),
        measured=rows,
    )


def run(
    bench: Bench, start: Params, settings: Settings, seed: int
) -> tuple[dict[str, Params], float]:
    """Return "last" and "ema", the models at the end of a run, and the mean clip norm of rounds."""
    root = Key.simulation(seed).fold("quick")
    schedule = LocalSgd(
        learning_rate=settings.rate, batch_size=BATCH, max_examples_per_user=MOST_EXAMPLES
    )
    trainer = CompiledSoftmaxTrainer(
        schedule=schedule, inputs="unit-norm", multiplier=bench.multiplier
    )
    params = {name: array.copy() for name, array in start.items()}
    average = {name: array.copy() for name, array in start.items()}
    norm, norms_used, users = settings.norm, [], bench.task.roster
    sampler = PoissonSampler(num_users=len(users), expected_cohort_size=settings.q * len(users))
    sigma = settings.sigma
    noise = Gaussian(noise_multiplier=sigma) if sigma else Unprotected()
    for number in range(settings.rounds):
        mechanism = Mechanism(sampler=sampler, bound=_bound(settings, norm), privatizer=noise)
        key, context = root.fold(number), Context(clip_norm=norm)
        cohort = sampler.cohort(key.fold("cohort"), users)
        attempt = Attempt(bound=mechanism.bound, key=key.fold("users"))
        asked = SumRequest(params=params, context=context)
        total = trainer.answer(asked, attempt, Users(cohort, bench.task.data))
        norms_used.append(norm)
        drawn = mechanism.draw(to_dense(total.total), key.fold("noise"))
        mean, adapted = mechanism.bound.released(mechanism.release(total, drawn), norm)
        norm = norm if adapted is None or settings.quantile is None else adapted
        kept = np.float32(1.0 - settings.decay)
        for name, array in params.items():
            array += mean[name]
            average[name] += kept * (array - average[name])
    return {"last": params, "ema": average}, float(np.mean(norms_used))


def _bound(settings: Settings, norm: float) -> Bound:
    if settings.quantile is None:
        return Clip(l2_clip_norm=norm)
    least, most = norm / 1e6, norm * 1e6
    return AdaptiveClip(l2_clip_norm=norm, least=least, most=most, quantile=settings.quantile)


@functools.lru_cache(maxsize=1024)
def sigma_of(q: float, rounds: int, epsilon: float, num_users: int) -> float:
    """Return the noise multiplier of Poisson cohorts at an ε, δ = n^-1.1."""
    delta = float(num_users) ** -1.1
    if q == 1.0:  # T releases of σ √T are one of σ
        return math.sqrt(rounds) * calibrate(
            lambda sigma: Event(kind="gaussian", noise_multiplier=sigma),
            1,
            target_epsilon=epsilon,
            delta=delta,
            relation=Relation.ADD_REMOVE,
        )
    return calibrate(
        lambda sigma: Event(kind="poisson-gaussian", noise_multiplier=sigma, sampling_prob=q),
        rounds,
        target_epsilon=epsilon,
        delta=delta,
        relation=Relation.ADD_REMOVE,
    )
