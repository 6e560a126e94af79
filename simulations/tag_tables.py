"""The tables of tag prediction: every method, both inputs, several seeds, from one command.

    python -m simulations.tag_tables tune  --corpus onstartups --out docs/results
    python -m simulations.tag_tables run   --corpus onstartups --out docs/results
    python -m simulations.tag_tables table --out docs/results

`tune` runs the committed grid (`simulations.tag_grid`) at one seed that no table uses; `run`
repeats the best configuration of each cell over the seeds; `table` writes Markdown and a plot. Work
that is already in the output files is not done again, so a killed command goes on where it was.
Tuning looks at held-out examples of rostered users and is covered by no ε.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress

from fedpriv.backends import SerialBackend
from fedpriv.data.importers.locate import resolve_corpus
from fedpriv.experiments.experiment import Experiment, build
from fedpriv.experiments.options import Option
from fedpriv.rng import Key
from fedpriv.run.loop import rounds
from simulations.tag_grid import METHODS, SETTINGS, TUNING_SEED, Cell, grid

SEEDS = (0, 1, 2)


def chosen_options(cell: Cell, options: Mapping[str, Option]) -> dict[str, Option]:
    """Return what a cell and a configuration choose; without noise there is none to set."""
    method = METHODS[cell.method].options
    chosen = {**SETTINGS[cell.setting].options, **method, **options, "inputs": cell.inputs}
    if method.get("noise") == "none":
        chosen = {
            n: v for n, v in chosen.items() if n not in ("noise-multiplier", "target-epsilon")
        }
    return chosen


def measure(
    cell: Cell, options: dict[str, Option], seed: int, corpus: str | None
) -> dict[str, Any]:
    """Run one configuration to its end and return its figures."""
    base = Experiment(name=cell.method, description=METHODS[cell.method].title)
    experiment = base.with_options({**chosen_options(cell, options), "seed": seed})
    components = build(experiment, resolve_corpus(corpus, allow_synthetic=False, progress=None))
    backend = SerialBackend(trainer=components.trainer, data=components.task.data)
    started = time.perf_counter()
    # Only the last round is looked at, and only its state is kept.
    played = rounds(components, backend, Key.simulation(seed), eval_every=experiment.rounds)
    [(record, _)] = deque(played, maxlen=1)
    assert record.diagnostics is not None
    spent = components.plan.epsilon(components.plan.num_rounds)
    return {
        "setting": cell.setting,
        "inputs": cell.inputs,
        "method": cell.method,
        "options": options,
        "seed": seed,
        "accuracy": record.diagnostics.accuracy,
        "recall_at_5": record.diagnostics.recall_at_5,
        "accuracy_public": record.released.accuracy_public,
        "epsilon": spent.value if components.plan.is_private else None,
        "epsilon_rdp": spent.rdp if components.plan.is_private else None,
        "delta": spent.delta,
        "relation": spent.relation.value,
        "unit": "user",
        "accountant": spent.accountant,
        "noise_multiplier": components.plan.live_mechanism.noise_multiplier,
        "failed_in_last_round": record.diagnostics.num_failed,
        "seconds": round(time.perf_counter() - started, 1),
    }


def _measure(job: tuple[Cell, dict[str, Option], int, str | None]) -> dict[str, Any]:
    return measure(*job)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the results in a file, none if it does not exist."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _identity(setting: str, inputs: str, method: str, options: Any, seed: int) -> str:
    return json.dumps([setting, inputs, method, options, seed], sort_keys=True)


def complete(
    jobs: Iterable[tuple[Cell, dict[str, Option], int]],
    path: Path,
    corpus: str | None,
    workers: int,
) -> list[dict[str, Any]]:
    """Run whatever of the jobs is not in the file yet, append it, and return the whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {
        _identity(r["setting"], r["inputs"], r["method"], r["options"], r["seed"])
        for r in read(path)
    }
    missing = [
        (cell, options, seed, corpus)
        for cell, options, seed in jobs
        if _identity(cell.setting, cell.inputs, cell.method, options, seed) not in done
    ]
    context = multiprocessing.get_context("spawn")
    with (
        context.Pool(min(workers, max(len(missing), 1))) as pool,
        path.open("a", encoding="utf-8") as out,
        Progress() as bar,
    ):
        line = bar.add_task(path.stem, total=len(missing))
        for result in pool.imap_unordered(_measure, missing):
            out.write(json.dumps(result) + "\n")
            out.flush()
            bar.advance(line)
    return read(path)


def best(tuning: Sequence[dict[str, Any]], cell: Cell) -> dict[str, Option]:
    """Return the options with the highest tuning accuracy; a diverged run counts as zero."""
    setting = SETTINGS[cell.setting]
    wanted = (
        setting.tuned_as or cell.setting,
        cell.inputs,
        METHODS[cell.method].tuned_as or cell.method,
    )
    mine = [r for r in tuning if (r["setting"], r["inputs"], r["method"]) == wanted]
    if not mine:
        raise ValueError(f"{cell} was never tuned; run `tune` first")
    options = dict(max(mine, key=lambda r: r["accuracy"] or 0.0)["options"])
    if "l2-clip-norm" in options:
        options["l2-clip-norm"] *= setting.clip_scale
    return options


def main(given: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="The tables of tag prediction.")
    parser.add_argument("command", choices=("tune", "run", "table"))
    parser.add_argument("--corpus", default=None, help="as for `fedpriv run`")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--setting", action="append", choices=tuple(SETTINGS))
    arguments = parser.parse_args(given)
    settings = arguments.setting or list(SETTINGS)
    cells = [
        Cell(setting=s, inputs=i, method=m)
        for s in settings
        for i in ("tff", "unit-norm")
        for m in METHODS
    ]
    tuning = arguments.out / "tag-tuning.jsonl"
    results = arguments.out / "tag-results.jsonl"
    if arguments.command == "tune":
        jobs = [(cell, options, TUNING_SEED) for cell in cells for options in grid(cell)]
        complete(jobs, tuning, arguments.corpus, arguments.jobs)
    elif arguments.command == "run":
        tuned = read(tuning)
        # Without noise a setting's target ε changes nothing: one setting's ceilings are enough.
        jobs = [
            (cell, best(tuned, cell), seed)
            for seed in SEEDS
            for cell in cells
            if METHODS[cell.method].options.get("noise") != "none" or cell.setting != "private-2"
        ]
        complete(jobs, results, arguments.corpus, arguments.jobs)
    else:
        from simulations.tag_summary import write_tables

        write_tables(read(results), read(tuning), arguments.out)


if __name__ == "__main__":
    main()
