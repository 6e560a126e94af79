"""A job: one experiment on one corpus, in one run folder, started or resumed, run to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from fedpriv.backends import Carrier, SerialCarrier
from fedpriv.backends.ray.cluster import Cluster
from fedpriv.backends.threads import ThreadCarrier, check_shareable
from fedpriv.backends.worker import Workplace
from fedpriv.data.corpus.corpus import Corpus
from fedpriv.experiments.catalogue import AnyExperiment, load_experiment
from fedpriv.experiments.central import CentralExperiment, CentralParts, build_central
from fedpriv.experiments.experiment import (
    Experiment,
    Parts,
    build,
    make_side_information,
    make_trainer,
)
from fedpriv.experiments.options import Option
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.statement.coverage import KEY, coverage_of, refuse_private_knowledge
from fedpriv.rng import Key
from fedpriv.run.folder import RunFolder, read_document, read_lines
from fedpriv.run.loop import RoundRecord, first_state, released_params, rounds
from fedpriv.tasks.tasks import TagPrediction
from fedpriv.training.round import ServerState
from fedpriv.tree import Params

AnyParts = Parts | CentralParts
CarrierFactory = Callable[[AnyExperiment, AnyParts], Carrier]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A carrier factory that says beforehand what it cannot carry.

    Attributes:
        make: The factory itself.
        check: Raises `ValueError` where `make`, or a worker that it hires, would; it is asked
            before a run folder is made or opened.
    """

    make: CarrierFactory
    check: Callable[[AnyExperiment, AnyParts], None]

    def __call__(self, experiment: AnyExperiment, parts: AnyParts) -> Carrier:
        """Return the carrier."""
        return self.make(experiment, parts)


def _refuse_early(make_carrier: CarrierFactory, experiment: AnyExperiment, parts: AnyParts) -> None:
    if isinstance(make_carrier, Checked):
        make_carrier.check(experiment, parts)


def federated(experiment: AnyExperiment, parts: AnyParts) -> tuple[Experiment, Parts]:
    """Return both as what they are, for carriers that bring work to users.

    Raises:
        ValueError: If they are of centralised training.
    """
    if isinstance(experiment, CentralExperiment) or isinstance(parts, CentralParts):
        raise ValueError(
            f"{experiment.name} is centralised, and centralised training runs in one process; "
            "leave --engine out"
        )
    return experiment, parts


def serial(experiment: AnyExperiment, parts: AnyParts) -> Carrier:
    """Return the in-process carrier."""
    if isinstance(parts, CentralParts):
        return SerialCarrier(trainer=parts.trainer, measure=parts.task.evaluate)
    return SerialCarrier(trainer=parts.trainer, data=parts.task.data, measure=parts.task.evaluate)


def on_threads(num_workers: int) -> CarrierFactory:
    """Return what makes the carrier of so many threads, for trainers that they may share."""

    def check(experiment: AnyExperiment, parts: AnyParts) -> None:
        check_shareable(federated(experiment, parts)[1].trainer)

    def make(experiment: AnyExperiment, parts: AnyParts) -> Carrier:
        experiment, parts = federated(experiment, parts)
        return ThreadCarrier(
            trainer=parts.trainer,
            data=parts.task.data,
            measure=parts.task.evaluate,
            num_workers=num_workers,
            max_examples=experiment.max_examples_per_user,
        )

    return Checked(make=make, check=check)


def on_ray(cluster: Cluster, reference: str, corpus_path: str | None) -> CarrierFactory:
    """Return what starts Ray and its workers, each of which opens the corpus for itself.

    Args:
        cluster: What the workers run on; whoever made it closes it.
        reference: The name under which a worker finds the experiment.
        corpus_path: The absolute path at which it finds the corpus; None for tasks without one.
    """

    def check(experiment: AnyExperiment, parts: AnyParts) -> None:
        experiment, parts = federated(experiment, parts)
        # Logical GPUs are the CPU. What a task with a model thinks of a GPU only the worker that
        # gets one can say: this machine may have none, or should not spend memory of it.
        share = cluster.share
        if share.num_gpus and not share.logical and isinstance(parts.task, TagPrediction):
            make_trainer(experiment, parts.task, parts.side_information, "cuda:0")

    def make(experiment: AnyExperiment, parts: AnyParts) -> Carrier:
        experiment, parts = federated(experiment, parts)
        cluster.start(sum(array.nbytes for array in _template(parts).values()))
        from fedpriv.backends.ray.backend import RayCarrier

        began = time.perf_counter()
        carrier = RayCarrier(
            share=cluster.share,
            make_workplace=partial(open_workplace, reference, experiment.options(), corpus_path),
            data=parts.task.data,
            max_examples=experiment.max_examples_per_user,
        )
        cluster.tell(f"its workers took {time.perf_counter() - began:.1f} s to open the data")
        return carrier

    return Checked(make=make, check=check)


def open_workplace(
    reference: str, options: Mapping[str, Option], corpus_path: str | None, device: str
) -> Workplace:
    """Return what a worker works with, made from what can be named; called in the worker.

    Raises:
        ValueError: If the experiment or the corpus is not found there.
    """
    experiment = load_experiment(reference).with_options(options)
    if isinstance(experiment, CentralExperiment):
        raise ValueError(f"{reference} is centralised; workers train users")
    task = experiment.task(experiment, _open_corpus(corpus_path))
    side = make_side_information(experiment, task)
    return Workplace(
        trainer=make_trainer(experiment, task, side, device),
        data=task.data,
        measure=task.evaluate,
    )


def _open_corpus(path: str | None) -> Corpus | None:
    return None if path is None else Corpus.open(Path(path))


def _template(parts: Parts) -> Params:
    return parts.task.init_params(Key.simulation(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything a run needs, in one place.

    Attributes:
        experiment: What is run.
        parts: Made from it.
        folder: Where it is kept.
        state: The last released one.
        root: The root key.
        make_carrier: Brings the work to the users.
        synthetic: Whether the corpus is made up.
    """

    experiment: AnyExperiment
    parts: AnyParts
    folder: RunFolder
    state: ServerState
    root: Key
    make_carrier: CarrierFactory
    synthetic: bool

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
            closing(self.folder),
            closing(self.make_carrier(self.experiment, self.parts)) as carrier,
        ):
            engine = carrier.describe()
            self.folder.note_engine(engine, first_round=state.round_num + 1)
            for record, state in rounds(  # noqa: B007 - the last of both is what is summarised
                self.parts,
                carrier,
                self.root,
                folder=self.folder,
                state=self.state,
                eval_every=self.experiment.eval_every,
            ):
                on_round(record)
        summary = {**self._summary(state, record), "engine": engine}
        self.folder.summarise(summary)
        return summary

    def _summary(self, state: ServerState, record: RoundRecord | None) -> dict[str, Any]:
        plan, path = self.parts.plan, self.folder.path
        spent = plan.epsilon(self.ledger.charges)
        seconds = [line["seconds"] for line in read_lines(path, "diagnostics")]
        corpus = self.folder.document["corpus"]
        return {
            "experiment": self.experiment.name,
            **self._figures(state, record),
            "majority_class_accuracy": corpus.get("majority_class_accuracy"),
            "epsilon": spent.value if plan.is_private else None,
            "epsilon_rdp": spent.rdp if plan.is_private else None,
            KEY: list(coverage_of(self.folder.document).not_covered),
            "delta": spent.delta,
            "relation": plan.relation.value,
            "unit": plan.unit,
            "accountant": spent.accountant,
            "mode": self.ledger.mode,
            "noise_multiplier": plan.noise_multiplier,
            "rounds": state.round_num,
            "charges": self.ledger.charges,
            "users": plan.num_users,
            "seconds_per_round": median(seconds) if seconds else None,
            "corpus": corpus["name"],
            "roster": corpus.get("roster"),
            "synthetic": self.synthetic,
            "run_dir": str(path),
        }

    def _figures(self, state: ServerState, record: RoundRecord | None) -> dict[str, float | None]:
        """Return what the last round measured; measured anew if nothing was left to run."""
        if record is None:
            measure, params = self.parts.task.evaluate, released_params(state)
            public = measure(params, public=True)
            seen = measure(params, public=False) if self.ledger.mode == "simulation" else None
            shown = public and public.accuracy, public and public.recall_at_5
        else:
            seen, released = record.diagnostics, record.released
            shown = released.accuracy_public, released.recall_at_5_public
        return {
            "accuracy": seen and seen.accuracy,
            "recall_at_5": seen and seen.recall_at_5,
            "accuracy_public": shown[0],
            "recall_at_5_public": shown[1],
        }


def build_parts(experiment: AnyExperiment, corpus: Corpus | None) -> AnyParts:
    """Return the parts of an experiment of either kind.

    Raises:
        ValueError: If its options do not fit together or do not fit the corpus, or it is
            centralised, brings its own data and is given a corpus.
    """
    if not isinstance(experiment, CentralExperiment):
        return build(experiment, corpus)
    if corpus is not None:
        raise ValueError(f"{experiment.name} brings its own data; leave the corpus out")
    return build_central(experiment)


def start_job(
    experiment: AnyExperiment,
    reference: str,
    corpus: Corpus | None,
    out: Path,
    *,
    secure: bool = False,
    engine: str = "serial",
    make_carrier: CarrierFactory = serial,
    keep_last: int | None = 10,
) -> Job:
    """Return a new job in a new run folder.

    Args:
        experiment: What to run.
        reference: The name under which it is found again on resume.
        corpus: Its corpus; None for tasks that bring their own users.
        out: The run folder.
        secure: Entropy from the operating system instead of the experiment's seed.
        engine: The carrier's name, recorded.
        make_carrier: Makes the carrier.
        keep_last: Newest checkpoints to keep; None keeps all.

    Raises:
        ValueError: If the options do not fit together, the carrier cannot carry this task, a
            secure run would know private things, or the folder holds a run already. Nothing is
            written then.
    """
    parts = build_parts(experiment, corpus)
    _refuse_early(make_carrier, experiment, parts)
    if secure:
        side = parts.side_information
        known = side and {"source": side.source}
        refuse_private_knowledge(parts.plan.unit, parts.task.describe(), known)
    root = Key.secure() if secure else Key.simulation(experiment.seed)
    folder = RunFolder.create(
        out,
        experiment=experiment,
        reference=reference,
        parts=parts,
        corpus_path=str(corpus.directory.resolve()) if corpus is not None else None,
        engine=engine,
        mode=root.mode,
        keep_last=keep_last,
    )
    return Job(
        experiment=experiment,
        parts=parts,
        folder=folder,
        state=first_state(parts, root),
        root=root,
        make_carrier=make_carrier,
        synthetic=bool(folder.document["corpus"]["synthetic"]),
    )


def resume_job(
    path: Path, *, make_carrier: CarrierFactory = serial, keep_last: int | None = 10
) -> Job:
    """Return the job that a run folder holds, ready to go on.

    A secure run goes on with fresh entropy: its old root was never written down, and every
    attempt has streams of its own anyway.

    Raises:
        ValueError: If there is no run, its files do not verify, its corpus or training set
            changed, or the carrier cannot carry its task.
    """
    document = read_document(path)
    experiment = load_experiment(document["reference"]).with_options(document["experiment"])
    corpus_path = document["corpus"]["path"]
    parts = build_parts(experiment, _open_corpus(corpus_path))
    _refuse_early(make_carrier, experiment, parts)
    folder = RunFolder.open(path, keep_last=keep_last)
    if parts.plan != folder.ledger.plan:
        folder.close()
        raise ValueError(
            f"the corpus or the experiment changed since {path} was started: its plan is no "
            "longer the ledger's; restore them, or start a new run"
        )
    root = Key.secure() if folder.ledger.mode == "secure" else Key.simulation(experiment.seed)
    try:
        if isinstance(parts, CentralParts):
            folder.check_data(parts.task)
        state = folder.resume(first_state(parts, root))
    except ValueError:
        folder.close()
        raise
    return Job(
        experiment=experiment,
        parts=parts,
        folder=folder,
        state=state,
        root=root,
        make_carrier=make_carrier,
        synthetic=bool(document["corpus"]["synthetic"]),
    )
