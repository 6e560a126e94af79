"""Files of a run that its sealed `experiment.json` gives the digests of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.checkpoints.tensor_files import (
    FROZEN,
    START_FILE,
    frozen_digests,
    read_frozen,
    read_start,
)
from fedpriv.privacy.statement.coverage import as_object
from fedpriv.untrusted_text import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: What was compared.
        ok: Whether it holds.
        text: What was found, in a sentence.
    """

    name: str
    ok: bool
    text: str

    def __post_init__(self) -> None:
        # It quotes the folder, and may be printed by anybody.
        object.__setattr__(self, "text", plain(self.text))


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raise `ValueError` if it holds none."""
    value = json.loads(path.read_bytes())
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def sealed_tensors(folder: Path) -> list[Check]:
    """Compare what is not trained, and what training started from, with what was sealed."""
    try:
        document = read_object(folder / "experiment.json")
    except (OSError, ValueError):
        return []  # there is none, or another check has said so
    return [*_frozen(folder, as_object(document.get("corpus"))), *_start(folder, document)]


def _frozen(folder: Path, corpus: Mapping[str, Any]) -> list[Check]:
    try:
        stated = as_object(corpus.get("frozen"))
        found = frozen_digests(read_frozen(folder))
    except (OSError, ValueError) as error:
        return [Check(name="frozen", ok=False, text=f"{FROZEN} cannot be compared: {error}")]
    if not stated and not found:
        return []
    return [
        Check(
            name="frozen",
            ok=stated == found,
            text=f"{FROZEN} holds the {len(stated)} parameters that the run was started with"
            if stated == found
            else f"{FROZEN} is not what the run was started with",
        )
    ]


def _start(folder: Path, document: Mapping[str, Any]) -> list[Check]:
    stated = as_object(document.get("start")).get("sha256")
    if stated is None:
        return []
    try:
        read_start(folder, str(stated))
    except (OSError, ValueError) as error:
        return [Check(name="start", ok=False, text=str(error))]
    return [Check(name="start", ok=True, text=f"{START_FILE} is what the run started from")]
