"""A job: one experiment on one corpus, in one run folder, started or resumed, run to its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from fedpriv.catalogue import load_experiment
from fedpriv.data.corpus import Corpus
from fedpriv.engine import Carrier, SerialCarrier
from fedpriv.experiment import Experiment, Parts, build
from fedpriv.privacy.ledger import Ledger
from fedpriv.rng import Key
from fedpriv.run import RoundRecord, first_state, released_params, rounds
from fedpriv.run_folder import RunFolder, read_document, read_lines
from fedpriv.training.round import ServerState

CarrierFactory = Callable[[Experiment, Parts], Carrier]


def serial(experiment: Experiment, parts: Parts) -> Carrier:
    """Return the in-process carrier."""
    return SerialCarrier(trainer=parts.trainer, data=parts.task.data)


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

    experiment: Experiment
    parts: Parts
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
        carrier = self.make_carrier(self.experiment, self.parts)
        state = self.state
        try:
            for record, state in rounds(  # noqa: B007 - the last state is what is summarised
                self.parts,
                carrier,
                self.root,
                folder=self.folder,
                state=self.state,
                eval_every=self.experiment.eval_every,
            ):
                on_round(record)
        finally:
            carrier.close()
            self.folder.close()
        summary = self._summary(state)
        self.folder.summarise(summary)
        return summary

    def _summary(self, state: Any) -> dict[str, Any]:
        plan, path = self.parts.plan, self.folder.path
        params = released_params(state)
        simulated = self.ledger.mode == "simulation"
        roster = self.parts.task.evaluate(params, public=False) if simulated else None
        public = self.parts.task.evaluate(params, public=True)
        spent = plan.epsilon(self.ledger.charges)
        seconds = [line["seconds"] for line in read_lines(path, "diagnostics")]
        corpus = self.folder.document["corpus"]
        return {
            "experiment": self.experiment.name,
            "accuracy": roster and roster.accuracy,
            "recall_at_5": roster and roster.recall_at_5,
            "accuracy_public": public and public.accuracy,
            "recall_at_5_public": public and public.recall_at_5,
            "majority_class_accuracy": corpus.get("majority_class_accuracy"),
            "epsilon": spent.value if plan.is_private else None,
            "epsilon_rdp": spent.rdp if plan.is_private else None,
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


def start_job(
    experiment: Experiment,
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
        ValueError: If the options do not fit together, or the folder holds a run already.
    """
    parts = build(experiment, corpus)
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
        ValueError: If there is no run, its files do not verify, or its corpus changed.
    """
    document = read_document(path)
    experiment = load_experiment(document["reference"]).with_options(document["experiment"])
    corpus_path = document["corpus"]["path"]
    corpus = Corpus.open(Path(corpus_path)) if corpus_path is not None else None
    parts = build(experiment, corpus)
    folder = RunFolder.open(path, keep_last=keep_last)
    if parts.plan != folder.ledger.plan:
        folder.close()
        raise ValueError(
            f"the corpus or the experiment changed since {path} was started: its plan is no "
            "longer the ledger's; restore them, or start a new run"
        )
    root = Key.secure() if folder.ledger.mode == "secure" else Key.simulation(experiment.seed)
    try:
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
