"""Two recordings side by side: what differs in each run, by the closeness it is held to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from names import KEYS, options_named_now, renamed

Arrays = Mapping[str, np.ndarray]
_TOLERANCE = {"bits": 0.0, "epsilon": 0.0, "1e-6": 1e-6, "1e-4": 1e-4}
# A share of examples jumps where one example changes sides; the tensors are what is compared then.
_SHARES = ("accuracy", "recall")
_SHARES_MAY_MOVE = 0.01
# What a secure run has in common with every other of its kind.
_PROMISE = ("epsilon", "epsilon_rdp", "delta", "noise_multiplier", "charges", "users", "relation",
            "unit", "accountant", "mode")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one run.

    Attributes:
        name: Its name.
        compared: How closely it was held.
        differences: In words; empty when nothing differs.
    """

    name: str
    compared: str
    differences: tuple[str, ...]


def compare(
    old: Mapping[str, Any], new: Mapping[str, Any], old_arrays: Arrays, new_arrays: Arrays
) -> list[Outcome]:
    """Return the outcome of every run of either recording.

    Args:
        old: `runs` of the first recording, by name.
        new: `runs` of the second; a run that only it has is reported as new, not as a difference.
        old_arrays: By "run/tensor", of runs held to 1e-6.
        new_arrays: Likewise.
    """
    old = {name: with_new_names(run) for name, run in old.items()}
    outcomes = []
    for name in old:
        compared = old[name]["compared"]
        if name not in new:
            found = ["not recorded any more"]
        elif "failed" in old[name] or "failed" in new[name]:
            found = [
                f"{which} failed: {run['failed']}"
                for which, run in (("old", old[name]), ("new", new[name]))
                if "failed" in run
            ]
        else:
            mine = [key for key in old_arrays if key.startswith(f"{name}/")]
            theirs = [key for key in new_arrays if key.startswith(f"{name}/")]
            found = [
                *_of_run(old[name], new[name], compared),
                *_of_arrays({key: old_arrays[key] for key in mine},
                            {key: new_arrays[key] for key in theirs}, len(name) + 1),
            ]  # fmt: skip
        outcomes.append(Outcome(name=name, compared=compared, differences=tuple(found)))
    return outcomes


def with_new_names(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return an older recording's run with today's names of keys and options."""
    keys = {
        file: [KEYS.get(key, key) for key in names] for file, names in run.get("keys", {}).items()
    }
    kept = {part: run[part] for part in ("tensors", "options") if part in run}
    kept = kept | {"options": options_named_now(kept.get("options", {}))}
    rest = {part: value for part, value in run.items() if part not in (*kept, "keys")}
    return {**renamed(rest, KEYS), **kept, "keys": keys}


def _of_run(old: Mapping[str, Any], new: Mapping[str, Any], compared: str) -> Iterator[str]:
    if old["compared"] != new["compared"]:
        yield f"held to {old['compared']}, now to {new['compared']}"
    for file, keys in old.get("keys", {}).items():
        if gone := sorted(set(keys) - set(new["keys"].get(file, ()))):
            yield f"{file} has no {', '.join(gone)} any more"
    tolerance = _TOLERANCE[compared]
    if compared == "epsilon":
        for part in (old, new):
            assert part["summary"]["mode"] == "secure"
        yield from _values(
            "summary",
            {key: old["summary"][key] for key in _PROMISE},
            {key: new["summary"].get(key) for key in _PROMISE},
            0.0,
        )
        yield from _values("ledger", old["ledger"], new["ledger"], 0.0)
        return
    if compared == "bits":
        yield from _tensors(old.get("tensors", {}), new.get("tensors", {}))
    for part in ("summary", "rounds", "diagnostics", "ledger", "figures", "verified"):
        if part in old or part in new:
            yield from _values(part, old.get(part), new.get(part), tolerance)


def _tensors(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if list(old) != list(new):
        yield f"checkpoints {', '.join(old)} became {', '.join(new) or 'none'}"
    for stem in old:
        if stem in new and old[stem] != new[stem]:
            names = sorted(set(old[stem]) | set(new[stem]))
            unlike = [n for n in names if old[stem].get(n) != new[stem].get(n)]
            yield f"{stem}: {', '.join(unlike)}"


def _values(where: str, old: Any, new: Any, tolerance: float) -> Iterator[str]:
    """Compare what the first has; keys that only the second has are ignored."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            if key in new:
                yield from _values(f"{where}.{key}", value, new[key], tolerance)
            else:
                yield f"{where}.{key} is gone"
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{where}: {len(old)} became {len(new)}"
        for number, (left, right) in enumerate(zip(old, new, strict=False), start=1):
            yield from _values(f"{where}[{number}]", left, right, tolerance)
    elif old != new:
        left, right = _number(old), _number(new)
        if left is None or right is None:
            yield f"{where}: {old!r} became {new!r}"
        elif not _close(where, left, right, tolerance):
            yield f"{where}: {left!r} became {right!r}"


def _close(where: str, left: float, right: float, tolerance: float) -> bool:
    if tolerance and any(word in where.rpartition(".")[2] for word in _SHARES):
        return abs(left - right) <= _SHARES_MAY_MOVE
    return abs(left - right) <= tolerance * max(abs(left), abs(right))


def _number(value: Any) -> float | None:
    """Return the float of a hexadecimal text; None for anything else."""
    if isinstance(value, str):
        try:
            return float.fromhex(value) if "0x" in value else None
        except ValueError:
            return None
    return None


def _of_arrays(old: Arrays, new: Arrays, skip: int) -> Iterator[str]:
    for key, array in old.items():
        name = key[skip:]
        if key not in new:
            yield f"{name} is gone"
        elif new[key].shape != array.shape or new[key].dtype != array.dtype:
            yield f"{name} has another shape or dtype"
        else:
            left, right = array.astype(np.float64), new[key].astype(np.float64)
            norm, apart = np.linalg.norm(left), np.linalg.norm(right - left)
            if not apart <= _TOLERANCE["1e-6"] * norm:
                yield f"{name}: relative difference {apart / norm if norm else apart:.2g}"
    for key in new:
        if key not in old:
            yield f"{key[skip:]} is new"
