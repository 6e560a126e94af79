"""Backends: they bring the private work to where the drawn users are, and the sum back.

The serial one trains in this process, and is the oracle of all others. A compiled trainer holds the
interpreter's lock for a tenth of its time, so threads share the cores as processes would, and
nothing is sent or copied. Trainers that keep a resident model, or draw from a generator of the
whole process, use more than one core in worker processes (`--backend ray`). Nothing here knows how
a worker is reached. What it works with is opened where the work is done, from what can be named:
the experiment, its options, the path of a corpus. Users' data are never sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from fedpriv.sums import PartialSum, RunningSum
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.devices import default_threads
from fedpriv.training.evaluate import Metrics, Part
from fedpriv.training.failures import counted_failures, users_not_logged
from fedpriv.training.stopping import end_if_interrupted
from fedpriv.training.work import Attempt, Trainers, UserData, Users, Work, as_works, find_work
from fedpriv.tree import Params

#: From (params, public=, and optionally part=) to metrics; `Task.evaluate` is one.
Measure = Callable[..., Metrics | None]


def answered(
    works: Mapping[str, Work],
    data: UserData | None,
    request: SumRequest,
    attempt: Attempt,
    users: Sequence[str],
    threads: int = 1,
) -> PartialSum:
    """Return the sum over users whose examples are here, with the first error among them.

    A secure run logs nothing about users and reports no error. Several threads share the users
    where the work allows it.

    Raises:
        ValueError: If the work is not among these.
        RuntimeError: In a secure run, if the work raises: by the name of the error's class alone,
            since its text may hold a value of a user.
    """
    work = find_work(works, request.work)
    with users_not_logged(attempt.key), counted_failures() as failures:
        try:
            done = work.answer(request, attempt, Users(users, data, threads))
        except Exception as error:
            end_if_interrupted(error)
            if attempt.key.mode != "secure":
                raise
            raise RuntimeError(
                f"work {request.work!r} ended by a {type(error).__name__}, of which a secure run "
                "says no more: its text may hold a value of a user; simulate the run to see it"
            ) from None
    return done if failures.text is None else replace(done, first_error=failures.text)


def shapes_of(request: SumRequest, attempt: Attempt) -> Params:
    """Return names and shapes of a sum, as the server knows them."""
    return request.params if attempt.template is None else attempt.template


def sum_of_nobody(shapes: Params, granularity: float | None) -> PartialSum:
    """Return the sum over no user, of these names and shapes."""
    total = RunningSum(shapes, granularity).result()
    return PartialSum(total=total, num_users=0, granularity=granularity)


class Backend(ABC):
    """Brings the private work to where the drawn users are, and the sum back.

    A subclass has `sum`. Every backend gives the same sum for the same
    arguments (to rounding), and a user that cannot be reached contributes zero.

    Attributes:
        trains_again: Whether a simulation may ask one user twice to see whether it is apart from
            others; false where users are on nodes, which may be late or gone in between.
    """

    trains_again: ClassVar[bool] = True

    @abstractmethod
    def sum(self, request: SumRequest, attempt: Attempt, cohort: Sequence[str]) -> PartialSum:
        """Return the sum of the bounded contributions of these users, who may be none."""

    def evaluate(self, params: Params, *, public: bool) -> Metrics | None:
        """Return metrics on public users, or on held-out examples of rostered users.

        Every backend gives the same values. None where there are no such examples.
        """
        return None

    def describe(self) -> dict[str, Any]:
        """Return what a run's record says of the backend: its name, workers and devices."""
        return {"name": type(self).__name__, "workers": 1, "devices": []}

    def under(self, plan: str) -> Backend:
        """Return the backend that names a plan, by its digest, to those that have the users."""
        return self

    def check_mode(self, mode: str) -> None:
        """Raise `ValueError`, with what to do, for a mode ("simulation", "secure") it refuses."""
        return

    def close(self) -> None:
        """Release whatever the backend holds."""
        return


class SerialBackend(Backend):
    """Trains the cohort in this process, or sums over a batch: the oracle of all other backends.

    Guarantees:
        * The sum is that of one thread to the bit: several threads share a cohort only where the
          trainer may be shared and the bound is on a grid.

    Args:
        trainer: What a user does, or the sum over examples of centralised training; or works
            by name.
        data: The users' examples; None where the trainer holds its examples itself.
        measure: How a model is measured, as `Task.evaluate`; None measures nothing.
        device: What it computes on, in words.
        asked: The device that the trainer was made for, where it trains many users, or examples,
            at once; None for what is quickest on a processor. Their last bits differ.
        threads: Among how many a cohort may be shared; None for `default_threads`.
    """

    def __init__(
        self,
        *,
        trainer: Trainers,
        data: UserData | None = None,
        measure: Measure | None = None,
        device: str = "cpu",
        asked: str | None = None,
        threads: int | None = None,
    ) -> None:
        self._threads = default_threads() if threads is None else threads
        self._works, self._data, self._measure = as_works(trainer), data, measure
        self._device, self._asked = device, asked

    def sum(self, request: SumRequest, attempt: Attempt, cohort: Sequence[str]) -> PartialSum:
        """Return the sum of the cohort's bounded updates."""
        return answered(self._works, self._data, request, attempt, cohort, self._threads)

    def evaluate(self, params: Params, *, public: bool, **part: Part) -> Metrics | None:
        """Return the metrics of this process's measure, on a `part=` of the examples or on all."""
        return None if self._measure is None else self._measure(params, public=public, **part)

    def describe(self) -> dict[str, Any]:
        """Return that everything happens here, and on which device."""
        found = {"name": "serial", "workers": 1, "devices": [self._device]}
        return found if self._asked is None else {**found, "device": self._asked}
