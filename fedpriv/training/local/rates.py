"""Local learning rates that follow the round: client work at a rate that is sent with the params.

The factor of a round is a function of its public number alone (`FederatedAveraging.tensors`), so
that every node has it without asking how far a run is, and a resumed run has the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from fedpriv.sums import PartialSum
from fedpriv.training.local.schedule import Schedule
from fedpriv.training.work import SumRequest, Trainers, UserByUser, Work, as_work
from fedpriv.tree import Params

RATE = "local_rate_factor"
"""Name of the tensor, float32 (1,): what the learning rate is multiplied by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateOfRound(Work):
    """Client work whose learning rate is multiplied by what the query brings.

    Attributes:
        work: At the schedule's own rate.
    """

    work: Work
    _made: dict[float, Work] = field(init=False, repr=False, default_factory=dict)

    @property
    def thread_safe(self) -> bool:
        """As the work's."""
        return getattr(self.work, "thread_safe", False)

    def template(self, params: Params) -> Params:
        """Return the names and shapes of the work's sum."""
        return self.work.template({n: a for n, a in params.items() if n != RATE})

    def load(self) -> None:
        """Load what the work does."""
        self.work.load()

    def answer(self, request: SumRequest) -> PartialSum:
        """Return the work's answer at the round's rate."""
        params = dict(request.params)
        brought = params.pop(RATE, None)
        factor = 1.0 if brought is None else float(brought[0])
        work = self._made.get(factor)
        if work is None:
            work = _scaled(self.work, factor)
            self._made.clear()  # of earlier rounds
            self._made[factor] = work
        return work.answer(replace(request, params=params))


def following_rounds(trainer: Trainers) -> Trainers:
    """Return client work that takes its learning rate from each round.

    Raises:
        ValueError: If a trainer has no schedule to change.
    """
    if isinstance(trainer, Mapping):
        return {name: RateOfRound(work=_checked(as_work(one))) for name, one in trainer.items()}
    return RateOfRound(work=_checked(as_work(trainer)))


def _checked(work: Work) -> Work:
    _scaled(work, 0.5)
    return work


def _scaled(work: Any, factor: float) -> Any:
    """Return a work or trainer at another rate; it shares what it holds with the one given.

    Raises:
        ValueError: If it has no schedule.
    """
    if isinstance(work, UserByUser):
        return replace(work, trainer=_scaled(work.trainer, factor))
    if (scaled := getattr(work, "at_rate", None)) is not None:
        return scaled(factor)
    schedule = getattr(work, "schedule", None)
    known = is_dataclass(type(work)) and any(
        one.name == "schedule" and one.init for one in fields(work)
    )
    if not known or not isinstance(schedule, Schedule):
        raise ValueError(
            f"the learning rate cannot follow the rounds: {type(work).__name__} is no dataclass "
            "with a field `schedule` that holds the Schedule which trainer() was given; make it "
            "one, or set rate-schedule constant and warmup-rounds 0"
        )
    made: Any = work
    return replace(made, schedule=schedule.at_rate(factor))
