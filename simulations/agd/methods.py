"""Runs of the study of adaptive descent: from a specification to a row of values."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.special import gammaln, logsumexp

from fedpriv.mechanisms import Capped, Clip
from fedpriv.mechanisms.selection import Form
from fedpriv.privacy.accounting import rho_bs16, rho_of_epsilon
from fedpriv.privacy.plan import FilterPlan
from fedpriv.training.algorithm import TRAIN
from fedpriv.training.bolt_on import BoltOn
from fedpriv.training.dp_agd import (
    LOSSES,
    REJECTIONS,
    RHO_GRADIENT,
    STEP_SIZE,
    AdaptiveDescent,
    CentralLosses,
    Prices,
    StepSizes,
)
from simulations.linear_models.comparators import dp_sgd, fixed_steps, full_descent
from simulations.linear_models.problems import problem
from simulations.linear_models.study import Axis, Grid, Settings
from simulations.linear_models.training import (
    Model,
    Outcome,
    perturbed_objective,
    released_once,
    run,
)
from simulations.reproduction.items import Split
from simulations.reproduction.study import Row, Spec

LAST = 32


def last_order(sampling_prob: float, noise_multiplier: float, steps: int, delta: float) -> float:
    """Return T D_{33} + ln(1/δ)/32 of Poisson-subsampled Gaussians.

    Reference: Mironov, Talwar and Zhang (2019), Section 3.3, for whole orders.
    """
    order = LAST + 1
    k = np.arange(order + 1)
    log_binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    drawn = log_binomial + k * math.log(sampling_prob) + (order - k) * math.log1p(-sampling_prob)
    moment = float(np.asarray(logsumexp(drawn + (k * k - k) / (2.0 * noise_multiplier**2))))
    return steps * max(0.0, moment) / LAST + math.log(1.0 / delta) / LAST


def sigma_of_last_order(
    sampling_prob: float, steps: int, epsilon: float, delta: float
) -> float | None:
    """Return the least σ of which the artefact says ε or less; None where it never does."""
    low, high = 0.3, 1e4
    if last_order(sampling_prob, high, steps, delta) > epsilon:
        return None
    for _ in range(60):
        middle = math.sqrt(low * high)
        if last_order(sampling_prob, middle, steps, delta) > epsilon:
            low = middle
        else:
            high = middle
    return high


DELTA = 1e-8
EPSILONS = (0.1, 0.4, 0.8, 1.6)
LOSS_KINDS = ("logistic", "hinge")
REGULARISER = 1e-4
CLIP = Clip(l2_clip_norm=1.0)

#: Of the published code (ppmlguy/DP-AGD), where nothing else is said; of the paper (Lee and Kifer
#: 2018) only a summary could be read, which has none of these numbers.
SPLITS, LOSS_CAP, GROWTH, LARGEST_STEP = 60, 3.0, 0.1, 2.0
#: The most steps of SGD that the published code takes; its output perturbation has 50.
MOST_STEPS = 20_000

LABELS = {
    "agd-paper": "DP-AGD (published prices, NoisyMax)",
    "agd": "DP-AGD (split prices, exponential mechanism)",
    "fixed": "noisy gradient descent of T steps, the same ρ",
    "output": "output perturbation",
    "objective": "objective perturbation",
    "sgd": "DP-SGD, accounted by PLD",
    "sgd-old": "DP-SGD by the old moments bound (an artefact; not our ε)",
}

_RATES = (2.0**-7, 2.0**-5, 0.125, 0.5, 2.0, 8.0, 32.0, 128.0)
_SHARES = (0.004, 0.008, 0.015, 0.025, 0.04, 0.06, 0.1, 0.15, 0.25, 0.4, 0.6, 0.8)

GRIDS: Mapping[str, Grid] = {
    "agd-paper": Grid({
        "splits": Axis(
            values=(4, 7, 10, 20, 40, 60, 80, 100, 120), first=(20, 40),
            least="of 3 splits one iteration costs more than ρ",
            most="the most that the published code tries",
        ),
    }),
    "agd": Grid({
        "iterations": Axis(
            values=(1, 2, 4, 10, 25, 60, 150, 400, 1000), first=(25, 60),
            least="there is no fewer",
        ),
        "largest_step": Axis(values=_RATES, first=(0.5, 2.0)),
    }),
    "fixed": Grid({
        "steps": Axis(
            values=(1, 2, 4, 10, 25, 60, 150, 400, 1000, 2500, 6000, MOST_STEPS), first=(25, 60),
            least="there is no fewer", most="the most steps of the published code's SGD",
        ),
        "rate": Axis(values=_RATES, first=(2.0, 8.0)),
    }),
    "output": Grid({
        "steps": Axis(
            values=(1, 2, 4, 10, 25, 100, 400, 1600, 6400), first=(100, 400),
            least="there is no fewer",
        ),
        "rate_share": Axis(
            values=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0), first=(0.3, 1.0),
            most="a rate of 2/β, beyond which its sensitivity is not proved",
        ),
    }),
    "objective": Grid({
        "shift_share": Axis(
            values=(0.001, 0.002, *_SHARES, 0.9, 0.98), first=(0.25, 0.1, 0.04, 0.015),
            most="nothing of ε is left for its linear term",
        ),
    }),
    "sgd": Grid({
        "steps": Axis(
            values=(6, 25, 100, 400, 1600, 6400, MOST_STEPS), first=(400, 1600),
            most="the most steps of the published code's SGD",
        ),
        "rate": Axis(values=_RATES, first=(0.5, 2.0)),
    }),
}  # fmt: skip

#: Single changes to DP-AGD at published prices, next to the settings that were chosen.
ABLATIONS: Mapping[str, Settings] = {
    "as chosen": {},
    "60 splits, as in the published code": {"splits": SPLITS},
    "C_grad 3, as in the published code": {"gradient_clip": 3.0},
    "γ = 0.5": {"growth": 0.5},
    "a rejected gradient is discarded": {"estimates": "discard"},
    "ε converted over all orders": {"conversion": "tight"},
    "exponential mechanism, by its bounded range": {"form": "exponential"},
    "half of an iteration's price for the gradient": {"gradient_share": 0.5},
}


@lru_cache(maxsize=4)
def model_of(problem_key: str, loss: str, split: Split, tiny: bool) -> Model:
    """Return the model of a spec."""
    return Model.of(loss, problem(problem_key, tiny=tiny).part(split))


def perform(asked: Spec) -> Row:
    """Run a spec; its figures and the ε that it truly has."""
    started = time.process_time()
    chosen: dict[str, Any] = dict(asked["settings"])
    loss = asked["loss"]
    if asked["method"] in ("output", "objective") and loss == "hinge":
        loss = "huber"  # a corner is not smooth
    model = model_of(asked["problem"], loss, asked["split"], asked["tiny"])
    made = _METHODS[asked["method"]](model, asked["epsilon"], asked["seed"], chosen)
    if made is None:
        return {"accuracy": None, "true_epsilon": None}
    outcome, more = made
    return {
        "accuracy": round(model.accuracy(outcome.params), 5),
        "objective": round(model.mean_loss(outcome.params, REGULARISER), 5),
        "true_epsilon": outcome.epsilon,
        "synthetic": model.data.synthetic,
        "data": model.data.name,
        **more,
        "seconds": round(time.process_time() - started, 2),
    }


def _agd_paper(model: Model, epsilon: float, seed: int, chosen: dict[str, Any]) -> Any:
    """Run DP-AGD at published prices: NoisyMax as ε'-DP, and ε by Bun and Steinke's bound."""
    convert = rho_of_epsilon if chosen.get("conversion") == "tight" else rho_bs16
    prices = Prices.of_paper(epsilon=epsilon, delta=DELTA, splits=chosen["splits"])
    if "gradient_share" in chosen:  # of the same price of an iteration
        each = prices.gradient + prices.selection
        prices = Prices.split(rho=each, iterations=1, gradient_share=chosen["gradient_share"])
    form = chosen.get("form", "permute-and-flip")
    return _descent(model, convert(epsilon, DELTA), prices, seed, form, LARGEST_STEP, chosen)


def _agd(model: Model, epsilon: float, seed: int, chosen: dict[str, Any]) -> Any:
    """Run DP-AGD of prices that a number of iterations share, half of each for the gradient."""
    rho = rho_of_epsilon(epsilon, DELTA)
    prices = Prices.split(rho=rho, iterations=chosen["iterations"])
    return _descent(model, rho, prices, seed, "exponential", chosen["largest_step"], chosen)


def _descent(
    model: Model,
    rho: float,
    prices: Prices,
    seed: int,
    form: Form,
    largest_step: float,
    chosen: dict[str, Any],
) -> Any:
    sizes = StepSizes(first=largest_step)
    descent = AdaptiveDescent(
        num_users=model.num_train,
        gradient=Clip(l2_clip_norm=chosen.get("gradient_clip", CLIP.l2_clip_norm)),
        losses=Capped(cap=chosen.get("loss_cap", LOSS_CAP), num_coordinates=sizes.number),
        prices=prices,
        growth=chosen.get("growth", GROWTH),
        estimates=chosen.get("estimates", "average"),
        form=form,
        step_sizes=sizes,
        regulariser=REGULARISER,
    )
    plan = FilterPlan(num_users=model.num_train, rho=rho, delta=DELTA, unit="example")
    train: Any = model.task.train
    works = {TRAIN: model.sums(), LOSSES: CentralLosses(losses=train)}
    outcome = run(model, plan, descent, works, seed, keep=True)
    return outcome, _diagnosed(model, outcome)


def _diagnosed(model: Model, outcome: Outcome) -> dict[str, Any]:
    """Return what the report shows of every step, and whether the true objective fell."""
    states = [s for s in outcome.states if s.round_num]
    start = model.mean_loss(model.task.init_params(_NO_KEY), REGULARISER)
    losses = [start, *(model.mean_loss(s.params, REGULARISER) for s in states)]
    return {
        "accepted": len(states),
        "fell": sum(after < before for before, after in pairwise(losses)),
        "rejections": int(sum(s.numbers[REJECTIONS] for s in states)),
        "step_sizes": _ends([round(s.numbers[STEP_SIZE], 4) for s in states]),
        "rho_gradient": _ends([float(f"{s.numbers[RHO_GRADIENT]:.4g}") for s in states]),
    }


def _ends(values: list[float]) -> list[float]:
    """Return the first three values and the last two; all of six or fewer."""
    return values if len(values) <= 6 else [*values[:3], *values[-2:]]


def _fixed(model: Model, epsilon: float, seed: int, chosen: dict[str, Any]) -> Any:
    made = fixed_steps(
        num_examples=model.num_train,
        rho=rho_of_epsilon(epsilon, DELTA),
        delta=DELTA,
        bound=CLIP,
        regulariser=REGULARISER,
        **chosen,
    )
    return run(model, made.plan, made.algorithm, model.sums(), seed), {}


def _output(model: Model, epsilon: float, seed: int, chosen: dict[str, Any]) -> Any:
    train: Any = model.task.train
    probe = full_descent(num_examples=model.num_train, steps=1, rate=1e-6)
    constants = train.permutation_sgd(probe, regulariser=0.0).constants
    rate = chosen["rate_share"] * 2.0 / constants.smoothness
    passes = full_descent(num_examples=model.num_train, steps=chosen["steps"], rate=rate)
    sgd = train.permutation_sgd(passes, regulariser=0.0)
    moved = passes.sensitivity(constants, model.num_train)
    plan = released_once(model.num_train, moved, epsilon, DELTA)
    return run(model, plan, BoltOn(), sgd, seed), {}


def _objective(model: Model, epsilon: float, seed: int, chosen: dict[str, Any]) -> Any:
    share = chosen["shift_share"]
    made, work = perturbed_objective(model, epsilon=epsilon, delta=DELTA, shift_share=share)
    algorithm: Any = made.algorithm
    outcome = run(model, made.plan, algorithm, work, seed)
    return outcome, {"noise_multiplier": algorithm.noise.inside}


def _batch(model: Model) -> float:
    """Return √n + 10, the published code's."""
    return float(round(math.sqrt(model.num_train) + 10))


def _sgd(model: Model, epsilon: float, seed: int, chosen: dict[str, Any]) -> Any:
    sigma = _sigma_sgd(model.num_train, _batch(model), chosen["steps"], epsilon)
    return _stochastic(model, seed, chosen, sigma)


@lru_cache(maxsize=64)
def _sigma_sgd(number: int, batch: float, steps: int, epsilon: float) -> float:
    made = dp_sgd(
        num_examples=number, epsilon=epsilon, delta=DELTA, bound=CLIP, batch_size=batch,
        steps=steps, rate=1.0,
    )  # fmt: skip
    sigma = made.plan.noise_multiplier
    assert sigma is not None
    return sigma


def _sgd_old(model: Model, epsilon: float, seed: int, chosen: dict[str, Any]) -> Any:
    sigma = sigma_of_last_order(_batch(model) / model.num_train, chosen["steps"], epsilon, DELTA)
    return None if sigma is None else _stochastic(model, seed, chosen, sigma)


def _stochastic(model: Model, seed: int, chosen: dict[str, Any], sigma: float) -> Any:
    made = dp_sgd(
        num_examples=model.num_train, epsilon=math.inf, delta=DELTA, bound=CLIP,
        batch_size=_batch(model), noise_multiplier=sigma, regulariser=REGULARISER, **chosen,
    )  # fmt: skip
    outcome = run(model, made.plan, made.algorithm, model.sums(), seed)
    return outcome, {"noise_multiplier": sigma}


_METHODS = {
    "agd-paper": _agd_paper,
    "agd": _agd,
    "fixed": _fixed,
    "output": _output,
    "objective": _objective,
    "sgd": _sgd,
    "sgd-old": _sgd_old,
}
_NO_KEY: Any = None
