"""`fedpriv plan` and `fedpriv verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedpriv.cli.accounting import (
    AsJson,
    GridCohorts,
    GridRounds,
    PlotFile,
    check_plot,
    cohorts_of,
    plain,
    plot,
    whole_numbers,
)
from fedpriv.cli.listing import with_flags
from fedpriv.cli.output import counting, errors, fail, print_json, print_line, print_table
from fedpriv.cli.run import (
    EXPERIMENT,
    FLAGS,
    AnchorFile,
    CorpusName,
    Settings,
    given_once,
    settings_of,
)
from fedpriv.experiments.options import Option
from fedpriv.privacy.statement.sealed import NOT_AUDITED
from fedpriv.privacy.statement.verify import verify_run


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("plan")(plan_command)
    app.command()(verify)


@with_flags(FLAGS)
def plan_command(
    experiment: Annotated[str, EXPERIMENT],
    corpus: CorpusName = None,
    *,
    flags: dict[str, Option],
    option: Settings = None,
    workers: Annotated[int, typer.Option(help="How many would share a cohort.")] = 1,
    timed: Annotated[
        bool,
        typer.Option(
            "--time/--no-time",
            help="Train some users of the roster for the time that it takes, and nothing else.",
        ),
    ] = True,
    grid_cohorts: GridCohorts = None,
    grid_rounds: GridRounds = None,
    out: PlotFile = None,
    as_json: AsJson = False,
) -> None:
    """Say what a run would be like before it is run: noise, memory, time. Nothing is charged.

    For example: fedpriv plan dp-fedavg-tags --target-epsilon 8 --out plan.svg
    """
    check_plot(out)
    cohorts, counts = cohorts_of(grid_cohorts), whole_numbers(grid_rounds, "--grid-rounds")
    from fedpriv.api.forecast import forecast
    from fedpriv.api.running import chosen_experiment

    chosen, _ = chosen_experiment(experiment, given_once(flags, settings_of(option or ())))
    with counting("calibrating cohorts and rounds", quiet=as_json) as progress:
        found = forecast(
            chosen,
            corpus=corpus,
            grid_cohorts=cohorts,
            grid_rounds=counts,
            workers=workers,
            timed=timed,
            console=None if as_json else errors,
            progress=progress,
        )
    if as_json:
        print_json(found.to_json())
    else:
        print_line(str(found))
    if out is not None and found.grid is None:
        fail(f"{out} is not written: noise on the mean is {found.reason}")
    plot(found.grid, out, found.planned)


def verify(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    anchor: AnchorFile = None,
    as_json: AsJson = False,
) -> None:
    """Check a run's ledger and files, and recompute its ε; exits with 1 if anything is wrong.

    Without the anchor outside the folder that shows that its files agree with each other, and the
    first line says what that leaves open. The last lines say what of the folder is not checked.
    """
    found = verify_run(run, anchor=anchor)
    if as_json:
        print_json(found.to_json())
    else:
        if found.not_found:
            print_line(
                f"without an anchor, four things cannot be found: {'; '.join(found.not_found)}"
            )
        table = Table(box=None, show_header=False, pad_edge=False)
        for check in found.checks:
            mark = "[green]ok[/]" if check.ok else "[bold red]WRONG[/]"
            if check.text == NOT_AUDITED["outcome"]:
                mark = "-"
            table.add_row(mark, check.name, plain(check.text))
        print_table(table)
        if found.epsilon is not None:
            simulated = (
                "simulated "
                if found.mode == "simulation" and found.epsilon.accountant != "none"
                else ""
            )
            line = found.coverage.qualified(f"{simulated}{found.epsilon}")
            print_line(line)
        for what in found.not_checked:
            print_line(f"not checked: {what}")
    if not found.ok:
        raise typer.Exit(1)
