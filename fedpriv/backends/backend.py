"""What a backend is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from fedpriv.mechanisms.bounds import Bound
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.evaluate import Metrics
from fedpriv.training.work import TRAIN
from fedpriv.tree import Params

#: From (params, public=, and optionally part=) to metrics; `Task.evaluate` is one.
Measure = Callable[..., Metrics | None]


class Backend(Protocol):
    """Brings the private work to where the drawn users are, and the sum back.

    What is done with a user goes by a name, which each place looks up in its own experiment.
    Every backend gives the same sum for the same arguments (to rounding), and a user that cannot
    be reached contributes zero.
    """

    def partial_sum(
        self,
        *,
        params: Params,
        bound: Bound,
        cohort: Sequence[str],
        key: Key,
        round_num: int,
        attempt: int,
        work: str = TRAIN,
        template: Params | None = None,
    ) -> PartialSum:
        """Return the sum of the cohort's bounded contributions.

        Args:
            params: The global params, and whatever further tensors the work takes.
            bound: The public bound.
            cohort: The drawn user ids; may be empty.
            key: The users' key of this round and attempt, already folded by both.
            round_num: The round, from 1.
            attempt: The attempt at it, from 1.
            work: What is done, by name.
            template: Names and shapes of the sum; None for those of the params.
        """
        ...

    def evaluate(self, params: Params, *, public: bool) -> Metrics | None:
        """Return metrics on public users, or on held-out examples of rostered users.

        Every backend gives the same figures. None where there are no such examples.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Return what a run's record says of the backend: its name, workers and devices."""
        ...

    def close(self) -> None:
        """Release whatever the backend holds."""
        ...


@runtime_checkable
class PromiseBound(Protocol):
    """A backend that tells whoever has the users under what promise they are asked for."""

    def under(self, promise: str) -> Backend:
        """Return the backend with which users are asked under a promise, by its digest."""
        ...


@runtime_checkable
class ModeBound(Protocol):
    """A backend that does not take runs of every mode."""

    def check_mode(self, mode: str) -> None:
        """Raise `ValueError`, with what to do, for a mode ("simulation", "secure") it refuses."""
        ...
