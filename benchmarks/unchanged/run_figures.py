"""What a run folder says, as exact values: digests of tensors, floats in hexadecimal, keys."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

# They differ between any two runs, or say where and when a run was.
_LEFT_OUT = frozenset({"seconds", "seconds_per_round", "run_dir", "backend"})
# Sentences, which may be said in other words; what is compared is how many there are.
_COUNTED = frozenset({"epsilon_does_not_cover"})


def exact(value: Any) -> Any:
    """Return JSON values with every float as its hexadecimal text, which keeps each bit."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, Mapping):
        return {
            name: len(item) if name in _COUNTED else exact(item)
            for name, item in value.items()
            if name not in _LEFT_OUT
        }
    if isinstance(value, list):
        return [exact(item) for item in value]
    return value


def digest(array: np.ndarray) -> str:
    """Return the SHA-256 of a tensor's dtype, shape and bytes; never of its file."""
    head = f"{array.dtype.str} {array.shape} ".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()


def checkpoints(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """Return the tensors of every checkpoint that is kept, by the file's name, in order."""
    files = sorted((folder / "checkpoints").glob("*.safetensors"))
    return {file.stem: load_file(file) for file in files}


_NUMERAL = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")


def read_study(page: str, stored: Path) -> dict[str, Any]:
    """Return the numbers of a study's page in order, and those of each row that it stored.

    Words and names of keys are not compared, so that they can be changed; a row is its numbers in
    ascending order, and rows are sorted likewise.

    Args:
        page: Its text.
        stored: A folder of JSON lines.
    """
    files = sorted(stored.rglob("*.jsonl"))
    lines = [line for file in files for line in file.read_text("utf-8").splitlines()]
    rows = sorted(sorted(_numbers(json.loads(line))) for line in lines)
    return {
        "page": _NUMERAL.findall(page),
        "stored": [[exact(number) for number in row] for row in rows],
    }


def _numbers(value: Any) -> list[float]:
    """Return every number within a JSON value as a float, in order; times are left out."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return []
    if isinstance(value, Mapping):
        kept = [item for name, item in value.items() if name not in _LEFT_OUT]
        return [number for item in kept for number in _numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    return [float(value)]


def read_run(folder: Path) -> dict[str, Any]:
    """Return all that is compared of a finished run but its arrays."""
    files = {
        "experiment.json": [json.loads((folder / "experiment.json").read_text("utf-8"))],
        "summary.json": [json.loads((folder / "summary.json").read_text("utf-8"))],
    }
    for name in ("rounds.jsonl", "diagnostics.jsonl", "backends.jsonl", "ledger.jsonl"):
        file = folder / name
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
        files[name] = [json.loads(line) for line in lines]
    ledger = [line["kind"] for line in files["ledger.jsonl"]]
    return {
        "options": files["experiment.json"][0]["experiment"],
        "tensors": {
            stem: {name: digest(array) for name, array in sorted(tensors.items())}
            for stem, tensors in checkpoints(folder).items()
        },
        "summary": exact(files["summary.json"][0]),
        "rounds": exact(files["rounds.jsonl"]),
        "diagnostics": exact(files["diagnostics.jsonl"]),
        "ledger": {kind: ledger.count(kind) for kind in ("charge", "release", "resume")},
        "keys": {
            name: sorted({key for line in lines for key in line})
            for name, lines in files.items()
            if name != "ledger.jsonl"
        },
    }
