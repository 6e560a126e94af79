"""Training by users in simulation without a ledger: the same steps, clipping and noise, faster.

A study of settings asks for hundreds of runs, whose ε were computed beforehand: the noise of a
setting comes in as σ. Noise is float32 Gaussian noise of NumPy, and no sum is on a grid, so a run
equals one of `fedpriv run` in distribution and not in its bits. Nothing of this protects anybody.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba import njit

from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.load import load_experiment
from fedpriv.experiments.start import PublicOnly, public_only
from fedpriv.kernels.sparse_softmax import train
from fedpriv.privacy.accounting import calibrate
from fedpriv.privacy.event import Relation, cohort_event
from fedpriv.rng import Key
from fedpriv.tasks.tag_prediction import evaluate_tags
from fedpriv.tree import Params, interpolate

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
        return {name: array / np.float32(own) for name, array in self.found.start.params.items()}


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
    rng = np.random.default_rng([seed, 20_000])
    view, users = bench.view, bench.num_users
    spans = np.array(view._spans(view.roster, "train"))
    kernel, bias = start["kernel"].copy(), start["bias"].copy()
    average = {"kernel": kernel.copy(), "bias": bias.copy()}
    norm, weight = settings.norm, 0.0 if settings.quantile is None else 0.2
    columns = arrays(view.columns)
    per_user, norms_used = settings.q * users, []
    for _ in range(settings.rounds):
        cohort = np.flatnonzero(rng.random(users) < settings.q)
        total, moved, norms = summed(
            *columns,
            spans[0][cohort],
            spans[1][cohort],
            int(rng.integers(2**31)),
            kernel,
            bias,
            bench.multiplier,
            settings.rate,
            norm,
        )
        norms_used.append(norm)
        stddev = np.float32(settings.sigma * norm / math.sqrt(1.0 - weight**2))
        scale = np.float32(1.0 / per_user)
        kernel += scale * (total + stddev * rng.standard_normal(total.shape, np.float32))
        bias += scale * (moved + stddev * rng.standard_normal(moved.shape, np.float32))
        if settings.quantile is not None:
            signs = np.where(norms <= norm, 1.0, -1.0).sum() * weight
            answer = (signs + settings.sigma * rng.standard_normal()) / per_user
            norm *= math.exp(-0.2 * (0.5 + answer / (2.0 * weight) - settings.quantile))
        share = np.float32(1.0 - settings.decay)
        average["kernel"] += share * (kernel - average["kernel"])
        average["bias"] += share * (bias - average["bias"])
    ends = {"last": {"kernel": kernel, "bias": bias}, "ema": average}
    return ends, float(np.mean(norms_used))


def arrays(columns: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return starts, words, counts and labels of examples as compiled code takes them."""
    return (
        np.ascontiguousarray(columns.indptr, np.int64),
        np.ascontiguousarray(columns.indices, np.int32),
        np.ascontiguousarray(columns.counts),
        np.ascontiguousarray(columns.labels, np.int32),
    )


@njit(nogil=True, cache=True)
def summed(
    indptr: np.ndarray,
    indices: np.ndarray,
    counts: np.ndarray,
    labels: np.ndarray,
    firsts: np.ndarray,
    ends: np.ndarray,
    seed: int,
    kernel: np.ndarray,
    bias: np.ndarray,
    multiplier: np.ndarray,
    rate: float,
    norm: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the sum of users' clipped updates (kernel, bias), and their norms before clipping."""
    np.random.seed(seed)
    total, moved = np.zeros_like(kernel), np.zeros_like(bias)
    norms = np.zeros(firsts.size)
    for user in range(firsts.size):
        order = firsts[user] + np.random.permutation(ends[user] - firsts[user])[:256]
        if order.size == 0:
            continue
        starts = np.append(np.arange(0, order.size, 100), order.size)
        rows, change, shift, _ = train(
            indptr, indices, counts, labels, order, True, starts, kernel, bias, multiplier, rate
        )
        square = 0.0
        for row in range(rows.size):
            for c in range(shift.size):
                square += change[row, c] ** 2
        for c in range(shift.size):
            square += shift[c] ** 2
        norms[user] = math.sqrt(square)
        factor = np.float32(min(1.0, norm / max(norms[user], 1e-30)))
        for row in range(rows.size):
            for c in range(shift.size):
                total[rows[row], c] += factor * change[row, c]
        for c in range(shift.size):
            moved[c] += factor * shift[c]
    return total, moved, norms


@functools.lru_cache(maxsize=1024)
def sigma_of(q: float, rounds: int, epsilon: float, num_users: int) -> float:
    """Return the noise multiplier of Poisson cohorts at an ε, δ = n^-1.1."""
    delta = float(num_users) ** -1.1
    if q == 1.0:  # T releases of σ √T are one of σ
        return math.sqrt(rounds) * calibrate(
            lambda sigma: cohort_event(
                num_users=num_users, expected_cohort_size=num_users, noise_multiplier=sigma
            ),
            1,
            target_epsilon=epsilon,
            delta=delta,
            relation=Relation.ADD_REMOVE,
        )
    return calibrate(
        lambda sigma: cohort_event(
            num_users=num_users, expected_cohort_size=q * num_users, noise_multiplier=sigma
        ),
        rounds,
        target_epsilon=epsilon,
        delta=delta,
        relation=Relation.ADD_REMOVE,
    )
