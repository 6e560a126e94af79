"""Plans as plain JSON values: a mechanism of numbers and names is flat, any other one recorded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plans.named import NUMBERS, named_mechanism, numbers_of
from fedpriv.privacy.recorded import RecordedMechanism


def written(mechanism: Mechanism | RecordedMechanism, rest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file says of a plan.

    A plan of cohorts, a clipped or normalised sum and Gaussian noise is flat; any other one has its
    mechanism's event and description under "mechanism".

    Args:
        mechanism: The plan's.
        rest: Its other fields, as plain JSON values.
    """
    flat = numbers_of(mechanism)
    if flat is not None:
        return {**flat, **rest}
    return {"mechanism": RecordedMechanism.of(mechanism).to_json(), **rest}


def read_written(
    value: Any, rest: Collection[str], later: Collection[str]
) -> tuple[Mechanism | RecordedMechanism, dict[str, Any]]:
    """Return what `written` was given; of a mechanism, what was recorded.

    Args:
        value: What is in a file.
        rest: Names of the plan's other fields.
        later: Names of those that are written only where they say something.

    Raises:
        ValueError: If fields are missing or unknown, or the mechanism would be refused.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is not a plan; expected a JSON object")
    kept = {*rest, *(name for name in later if name in value)}
    names = {"mechanism", *kept} if "mechanism" in value else {*NUMBERS, *kept}
    if set(value) != names:
        odd = ", ".join(sorted(map(str, set(value) ^ names)))
        raise ValueError(
            f"the plan's fields do not match ({odd}); it was edited, or written by another version"
        )
    fields = {name: value[name] for name in kept}
    if "mechanism" in value:
        return RecordedMechanism.from_json(value["mechanism"]), fields
    return named_mechanism(**{name: value[name] for name in NUMBERS}), fields
