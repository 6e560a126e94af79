"""One measurement of `growth.py`, in a process of its own, so that its memory is its own.

Takes a `Case` as JSON on the command line; prints what was measured as one line of JSON.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from harness.process_tree import Peak, cpu_seconds, pss_mib

STARTED = time.perf_counter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measured case.

    Attributes:
        corpus: A prepared corpus.
        cohort: Expected users a round, by Poisson sampling.
        rounds: How many are timed.
        warm_up: Rounds before them.
        backend: "serial" or "ray".
        workers: Threads of "serial", or processes of Ray's.
        device: Of the backend "serial", or one of its kind for each worker of Ray's; None for the
            usual way.
        look_every: Endurance: memory is read after so many rounds, and evaluated there; 0 for a
            plain timing.
        failing: Whether every tenth user raises whenever it is drawn (`growing.failing`).
    """

    corpus: str
    cohort: int
    rounds: int
    warm_up: int = 3
    backend: str = "serial"
    workers: int = 1
    device: str | None = None
    look_every: int = 0
    failing: bool = False

    @property
    def experiment(self) -> str:
        """Where workers find the experiment."""
        return "growing.failing:experiment" if self.failing else "adadps-tags"


class UnavailableError(Exception):
    """The backend is not here; the message says what is missing."""


@contextmanager
def backend_factory(case: Case) -> Iterator[Any]:
    """Yield what makes the case's backend from an experiment and its components.

    Raises:
        UnavailableError: If the backend is not installed, or its workers cannot be had.
    """
    from fedpriv.runs import backends

    if case.backend == "serial":
        here = partial(backends.serial, threads=case.workers)
        yield here if case.device is None else backends.serial_on(case.device)
        return
    try:
        from fedpriv.backends.ray.cluster import Cluster, Request

        request = Request(workers=case.workers)
        if case.device is not None:
            logical = case.workers if case.device == "cpu" else 0
            request = replace(request, gpus_per_worker=1.0, logical_gpus=logical)
        cluster = Cluster(request)
    except (ImportError, ValueError) as error:
        raise UnavailableError(str(error)) from error
    with cluster:
        yield backends.on_ray(cluster, case.experiment, case.corpus)


class TimedBackend:
    """Passes everything on, and adds up this thread's CPU time inside `sum`."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.cpu, self.users = 0.0, 0

    def sum(self, request: Any, attempt: Any, cohort: Any) -> Any:
        """Return what the backend does; count its time and users."""
        before = time.thread_time()
        try:
            return self._backend.sum(request, attempt, cohort)
        finally:
            self.cpu += time.thread_time() - before
            self.users += len(cohort)

    def under(self, plan: str) -> TimedBackend:
        """Return this: no node receives a plan."""
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def measure(case: Case) -> dict[str, Any]:
    """Run the case and return its figures."""
    from fedpriv.datasets.stackexchange.corpus import Corpus
    from fedpriv.experiments.load import load_experiment
    from fedpriv.runs.loop import rounds
    from fedpriv.runs.prepared import start_run

    corpus = Corpus.open(case.corpus)
    sampled = 3  # rounds in which memory is watched, after those that are timed
    experiment = load_experiment(case.experiment).with_options(
        {
            "roster": corpus.default_roster,
            "cohort": case.cohort,
            # One more than is run: the last round of a plan is always evaluated.
            "rounds": case.warm_up + case.rounds + sampled + 1,
            # Endurance is the experiment as it is, its noise calibrated to ε = 8.
            **({} if case.look_every else {"noise-multiplier": 1.0}),
            "eval-every": case.look_every or 10**9,
        }
    )
    with backend_factory(case) as make_backend, tempfile.TemporaryDirectory() as folder:
        prepared = start_run(
            experiment,
            case.experiment,
            corpus,
            Path(folder) / "run",
            backend=case.backend,
            make_backend=make_backend,
            keep_last=2,
        )
        backend: Any = TimedBackend(prepared.make_backend(prepared.experiment, prepared.components))
        try:
            loop = rounds(
                prepared.components,
                backend,
                prepared.root,
                folder=prepared.folder,
                state=prepared.state,
                eval_every=prepared.experiment.eval_every,
            )
            figures = _figures(case, loop, backend, sampled)
        finally:
            backend.close()
            prepared.folder.close()
    return {
        **figures,
        "users": prepared.components.plan.num_users,
        "synthetic": corpus.synthetic,
        "corpus": corpus.name,
        "num_params": sum(array.size for array in prepared.state.params.values()),
    }


def _figures(
    case: Case, loop: Iterator[Any], backend: TimedBackend, sampled: int
) -> dict[str, Any]:
    first = next(loop)[0].diagnostics
    figures: dict[str, Any] = {"ready_seconds": time.perf_counter() - STARTED - first.seconds}
    _go_on(loop, case.warm_up - 1)
    if case.look_every:
        return figures | _endure(case, loop)
    backend.cpu, backend.users = 0.0, 0
    started = cpu_seconds()
    seconds = [record.diagnostics.seconds for record, _ in islice(loop, case.rounds)]
    cpu = cpu_seconds() - started
    alone = (case.backend, case.workers) == ("serial", 1)
    figures |= {
        "seconds": seconds,
        "median": median(seconds),
        "quartiles": quantiles(seconds, n=4)[::2],
        "round_cpu_per_user": cpu / backend.users,
        "cpu_per_user": backend.cpu / backend.users if alone else None,
        "timed_users": backend.users,
        "pss_mib": pss_mib(),
    }
    with Peak() as peak:
        _go_on(loop, sampled)
    return figures | {"peak_pss_mib": peak.mib}


def _go_on(loop: Iterator[Any], number: int) -> None:
    """Run rounds and keep nothing of them: a state held here would count as memory of the run."""
    deque(islice(loop, number), maxlen=0)


def _endure(case: Case, loop: Iterator[Any]) -> dict[str, Any]:
    """Go through many rounds in blocks; keep each block's speed, and the memory between blocks.

    The first look is before the first of these rounds, after those to warm up. Freed memory that
    the allocator keeps is given back before each look; the peak has it.
    """
    looks: list[dict[str, Any]] = [{"rounds": 0, "pss_mib": _pss_in_use()}]
    for _ in range(0, case.rounds, case.look_every):
        started = time.perf_counter()
        with Peak(seconds=0.25) as peak:
            block = [r.diagnostics.seconds for r, _ in islice(loop, case.look_every)]
        done = looks[-1]["rounds"] + len(block)
        looks.append(
            {
                "rounds": done,
                "pss_mib": _pss_in_use(),
                "peak_mib": peak.mib,
                "median": median(block),
            }
        )
        took = time.perf_counter() - started
        memory = f"{looks[-1]['pss_mib']['total']:.0f} MiB, at most {peak.mib:.0f}"
        line = f"  {done} rounds, {memory}, {took:.0f} s"
        print(line, file=sys.stderr, flush=True)
    return {
        "looks": looks,
        "median": median(look["median"] for look in looks[1:]),
        "peak_pss_mib": max(look["peak_mib"] for look in looks[1:]),
    }


def _pss_in_use() -> dict[str, float]:
    """Return memory after this process gave back what it freed, where its C library is glibc."""
    gc.collect()
    with suppress(AttributeError, OSError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return pss_mib()


def main() -> None:
    case = Case(**json.loads(sys.argv[1]))
    try:
        figures = measure(case)
    except UnavailableError as error:
        figures = {"skipped": str(error)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
