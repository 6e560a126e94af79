"""Interface of backends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from fedpriv.sums import PartialSum, RunningSum
from fedpriv.training.evaluate import Metrics
from fedpriv.training.failures import counted_failures, users_not_logged
from fedpriv.training.work import Attempt, SumRequest, UserData, Users, Work, find_work
from fedpriv.tree import Params

#: From (params, public=, and optionally part=) to metrics; `Task.evaluate` is one.
Measure = Callable[..., Metrics | None]


def answered(
    works: Mapping[str, Work],
    data: UserData | None,
    request: SumRequest,
    attempt: Attempt,
    users: Sequence[str],
) -> PartialSum:
    """Return the sum over users whose examples are here, with the first error among them.

    A secure run logs nothing about users and reports no error.

    Raises:
        ValueError: If the work is not among these.
    """
    with users_not_logged(attempt.key), counted_failures() as failures:
        done = find_work(works, request.work).answer(request, attempt, Users(users, data))
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
        """Return the backend that names a plan, by its digest, to whoever has the users."""
        return self

    def check_mode(self, mode: str) -> None:
        """Raise `ValueError`, with what to do, for a mode ("simulation", "secure") it refuses."""
        return

    def close(self) -> None:
        """Release whatever the backend holds."""
        return
