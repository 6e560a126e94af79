"""What the commands of all studies share: options, the cache of finished runs, page and picture."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from fedpriv import json_lines
from fedpriv.hashes import document_sha256

Spec = Mapping[str, Any]
Row = dict[str, Any]


def identity_of_spec(row: Row) -> str:
    """Return the digest of everything that decides a run, which its row has as "spec"."""
    return _digest(row["spec"])


@dataclass(slots=True)
class Store:
    """Finished runs, one JSON line each, found again by everything that decides them.

    Attributes:
        path: JSON lines; None keeps nothing.
        rows: By identity.
    """

    path: Path | None = None
    rows: dict[str, Row] = field(default_factory=dict)
    _writes: bool = False

    @classmethod
    def at(cls, path: Path | None, identity: Callable[[Row], str] = identity_of_spec) -> Store:
        """Return the store of a file; a torn last line is left out."""
        lines = [] if path is None else json_lines.read(path)
        return cls(path=path, rows={identity(row): row for row in lines})

    def begin(self) -> None:
        """Make the file if it is missing, and cut off what a killed command left half written."""
        if self.path is not None and not self._writes:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            json_lines.cut_torn_line(self.path)
            self.path.touch()
        self._writes = True

    def add(self, identity: str, row: Row) -> None:
        """Keep the row of a run that has ended."""
        self.begin()
        self.rows[identity] = row
        if self.path is not None:
            json_lines.append(self.path, row)

    def find(self, spec: Spec) -> Row | None:
        """Return the row of a spec, or None."""
        return self.rows.get(_digest(spec))

    def row(self, spec: Spec, perform: Callable[[Spec], Row]) -> Row:
        """Return the row of a spec, performed if it is not known."""
        name = _digest(spec)
        if name not in self.rows:
            self.add(name, {"spec": dict(spec), **perform(spec)})
        return self.rows[name]


def _digest(spec: Spec) -> str:
    return document_sha256(json.loads(json.dumps(dict(spec))))


def results_of(study: str, results: Path | None) -> Path | None:
    """Return a study's file next to that of tables and figures, whose rows have other keys."""
    return None if results is None else results.with_name(f"{study}-{results.name}")


def study_parser(
    description: str | None,
    program: str,
    *,
    seeds: int | str | None,
    epsilons: Sequence[float] | None = None,
    results: Path | None = None,
    tiny: str = "",
    plot: str = "draw into this PNG or SVG",
) -> argparse.ArgumentParser:
    """Return a parser of --seeds, --target-epsilon, --tiny, --results, --out and --plot.

    Args:
        description: What the program does.
        program: Its name.
        seeds: By default; words where the default is not one number; None for no such option.
        epsilons: By default; None for no such option.
        results: By default.
        tiny: What --tiny makes small; "" for no such option.
        plot: What --plot draws, likewise.
    """
    parser = argparse.ArgumentParser(description=description, prog=program)
    if isinstance(seeds, int):
        parser.add_argument("--seeds", type=int, default=seeds)
    elif seeds is not None:
        parser.add_argument("--seeds", type=int, help=f"of each run; by default {seeds}")
    if epsilons is not None:
        parser.add_argument(
            "--target-epsilon", dest="epsilon", type=float, nargs="+", default=list(epsilons)
        )
    if tiny:
        parser.add_argument("--tiny", action="store_true", help=tiny)
    if seeds is not None:
        parser.add_argument("--results", type=Path, default=results, help="where runs are kept")
    parser.add_argument("--out", type=Path, default=None, help="write the page here, too")
    if plot:
        parser.add_argument("--plot", type=Path, default=None, help=plot)
    return parser


def parse_study(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> argparse.Namespace:
    """Return the options of a study.

    Raises:
        ValueError: If seeds are below 1, or a plot is no PNG and no SVG.
    """
    given = parser.parse_args(arguments)
    seeds = getattr(given, "seeds", None)
    if seeds is not None and seeds < 1:
        raise ValueError(f"--seeds {seeds} must be at least 1")
    if given.plot is not None and given.plot.suffix.lower() not in (".png", ".svg"):
        raise ValueError(f"--plot {given.plot} must end in .png or .svg")
    return given


def publish(text: str, out: Path | None, found: object = None) -> None:
    """Print a page, and write it where that is asked for, with what it is of, as JSON, next to it.

    Args:
        text: The page.
        out: Where; None to print it only.
        found: What it is of; None to write no JSON.
    """
    print(text)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, "utf-8")
        if found is not None:
            data = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
            out.with_suffix(".json").write_text(data, "utf-8")


def save_figure(figure: Any, path: Path) -> None:
    """Write a picture in the format of its name's ending; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130 if path.suffix == ".png" else "figure")


def t_half(values: Sequence[float] | np.ndarray) -> float:
    """Return half of the 95 % t-interval of a mean; infinite of a single value."""
    array = np.asarray(values, float)
    if len(array) < 2:
        return math.inf
    quantile = float(student.ppf(0.975, len(array) - 1))
    return quantile * float(array.std(ddof=1)) / math.sqrt(len(array))
