"""The serial backend on threads that share even the small cohorts of tests."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from unittest import mock

from fedpriv.backends import Backend, SerialBackend, backend
from fedpriv.experiments.experiment import Components, Experiment
from fedpriv.training.evaluate import measure_of


class Counted(ThreadPoolExecutor):
    """A pool that counts what it was asked to do."""

    submitted = 0

    def submit(self, *call: Any, **given: Any) -> Future[Any]:
        """Count a call and make it."""
        self.submitted += 1
        return super().submit(*call, **given)


class Shared(SerialBackend):
    """The serial backend on several threads; red if they do not share what they may.

    Args:
        threads: How many.
        shareable: Whether the trainer may be shared.
        given: As of `SerialBackend`.
    """

    def __init__(self, *, threads: int | None = None, shareable: bool = True, **given: Any) -> None:
        number = 2 if threads is None else threads
        super().__init__(threads=number, **given)
        self.number, self.shareable = number, shareable
        self._pool = self.pool = Counted(number)

    def sum(self, request: Any, attempt: Any, cohort: Any) -> Any:
        """Return the sum of the cohort's bounded updates."""
        before = self.pool.submitted
        exact = attempt.bound.granularity is not None
        shared = self.number if self.shareable and exact and len(cohort) >= self.number else 0
        try:
            with mock.patch.object(backend, "_FEWEST_SHARED", 1):
                return super().sum(request, attempt, cohort)
        finally:
            assert self.pool.submitted - before == shared, "not shared as it may be"


def on_two_threads(experiment: Experiment, components: Components) -> Backend:
    """Return the serial backend of a run whose trainer may be shared, on two threads."""
    return Shared(
        trainer=components.trainer,
        data=components.task.data,
        measure=measure_of(components.task),
    )
