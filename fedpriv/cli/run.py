"""`fedpriv list` and `fedpriv run`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedpriv.checkpoints.store import keep_last_from
from fedpriv.cli.listing import (
    complete_experiments,
    complete_settings,
    show_options,
    with_flags,
)
from fedpriv.cli.output import Interrupted, errors, print_json, print_line, print_table
from fedpriv.datasets.local_data import NodeData
from fedpriv.experiments.options import Option, normalize
from fedpriv.output_paths import writing_to
from fedpriv.privacy.statement.statement import Statement
from fedpriv.report.head import result_rows
from fedpriv.report.page import write_report
from fedpriv.report.run_record import RunRecord
from fedpriv.runs.backends import backends_of
from fedpriv.training.stopping import interruptible

# torch takes seconds to import: the commands that train load it, and `fedpriv account` does not.
if TYPE_CHECKING:
    from fedpriv.experiments.experiment import Experiment


#: Options with a flag of their own; any other is given by -s.
FLAGS = (
    *("roster", "users", "cohort", "rounds", "noise-multiplier", "target-epsilon", "delta", "seed"),
    *("precondition", "bound", "noise", "server", "aggregate", "inputs", "start"),
)
QUICK = 10
"""Most rounds, steps or iterations of `--quick`."""
#: What the length of a run is called, by method and unit; an experiment has one of them.
_LENGTHS = ("rounds", "steps", "iterations", "passes")
#: What is named to be run.
EXPERIMENT = typer.Argument(
    help="A name from `fedpriv list`, or module:function or file.py:function of your own.",
    autocompletion=complete_experiments,
)
NamedAgain = Annotated[
    str | None,
    typer.Option(
        help="The run's experiment, where that is code of your own: what a folder alone names is "
        "not imported."
    ),
]
CorpusName = Annotated[
    str | None, typer.Option(help="A prepared corpus, a dump to import, or a known name.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="NAME=VALUE",
        help="Any option of the experiment, e.g. -s bound=normalise; repeat for more. "
        "`fedpriv list EXPERIMENT` shows them.",
        autocompletion=complete_settings,
    ),
]


AnchorFile = Annotated[
    Path | None,
    typer.Option(
        "--anchor",
        help="A file on another volume that keeps how far the ledger is: copies of the run folder "
        "that are continued twice, and old backups, are then refused.",
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="KIND:WHERE",
        help="Also send released values to tensorboard:DIR, mlflow:URI or wandb:PROJECT; repeat "
        "for more.",
    ),
]


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
    option: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the experiments that can be run by name, or the options of one."""
    from fedpriv.experiments.load import find_experiments, load_experiment

    if name is not None:
        chosen = load_experiment(name).with_options(settings_of(option or ()))
        show_options(chosen, as_json=as_json)
        return
    if option:
        raise ValueError("--set changes the options of one experiment; name it")
    found = {known: make() for known, make in sorted(find_experiments().items())}
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "description": experiment.description,
                    "privacy": _asked_for(experiment),
                    "backends": backends_of(experiment),
                }
                for name, experiment in found.items()
            ]
        )
        return
    table = Table("experiment", "what it is", "privacy", "backends", box=None, header_style="bold")
    for name, experiment in found.items():
        backends = ", ".join(backends_of(experiment))
        table.add_row(name, experiment.description, _asked_for(experiment), backends)
    print_table(table)


@with_flags(FLAGS)
def run_command(
    experiment: Annotated[str | None, EXPERIMENT] = None,
    corpus: CorpusName = None,
    *,
    flags: dict[str, Option],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Own files in place of a corpus, as a node has them: CSV files or SQLite; with "
            "--data-key."
        ),
    ] = None,
    data_key: Annotated[
        Path | None, typer.Option(help="The key that their people's ids are made with.")
    ] = None,
    option: Settings = None,
    backend: Annotated[
        str,
        typer.Option(
            help="serial: in this process, exact sums of compiled trainers on its cores; ray: in "
            "worker processes."
        ),
    ] = "serial",
    workers: Annotated[
        int | None, typer.Option(help="Worker processes of backend ray; by default one a core.")
    ] = None,
    gpus_per_worker: Annotated[
        float | None, typer.Option(help="Part of a GPU for each worker, such as 0.5 or 1.")
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="Join a running Ray cluster: host:port, or auto.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Train many users, or examples, at once on it: cuda:0, or cpu to try it."
        ),
    ] = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="Entropy from the operating system; no seed.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Run folder; by default under runs/.")] = None,
    label: Annotated[
        str | None, typer.Option(help="What reports and comparisons call the run.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help=f"At most {QUICK} rounds or steps; a number given stays.",
        ),
    ] = False,
    anchor: AnchorFile = None,
    keep_checkpoints: Annotated[
        str, typer.Option(help="'all', or how many of the last; every tenth stays too.")
    ] = "10",
    track: Track = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Train an experiment, federated or centralised, and write a run folder with its report.

    Without a real corpus (--corpus, FEDPRIV_DATA, the cache, a shared data folder) it trains on
    the embedded synthetic StackOverflow and says so.
    """
    from fedpriv.api import running
    from fedpriv.trackers import tracker_of

    options = given_once(flags, settings_of(option or ()))
    given = out or corpus or data or data_key or secure or options or label or quick
    if resume is not None and given:
        raise ValueError(
            "--resume takes everything from the run folder; give it alone, with its anchor, or "
            "with the experiment where that is code of your own"
        )
    where: dict[str, Any] = {
        "backend": backend,
        "workers": workers,
        "gpus_per_worker": gpus_per_worker,
        "ray_address": ray_address,
        "device": device,
        "progress": not as_json,
        "keep_checkpoints": keep_last_from(keep_checkpoints),
        "anchor": anchor,
        "callbacks": [tracker_of(text) for text in track or ()],
    }
    if resume is not None:
        folder, train = resume, partial(running.resume, resume, experiment=experiment)
    elif experiment is None:
        raise ValueError("give an experiment (see `fedpriv list`), or --resume DIR")
    else:
        chosen = _chosen(experiment, options)
        options |= shorter(chosen, options) if quick else {}
        folder = out if out is not None else _default_folder(chosen.name)
        where |= {"secure": secure, "label": label, **options}
        source = _own_files(data, data_key, corpus) or corpus
        train = partial(running.run, experiment, folder, corpus=source)
    with _says_how_to_go_on(folder):
        found = train(**where)
    with writing_to(folder):
        report = write_report(folder)
    if as_json:
        print_json(found.summary)
    else:
        print_result(found, found.statement, report)


def _own_files(data: Path | None, key: Path | None, corpus: str | None) -> NodeData | None:
    """Return where own files lie; None where none are given.

    Raises:
        ValueError: If they are given without their key, or with a corpus.
    """
    if data is None and key is None:
        return None
    if data is None or key is None:
        raise ValueError(
            f"--{'data' if data is None else 'data-key'} is missing; give both, the files and the "
            "key of `fedpriv data key`"
        )
    if corpus is not None:
        raise ValueError(f"--data and --corpus {corpus} are two sources of users; leave one out")
    return NodeData(data.resolve(), key.resolve())


def _chosen(name: str, options: Mapping[str, Option]) -> Experiment:
    """Return an experiment with its options."""
    from fedpriv.experiments.load import load_experiment

    experiment = load_experiment(name)
    if experiment.unit == "example" and "rounds" in options:
        number, instead = options["rounds"], next(n for n in _LENGTHS if n in experiment.options())
        raise ValueError(
            f"rounds {number}: {name} is centralised and has no rounds; give -s {instead}={number}"
        )
    return experiment.with_options(options)


def shorter(experiment: Experiment, given: Mapping[str, Option]) -> dict[str, Option]:
    """Return the option by which an experiment has at most `QUICK` rounds, steps or iterations.

    Of passes it is one. Nothing where its length is given, by whatever name.
    """
    from fedpriv.experiments.averaging import CentralExperiment
    from fedpriv.experiments.build import make_task
    from fedpriv.experiments.user_code import user_code

    options = experiment.options()
    lengths = [name for name in (*_LENGTHS, "epochs") if name in options]
    typed = {normalize(name) for name, value in given.items() if value not in (None, "none")}
    if not typed.isdisjoint(lengths):
        return {}
    name = lengths[0]
    planned, most = options[name], 1 if name == "passes" else QUICK
    if isinstance(experiment, CentralExperiment) and planned is None:
        # Epochs come to steps by the length of the training set alone.
        with user_code(f"while the task of {experiment.name} was made"):
            planned = experiment.num_steps(make_task(experiment, None).num_train)
    assert isinstance(planned, int)
    return {name: min(planned, most)}


@contextmanager
def _says_how_to_go_on(path: Path) -> Iterator[None]:
    """Say, on Ctrl-C, how the run of a folder goes on, and end with status 130."""
    try:
        with interruptible():
            yield
    except KeyboardInterrupt:
        from fedpriv.runs.document import read_document, resume_command

        if (path / "experiment.json").exists():
            name = read_document(path)["reference"]
            said = f"interrupted; continue with: {resume_command(path, name)}"
        else:
            said = "interrupted before the run began; nothing was charged"
        print_line(said, errors)
        raise Interrupted from None


def _asked_for(experiment: Experiment) -> str:
    """Return how much privacy an experiment asks for as it is; what it gets, its plan says."""
    options = experiment.options()
    if options.get("noise", options.get("output_noise")) == "none":
        return "none"
    sigma = options.get("noise.multiplier", options.get("output_noise.noise_multiplier"))
    if sigma is not None:
        return f"noise multiplier {sigma:g}"
    target = experiment.target_epsilon
    return "to be chosen" if target is None else f"target ε {target:g}"


def settings_of(pairs: Iterable[str]) -> dict[str, Option]:
    """Return `name=value` pairs with numbers as numbers.

    Raises:
        ValueError: If one is no such pair, or a name is given twice.
    """
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
        settings = given_once(settings, {name.strip(): value})
    return settings


def given_once(first: Mapping[str, Option], more: Mapping[str, Option]) -> dict[str, Option]:
    """Return options of two places together.

    Raises:
        ValueError: If one of them is in both: neither is taken in silence.
    """
    for name in first:
        if name in more:
            raise ValueError(
                f"{name} is given twice, as {first[name]} and as {more[name]}; leave one out"
            )
    return {**first, **more}


def _default_folder(name: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = Path("runs") / f"{name}-{stamp}"
    number = 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{stamp}-{number}"
    return folder


def print_result(run: RunRecord, statement: Statement, report: Path) -> None:
    """Print what came of a run in about five rows, and where its report is."""
    rows = [*result_rows(run, statement, most=2), ("report", str(report))]
    width = max(len(label) for label, _ in rows)
    for label, value in rows:  # no table: it would cut long paths short
        print_line(f"{label:<{width}}  {value}")
