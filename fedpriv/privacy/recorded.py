"""What a plan in a file says of a mechanism that is not of the ordinary kind.

Its objects may be anybody's and are never named in a file, let alone imported from one. What is
kept is what an auditor needs: how many users, the event of a charge, and a description in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from fedpriv.mechanisms.privatizer import AfterCrash, Cost
from fedpriv.privacy.event import Event
from fedpriv.ranges import positive_float, positive_int

if TYPE_CHECKING:
    from fedpriv.privacy.mechanism import Mechanism

_FIELDS = {
    "name",
    "description",
    "num_users",
    "expected_cohort_size",
    "micro_batch",
    "event",
    "whole_run",
    "after_crash",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPrivatizer:
    """The name of a privatizer and how it is charged.

    Attributes:
        name: Its name.
        whole_run: Whether one charge pays for all rows of the run.
        after_crash: What became of an attempt that a crash ended.
    """

    name: str
    whole_run: bool
    after_crash: AfterCrash

    @property
    def cost(self) -> Cost:
        """How it is charged; what it costs is in the event."""
        return Cost(kind="nonprivate", whole_run=self.whole_run)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMechanism:
    """A mechanism read from a file: it can be accounted, and not be run.

    Attributes:
        privatizer: Its name, and how it is charged.
        description: What it does, in a sentence.
        num_users: Users on the roster.
        expected_cohort_size: Mean number of users who take part.
        micro_batch: As `Mechanism.micro_batch`.
        event: What one charge does.
    """

    privatizer: RecordedPrivatizer
    description: str
    num_users: int
    expected_cohort_size: float
    micro_batch: int
    event: Event

    def __post_init__(self) -> None:
        positive_int("num_users", self.num_users)
        positive_int("micro_batch", self.micro_batch)
        positive_float("expected_cohort_size", self.expected_cohort_size)

    @classmethod
    def of(cls, mechanism: Mechanism | RecordedMechanism) -> RecordedMechanism:
        """Return what is recorded of a mechanism."""
        if isinstance(mechanism, RecordedMechanism):
            return mechanism
        privatizer = mechanism.privatizer
        described = getattr(privatizer, "description", type(privatizer).__name__)
        return cls(
            privatizer=RecordedPrivatizer(
                name=privatizer.name,
                whole_run=privatizer.cost.whole_run,
                after_crash=privatizer.after_crash,
            ),
            description=(
                f"{type(mechanism.sampler).__name__} of {mechanism.expected_cohort_size:g} among "
                f"{mechanism.num_users}, each contribution bounded to {mechanism.l2_bound:g} "
                f"(l2) by {type(mechanism.bound).__name__}, released by {described}"
            ),
            num_users=mechanism.num_users,
            expected_cohort_size=mechanism.expected_cohort_size,
            micro_batch=mechanism.micro_batch,
            event=mechanism.event,
        )

    @property
    def charged_once(self) -> bool:
        """Whether one charge pays for all rows of the run."""
        return self.privatizer.whole_run

    @property
    def sampler(self) -> None:
        """Not recorded."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "name": self.privatizer.name,
            "description": self.description,
            "num_users": self.num_users,
            "expected_cohort_size": self.expected_cohort_size,
            "micro_batch": self.micro_batch,
            "event": self.event.to_json(),
            "whole_run": self.privatizer.whole_run,
            "after_crash": self.privatizer.after_crash,
        }

    @classmethod
    def from_json(cls, value: Any) -> RecordedMechanism:
        """Return what `to_json` wrote.

        Raises:
            ValueError: If it is something else.
        """
        if not isinstance(value, Mapping) or set(value) != _FIELDS:
            raise ValueError(f"{value!r} is not the record of a mechanism")
        if not isinstance(value["name"], str) or not isinstance(value["whole_run"], bool):
            raise ValueError(f"{value['name']!r} is not the name of a privatizer")
        if value["after_crash"] not in get_args(AfterCrash):
            raise ValueError(f"{value['after_crash']!r} is nothing that becomes of an attempt")
        return cls(
            privatizer=RecordedPrivatizer(
                name=value["name"], whole_run=value["whole_run"], after_crash=value["after_crash"]
            ),
            description=str(value["description"]),
            num_users=value["num_users"],
            expected_cohort_size=value["expected_cohort_size"],
            micro_batch=value["micro_batch"],
            event=Event.from_json(value["event"]),
        )
