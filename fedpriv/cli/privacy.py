"""`fedpriv account`, `fedpriv calibrate`, `fedpriv plan` and `fedpriv verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedpriv.api import rounds as api
from fedpriv.cli.accounting import (
    FLAGS_OF,
    NoiseName,
    Rho,
    Zcdp,
    account_rho,
    calibrate_rho,
    plain,
    price_stream,
    refuse_memory,
    refuse_others,
    refuse_sampling,
    required,
    tell,
    with_memory,
)
from fedpriv.cli.listing import with_flags
from fedpriv.cli.noise_grids import (
    GridCohorts,
    GridRounds,
    PlotFile,
    calibrating,
    check_plot,
    cohorts_of,
    plot,
    rounds_of,
)
from fedpriv.cli.output import console, errors, fail, print_json, print_table
from fedpriv.cli.run import (
    EXPERIMENT,
    FLAGS,
    AnchorCommand,
    AnchorFile,
    CorpusName,
    Settings,
    given_once,
    settings_of,
)
from fedpriv.experiments.options import Option, renamed
from fedpriv.privacy.ledger.anchor import anchors_of
from fedpriv.privacy.statement.verify import verify_run

Users = Annotated[int | None, typer.Option(help="Users on the roster.")]
Cohort = Annotated[
    float | None, typer.Option(help="Expected cohort (poisson) or its size (fixed).")
]
Rounds = Annotated[int | None, typer.Option(help="Rounds, each charged once.")]
Delta = Annotated[float | None, typer.Option(help="δ; by default users^-1.1.")]
Sampling = Annotated[
    str, typer.Option(help="poisson (each user drawn independently) or fixed (exact size).")
]
RelationName = Annotated[
    str | None,
    typer.Option(
        help="add-remove or replace-one; by default add-remove for poisson, replace-one for fixed."
    ),
]
Cap = Annotated[
    int | None,
    typer.Option(
        help="Largest poisson cohort, at least twice the mean; a subset takes part above."
    ),
]
Devices = Annotated[
    int,
    typer.Option(
        help="Devices of one person among the users, each drawn and bounded alone; ε is per person."
    ),
]
TrialsMean = Annotated[
    float | None,
    typer.Option(
        metavar="MEAN",
        help="ε of a study that keeps the best of a random number of such runs, this many on "
        "average, and never says how many.",
    ),
]
Shape = Annotated[
    float | None,
    typer.Option(
        metavar="ETA",
        help="Of the law of that number, a truncated negative binomial: 1 (the default) is "
        "geometric, inf is Poisson.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(account)
    app.command()(calibrate)
    app.command("plan")(plan_command)
    app.command()(verify)


@with_memory
def account(
    users: Users = None,
    cohort: Cohort = None,
    rounds: Rounds = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise stddev on the sum, over the bound of one user.")
    ] = None,
    rho: Rho = None,
    delta: Delta = None,
    sampling: Sampling = "poisson",
    relation: RelationName = None,
    cap: Cap = None,
    devices: Devices = 1,
    trials: TrialsMean = None,
    shape: Shape = None,
    noise: NoiseName = "gaussian",
    *,
    pattern: dict[str, Any],
    as_json: AsJson = False,
) -> None:
    """Say what a number of rounds costs: ε at δ, per user.

    For example: fedpriv account --users 400 --cohort 20 --rounds 100 --noise-multiplier 1
    or fedpriv account --noise tree --steps-per-tree 20 --trees 50 --noise-multiplier 4 --delta 1e-3
    """
    given = {"users": users, "cohort": cohort, "rounds": rounds}
    if noise != "gaussian":
        others = {"users": users, "cohort": cohort, "sampling": sampling, "cap": cap, "rho": rho}
        refuse_sampling(noise, others | {"devices": devices, "trials": trials, "shape": shape})
        return price_stream(
            noise,
            noise_multiplier=noise_multiplier,
            delta=delta,
            relation=relation,
            rounds=rounds,
            pattern=pattern,
            as_json=as_json,
        )
    refuse_memory(pattern)
    if rho is not None:
        others = {"noise-multiplier": noise_multiplier, "sampling": sampling, "cap": cap}
        others |= {"devices": devices, "trials": trials, "shape": shape}
        refuse_others("--rho", given | others)
        return account_rho(rho, delta, relation, as_json)
    sizes = {name: required(name, value) for name, value in given.items()}
    try:
        price = api.Rounds(
            **sizes,
            delta=delta,
            sampling=sampling,
            relation=relation,
            cap=cap,
            devices=devices,
            trials=trials,
            shape=shape,
        ).account(required("noise-multiplier", noise_multiplier))
    except ValueError as error:
        fail(renamed(str(error), FLAGS_OF))
    return tell(price, as_json)


@with_memory
def calibrate(
    target_epsilon: Annotated[float, typer.Option(help="The ε not to be exceeded.")],
    users: Users = None,
    cohort: Cohort = None,
    rounds: Rounds = None,
    zcdp: Zcdp = False,
    delta: Delta = None,
    sampling: Sampling = "poisson",
    relation: RelationName = None,
    cap: Cap = None,
    devices: Devices = 1,
    trials: TrialsMean = None,
    shape: Shape = None,
    noise: NoiseName = "gaussian",
    *,
    pattern: dict[str, Any],
    grid: Annotated[
        bool, typer.Option(help="Say the noise on the mean for other cohorts and rounds too.")
    ] = True,
    grid_cohorts: GridCohorts = None,
    grid_rounds: GridRounds = None,
    out: PlotFile = None,
    as_json: AsJson = False,
) -> None:
    """Find the least noise that keeps ε within a target; the answer never overshoots.

    Then the noise on the mean for other cohorts and rounds at the same ε, and the cohort beyond
    which a larger one hardly lowers it.

    For example: fedpriv calibrate --users 400 --cohort 20 --rounds 100 --target-epsilon 2
    """
    given = {"users": users, "cohort": cohort, "rounds": rounds}
    if noise != "gaussian":
        others = {"users": users, "cohort": cohort, "sampling": sampling, "cap": cap, "zcdp": zcdp}
        others |= {"devices": devices, "trials": trials, "shape": shape, "out": out}
        refuse_sampling(noise, others)
        return price_stream(
            noise,
            target_epsilon=target_epsilon,
            delta=delta,
            relation=relation,
            rounds=rounds,
            pattern=pattern,
            as_json=as_json,
        )
    refuse_memory(pattern)
    if zcdp:
        others = {"sampling": sampling, "cap": cap, "devices": devices, "trials": trials}
        others |= {"shape": shape, "out": out, "grid-cohorts": grid_cohorts}
        refuse_others("--zcdp", given | others | {"grid-rounds": grid_rounds})
        return calibrate_rho(target_epsilon, delta, relation, as_json)
    sizes = {name: required(name, value) for name, value in given.items()}
    if not grid and (out, grid_cohorts, grid_rounds) != (None, None, None):
        fail("--no-grid leaves nothing to plot or to choose; leave it or the others out")
    check_plot(out)
    cohorts, counts = cohorts_of(grid_cohorts), rounds_of(grid_rounds)
    found = None
    try:
        asked = api.Rounds(
            **sizes,
            delta=delta,
            sampling=sampling,
            relation=relation,
            cap=cap,
            devices=devices,
            trials=trials,
            shape=shape,
        )
        price = asked.calibrate(target_epsilon)
        if grid:
            with calibrating(quiet=as_json) as progress:
                found = asked.noise_grid(
                    target_epsilon, cohorts=cohorts, rounds=counts, progress=progress
                )
    except ValueError as error:
        fail(renamed(str(error), FLAGS_OF))
    if as_json:
        print_json(price.to_json() | ({} if found is None else {"grid": found.to_json()}))
    else:
        tell(price, as_json=False)
        if found is not None:
            _print(f"\n{found}")
    return plot(found, out, price.point)


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
    cohorts, counts = cohorts_of(grid_cohorts), rounds_of(grid_rounds)
    from fedpriv.api.forecast import forecast
    from fedpriv.api.running import chosen_experiment

    chosen, _ = chosen_experiment(experiment, given_once(flags, settings_of(option or ())))
    with calibrating(quiet=as_json) as progress:
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
        _print(str(found))
    if out is not None and found.grid is None:
        fail(f"{out} is not written: noise on the mean is {found.reason}")
    plot(found.grid, out, found.planned)


def verify(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    anchor: AnchorFile = None,
    anchor_command: AnchorCommand = None,
    as_json: AsJson = False,
) -> None:
    """Check a run's ledger and files, and recompute its ε; exits with 1 if anything is wrong.

    Without the anchor outside the folder that shows that its files agree with each other, and the
    first line says what that leaves open.
    """
    try:
        found = verify_run(run, anchors=anchors_of(anchor, anchor_command))
    except ValueError as error:
        fail(str(error))
    if as_json:
        print_json(found.to_json())
    else:
        if found.not_found:
            _print(f"without an anchor, four things cannot be found: {'; '.join(found.not_found)}")
        table = Table(box=None, show_header=False, pad_edge=False)
        for check in found.checks:
            mark = "[green]ok[/]" if check.ok else "[bold red]WRONG[/]"
            table.add_row(mark, check.name, plain(check.text))
        print_table(table)
        if found.epsilon is not None:
            simulated = (
                "simulated "
                if found.mode == "simulation" and found.epsilon.accountant != "none"
                else ""
            )
            line = found.coverage.qualified(f"{simulated}{found.epsilon}")
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not found.ok:
        raise typer.Exit(1)


def _print(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
