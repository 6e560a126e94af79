"""A prepared run: one experiment on one corpus in one folder, started or resumed, then run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedpriv.backends import Backend, SerialBackend
from fedpriv.backends.ray.cluster import Cluster
from fedpriv.backends.threads import ThreadBackend, check_shareable
from fedpriv.backends.worker import WorkerContext
from fedpriv.data.corpus.corpus import Corpus
from fedpriv.experiments.build import build
from fedpriv.experiments.catalogue import from_anywhere, load_experiment
from fedpriv.experiments.components import Components
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.of_users import make_side_information, make_trainer
from fedpriv.experiments.own_code import own_code
from fedpriv.experiments.parts.options import Option
from fedpriv.experiments.task_factory import make_task
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.statement.coverage import refuse_private_knowledge
from fedpriv.rng import Key
from fedpriv.running.folder import RunFolder, read_document
from fedpriv.running.loop import first_state, rounds
from fedpriv.running.records import RoundRecord
from fedpriv.running.rehearsal import try_components
from fedpriv.running.summary import summary_of
from fedpriv.tasks.check import check_metrics, check_users
from fedpriv.tasks.trial import cautions, not_tried, synthetic_batch, try_central_task, try_task
from fedpriv.training.devices import check_of_use
from fedpriv.training.failures import counted_failures
from fedpriv.training.stopping import interruptible
from fedpriv.tree import Params

BackendFactory = Callable[[Experiment, Components], Backend]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A backend factory that says beforehand what it cannot carry.

    Attributes:
        make: The factory itself.
        check: Raises `ValueError` where `make`, or a worker that it hires, would; it is asked
            before a run folder is made or opened.
    """

    make: BackendFactory
    check: Callable[[Experiment, Components], None]

    def __call__(self, experiment: Experiment, components: Components) -> Backend:
        """Return the backend."""
        return self.make(experiment, components)


def _refuse_early(
    make_backend: BackendFactory, experiment: Experiment, components: Components
) -> None:
    if isinstance(make_backend, Checked):
        make_backend.check(experiment, components)


def check_carried(experiment: Experiment, backend: str) -> None:
    """Refuse a backend that an experiment does not run on.

    Raises:
        ValueError: If it is not one of the experiment's.
    """
    if experiment.unit == "example":
        raise ValueError(
            f"{experiment.name} is centralised, and centralised training runs in one process; "
            f"leave the backend {backend!r} out"
        )
    if backend not in experiment.backends:
        known = ", ".join(experiment.backends)
        raise ValueError(f"{experiment.name} does not run on {backend}; use one of {known}")


def serial(experiment: Experiment, components: Components) -> Backend:
    """Return the in-process backend."""
    return SerialBackend(
        trainer=components.trainer, data=components.task.data, measure=components.task.evaluate
    )


def on_threads(num_workers: int) -> BackendFactory:
    """Return what makes the backend of so many threads, for trainers that they may share."""

    def check(experiment: Experiment, components: Components) -> None:
        check_carried(experiment, "threads")
        check_shareable(components.trainer)

    def make(experiment: Experiment, components: Components) -> Backend:
        return ThreadBackend(
            trainer=components.trainer,
            data=components.task.data,
            measure=components.task.evaluate,
            num_workers=num_workers,
            max_examples=experiment.max_examples_per_user,
        )

    return Checked(make=make, check=check)


def on_ray(cluster: Cluster, reference: str, corpus_path: str | None) -> BackendFactory:
    """Return what starts Ray and its workers, each of which opens the corpus for itself.

    Args:
        cluster: What the workers run on; whoever made it closes it.
        reference: The name under which a worker finds the experiment.
        corpus_path: The absolute path at which it finds the corpus; None for tasks without one.
    """

    def check(experiment: Experiment, components: Components) -> None:
        check_carried(experiment, "ray")
        # Logical GPUs are the CPU. Whether a GPU is there, and works, only the worker that gets
        # it can say: this machine may have none, or should not spend memory of it.
        share = cluster.share
        if share.num_gpus and not share.logical:
            check_of_use("cuda:0", components.trainer)

    def make(experiment: Experiment, components: Components) -> Backend:
        cluster.start(sum(array.nbytes for array in _template(components).values()))
        from fedpriv.backends.ray.backend import RayBackend

        began = time.perf_counter()
        backend = RayBackend(
            share=cluster.share,
            make_context=partial(open_worker_context, reference, experiment.options(), corpus_path),
            data=components.task.data,
            max_examples=experiment.max_examples_per_user,
        )
        cluster.tell(f"its workers took {time.perf_counter() - began:.1f} s to open the data")
        return backend

    return Checked(make=make, check=check)


def open_worker_context(
    reference: str, options: Mapping[str, Option], corpus_path: str | None, device: str
) -> WorkerContext:
    """Return what a worker works with, made from what can be named; called in the worker.

    Raises:
        ValueError: If the experiment or the corpus is not found there.
    """
    experiment = load_experiment(reference).restored(options)
    check_carried(experiment, "ray")
    task = make_task(experiment, _open_corpus(corpus_path))
    side = make_side_information(experiment, task)
    return WorkerContext(
        trainer=make_trainer(experiment, task, side, device),
        data=task.data,
        measure=task.evaluate,
    )


def _open_corpus(path: str | None) -> Corpus | None:
    return None if path is None else Corpus.open(Path(path))


def _template(components: Components) -> Params:
    return components.task.init_params(Key.simulation(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """Everything a run needs, in one place.

    Attributes:
        experiment: What is run.
        components: Made from it.
        folder: Where it is kept.
        state: The last released one.
        root: The root key.
        make_backend: Brings the work to the users.
        synthetic: Whether the corpus is made up.
        untried: What of the task could not be tried beforehand, in one line; "" for nothing.
        noticed: What was noticed of it besides, in a line each.
    """

    experiment: Experiment
    components: Components
    folder: RunFolder
    state: Any
    root: Key
    make_backend: BackendFactory
    synthetic: bool
    untried: str = ""
    noticed: tuple[str, ...] = ()

    @property
    def ledger(self) -> Ledger:
        """The folder's ledger."""
        return self.folder.ledger

    def run(self, on_round: Callable[[RoundRecord], None] = lambda record: None) -> dict[str, Any]:
        """Run what is left of the plan and return the summary.

        Args:
            on_round: Called with each record, for progress bars only.
        """
        state, record = self.state, None
        with (
            interruptible(),
            counted_failures() as failures,
            closing(self.folder),
            closing(self.make_backend(self.experiment, self.components)) as backend,
        ):
            engine = backend.describe()
            self.folder.note_engine(engine, first_round=state.round_num + 1)
            played = rounds(
                self.components,
                backend,
                self.root,
                folder=self.folder,
                state=self.state,
                eval_every=self.experiment.eval_every,
            )
            with closing(played):
                for record, state in played:  # noqa: B007 - the last of both is summarised
                    on_round(record)
        name = self.experiment.name
        summary = summary_of(name, self.components, self.folder, state, record, failures.first)
        summary["engine"] = engine
        self.folder.summarise(summary)
        return summary


def _built(experiment: Experiment, reference: str | None, corpus: Corpus | None) -> Components:
    with own_code(f"while the task of {reference or experiment.name} was made"):
        return build(experiment, corpus)


def _tried(
    experiment: Experiment, components: Components, root: Key
) -> tuple[Any, str, tuple[str, ...]]:
    """Return the state before round 1, of a task that was tried; what could not be; cautions."""
    said = (
        "while the task was tried on public or synthetic examples, before anything was charged; if "
        "its model takes no such examples, give the task a synthetic_batch of some that it takes"
    )
    task, untried = components.task, ""
    with own_code(said, refusals=False):
        state = first_state(components, root)
        if experiment.unit == "example":
            found = try_central_task(task, state.params)
        else:
            batch = synthetic_batch(task)
            untried = not_tried(task) if batch is None else ""
            train = partial(try_components, components, state.params)
            found = try_task(task, state.params, batch, train)
    check_metrics(task, found)
    noticed = ()
    if experiment.unit == "user":
        with own_code("while public examples were compared with rostered users'"):
            noticed = cautions(task, found, simulated=root.mode == "simulation")
    return state, untried, noticed


def start_run(
    experiment: Experiment,
    reference: str | None,
    corpus: Corpus | None,
    out: Path,
    *,
    secure: bool = False,
    engine: str = "serial",
    make_backend: BackendFactory = serial,
    keep_last: int | None = 10,
) -> PreparedRun:
    """Return a new prepared run in a new run folder.

    Args:
        experiment: What to run.
        reference: The name under which it is found again on resume; None if it has none, and
            whoever resumes gives it again.
        corpus: Its corpus; None for tasks that bring their own users.
        out: The run folder.
        secure: Entropy from the operating system instead of the experiment's seed.
        engine: The backend's name, recorded.
        make_backend: Makes the backend.
        keep_last: Newest checkpoints to keep; None keeps all.

    Raises:
        ValueError: If the options do not fit together, the backend cannot carry this task, a
            secure run would know private things, or the folder holds a run already. Nothing is
            written then.
        Exception: What the experiment's own code raises, also where its task is tried once on
            examples of no rostered user (`fedpriv.tasks.trial`). Nothing is written then either.
    """
    components = _built(experiment, reference, corpus)
    _refuse_early(make_backend, experiment, components)
    if experiment.unit == "user" and engine != "flower":  # whose nodes have the users
        with own_code("while rostered users were looked for"):
            check_users(components.task, experiment.name)
    if secure:
        side = components.side_information
        known = side and {"source": side.source}
        described = components.task.describe().to_json()
        refuse_private_knowledge(components.plan.unit, described, known)
    root = Key.secure() if secure else Key.simulation(experiment.seed)
    state, untried, noticed = _tried(experiment, components, root)
    folder = RunFolder.create(
        out,
        experiment=experiment,
        reference=reference and from_anywhere(reference),
        components=components,
        corpus_path=str(corpus.directory.resolve()) if corpus is not None else None,
        engine=engine,
        mode=root.mode,
        keep_last=keep_last,
    )
    return PreparedRun(
        experiment=experiment,
        components=components,
        folder=folder,
        state=state,
        root=root,
        make_backend=make_backend,
        synthetic=bool(folder.document["corpus"]["synthetic"]),
        untried=untried,
        noticed=noticed,
    )


def _named(reference: str | None, path: Path) -> Experiment:
    if reference is None:
        raise ValueError(
            f"{path} was started from Python, with an experiment that has no name to find it by; "
            "go on there with fedpriv.resume(path, experiment=...)"
        )
    return load_experiment(reference)


def resume_run(
    path: Path,
    *,
    experiment: Experiment | None = None,
    make_backend: BackendFactory = serial,
    keep_last: int | None = 10,
) -> PreparedRun:
    """Return the prepared run that a run folder holds, ready to go on.

    A secure run goes on with fresh entropy: its old root was never written down, and every
    attempt has streams of its own anyway.

    Args:
        path: The run folder.
        experiment: What was run, where it was started without a name to find it by; its options
            are those of the run folder, whatever it says.
        make_backend: Makes the backend.
        keep_last: Newest checkpoints to keep; None keeps all.

    Raises:
        ValueError: If there is no run, its files do not verify, its corpus or training set
            changed, its experiment has no name and is not given, or the backend cannot carry its
            task.
    """
    document = read_document(path)
    if experiment is None:
        experiment = _named(document["reference"], path)
    elif experiment.name != document["name"]:
        raise ValueError(f"{path} is a run of {document['name']}, not of {experiment.name}")
    experiment = experiment.restored(document["experiment"])
    corpus_path = document["corpus"]["path"]
    components = _built(experiment, document["reference"], _open_corpus(corpus_path))
    _refuse_early(make_backend, experiment, components)
    folder = RunFolder.open(path, keep_last=keep_last)
    if components.plan.to_json() != folder.ledger.plan.to_json():
        folder.close()
        raise ValueError(
            f"the corpus or the experiment changed since {path} was started: its plan is no "
            "longer the ledger's; restore them, or start a new run"
        )
    root = Key.secure() if folder.ledger.mode == "secure" else Key.simulation(experiment.seed)
    try:
        folder.check_data(components.task)
        first, untried, noticed = _tried(experiment, components, root)
        state = folder.resume(first)
    except Exception:
        folder.close()
        raise
    return PreparedRun(
        experiment=experiment,
        components=components,
        folder=folder,
        state=state,
        root=root,
        make_backend=make_backend,
        synthetic=bool(document["corpus"]["synthetic"]),
        untried=untried,
        noticed=noticed,
    )
