"""Records of rounds: what each releases, and what only a simulation may see of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedpriv.measures import Measure
from fedpriv.training.evaluate import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """Released values of a round. All of it is after the noise, or measured on public users.

    Attributes:
        round_num: From 1.
        attempt: The attempt that succeeded, from 1.
        epsilon: An upper bound on what is spent so far, lost attempts included: the price of
            `epsilon_charges` charges. None without privacy.
        epsilon_charges: At least those made so far, and no more than the next count that is priced
            (`accounted_rounds`): pricing each round can take longer than the round.
        delta: That goes with every ε of the run; None without privacy.
        measured: On users outside the roster, by the names of the task's measures; None where it
            was not evaluated.
        update_norm: l2 norm of the released mean update; None where no update is released.
        decided: What the method decided in the round, of what was released, by name: such as the
            step size that it chose.
    """

    round_num: int
    attempt: int
    epsilon: float | None
    epsilon_charges: int | None
    delta: float | None
    measured: Mapping[str, float | None]
    update_norm: float | None
    decided: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """Diagnostics of a round, in simulation only. Not covered by any ε; absent in deployment.

    Attributes:
        round_num: From 1.
        attempt: From 1.
        cohort_size: Users drawn.
        num_failed: Drawn users that contributed zero because they failed.
        measured: On held-out examples of rostered users, by the names of the task's measures;
            None where it was not evaluated.
        seconds: Wall time of the round without evaluation.
        first_error: What the first of those users raised, in a line; None where none did.
    """

    round_num: int
    attempt: int
    cohort_size: int
    num_failed: int
    measured: Mapping[str, float | None]
    seconds: float
    first_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One round, its two sides kept apart by type; in secure mode the second is absent."""

    released: Released
    diagnostics: Diagnostics | None

    def figure(self, name: str) -> float | None:
        """Return a figure, of rostered users where it was diagnosed, or else the released one."""
        seen = None if self.diagnostics is None else self.diagnostics.measured.get(name)
        return self.released.measured.get(name) if seen is None else seen


def measured(measures: Sequence[Measure], found: Metrics | None) -> Mapping[str, float | None]:
    """Return the figures of these measures by name; None for what was not measured."""
    return {measure.name: found and found.get(measure.name) for measure in measures}


def record_to_json(record: Released | Diagnostics) -> dict[str, Any]:
    """Return a record's fields by name, and its figures by theirs.

    JSON has no NaN, so a figure that diverged is None.
    """
    suffix = "_public" if isinstance(record, Released) else ""
    values: dict[str, Any] = {}
    for name in record.__slots__:
        value = getattr(record, name)
        if name == "measured":
            values |= figures_as_json(value, suffix)
        elif name == "decided":
            values |= figures_as_json({f"decided_{key}": number for key, number in value.items()})
        elif name != "first_error" or value is not None:
            values |= figures_as_json({name: value})
    return values


def figures_as_json(values: Mapping[str, Any], suffix: str = "") -> dict[str, Any]:
    """Return figures under names with a suffix; None for one that diverged."""
    return {
        f"{name}{suffix}": None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
