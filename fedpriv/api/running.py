"""Experiments from Python: described, run, resumed and tuned as by the commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from fedpriv.api.averaging import check_kept
from fedpriv.api.result import Run, TemporaryFolder, load, read
from fedpriv.checkpoints.store import keep_last_from
from fedpriv.datasets.importers.locate import resolve_corpus
from fedpriv.datasets.local_data import NodeData
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.build import takes_corpus
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.load import experiment_or_name, find_experiments, load_experiment
from fedpriv.experiments.options import Option, kebab
from fedpriv.experiments.tasks import TagPredictionTask
from fedpriv.output_paths import check_folder, writing_to
from fedpriv.privacy.statement.sealed import DOCUMENT, parse_document
from fedpriv.privacy.trials import Trials
from fedpriv.runs.backends import named_backends, place_of, recorded_place
from fedpriv.runs.callbacks import Callback, check_callbacks
from fedpriv.runs.document import check_experiment_name, read_document, resume_command
from fedpriv.runs.prepared import PreparedRun, resume_run, start_run
from fedpriv.runs.progress import ShowProgress, describe_beginning, follow, is_watched, status_line
from fedpriv.studies.grid import GridStudy
from fedpriv.untrusted_text import PlainConsole


def experiment(name: str, /, **options: Option) -> Experiment:
    """Return an experiment by name, with some options changed.

    Args:
        name: A name of `fedpriv list`, or "module:function" or "path/file.py:function" of your
            own.
        **options: Any option of the experiment, such as `rounds=10` or `l2_clip_norm=0.5`.

    Raises:
        ValueError: If there is no such experiment or option (with the nearest known one), or a
            value does not fit.
    """
    for given in ("name", "label"):
        if given in options:
            raise ValueError(
                f"{given}={options[given]!r} is no option of an experiment; it is the run that is "
                "named, by fedpriv.run(..., label=...)"
            )
    return load_experiment(name).with_options(options)


def run(
    experiment: str | Experiment | Callable[[], Experiment],
    out: str | Path | None = None,
    *,
    corpus: str | Path | NodeData | None = None,
    backend: str = "serial",
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    ray_address: str | None = None,
    device: str | None = None,
    secure: bool = False,
    progress: ShowProgress = "auto",
    keep_checkpoints: int | None = 10,
    anchor: str | Path | None = None,
    label: str | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Option,
) -> Run:
    """Train an experiment, federated or centralised, to the end of its plan.

    Args:
        experiment: A name, as for `experiment`, or an experiment, or a function that returns one.
        out: The run folder, which must not hold a run yet. Without it the run has the same ledger
            and files in a temporary folder, removed with the last `Run` that refers to it or
            with the process; `Run.save` keeps them.
        corpus: A prepared corpus, a dump to import, or a known name; or own files in its place,
            `fedpriv.datasets.local_data.NodeData`. Without one, experiments that need one look
            where `fedpriv run` looks, and else train on the synthetic StackOverflow and say so.
        backend: "serial" (in this process, on its cores) or "ray" (in worker processes).
        workers: How many processes Ray starts; None for one a core.
        gpus_per_worker: Part of a GPU for each worker of Ray's.
        ray_address: Of a running Ray cluster to join.
        device: Train many users, or examples, at once on it: "cuda:0", or "cpu" to try the same
            without a GPU; of Ray's workers "cpu" alone. None for what is quickest on a processor.
        secure: Entropy from the operating system instead of the experiment's seed; needs `out`.
        progress: "auto" shows it in a terminal and in a notebook, and elsewhere only what to beware
            of, such as public examples that equal rostered users'; True shows it elsewhere too, as
            lines; False prints nothing.
        keep_checkpoints: Newest checkpoints to keep besides every tenth; None keeps all.
        anchor: A file on another volume that keeps how far the ledger is; needs `out`. A copy of
            the folder that is continued besides, and an old backup, are then refused.
        label: What reports, comparisons and the run's status call it; None for the experiment's
            name. It changes nothing that is trained, drawn or guaranteed.
        callbacks: Called with each round's released values: trackers (`fedpriv.trackers`), or
            classes of your own that derive from `fedpriv.Callback`. They change nothing.
        **options: Options of the experiment to change, such as `rounds=10`; `start` may be the path
            of a safetensors file.

    Guarantees:
        * Every answer is charged, and the charge synced, before anything private is drawn for it.
        * A run that was interrupted goes on with `resume(out)`; what it had charged stays spent.

    Raises:
        ValueError: If something does not fit together. Nothing is written then.
    """
    chosen, reference = chosen_experiment(experiment, options)
    callbacks = check_callbacks(callbacks, secure=secure)
    check_kept(out, secure, anchor)
    _refuse_seed(secure, options)
    if out is not None and (Path(out) / DOCUMENT).exists():
        raise ValueError(
            f"{out} already holds a run; go on with it by fedpriv.resume, or fedpriv run --resume "
            f"{out}, or give another out"
        )
    if out is not None:
        check_folder(Path(out), "out")
    console, temporary = PlainConsole(stderr=True), None
    if out is None:
        temporary = TemporaryFolder()
        out = temporary.path
    path, tell = Path(out), _teller(console, progress)
    with named_backends(
        backend,
        workers=workers,
        gpus_per_worker=gpus_per_worker,
        ray_address=ray_address,
        device=device,
        tell=tell,
    ) as factories:
        if isinstance(corpus, NodeData):
            found = corpus
        else:
            importing = console if is_watched(console, progress) else None
            heard = console if progress is not False else None
            found = find_corpus(chosen, corpus, console=heard, importing=importing)
        where = "" if temporary else f" in {path}"
        tell(f"preparing {chosen.name}{where}: its data, model and plan")
        with writing_to(path):
            prepared = start_run(
                chosen,
                reference,
                found,
                path,
                secure=secure,
                backend=backend,
                make_backend=factories(reference, place_of(found)),
                keep_last=_check_keep(keep_checkpoints),
                anchor=anchor,
                label=label,
                tell=tell,
            )
        _follow(prepared.with_callbacks(callbacks), console, progress, kept=temporary is None)
    return read(path, temporary)


def resume(
    path: str | Path,
    *,
    experiment: Experiment | Callable[[], Experiment] | str | None = None,
    backend: str = "serial",
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    ray_address: str | None = None,
    device: str | None = None,
    progress: ShowProgress = "auto",
    keep_checkpoints: int | None = 10,
    anchor: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Go on with the run of a folder, to the end of its plan; everything else is as it was.

    Args:
        path: The run folder.
        experiment: What was run, where it was given to `run` as a value that no name leads to, or
            as the name of user-defined code, which a folder alone does not get to run. Its options
            are not used: the run goes on as it was planned, and says so where they are others.
        backend: As for `run`; it may be another one than before.
        workers: As for `run`.
        gpus_per_worker: As for `run`.
        ray_address: As for `run`.
        device: As for `run`.
        progress: As for `run`.
        keep_checkpoints: As for `run`.
        anchor: The one that the run was started with, if it was.
        callbacks: As for `run`; they are called with the rounds that were released before first.

    Guarantees:
        * An attempt that was lost stays spent; the next one has a new cohort and new noise.

    Raises:
        ValueError: If there is no run, its files do not verify, it names code that was not given,
            its data changed, or the backend cannot carry its task.
    """
    folder, console = Path(path), PlainConsole(stderr=True)
    tell = _teller(console, progress)
    tell(f"preparing to go on with {folder}: its ledger, its data")
    given = None if experiment is None else experiment_or_name(experiment)
    if isinstance(given, str) and ":" in given and (folder / DOCUMENT).is_file():
        document = parse_document((folder / DOCUMENT).read_bytes(), folder / DOCUMENT)
        check_experiment_name(document, folder, given)
        load_experiment(given)  # it may add a kind of event that the ledger holds
    document = read_document(folder)
    callbacks = check_callbacks(callbacks, secure=document["mode"] == "secure")
    reference = document["reference"]
    if not isinstance(given, Experiment):
        reference = check_experiment_name(document, folder, given)
    with named_backends(
        backend,
        workers=workers,
        gpus_per_worker=gpus_per_worker,
        ray_address=ray_address,
        device=device,
        tell=tell,
    ) as factories:
        prepared = resume_run(
            folder,
            experiment=given,
            make_backend=factories(reference, recorded_place(document)),
            keep_last=_check_keep(keep_checkpoints),
            anchor=anchor,
        )
        tell(describe_beginning(folder, prepared.ledger, prepared.state.round_num))
        _follow(prepared.with_callbacks(callbacks), console, progress, kept=True)
    return read(folder, None)


def find_corpus(
    experiment: Experiment,
    asked: str | Path | None,
    *,
    console: Console | None,
    importing: Console | None,
) -> Corpus | None:
    """Return the corpus that an experiment trains on, or None if it brings its own data.

    Args:
        experiment: What is to be run.
        asked: The corpus that was asked for; None looks where corpora are.
        console: Where it is said that the corpus is synthetic, if anywhere.
        importing: Where the progress of an import is said, if anywhere.

    Raises:
        ValueError: If it is not found, or asked for although the experiment brings its own data.
    """
    if asked is not None and not takes_corpus(experiment.task):
        raise ValueError(f"{experiment.name} brings its own data; leave corpus {asked} out")
    if asked is None and not isinstance(experiment.task, TagPredictionTask):
        return None
    # Without one nothing is said.
    with status_line(importing or Console(quiet=True)) as say:

        def tell(done: int, total: int) -> None:
            say("preparing the corpus" + (f": {done / total:.0%}" if total else ""))

        found = resolve_corpus(asked, allow_synthetic=True, progress=tell)
    if found.synthetic and console is not None:
        why = "" if asked else "No real corpus was found: "
        name = escape(str(found.name))
        said = f"[yellow]{why}training on the SYNTHETIC corpus {name}.[/]"
        console.print(said, soft_wrap=True)
    return found


def chosen_experiment(
    experiment: str | Experiment | Callable[[], Experiment], options: Mapping[str, Option]
) -> tuple[Experiment, str | None]:
    """Return the experiment, and the name under which it is found again, if it has one."""
    given = experiment_or_name(experiment)
    if isinstance(given, str):
        return load_experiment(given).with_options(options), given
    chosen = given.with_options(options)
    make = find_experiments().get(chosen.name)
    known = make is not None and make().with_options(chosen.options()) == chosen
    return chosen, chosen.name if known else None


def _refuse_seed(secure: bool, options: Mapping[str, Option]) -> None:
    """Refuse a seed of a secure run.

    Raises:
        ValueError: If both are given.
    """
    if secure and "seed" in options:
        raise ValueError(f"a secure run takes no seed (got {options['seed']}); leave one out")


def _teller(console: Console, shown: ShowProgress) -> Callable[[str], None]:
    def tell(line: str) -> None:
        if is_watched(console, shown):
            console.print(line, highlight=False, soft_wrap=True)

    return tell


def _check_keep(keep: int | None) -> int | None:
    return keep_last_from("all" if keep is None else str(keep))


def _follow(prepared: PreparedRun, console: Console, shown: ShowProgress, *, kept: bool) -> None:
    path, name = prepared.folder.path, prepared.folder.document["reference"]
    then = f"; then continue with: {resume_command(path, name)}" if kept else ""
    try:
        with writing_to(path, then):
            follow(prepared, console=console, shown=shown)
    except KeyboardInterrupt as error:
        if kept:
            named = "" if name is None or ":" not in name else f", experiment={name!r}"
            error.add_note(f"interrupted; continue with fedpriv.resume({str(path)!r}{named})")
        raise


def tune(
    experiment: str | Experiment,
    out: str | Path,
    *,
    grid: Mapping[str, Sequence[Option]],
    mean: float,
    shape: float = 1.0,
    score: str | None = None,
    corpus: str | Path | None = None,
    secure: bool = False,
    progress: ShowProgress = "auto",
    **options: Option,
) -> Run:
    """Choose options by a study whose ε covers the choice, and return its best run.

    How many trials are run is drawn once by chance, and never said; nothing of the others is kept.
    Interrupted, the same call goes on with the study.

    Args:
        experiment: A name of `fedpriv list`, or an experiment.
        out: The study's folder.
        grid: Values to try, by option name, such as `{"l2_clip_norm": [0.1, 0.3, 1.0]}`. A trial
            draws one of each.
        mean: How many trials there are on average, above 1.
        shape: Of the law of their number, a truncated negative binomial; 1 is geometric.
        score: Released figure to compare by, such as "accuracy_public"; None for the first.
        corpus: A prepared corpus, or a known name; None looks where corpora are.
        secure: Entropy from the operating system; no seed.
        progress: Whether the making of a corpus is shown; of trials nothing ever is.
        **options: Options of the experiment to change, such as `rounds=10`.

    Guarantees:
        * The run's ε is that of the whole study, by RDP.

    Raises:
        ValueError: If something does not fit together, or the folder holds another study. Nothing
            is drawn then.
    """
    _refuse_seed(secure, options)
    chosen, reference = chosen_experiment(experiment, options)
    trials = Trials(mean=mean, shape=shape)
    check_folder(Path(out), "out")
    console = PlainConsole(stderr=True)
    heard = console if is_watched(console, progress) else None
    study = GridStudy(
        experiment=chosen,
        reference=reference,
        corpus=find_corpus(chosen, corpus, console=heard, importing=heard),
        grid={kebab(name): tuple(values) for name, values in grid.items()},
        trials=trials,
        measure=score,
        secure=secure,
    )
    _teller(console, progress)(
        f"a study of {trials.name}; nothing of its trials is shown but the best"
    )
    with writing_to(Path(out)):
        return load(study.run(Path(out)))
