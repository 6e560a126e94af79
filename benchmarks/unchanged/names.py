"""Names in older recordings that are called otherwise since: what was renamed, and to what.

A recording keeps the names of its day. Before it is compared, or its options are given to a run,
each name here is replaced, at every depth; values are never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Options of experiments: name in an older recording -> name now.
OPTIONS: Mapping[str, str] = {"server-optimizer": "server"}
#: Keys of JSON files in a run folder and of commands' `--json`: name then -> name now.
KEYS: Mapping[str, str] = {
    "burned": "discarded",
    "knees": "saturation_points",
    "knee_is": "saturation_point_is",
}
#: Cases of the recorder: name then -> name now.
CASES: Mapping[str, str] = {
    f"study: scraps-{name}": f"study: recycling-{name}"
    for name in ("cifar10", "convex", "pcvr", "pds", "stackoverflow")
}


def options_named_now(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an older recording by their names of today."""
    of_examples = bool({"batch-size", "batch_size"} & set(options))
    preconditioner = "preconditioner" if of_examples else "release_preconditioner"
    named = {}
    for name, value in options.items():
        place, dot, field = name.partition(".")
        place = preconditioner if place == "guide" else OPTIONS.get(place, place)
        named[place + dot + field] = value
    return named


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Return a JSON value whose keys have their new names.

    >>> renamed({"old": [{"old": 1}], "kept": "old"}, {"old": "new"})
    {'new': [{'new': 1}], 'kept': 'old'}

    Raises:
        ValueError: If two keys of one object would be the same.
    """
    if isinstance(value, list):
        return [renamed(item, names) for item in value]
    if not isinstance(value, Mapping):
        return value
    new = {names.get(key, key): renamed(item, names) for key, item in value.items()}
    if len(new) < len(value):
        raise ValueError(f"two of {sorted(value)} have one name in {dict(names)}")
    return new
