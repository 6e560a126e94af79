"""`fedpriv study`: every trial of a study, each of them once, and its page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedpriv.cli.output import Interrupted, errors, print_json, print_line, print_table
from fedpriv.output_paths import check_folder, writing_to
from fedpriv.privacy.epsilon import target_label
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.untrusted_text import plain

if TYPE_CHECKING:
    from fedpriv.api.studying import CellForecast, StudyResult
    from fedpriv.studies.study import Study


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(study)


def study(
    file: Annotated[
        str,
        typer.Argument(help="A TOML file, or file.py:name of a Study or a function returning one."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The study's folder; by default under studies/.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Trials at once, each on one core; by default one a core.")
    ] = None,
    backend: Annotated[
        str,
        typer.Option(help="processes: on this machine; ray: each trial a task of a Ray cluster."),
    ] = "processes",
    ray_address: Annotated[
        str | None, typer.Option(help="Join a running Ray cluster: host:port, or auto.")
    ] = None,
    gpus_per_worker: Annotated[
        float | None, typer.Option(help="Part of a GPU for each task of Ray's, such as 0.5 or 1.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Train on it, such as cuda:0, one trial after the other."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print trials, noise, minutes and memory. Prepares the data and times a few "
            "users' training of each method; charges and writes nothing.",
        ),
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try trials again that failed.")
    ] = False,
    secure: Annotated[
        bool,
        typer.Option("--secure", help="Entropy from the operating system; a private search only."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Run methods × ε × seeds × data in parallel, and write one page of them.

    Killed at any point, the same command goes on: no trial is run twice, and one that was under way
    is resumed. A trial that fails is a row with its reason.

    For example: fedpriv study study.toml --workers 4
    """
    from fedpriv.api.studying import default_folder, forecast_study
    from fedpriv.api.studying import study as run_study
    from fedpriv.studies.search import Search
    from fedpriv.studies.study import load_study

    chosen = load_study(file)
    if dry_run:
        if not as_json:
            said = "times a few users' training of each method; charges and keeps nothing"
            print_line(said, errors)
        _print_forecast(chosen, forecast_study(chosen), workers, as_json=as_json)
        return
    folder = out or default_folder(chosen)
    check_folder(folder, "--out")
    if isinstance(chosen.search, Search) and chosen.search.private and not as_json:
        print_line("a private search; nothing of its trials is shown but the best", errors)
    try:
        with writing_to(folder):
            found = run_study(
                file,
                folder,
                workers=workers,
                device=device,
                backend=backend,
                ray_address=ray_address,
                gpus_per_worker=gpus_per_worker,
                retry_failed=retry_failed,
                secure=secure,
                progress=not as_json,
            )
    except KeyboardInterrupt:
        print_line("interrupted; the same command goes on with the study", errors)
        raise Interrupted from None
    _print_result(found, folder, as_json=as_json)


def _print_result(found: StudyResult, folder: Path, *, as_json: bool) -> None:
    if found.best is not None:
        path = found.best.folder
        if as_json:
            print_json({"run_dir": str(path), "summary": dict(found.best.summary)})
            return
        for line in (run_statement(path).headline, f"released: {path}"):
            print_line(line)
        return
    assert found.record is not None
    if as_json:
        from fedpriv.studies.tables import trial_rows

        print_json({"study": dict(found.record.document), "trials": trial_rows(found.record)})
        return
    from fedpriv.studies.record import name_trials
    from fedpriv.studies.tables import groups_of

    failed = [trial for trial in found.record.trials if trial.failure is not None]
    print_line(f"{len(found.record.trials)} trials, {len(failed)} failed")
    for trial in failed:
        level = target_label(trial.epsilon)
        print_line(f"  {trial.method}, {level}, {trial.data} seed {trial.seed}: {trial.failure}")
    for group in groups_of(found.record):
        if group.public_model:
            print_line(plain(f"  {group.label}: {group.public_model}"))
    if earlier := found.record.earlier:
        said = f"{len(earlier)} of earlier versions in the folder: {name_trials(earlier)}"
        print_line(plain(said))
    print_line(f"page: {found.page}")
    if failed:
        sys.exit(1)


def _print_forecast(
    chosen: Study, cells: list[CellForecast], workers: int | None, *, as_json: bool
) -> None:
    from fedpriv.studies.study import Resolver
    from fedpriv.training.devices import usable_cores

    number = workers or usable_cores()
    unlike = Resolver(chosen).unlike({(cell.method, cell.data): cell.public for cell in cells})
    minutes = [cell.minutes for cell in cells]
    known = [one for one in minutes if one is not None]
    total = sum(known) / number if known else None
    if as_json:
        rows = [
            {
                "method": cell.method,
                "epsilon": cell.epsilon,
                "data": cell.data,
                "trials": cell.trials,
                "rounds": cell.rounds,
                "noise_multiplier": cell.noise_multiplier,
                "minutes": cell.minutes,
                "memory_bytes": cell.memory_bytes,
            }
            for cell in cells
        ]
        document = {"name": chosen.name, "workers": number, "minutes": total, "trials": rows}
        print_json({**document, "unlike": unlike})
        return
    table = Table("method", "privacy", "data", box=None, header_style="bold")
    for name in ("trials", "rounds", "noise multiplier", "minutes", "memory"):
        table.add_column(name, justify="right")
    for cell in cells:
        table.add_row(
            cell.method,
            target_label(cell.epsilon),
            cell.data,
            f"{cell.trials}",
            "–" if cell.rounds is None else f"{cell.rounds:,}",
            "–" if cell.noise_multiplier is None else f"{cell.noise_multiplier:.4g}",
            "–" if cell.minutes is None else f"{cell.minutes:.2g}",
            f"{cell.memory_bytes / 2**20:.3g} MB",
        )
    print_table(table)
    for text in unlike:
        print_line(f"Not like with like: {plain(text)}")
    trials = sum(cell.trials for cell in cells)
    missing = "" if len(known) == len(cells) else "; of some the time is not known"
    said = "" if total is None else f", about {total:.2g} minutes on {number} workers"
    print_line(
        f"{trials} trials{said} of training{missing}. Minutes are of all trials of a row one after "
        "the other, timed on private data: a diagnostic, not covered by ε. Preparation (data, "
        "calibration, the public model) and evaluation come on top for each trial, and take longer "
        "than training where that is short"
    )
