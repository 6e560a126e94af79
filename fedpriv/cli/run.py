"""`fedpriv list` and `fedpriv run`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from fedpriv.checkpoints.store import keep_last_from
from fedpriv.cli.listing import complete_experiments, complete_settings, show_options
from fedpriv.cli.output import console, errors, print_json
from fedpriv.data.importers.locate import resolve_corpus
from fedpriv.experiments.reference import option_help
from fedpriv.privacy.accounting import rounded_up
from fedpriv.privacy.statement.coverage import Coverage, coverage_of
from fedpriv.report.page import write_report

# torch takes seconds to import: the commands that train load it, and `fedpriv account` does not.
if TYPE_CHECKING:
    from fedpriv.experiments.options import Option
    from fedpriv.run.loop import RoundRecord
    from fedpriv.run.prepared import BackendFactory, PreparedRun


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("list")(list_experiments)
    app.command("run")(run_command)


def list_experiments(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[EXPERIMENT]",
            help="Show this one's options.",
            autocompletion=complete_experiments,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the experiments that can be run by name, or the options of one."""
    from fedpriv.experiments.catalogue import find_experiments, load_experiment

    if name is not None:
        show_options(load_experiment(name), as_json=as_json)
        return
    found = {known: make() for known, make in sorted(find_experiments().items())}
    if as_json:
        print_json(
            [
                {"name": n, "description": e.description, "carriers": e.backends}
                for n, e in found.items()
            ]
        )
        return
    table = Table("experiment", "what it is", "backends", box=None, header_style="bold")
    for name, experiment in found.items():
        table.add_row(name, experiment.description, ", ".join(experiment.backends))
    console.print(table)


def run_command(
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="A name from `fedpriv list`, or module:function of your own.",
            autocompletion=complete_experiments,
        ),
    ] = None,
    corpus: Annotated[
        str | None, typer.Option(help="A prepared corpus, a dump to import, or a known name.")
    ] = None,
    roster: Annotated[str | None, typer.Option(help=option_help("roster"))] = None,
    users: Annotated[int | None, typer.Option(help=option_help("users"))] = None,
    cohort: Annotated[float | None, typer.Option(help=option_help("cohort"))] = None,
    rounds: Annotated[int | None, typer.Option(help=option_help("rounds"))] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help=option_help("noise-multiplier"))
    ] = None,
    target_epsilon: Annotated[
        float | None, typer.Option(help=option_help("target-epsilon"))
    ] = None,
    delta: Annotated[float | None, typer.Option(help=option_help("delta"))] = None,
    seed: Annotated[int | None, typer.Option(help=option_help("seed"))] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="NAME=VALUE",
            help="Any option of the experiment, e.g. -s bound=normalise; repeat for more. "
            "`fedpriv list EXPERIMENT` shows them.",
            autocompletion=complete_settings,
        ),
    ] = None,
    precondition: Annotated[str | None, typer.Option(help=option_help("precondition"))] = None,
    bound: Annotated[str | None, typer.Option(help=option_help("bound"))] = None,
    noise: Annotated[str | None, typer.Option(help=option_help("noise"))] = None,
    server_optimizer: Annotated[
        str | None,
        typer.Option(help=option_help("server-optimizer")),
    ] = None,
    aggregate: Annotated[str | None, typer.Option(help=option_help("aggregate"))] = None,
    inputs: Annotated[str | None, typer.Option(help=option_help("inputs"))] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="serial: in this process; threads: on several threads of it, for the compiled "
            "trainers; ray: in worker processes."
        ),
    ] = "serial",
    workers: Annotated[
        int | None, typer.Option(help="Workers of engine threads or ray; by default one a core.")
    ] = None,
    gpus_per_worker: Annotated[
        float | None, typer.Option(help="Part of a GPU for each worker, such as 0.5 or 1.")
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="Join a running Ray cluster: host:port, or auto.")
    ] = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="Entropy from the operating system; no seed.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Run folder; by default under runs/.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    keep_checkpoints: Annotated[
        str, typer.Option(help="'all', or how many of the last; every tenth stays too.")
    ] = "10",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Train an experiment, federated or centralised, and write a run folder with its report.

    Without a real corpus (--corpus, FEDPRIV_DATA, the cache, a shared data folder) it trains on
    the embedded synthetic StackOverflow and says so.
    """
    from fedpriv.experiments.catalogue import load_experiment
    from fedpriv.experiments.user_parts import TagPredictionTask
    from fedpriv.run.folder import read_document
    from fedpriv.run.prepared import resume_run, start_run

    engines = _engines(engine, workers, gpus_per_worker, ray_address)
    keep_last = keep_last_from(keep_checkpoints)
    options: dict[str, Option] = {
        name: value
        for name, value in {
            "roster": roster,
            "users": users,
            "cohort": cohort,
            "rounds": rounds,
            "noise-multiplier": noise_multiplier,
            "target-epsilon": target_epsilon,
            "delta": delta,
            "seed": seed,
            "precondition": precondition,
            "bound": bound,
            "noise": noise,
            "server-optimizer": server_optimizer,
            "aggregate": aggregate,
            "inputs": inputs,
        }.items()
        if value is not None
    } | _settings(option or ())
    if resume is not None and (experiment or out or corpus or secure or options):
        raise ValueError("--resume takes everything from the run folder; give it alone")
    with engines as backends:
        if resume is not None:
            document = read_document(resume)
            make_backend = backends(document["reference"], document["corpus"]["path"])
            prepared = resume_run(resume, make_backend=make_backend, keep_last=keep_last)
        else:
            if experiment is None:
                raise ValueError("give an experiment (see `fedpriv list`), or --resume DIR")
            chosen = load_experiment(experiment)
            if secure and "seed" in options:
                given = options["seed"]
                raise ValueError(f"--secure takes no seed (got {given}); leave one of the two out")
            chosen = chosen.with_options(options)
            found = None
            if corpus is not None and chosen.unit == "example":
                raise ValueError(f"{experiment} brings its own data; leave --corpus {corpus} out")
            if isinstance(chosen.task, TagPredictionTask):
                found = resolve_corpus(corpus, allow_synthetic=True, progress=_import_progress())
                if found.synthetic and not as_json:
                    why = "" if corpus else "No real corpus was found: "
                    errors.print(f"[yellow]{why}training on the SYNTHETIC corpus {found.name}.[/]")
            prepared = start_run(
                chosen,
                experiment,
                found,
                out if out is not None else _default_folder(chosen.name),
                secure=secure,
                engine=engine,
                make_backend=backends(experiment, found and str(found.directory.resolve())),
                keep_last=keep_last,
            )
        covers = coverage_of(prepared.folder.document)
        try:
            summary = _follow(prepared, covers, quiet=as_json)
        except KeyboardInterrupt:
            errors.print(f"interrupted; continue with: fedpriv run --resume {prepared.folder.path}")
            raise
    report = write_report(prepared.folder.path)
    if as_json:
        print_json(summary)
    else:
        _print_summary(summary, covers, report)


@contextmanager
def _engines(
    name: str, workers: int | None, gpus_per_worker: float | None, ray_address: str | None
) -> Iterator[Callable[[str, str | None], BackendFactory]]:
    """Yield what makes a run's backend from (reference, corpus path); Ray is stopped at the end.

    What cannot be had is said here, before a run folder is made.
    """
    from fedpriv.backends.ray.cluster import Cluster
    from fedpriv.backends.resources import Request, usable_cores
    from fedpriv.run.prepared import on_ray, on_threads, serial

    asked = {"workers": workers, "gpus-per-worker": gpus_per_worker, "ray-address": ray_address}
    given = {option: value for option, value in asked.items() if value is not None}
    if name == "serial":
        for option, value in given.items():
            raise ValueError(f"--{option} {value} is for several workers; add --engine ray")
        yield lambda reference, corpus_path: serial
    elif name == "threads":
        for option in ("gpus-per-worker", "ray-address"):
            if option in given:
                raise ValueError(
                    f"--{option} {given[option]} is for worker processes; use --engine ray"
                )
        chosen = usable_cores() if workers is None else workers
        if chosen < 1:
            raise ValueError(f"--workers {chosen} must be at least 1")
        yield lambda reference, corpus_path: on_threads(chosen)
    elif name == "ray":
        request = Request(
            workers=workers, gpus_per_worker=gpus_per_worker or 0.0, address=ray_address
        )
        with Cluster(request, tell=lambda line: errors.print(line, highlight=False)) as cluster:
            yield partial(on_ray, cluster)
    else:
        raise ValueError(
            f"engine {name!r} is not known; use 'serial', 'threads' or 'ray', or run the Flower app"
        )


def _settings(pairs: Iterable[str]) -> dict[str, Option]:
    """Return `name=value` pairs with numbers as numbers."""
    settings: dict[str, Option] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise ValueError(f"--set {pair!r} is not NAME=VALUE; e.g. --set bound=normalise")
        value: Option = text
        for kind in (int, float):
            try:
                value = kind(text)
                break
            except ValueError:
                continue
        settings[name.strip()] = value
    return settings


def _default_folder(name: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = Path("runs") / f"{name}-{stamp}"
    number = 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{stamp}-{number}"
    return folder


def _import_progress() -> Any:
    """Return a callback (done, total) that prints nothing until an import really happens."""
    state: dict[str, int] = {"shown": -1}

    def show(done: int, total: int) -> None:
        percent = int(100 * done / total) if total else 0
        if percent // 10 != state["shown"]:
            state["shown"] = percent // 10
            errors.print(f"preparing the corpus: {percent} %", highlight=False)

    return show


def _follow(prepared: PreparedRun, covers: Coverage, *, quiet: bool) -> dict[str, Any]:
    """Run to the end behind a progress bar: round, accuracy, ε so far, time left."""
    if covers.mark and not quiet:
        errors.print(f"[yellow]ε {escape(covers.mark)}[/]", highlight=False, soft_wrap=True)
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("accuracy {task.fields[accuracy]}  ε {task.fields[epsilon]}"),
        TimeRemainingColumn(),
    )
    plan = prepared.components.plan
    with Progress(*columns, console=errors, disable=quiet) as bar:
        label = prepared.experiment.name + (" (synthetic)" if prepared.synthetic else "")
        line = bar.add_task(
            label,
            total=plan.num_rounds,
            completed=prepared.ledger.charges,
            accuracy="–",
            epsilon="–" if plan.is_private else "∞",
        )

        def show(record: RoundRecord) -> None:
            seen, spent = record.diagnostics, record.released.epsilon
            accuracy = None if seen is None else seen.accuracy
            if accuracy is None:
                accuracy = record.released.accuracy_public
            if accuracy is not None:
                bar.update(line, accuracy=f"{accuracy:.1%}")
            if spent is not None:  # accounted where a round is evaluated
                gap = " (does NOT cover all)" if covers.mark else ""
                bar.update(line, epsilon=f"{rounded_up(spent, 2):.2f}{gap}")
            bar.update(line, completed=prepared.ledger.charges)

        return prepared.run(on_round=show)


def _print_summary(summary: dict[str, Any], covers: Coverage, report: Path) -> None:
    epsilon = summary["epsilon"]
    said = covers.beside(
        f"no privacy (ε = ∞): {covers.reason}"
        if epsilon is None
        else (
            f"ε = {rounded_up(epsilon, 3):.3f} at δ = {summary['delta']:.2e} "
            f"({summary['unit']}-level, {summary['relation']}, {summary['accountant']}, "
            f"{summary['mode']})"
        )
    )
    central = summary["unit"] == "example"
    kind, whom = ("data", "training examples") if central else ("corpus", "users")
    made = f"SYNTHETIC {kind} " if summary["synthetic"] else f"{kind} "
    rows: dict[str, str] = {}
    rows["data"] = f"{made}{summary['corpus']}, {summary['users']:,} {whom}"
    if summary["accuracy"] is not None:
        recall = summary["recall_at_5"]
        more = f", recall@5 {recall:.2%}" if recall is not None else ""
        rows["accuracy"] = f"{summary['accuracy']:.2%}{more} (not covered by ε)"
    elif summary["accuracy_public"] is not None:
        where = "the test set" if central else "users outside the roster"
        rows["accuracy"] = f"{summary['accuracy_public']:.2%} on {where}"
    rows["privacy"] = said
    seconds = summary["seconds_per_round"]
    digits = ".2f" if seconds and seconds >= 0.1 else ".1g"
    took = f" at {seconds:{digits}} s" if seconds else ""
    rows["steps" if central else "rounds"] = f"{summary['rounds']}{took}"
    rows["run folder"] = str(summary["run_dir"])
    rows["report"] = str(report)
    for label, value in rows.items():  # no table: it would cut long paths short
        console.print(f"{label:<12}{value}", soft_wrap=True, markup=False, highlight=False)
