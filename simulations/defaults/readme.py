"""The README's table: what one command gives on one fold, with intervals.

    fedpriv reproduce readme-table -s runs=runs/eps1,runs/eps2 --out docs/results/readme.md

The folders are of `fedpriv run adadps-tags --target-epsilon E --out runs/epsE` on one corpus.
Values are of the returned models on rostered users' held-out threads: a diagnostic, not covered by
ε.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.experiments.start import public_only
from fedpriv.report.export import released_params
from fedpriv.report.run_record import RunRecord, read_run
from fedpriv.rng import Key
from simulations.evaluation.evaluate import Estimate, evaluate
from simulations.evaluation.held_out import measure_fold
from simulations.evaluation.table import percent
from simulations.reproduction.items import Study
from simulations.reproduction.study import publish
from simulations.reproduction.study import table as markdown_table

PUBLIC = "public-only"


def reproduce(*, runs: tuple[str, ...] = (), out: Path | None = None) -> None:
    """Publish the table of run folders, with its values as JSON.

    Raises:
        ValueError: If no folder is named.
    """
    if not runs:
        raise ValueError("give -s runs=FOLDER,FOLDER of `fedpriv run adadps-tags`")
    rows = rows_of([read_run(Path(folder)) for folder in runs])
    publish(table(rows), out, rows)


def rows_of(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Return public-only and each run's values, with intervals by thread and by user."""
    first = runs[0]
    options = {name: value for name, value in first.options.items() if value is not None}
    experiment = load_experiment("adadps-tags").restored(first.options)
    task = build(experiment, Corpus.open(Path(str(first.corpus["path"])))).task
    alone = public_only(task, Key.simulation(int(options["seed"])).fold("init"))
    assert alone is not None
    models = {f"{run.options['noise.target_epsilon']:g}": [released_params(run)[1]] for run in runs}
    models[PUBLIC] = [alone.model.params]
    fold = measure_fold(task.view, models, inputs=str(options["task.inputs"]))
    generator = Key.simulation(0).fold("bootstrap").generator()
    found = evaluate([fold], public_only=PUBLIC, generator=generator).models
    rows: dict[str, Any] = {
        "corpus": first.corpus["name"],
        "synthetic": first.synthetic,
        "fold": options["task.fold"],
        "majority": asdict(found["majority"].values["accuracy"]),
        PUBLIC: asdict(found[PUBLIC].values["accuracy"]),
    }
    for run in sorted(runs, key=lambda one: float(one.options["noise.target_epsilon"])):
        name = f"{run.options['noise.target_epsilon']:g}"
        rows[name] = {
            "accuracy": asdict(found[name].values["accuracy"]),
            "gain": asdict(found[name].gains["accuracy"]),
            "selected": run.selection.get("selected"),
            "rounds": run.options["rounds"],
            "cohort": run.options["sampling.cohort"],
            "seconds": (run.summary.get("seconds_per_round") or 0.0) * int(run.options["rounds"]),
        }
    return rows


def table(rows: Mapping[str, Any]) -> str:
    """Return the README's rows, as Markdown."""
    epsilons = [name for name in rows if name.replace(".", "").isdigit()]
    read = Estimate.from_json
    cells = {
        label: [percent(read(rows[name]))] * len(epsilons)
        for label, name in (("majority class", "majority"), (PUBLIC, PUBLIC))
    }
    cells["returned by `fedpriv run adadps-tags`"] = [
        percent(read(rows[name]["accuracy"])) for name in epsilons
    ]
    cells["gain over public-only, points"] = [
        percent(read(rows[name]["gain"]), signed=True) for name in epsilons
    ]
    lines = [[label, *found] for label, found in cells.items()]
    return markdown_table(["", *(f"ε = {name}" for name in epsilons)], lines) + "\n"


REPRODUCTIONS = (
    Study(name="readme-table", title="The README's table, of run folders", run=reproduce,
          minutes=(1, 1)),
)  # fmt: skip
