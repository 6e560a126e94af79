"""The audit of a run's own mechanism, kept in its folder, where its statement finds it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv import __version__
from fedpriv.audit.run import Audit
from fedpriv.experiments.build import build, in_study
from fedpriv.experiments.catalogue import from_anywhere
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.privacy.plan import AnyPlan
from fedpriv.privacy.statement.sealed import (
    RunIdentity,
    read_audit,
    refuse_second_audit,
    write_audit,
)
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.backends import open_corpus
from fedpriv.runs.document import read_document, restore_experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A mechanism that may be audited.

    Attributes:
        name: Of its experiment.
        plan: With the mechanism as objects.
        seed: Of the simulation.
    """

    name: str
    plan: AnyPlan
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedRun:
    """A run that verifies and was not audited yet.

    Attributes:
        folder: Its folder.
        of: What identifies it.
        plan: As its ledger has it.
    """

    folder: Path
    of: RunIdentity
    plan: AnyPlan

    @classmethod
    def open(cls, folder: Path) -> AuditedRun:
        """Return the run of a folder, finished or under way.

        Raises:
            ValueError: If it does not verify or holds an audit.
        """
        refuse_second_audit(folder)
        if not verify_run(folder).ok:
            raise ValueError(f"{folder} does not verify, so it is not audited: fedpriv verify")
        records, state, _ = read_ledger(folder / "ledger.jsonl")
        return cls(folder=folder, of=RunIdentity.of(records, state), plan=state.plan)

    def names(self, name: str) -> bool:
        """Return whether the run's experiment is found by this name."""
        return from_anywhere(name) == read_document(self.folder)["reference"]

    def candidate(self, name: str | None = None) -> Candidate:
        """Return the run's own mechanism, made again from its experiment and corpus.

        Args:
            name: Of the experiment, where the run names code of somebody's own.

        Raises:
            ValueError: If the run has no experiment that is found by name, or that is code which
                is not named again.
        """
        document = read_document(self.folder)
        experiment = restore_experiment(document, self.folder, name)
        made = build(experiment, open_corpus(document["corpus"]["path"]))
        made = in_study(experiment, made, self.plan.trials)
        return Candidate(name=experiment.name, plan=made.plan, seed=experiment.seed)

    def check(self, candidate: Candidate, mode: str) -> None:
        """Refuse to audit for this run what is not its mechanism.

        Raises:
            ValueError: Naming both, and what they differ in.
        """
        ours = {"experiment": self.of.experiment, "mode": self.of.mode, **self.plan.to_json()}
        theirs = {"experiment": candidate.name, "mode": mode, **candidate.plan.to_json()}
        differing = [
            f"{name} {theirs.get(name)!r} instead of {ours.get(name)!r}"
            for name in (ours | theirs)
            if ours.get(name) != theirs.get(name)
        ]
        if differing:
            more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
            raise ValueError(
                f"the audit of {candidate.name} ({mode}) is not one of {self.folder}, a run of "
                f"{self.of}: {'; '.join(differing[:3])}{more}; give the run's own options, or "
                "--into alone"
            )

    def keep(self, audit: Audit) -> dict[str, Any]:
        """Write the outcome into the folder and return it as a statement has it.

        Raises:
            ValueError: If it is not of this run, or the folder holds one by now.
        """
        write_audit(self.folder, audit.to_json(), self.of, version=__version__)
        records, state, _ = read_ledger(self.folder / "ledger.jsonl")
        kept = read_audit(self.folder, records, state)  # as every reader will
        assert kept is not None
        return kept.to_json()
