"""Memory and time of one round on this machine, estimated before it is run."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedpriv.experiments.components import Components
from fedpriv.mechanisms import Bound
from fedpriv.privacy.plan import Plan
from fedpriv.ranges import positive_int
from fedpriv.rng import Key
from fedpriv.sums import BITS
from fedpriv.training.federated_averaging import FederatedAveraging, ServerState
from fedpriv.training.work import TRAIN, Work, as_works
from fedpriv.tree import Params

#: Users are added until a try takes so long; few of them would time the start of everything.
_LONG_ENOUGH = 0.5
_MB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCost:
    """What a round takes here.

    Attributes:
        num_params: Numbers in the model.
        cohort: Expected cohort; None where it is decided on the way.
        workers: Processes or threads that share it.
        server_bytes: Arrays of the model's size that the server holds at once.
        worker_bytes: Those that a worker holds while it trains a user and adds it up; users are
            added one by one, so it does not grow with the cohort. Without their examples, what
            their model computes in between, and trainers that take several users at once.
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
    roster, drawn anew, in this process; their sum is thrown away.

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
    counted = RoundCost(
        num_params=size,
        cohort=cohort,
        workers=workers,
        server_bytes=_nbytes(state) + 4 * size + summed + 8 * size,  # state, step, sum, noise
        worker_bytes=3 * 4 * size + summed,  # params, local params, update, sum
    )
    return (
        _timed(components, plan, state, counted)
        if timed
        else replace(counted, reason="not asked for")
    )


def _timed(components: Components, plan: Plan, state: Any, counted: RoundCost) -> RoundCost:
    work = as_works(components.trainer).get(TRAIN)
    algorithm, key = components.algorithm, Key.simulation(0).fold("round cost")
    if work is None or not isinstance(algorithm, FederatedAveraging):
        return replace(counted, reason="the algorithm asks for works of its own")
    mechanism = plan.live_mechanism
    started = time.perf_counter()
    context, state = algorithm.begin(state, key.fold("guide"))
    server = time.perf_counter() - started
    if not mechanism.privatizer.init(state.params, key.fold("memory")):  # else it has a memory
        template = work.template(state.params)
        for _ in range(2):  # the first compiles
            started = time.perf_counter()
            mechanism.draw(template, key.fold("noise"))
            took = time.perf_counter() - started
        server += took
    try:
        user, number = _user_seconds(
            components, work, state.params, context.bound(mechanism.bound), key
        )
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
    components: Components, work: Work, params: Params, bound: Bound, key: Key
) -> tuple[float, int]:
    """Return the mean time of one member of the roster, and of how many it is.

    Raises:
        ValueError: If they fail.
    """
    roster = components.task.roster
    order = key.fold("users").generator().permutation(len(roster))
    number = 1
    while True:
        ids = [roster[int(index)] for index in order[:number]]
        started = time.perf_counter()
        found = work.partial_sum(
            params=params, bound=bound, data=components.task.data, user_ids=ids, key=key
        )
        took = time.perf_counter() - started
        if found.num_failed:
            raise ValueError(f"{found.num_failed} of {number} fail, as they would in the run")
        # The first try compiles and loads: it is never the one that counts.
        if number == len(roster) or (number > 1 and took >= _LONG_ENOUGH):
            return took / number, number
        number = min(4 * number, len(roster))


def _nbytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(map(_nbytes, value.values()))
    if isinstance(value, ServerState):
        return sum(map(_nbytes, (value.params, value.optimizer, value.aggregate)))
    return 0


def _peak_bytes() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _megabytes(number: int) -> str:
    return f"{number / _MB:.3g} MB" if number < 1024 * _MB else f"{number / 1024 / _MB:.3g} GB"
