"""The default command on synthetic corpora of many sizes and shapes: never worse than public data?

    python -m simulations.defaults.evaluation RUNS.jsonl --corpora FOLDER [--part 0/2]
    python -m simulations.defaults.evaluation RUNS.jsonl --page docs/results/defaults.md

The first makes what is not in the file yet: `adadps-tags` as it is, at ε 8 and 2, on corpora whose
shapes and seeds the settings were not fitted on (`shapes.EVALUATION`), a corpus a seed. The second
writes the page, with the runs of `cross_fitted` and of `sweep`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from fedpriv.checkpoints.tensor_files import PUBLIC_MODELS
from fedpriv.experiments.experiment import FEWEST_PUBLIC_EXAMPLES, LONGEST_NOISE
from fedpriv.experiments.load import load_experiment
from fedpriv.runs.prepared import start_run
from simulations.defaults import cross_fitted, shapes, sweep
from simulations.defaults.shapes import read
from simulations.reproduction.study import table

Run = Mapping[str, Any]

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
    parser.add_argument("--target-epsilon", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--hard", action="store_true", help="where little is to be gained")
    parser.add_argument("--part", default="0/1", help="which of how many processes this one is")
    parser.add_argument("--page", type=Path, default=None)
    parser.add_argument(
        "--cross-fitted", type=Path, default=Path("docs/results/cross-fitted.jsonl")
    )
    parser.add_argument("--grid", type=Path, default=Path("docs/results/defaults-grid.jsonl"))
    given = parser.parse_args()
    if given.page is not None:
        text = page(read(given.runs), read(given.cross_fitted), read(given.grid))
        given.page.write_text(text, "utf-8")
        return
    number, parts = map(int, given.part.split("/"))
    kinds = shapes.HARD if given.hard else shapes.EVALUATION
    for place, cell in enumerate(cells(given.sizes, given.seeds, kinds, given.target_epsilon)):
        if place % parts == number and cell not in [run["cell"] for run in read(given.runs)]:
            shapes.keep(given.runs, {"cell": cell, **run(cell, given.corpora)})


def cells(
    sizes: Sequence[int],
    seeds: int,
    kinds: Sequence[shapes.Kind],
    epsilons: Sequence[float] = EPSILONS,
) -> Iterator[dict[str, Any]]:
    """Yield what is run: seed by seed, so that what is there at any time is balanced."""
    for seed in range(seeds):
        for size in sizes:
            for kind in kinds:
                for epsilon in epsilons:
                    yield {"kind": kind.name, "users": size, "epsilon": epsilon, "seed": seed}


def run(cell: Mapping[str, Any], corpora: Path) -> dict[str, Any]:
    """Run the default command on a corpus, and return what it returned."""
    kind = next(one for one in (*shapes.EVALUATION, *shapes.HARD) if one.name == cell["kind"])
    corpus = shapes.corpus(corpora, kind, cell["users"], number=cell["seed"])
    experiment = load_experiment("adadps-tags").with_options(
        {"target-epsilon": cell["epsilon"], "seed": cell["seed"], "eval-every": 1000}
    )
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            prepared = start_run(
                experiment, "adadps-tags", corpus, Path(folder) / "run", keep_last=1
            )
        except ValueError as error:  # no public thread to learn from; nothing was charged
            return {"refused": str(error), "seconds": time.perf_counter() - began}
        unselected: list[float | None] = [None]

        def keep(record: Any) -> None:
            if record.diagnostics is not None:
                unselected[0] = record.diagnostics.measured.get("accuracy") or unselected[0]

        summary = prepared.run(keep)
        settings = prepared.components.settings
    assert settings is not None
    return {
        "returned": summary["accuracy"],
        "public_only": summary["accuracy_public_only"],
        "majority": summary["majority_class_accuracy"],
        "gain": summary["gain"],
        "unselected": unselected[0],
        "selected": summary["selection"]["selected"],
        "judged": summary["selection"].get("judged"),
        "groups": summary["selection"].get("groups"),
        "settings": settings.to_json(),
        "seconds": time.perf_counter() - began,
    }


def page(
    runs: Sequence[Run],
    crossed: Sequence[Run] = (),
    compared: Sequence[dict[str, Any]] = (),
) -> str:
    """Return the page as Markdown.

    Args:
        runs: Of the default command.
        crossed: Of `cross_fitted`.
        compared: Of `sweep`, on its grid.
    """
    hard = {one.name for one in shapes.HARD}
    refused = [one for one in runs if "refused" in one]
    runs = [one for one in runs if "refused" not in one]
    usual = [one for one in runs if one["cell"]["kind"] not in hard]
    said = (
        f" {len(refused)} corpora more have no public thread to learn from, and were refused "
        "before anything was charged."
        if refused
        else ""
    )
    lines = [
        "# The default command, on synthetic corpora of many sizes",
        "",
        "`fedpriv run adadps-tags`, settings from the data's size and the returned model selected "
        f"on public threads, on {len(usual)} SYNTHETIC corpora and targets: five shapes that "
        "nothing was fitted on, ε 8 and 2 (δ = n^-1.1, user-level, add-remove, PLD, simulated). "
        "Gains are points of accuracy on rostered users' held-out threads over public examples "
        "alone; a diagnostic, not covered by ε.",
        "",
        f"{_below(usual)}{said}",
        "",
        *_gains_table(usual),
        "",
        "## Where little is to be gained",
        "",
        "Two SYNTHETIC shapes more: three public users for each on the roster, and words that tell "
        f"nothing of the class. {_below([one for one in runs if one not in usual])}",
        "",
        *_gains_table([one for one in runs if one not in usual]),
        "",
        "## Gains that public threads show",
        "",
        *_power(runs),
        "",
        "## Forecasts",
        "",
        *_forecasts(runs),
    ]
    if compared:
        lines += ["", "## Compared with the best of six other settings", "", *_grid(compared)]
    if crossed:
        lines += ["", "## How released models are judged", "", *cross_fitted.table(crossed)]
    return "\n".join(lines) + "\n"


def _below(runs: Sequence[Run]) -> str:
    below = sum(one["gain"] < -POINT for one in runs)
    unselected = sum(unselected_gain(one) < -POINT for one in runs)
    return (
        f"{below} of {len(runs)} returned models were below public examples alone by more than a "
        f"point ({NOT_WORSE:.0%} were allowed), and {unselected} would have been without selection "
        "(`select=last`)."
    )


def _gains_table(runs: Sequence[Run]) -> list[str]:
    rows = []
    for size in sorted({one["cell"]["users"] for one in runs}):
        for target in EPSILONS:
            place = size, target
            found = [one for one in runs if (one["cell"]["users"], one["cell"]["epsilon"]) == place]
            if found:
                rows.append(_row(size, target, found))
    head = ["users", "ε", "runs", "commonest tag", "public-only", "without selection", "returned",
            "mean gain", "worst", "returned a public model", "below by a point"]  # fmt: skip
    return table(head, rows, words=0)


def unselected_gain(one: Run) -> float:
    """Return the gain over public-only of what `select=last` returns: the average."""
    return (one["unselected"] or 0.0) - one["public_only"]


def _row(size: int, target: float, found: Sequence[Run]) -> list[object]:
    means = [
        100 * mean(one[name] or 0.0 for one in found)
        for name in ("majority", "public_only", "unselected", "returned")
    ]
    gains = [one["gain"] for one in found]
    return [
        f"{size:,}",
        f"{target:g}",
        len(found),
        *(f"{value:.1f}" for value in means),
        f"{100 * mean(gains):+.1f}",
        f"{100 * min(gains):+.1f}",
        sum(one["selected"] in PUBLIC_MODELS for one in found),
        sum(gain < -POINT for gain in gains),
    ]


def _power(runs: Sequence[Run]) -> list[str]:
    """Return how often a gain of private training was shown, by its size and by public threads."""
    rows = []
    for fewest, most in _THREADS:
        cells = [f"{fewest:,} to {most - 1:,}"]
        for low, high in _GAINS:
            found = [
                one["selected"] not in PUBLIC_MODELS
                for one in runs
                if fewest <= (one["groups"] or 0) < most
                and low <= 100 * unselected_gain(one) < high
            ]
            cells.append(f"{sum(found) / len(found):.0%} ({len(found)})" if found else "–")
        rows.append(cells)
    return [
        "Share of runs that returned a private model, by public threads that judged and by what "
        "private training gained without selection (points over public-only; number of runs). "
        "Runs that gained less, or had too few threads to judge, are left out.",
        "",
        *table(["public threads", *(f"{low} to {high}" for low, high in _GAINS)], rows),
    ]


_GAINS = (1, 5), (5, 10), (10, 20), (20, 60)
_THREADS = (10, 50), (50, 100), (100, 300), (300, 1_000), (1_000, 10_000)


def _grid(compared: Sequence[dict[str, Any]]) -> list[str]:
    """Return the rule's settings beside the best of others on the same SYNTHETIC corpora."""
    rows = []
    for (kind, users, _), found in sweep.cells(compared).items():
        rule = max(sweep.gain(one) for one in found if sweep.is_rule(one["asked"]))
        best = max(sweep.gain(one) for one in found if not sweep.is_rule(one["asked"]))
        rows.append([kind, f"{users:,}", f"{rule:+.1f}", f"{best:+.1f}", f"{rule / best:.0%}"])
    return [
        "Gain of the last model over public-only in points, ε 8, one corpus a row, all SYNTHETIC: "
        "with settings by the rule, and the best of six others (100 and 250 rounds; noise on a "
        "logit of 0.35, 0.7 and 1.4; cohort 0.3 n). Trained by the study's quick loop (`quick`), "
        "in which at 10,000 users a third of each cohort is trained, its noise scaled alike. The "
        "best of six is somewhat lucky.",
        "",
        *table(["shape", "users", "by the rule", "best of six", "share"], rows),
    ]


def _forecasts(runs: Sequence[Run]) -> list[str]:
    """Return what was forecast before the run, beside what training gained and what was shown."""
    rows = [
        [
            forecast,
            len(found),
            sum(unselected_gain(one) > POINT for one in found),
            sum(one["selected"] not in PUBLIC_MODELS for one in found),
        ]
        for forecast, found in _by_forecast(runs).items()
    ]
    head = ["forecast", "runs", "gained more than a point", "returned a private model"]
    return [
        "What was said before any ε is spent, what private training then gained without "
        "selection, and how often public threads showed it.",
        "",
        *table(head, rows),
    ]


def _by_forecast(
    runs: Sequence[Run],
) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {
        "a gain": [], "a gain that public examples can hardly show": [], "little or none": []
    }  # fmt: skip
    for one in runs:
        length, number = one["settings"]["noise_length"], one["settings"]["num_public_examples"]
        if length > LONGEST_NOISE:
            found["little or none"].append(one)
        elif number < FEWEST_PUBLIC_EXAMPLES:
            found["a gain that public examples can hardly show"].append(one)
        else:
            found["a gain"].append(one)
    return found


if __name__ == "__main__":
    main()
