"""Interface of backends, and what one is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from fedpriv.mechanisms.bounds import Bound
from fedpriv.rng import Key
from fedpriv.sums import PartialSum, RunningSum
from fedpriv.training.evaluate import Metrics
from fedpriv.training.failures import counted_failures, users_not_logged
from fedpriv.training.work import TRAIN, SumRequest, UserData, Work, find_work
from fedpriv.tree import Params

#: From (params, public=, and optionally part=) to metrics; `Task.evaluate` is one.
Measure = Callable[..., Metrics | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Arguments of one sum, the same for every worker and node.

    Attributes:
        params: The global params, and whatever further tensors the work takes; not changed.
        bound: The public per-user bound.
        key: The users' key of this round and attempt, already folded by both.
        round_num: The round, from 1.
        attempt: The attempt at it, from 1.
        work: What is done with a user, by the name that each place looks up in its own experiment.
        template: Names and shapes of the sum; None for those of the params.
    """

    params: Params = field(repr=False)
    bound: Bound
    key: Key
    round_num: int = 1
    attempt: int = 1
    work: str = TRAIN
    template: Params | None = field(default=None, repr=False)

    @property
    def shapes(self) -> Params:
        """Names and shapes of the sum."""
        return self.params if self.template is None else self.template

    def nothing(self, shapes: Params) -> PartialSum:
        """Return the sum over no user, of these names and shapes."""
        granularity = self.bound.granularity
        total = RunningSum(shapes, granularity).result()
        return PartialSum(total=total, num_users=0, granularity=granularity)

    def sum_of(
        self, works: Mapping[str, Work], data: UserData | None, user_ids: Sequence[str]
    ) -> PartialSum:
        """Return the sum over users whose examples are here, with the first error among them.

        A secure run logs nothing about users and reports no error.

        Raises:
            ValueError: If the work is not among these.
        """
        request = SumRequest(
            params=self.params, bound=self.bound, user_ids=user_ids, key=self.key, data=data
        )
        with users_not_logged(self.key), counted_failures() as failures:
            done = find_work(works, self.work).answer(request)
        return done if failures.text is None else replace(done, first_error=failures.text)


class Backend(ABC):
    """Brings the private work to where the drawn users are, and the sum back.

    A subclass has `sum_over`. Every backend gives the same sum for the same
    arguments (to rounding), and a user that cannot be reached contributes zero.

    Attributes:
        trains_again: Whether a simulation may ask one user twice to see whether it is apart from
            others; false where users are on nodes, which may be late or gone in between.
    """

    trains_again: ClassVar[bool] = True

    def partial_sum(self, *, cohort: Sequence[str], **order: Any) -> PartialSum:
        """Return `sum_over` of the cohort and an `Order` of the other arguments."""
        return self.sum_over(cohort, Order(**order))

    @abstractmethod
    def sum_over(self, cohort: Sequence[str], order: Order) -> PartialSum:
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
