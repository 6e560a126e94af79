"""Rows of finished runs, one JSON line each: what is in the file is not run again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpriv.hashes import document_sha256

Spec = Mapping[str, Any]
Row = dict[str, Any]


@dataclass(slots=True)
class Store:
    """Runs, found again by everything that decides them.

    Attributes:
        path: JSON lines; None keeps nothing.
        rows: By the digest of the spec.
    """

    path: Path | None = None
    rows: dict[str, Row] = field(default_factory=dict)

    @classmethod
    def at(cls, path: Path | None) -> Store:
        """Return the store of a file, read as far as it was written."""
        made = cls(path=path)
        if path is not None and path.exists():
            for line in path.read_text("utf-8").splitlines():
                row = json.loads(line)
                made.rows[_digest(row["spec"])] = row
        return made

    def row(self, spec: Spec, perform: Callable[[Spec], Row]) -> Row:
        """Return the row of a spec, performed if it is not known."""
        name = _digest(spec)
        if name not in self.rows:
            row = {"spec": dict(spec), **perform(spec)}
            self.rows[name] = row
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
        return self.rows[name]


def _digest(spec: Spec) -> str:
    return document_sha256(json.loads(json.dumps(dict(spec))))
