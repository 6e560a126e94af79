"""Training time: bolt-on beside the same training without noise, and noise in every step beside it.

CPU time of this process, in turns, so that what else the machine does meets both alike; what is
stated is the ratio of each pair, its median and range. Both kinds go through the door. Permutation
SGD is one question there, noise in every step one question a batch, so that the second pair also
pays for a charge, a cohort and a record each time, with noise or without.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from fedpriv.mechanisms.gaussian import Unprotected
from fedpriv.runs.progress import Pace
from fedpriv.training.bolt_on import BoltOn
from simulations.bolt_on.methods import model_of, permutation_sgd, plan_of, spec, stepwise
from simulations.linear_models.training import Model, run

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
    noised, plain = _bolt_on(model, problem_key, loss, passes)
    pace = Pace(3 * pairs, of="pairs")
    found = [_pair("bolt-on (pure ε)", noised, plain, pairs, pace)]
    for method, label in (("scs13", "SCS13 (pure ε)"), ("dp-sgd", "DP-SGD")):
        asked = spec(problem_key, loss, None, method, 1.0, passes, {"rate": 1.0})
        noised, plain = _stepwise(model, stepwise(model, asked))
        found.append(_pair(label, noised, plain, pairs, pace))
    return found


def _bolt_on(model: Model, problem_key: str, loss: str, passes: int) -> tuple[Training, Training]:
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
