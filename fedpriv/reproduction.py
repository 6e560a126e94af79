"""Reproductions: a table of a paper beside what its methods do here, tuned, seeded and priced.

A `Reproduction` says which rows a table has, what the paper printed, and how each cell is run: a
grid of settings that is searched on a validation split, never on test, and then several seeds on
the test split. Every run is one line of a JSON-lines file, found again by all its options, so a
killed command goes on where it was and two tables share what they have in common.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

from fedpriv.central_experiment import CentralExperiment, build_central
from fedpriv.engine.central import CentralCarrier
from fedpriv.options import Option
from fedpriv.rng import Key
from fedpriv.run import rounds

Split = Literal["validation", "test"]
Settings = Mapping[str, Option]

#: A seed that no table reports.
TUNING_SEED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """How one figure comes about.

    Attributes:
        make: From (split, reduced) to the experiment, before its settings.
        grid: Settings to choose from; a single one is taken as it is.
    """

    make: Callable[[Split, bool], CentralExperiment] = field(repr=False)
    grid: tuple[Settings, ...] = ({},)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One method.

    Attributes:
        label: Its name.
        paper: What the paper printed; None where it did not.
        cells: By column.
    """

    label: str
    paper: float | None
    cells: Mapping[str, Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """One table or figure.

    Attributes:
        name: What `fedpriv reproduce` calls it.
        title: Of the table.
        metric: "accuracy" (a share, the higher the better) or "loss" (the lower the better).
        scale: What the metric is multiplied by in the table, as the paper prints it.
        columns: Headings by key.
        rows: Methods.
        paper_epsilon: The ε as the paper counted it, with where that is known from.
        orderings: Pairs of labels of which the paper has the first ahead of the second.
        minutes: How long it takes on 2 cores, about, and reduced.
        notes: What a reader has to know, a paragraph each.
    """

    name: str
    title: str
    metric: Literal["accuracy", "loss"] = "accuracy"
    scale: float = 1.0
    columns: Mapping[str, str]
    rows: tuple[Row, ...]
    paper_epsilon: str
    orderings: tuple[tuple[str, str], ...] = ()
    minutes: tuple[float, float]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run to be done, or done."""

    experiment: CentralExperiment = field(repr=False)
    split: Split
    seed: int
    reduced: bool

    @property
    def identity(self) -> str:
        """What finds it again: a digest of every option, the split, the size and the seed."""
        described = {
            "name": self.experiment.name,
            **self.experiment.options(),
            "seed": self.seed,
            "split": self.split,
            "reduced": self.reduced,
        }
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def perform(run: Run) -> dict[str, Any]:
    """Train to the end and return the figures of the last model, with its ε and what it is of."""
    started = time.perf_counter()
    experiment = run.experiment.with_options({"seed": run.seed})
    parts = build_central(experiment)
    carrier = CentralCarrier(trainer=parts.trainer, measure=parts.task.evaluate)
    # Only the last model is measured and kept.
    played = rounds(parts, carrier, Key.simulation(run.seed), eval_every=parts.plan.num_rounds)
    [(_, state)] = deque(played, maxlen=1)
    seen = carrier.evaluate(state.aggregate.get("average", state.params), public=True)
    spent = parts.plan.epsilon(parts.plan.num_rounds)
    side = parts.side_information
    return {
        "identity": run.identity,
        "experiment": experiment.name,
        "data": parts.task.name,
        "synthetic": parts.task.synthetic,
        "split": run.split,
        "reduced": run.reduced,
        "seed": run.seed,
        "options": experiment.options(),
        "accuracy": seen and seen.accuracy,
        "loss": seen and seen.loss,
        **spent.to_json(),
        "side_information": side and side.source,
        "steps": parts.plan.num_rounds,
        "seconds": round(time.perf_counter() - started, 2),
    }


def tuning_runs(table: Reproduction, *, reduced: bool) -> Iterator[Run]:
    """Yield the runs that choose settings: every setting of every cell that has a choice."""
    for row in table.rows:
        for cell in row.cells.values():
            if len(cell.grid) > 1:
                made = cell.make("validation", reduced)
                for settings in cell.grid:
                    chosen = made.with_options(settings)
                    yield Run(
                        experiment=chosen, split="validation", seed=TUNING_SEED, reduced=reduced
                    )


def final_runs(
    table: Reproduction, done: Mapping[str, dict[str, Any]], *, seeds: Sequence[int], reduced: bool
) -> Iterator[Run]:
    """Yield the runs that a table reports, in the settings that tuning chose.

    Raises:
        ValueError: If a cell has not been tuned.
    """
    for row in table.rows:
        for cell in row.cells.values():
            settings = best(table, cell, done, reduced=reduced)
            for seed in seeds:
                made = cell.make("test", reduced).with_options({**settings, "seed": seed})
                yield Run(experiment=made, split="test", seed=seed, reduced=reduced)


def best(
    table: Reproduction, cell: Cell, done: Mapping[str, dict[str, Any]], *, reduced: bool
) -> Settings:
    """Return the settings with the best figure on the validation split, the first of equals.

    Raises:
        ValueError: If some were not run.
    """
    if len(cell.grid) == 1:
        return cell.grid[0]
    made = cell.make("validation", reduced)
    sign = 1.0 if table.metric == "accuracy" else -1.0

    def figure(settings: Settings) -> float:
        chosen = made.with_options(settings)
        run = Run(experiment=chosen, split="validation", seed=TUNING_SEED, reduced=reduced)
        if run.identity not in done:
            raise ValueError(f"{table.name}: {dict(settings)} was not run; tune it first")
        value = done[run.identity][table.metric]
        return float("-inf") if value is None or value != value else sign * value

    return max(cell.grid, key=figure)


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Return the runs of a results file by identity; a torn last line is left out."""
    if not path.exists():
        return {}
    lines = path.read_text("utf-8").splitlines(keepends=True)
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return {row["identity"]: row for row in rows}


def complete(
    runs: Iterable[Run],
    path: Path,
    *,
    processes: int = 1,
    tell: Callable[[int, int, dict[str, Any]], None] = lambda done, total, row: None,
) -> dict[str, dict[str, Any]]:
    """Do what is not done yet, append it to the file as it ends, and return all of the file.

    Args:
        runs: What is wanted.
        path: JSON lines; made if missing.
        processes: How many runs at once, each on one thread of its own.
        tell: Called with (done, total, row) after each.
    """
    done = read(path)
    todo = list({run.identity: run for run in runs if run.identity not in done}.values())
    if not todo:
        return done
    path.parent.mkdir(parents=True, exist_ok=True)
    _cut_torn_line(path)
    with path.open("a", encoding="utf-8") as out:
        for number, row in enumerate(_performed(todo, processes), start=1):
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
            out.flush()
            done[row["identity"]] = row
            tell(number, len(todo), row)
    return done


def _cut_torn_line(path: Path) -> None:
    """Remove what a kill left of a line, so that nothing is written behind it."""
    if path.exists():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)


def _performed(todo: Sequence[Run], processes: int) -> Iterator[dict[str, Any]]:
    if processes == 1 or len(todo) == 1:
        yield from map(perform, todo)
        return
    # Forked before anything is trained: tasks are closures over data that need not be sent.
    global _TODO
    _TODO = todo
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=8) as pool:
            yield from pool.imap_unordered(_perform_number, range(len(todo)))
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


_TODO: Sequence[Run] = ()


def _perform_number(number: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    return perform(_TODO[number])


def table_markdown(
    table: Reproduction,
    done: Mapping[str, dict[str, Any]],
    *,
    seeds: Sequence[int],
    reduced: bool = False,
) -> str:
    """Return the table: paper and ours side by side, mean and spread, ε as counted and as true."""
    found = {
        (row.label, column): figures(table, cell, done, seeds=seeds, reduced=reduced)
        for row in table.rows
        for column, cell in row.cells.items()
    }
    any_row = next(iter(found.values()))[0]
    made_up = " (SYNTHETIC data)" if any_row["synthetic"] else ""
    small = " Reduced size." if reduced else ""
    lines = [f"# {table.title}{made_up}", ""]
    lines += [
        f"{table.metric.capitalize()}"
        + (f" x {table.scale:g}" if table.scale != 1.0 else "")
        + f" on test, mean and standard deviation of {len(seeds)} seeds.{small} "
        f"ε as the paper counted it: {table.paper_epsilon}.",
        "",
        "| | paper | " + " | ".join(table.columns.values()) + " |",
        "|---|---:|" + "---:|" * len(table.columns),
    ]
    for row in table.rows:
        shown = [
            _shown(found[row.label, column], table) if column in row.cells else "–"
            for column in table.columns
        ]
        paper = "–" if row.paper is None else f"{row.paper:g}"
        lines.append(f"| {row.label} | {paper} | " + " | ".join(shown) + " |")
    lines += ["", "ε that the runs truly have:", ""]
    for column, heading in table.columns.items():
        lines.append(f"- {heading}: {_epsilons(found, column)}")
    if table.orderings:
        lines += ["", "Orderings of the paper:", ""]
        for first, second in table.orderings:
            verdicts = [
                f"{heading}: {_verdict(table, found, first, second, column)}"
                for column, heading in table.columns.items()
            ]
            lines.append(f"- {first} ahead of {second}: " + "; ".join(verdicts))
    lines += ["", *(f"{note}\n" for note in table.notes)]
    return "\n".join(lines).rstrip() + "\n"


def figures(
    table: Reproduction,
    cell: Cell,
    done: Mapping[str, dict[str, Any]],
    *,
    seeds: Sequence[int],
    reduced: bool,
) -> list[dict[str, Any]]:
    """Return the reported runs of a cell, one a seed.

    Raises:
        ValueError: If one is missing.
    """
    settings = best(table, cell, done, reduced=reduced)
    rows = []
    for seed in seeds:
        made = cell.make("test", reduced).with_options({**settings, "seed": seed})
        run = Run(experiment=made, split="test", seed=seed, reduced=reduced)
        if run.identity not in done:
            raise ValueError(f"{table.name}: a run of seed {seed} is missing; run it first")
        rows.append(done[run.identity])
    return rows


def _values(rows: Sequence[dict[str, Any]], table: Reproduction) -> list[float]:
    return [
        float("nan") if r[table.metric] is None else r[table.metric] * table.scale for r in rows
    ]


def _shown(rows: Sequence[dict[str, Any]], table: Reproduction) -> str:
    values = _values(rows, table)
    if not all(map(math.isfinite, values)):
        return "diverged"
    spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{spread}"


def _epsilons(found: Mapping[tuple[str, str], list[dict[str, Any]]], column: str) -> str:
    told: dict[str, list[str]] = {}
    for (label, own), rows in found.items():
        if own != column:
            continue
        row = rows[0]
        if row["epsilon"] is None:
            text = "∞, not private"
        else:
            beside = f", RDP {row['epsilon_rdp']:.2f}" if row["epsilon_rdp"] is not None else ""
            text = (
                f"{row['epsilon']:.2f} at δ = {row['delta']:g} ({row['relation']}, per "
                f"{row['unit']}, {row['accountant']}{beside}, simulated)"
            )
            if row["side_information"] == "private":
                text += ", which does NOT cover side information taken from private examples"
        told.setdefault(text, []).append(label)
    if len(told) == 1:
        return next(iter(told))
    return "; ".join(f"{text}: {', '.join(labels)}" for text, labels in told.items())


def _verdict(
    table: Reproduction,
    found: Mapping[tuple[str, str], list[dict[str, Any]]],
    first: str,
    second: str,
    column: str,
) -> str:
    if (first, column) not in found or (second, column) not in found:
        return "not run"
    one, other = (_values(found[label, column], table) for label in (first, second))
    fine = [all(map(math.isfinite, values)) for values in (one, other)]
    if not all(fine):
        if any(fine):
            return "held (the other diverged)" if fine[0] else "NOT held (diverged)"
        return "both diverged"
    ahead = mean(one) - mean(other) if table.metric == "accuracy" else mean(other) - mean(one)
    spread = max(stdev(one), stdev(other)) if min(len(one), len(other)) > 1 else 0.0
    if abs(ahead) <= spread:
        return "within the spread"
    return "held" if ahead > 0 else "NOT held"
