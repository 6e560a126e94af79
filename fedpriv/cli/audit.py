"""`fedpriv audit` and `fedpriv attack membership`: what a mechanism, and a model, give away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedpriv.cli.listing import with_flags
from fedpriv.cli.output import counting, errors, fail, print_json, print_line, print_table
from fedpriv.cli.run import (
    EXPERIMENT,
    FLAGS,
    CorpusName,
    NamedAgain,
    Settings,
    given_once,
    settings_of,
)
from fedpriv.experiments.options import Option

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Plot = Annotated[Path | None, typer.Option("--out", help="Write a plot: FILE.svg.")]

attack = typer.Typer(
    no_args_is_help=True, help="Attacks on released models: measured, not guaranteed."
)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("audit")(audit_command)
    app.add_typer(attack, name="attack")


@with_flags(FLAGS)
def audit_command(
    experiment: Annotated[str | None, EXPERIMENT] = None,
    corpus: CorpusName = None,
    *,
    flags: dict[str, Option],
    option: Settings = None,
    trials: Annotated[
        int, typer.Option(help="Canaries in all; each has its records with probability one half.")
    ] = 20_000,
    secure: Annotated[
        bool, typer.Option("--secure", help="Audit the noise and cohorts of a secure run.")
    ] = False,
    into: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Audit the mechanism of this run, in its mode, and keep the outcome in its "
            "folder for its privacy statement; without an experiment, the run's own, unless that "
            "is code of your own, which is named again.",
        ),
    ] = None,
    out: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Run an experiment's mechanism on canary users and bound its ε from below.

    The sampler, bound, sum, noise and denominator are the experiment's own; no user is trained, and
    nothing is charged. Exits with 1 if the bound is above the stated ε. A bound below it is no
    proof: it says what these canaries did not show.

    For example: fedpriv audit adadps-tags --target-epsilon 8 --out audit.svg
    Or, of a run: fedpriv audit --into runs/eps8
    """
    from fedpriv.api.running import chosen_experiment, find_corpus
    from fedpriv.audit.plot import write_audit_plot
    from fedpriv.audit.run import (
        Candidate,
        audit_plan,
        candidate_of,
        check_audited,
        describe_audit,
        is_named,
        keep_audit,
        open_unaudited,
    )
    from fedpriv.experiments.build import build
    from fedpriv.privacy.statement.sealed import AUDIT_FILE
    from fedpriv.report.page import write_report
    from fedpriv.report.theme import check_plot_file

    if out is not None:
        check_plot_file(out)
    if secure and "seed" in flags:
        fail(f"--secure takes no seed (got {flags['seed']}); leave one of the two out")
    run = None if into is None else open_unaudited(into)
    if secure and run is not None and run.state.mode != "secure":
        fail(f"--secure: {into} is a {run.state.mode}, and is audited as what it is; leave it out")
    secure = secure if run is None else run.state.mode == "secure"
    options = given_once(flags, settings_of(option or ()))
    if experiment is None and run is None:
        fail("give an experiment (see `fedpriv list`), or --into RUN")
    if experiment is None and (corpus is not None or options):
        fail("--into alone takes experiment, corpus and options from the run; leave them out")
    own = run is not None and corpus is None and not options
    if run is not None and (experiment is None or (own and is_named(run, experiment))):
        candidate = candidate_of(run, experiment)
    else:
        assert experiment is not None
        chosen, _ = chosen_experiment(experiment, options)
        found = find_corpus(chosen, corpus, console=None if as_json else errors, importing=errors)
        candidate = Candidate(
            name=chosen.name, plan=build(chosen, found).plan, seed=int(getattr(chosen, "seed", 0))
        )
    if run is not None:
        check_audited(run, candidate, "secure" if secure else "simulation")
    with counting("rounds on canary users", quiet=as_json) as progress:
        audit = audit_plan(
            candidate.plan,
            name=candidate.name,
            trials=trials,
            seed=candidate.seed,
            secure=secure,
            progress=progress,
        )
    if out is not None:
        write_audit_plot(audit, out)
    kept = None if run is None else keep_audit(run, audit)
    if into is not None and (into / "report.html").exists():
        write_report(into)
    if as_json:
        print_json(audit.to_json() | ({} if kept is None else {"of": kept["of"]}))
    else:
        _print_lines(describe_audit(audit), red="verdict" if audit.refuted else "")
        if out is not None:
            print_line(f"plot: {out}")
        if into is not None:
            said = f"kept in {into / AUDIT_FILE}, for the run's privacy statement"
            print_line(said)
    if audit.refuted:
        raise typer.Exit(1)


@attack.callback()
def _attacks() -> None:
    pass


@attack.command("membership")
def membership_command(
    runs: Annotated[
        list[Path],
        typer.Argument(help="The folder of a finished simulation; more of one kind are pooled."),
    ],
    experiment: NamedAgain = None,
    out: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Guess which users a released model was trained on, and say how often that is right.

    It reads users' data, so it is made on simulations only. Runs of the first `users` of a roster
    have the best non-members: the others of that roster. Two runs of the two halves cancel what the
    halves differ in.

    For example: fedpriv attack membership runs/eps8 --out membership.svg
    """
    from fedpriv.attacks.membership import attack_runs
    from fedpriv.attacks.outcome import describe_membership, write_membership_plot
    from fedpriv.report.theme import check_plot_file

    if out is not None:
        check_plot_file(out)
    found = attack_runs(runs, experiment)
    if out is not None:
        write_membership_plot(found, out)
    if as_json:
        print_json(found.to_json())
        return
    _print_lines(describe_membership(found))
    if out is not None:
        print_line(f"plot: {out}")


def _print_lines(lines: list[tuple[str, str]], *, red: str = "") -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, text in lines:
        shown = text.replace("[", "\\[")
        table.add_row(name, f"[bold red]{shown}[/]" if name == red else shown)
    print_table(table)
