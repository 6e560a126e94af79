"""The default command on synthetic corpora of many sizes and shapes: never worse than public data?

    python -m simulations.defaults.evaluation RUNS.jsonl --corpora FOLDER [--part 0/2]
    python -m simulations.defaults.evaluation RUNS.jsonl --page docs/results/defaults.md

The first makes what is not in the file yet: `adadps-tags` as it is, at ε 8 and 2, on corpora whose
shapes and seeds the settings were not fitted on (`shapes.EVALUATION`), a corpus a seed. The second
writes the page.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpriv.experiments.catalogue import load_experiment
from fedpriv.running.prepared import start_run
from simulations.defaults import shapes

EPSILONS = (8.0, 2.0)
SEEDS = 5
POINT = 0.01
NOT_WORSE = 1 / 50
"""Share of runs that may end below public-only by more than a point."""


def main() -> None:
    """Make runs, or the page of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--corpora", type=Path, default=Path("runs/synthetic"))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(shapes.SIZES))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--part", default="0/1", help="which of how many processes this one is")
    parser.add_argument("--page", type=Path, default=None)
    given = parser.parse_args()
    if given.page is not None:
        given.page.write_text(page(read(given.runs)), "utf-8")
        return
    number, parts = map(int, given.part.split("/"))
    for place, cell in enumerate(cells(given.sizes, given.seeds)):
        if place % parts == number and cell not in [run["cell"] for run in read(given.runs)]:
            line = {"cell": cell, **run(cell, given.corpora)}
            with given.runs.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(line, flush=True)


def cells(sizes: Sequence[int], seeds: int) -> Iterator[dict[str, Any]]:
    """Yield what is run: seed by seed, so that what is there at any time is balanced."""
    for seed in range(seeds):
        for size in sizes:
            for kind in shapes.EVALUATION:
                for epsilon in EPSILONS:
                    yield {"kind": kind.name, "users": size, "epsilon": epsilon, "seed": seed}


def run(cell: Mapping[str, Any], corpora: Path) -> dict[str, Any]:
    """Run the default command on a corpus, and return what it returned."""
    kind = next(one for one in shapes.EVALUATION if one.name == cell["kind"])
    corpus = shapes.corpus(corpora, kind, cell["users"], number=cell["seed"])
    experiment = load_experiment("adadps-tags").with_options(
        {"target-epsilon": cell["epsilon"], "seed": cell["seed"], "eval-every": 1000}
    )
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        prepared = start_run(experiment, "adadps-tags", corpus, Path(folder) / "run", keep_last=1)
        last: list[float | None] = [None]

        def keep(record: Any) -> None:
            if record.diagnostics is not None:
                last[0] = record.diagnostics.measured.get("accuracy") or last[0]

        summary = prepared.run(keep)
        settings = prepared.components.settings
    assert settings is not None
    return {
        "returned": summary["accuracy"],
        "public_only": summary["accuracy_public_only"],
        "majority": summary["majority_class_accuracy"],
        "gain": summary["gain"],
        "last": last[0],
        "selected": summary["selection"]["selected"],
        "judged": summary["selection"].get("judged"),
        "groups": summary["selection"].get("groups"),
        "settings": settings.to_json(),
        "seconds": time.perf_counter() - began,
    }


def read(file: Path) -> list[dict[str, Any]]:
    """Return the runs of a file."""
    return [json.loads(line) for line in file.open()] if file.exists() else []


def page(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of runs, as Markdown."""
    below = [one for one in runs if one["gain"] < -POINT]
    lines = [
        "# The default command, on synthetic corpora of many sizes",
        "",
        "`fedpriv run adadps-tags`, settings from the data's size and the returned model selected "
        f"on public threads, on {len({str(one['cell']) for one in runs})} SYNTHETIC corpora and "
        "targets: five shapes that nothing was fitted on, ε 8 and 2 (δ = n^-1.1, user-level, "
        "add-remove, PLD, simulated). Gains are points of accuracy on rostered users' held-out "
        "threads over public examples alone; a diagnostic, not covered by ε.",
        "",
        f"{len(below)} of {len(runs)} runs ended below public examples alone by more than a point "
        f"({NOT_WORSE:.0%} were allowed).",
        "",
        "| users | ε | runs | public-only | last model | returned | mean gain | worst | returned a "
        "public model | below by a point |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for size in sorted({one["cell"]["users"] for one in runs}):
        for target in EPSILONS:
            found = [
                one
                for one in runs
                if (one["cell"]["users"], one["cell"]["epsilon"]) == (size, target)
            ]
            if found:
                lines.append(_row(size, target, found))
    lines += ["", "## Forecasts", "", *_forecasts(runs)]
    return "\n".join(lines) + "\n"


def _row(size: int, target: float, found: Sequence[Mapping[str, Any]]) -> str:
    def mean(name: str) -> float:
        return 100 * sum(one[name] or 0.0 for one in found) / len(found)

    public = sum(one["selected"] in ("public-only", "start") for one in found)
    worst = 100 * min(one["gain"] for one in found)
    below = sum(one["gain"] < -POINT for one in found)
    return (
        f"| {size:,} | {target:g} | {len(found)} | {mean('public_only'):.1f} | {mean('last'):.1f} "
        f"| {mean('returned'):.1f} | {mean('gain'):+.1f} | {worst:+.1f} | {public} | {below} |"
    )


def _forecasts(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how often a gain was forecast before the run, and how often the run returned one."""
    counts = {
        (forecast, gained): sum(
            one["settings"]["expects_gain"] == forecast
            and (one["selected"] not in ("public-only", "start")) == gained
            for one in runs
        )
        for forecast in (True, False)
        for gained in (True, False)
    }
    return [
        "| forecast before the run | a private model was returned | a public one |",
        "|---|---:|---:|",
        f"| a gain | {counts[True, True]} | {counts[True, False]} (false alarms) |",
        f"| none | {counts[False, True]} (misses) | {counts[False, False]} |",
    ]


if __name__ == "__main__":
    main()
