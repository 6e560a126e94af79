"""The serial backend on threads that share even the small cohorts of tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from fedpriv.backends import Backend, SerialBackend
from fedpriv.experiments.experiment import Components, Experiment
from fedpriv.training import work
from fedpriv.training.evaluate import measure_of


@contextmanager
def threads_of_sums() -> Iterator[list[int]]:
    """Note among how many threads each sum within the `with` is shared."""
    found: list[int] = []
    sum_bounded = work.sum_bounded

    def noted(total: Any, stacks: Any, *given: Any) -> Any:
        found.append(len(stacks))
        return sum_bounded(total, stacks, *given)

    with mock.patch.object(work, "sum_bounded", noted):
        yield found


class Shared(SerialBackend):
    """The serial backend on several threads; red if they do not share what they may.

    Args:
        threads: How many.
        shareable: Whether the trainer may be shared.
        given: As of `SerialBackend`.
    """

    def __init__(self, *, threads: int | None = None, shareable: bool = True, **given: Any) -> None:
        self.number, self.shareable = 2 if threads is None else threads, shareable
        super().__init__(threads=self.number, **given)

    def sum(self, request: Any, attempt: Any, cohort: Any) -> Any:
        """Return the sum of the cohort's bounded updates."""
        shared = self.shareable and attempt.bound.granularity is not None
        expected = max(1, min(self.number, len(cohort))) if shared else 1
        with mock.patch.object(work, "_FEWEST_SHARED", 1), threads_of_sums() as found:
            try:
                return super().sum(request, attempt, cohort)
            finally:
                assert found == [expected], "not shared as it may be"


def on_two_threads(experiment: Experiment, components: Components) -> Backend:
    """Return the serial backend of a run whose trainer may be shared, on two threads."""
    return Shared(
        trainer=components.trainer,
        data=components.task.data,
        measure=measure_of(components.task),
    )
