"""A run folder that keeps the ledger and the round records, and no checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedpriv.experiments.experiment import Components, Experiment
from fedpriv.rng import Key
from fedpriv.runs.document import make_document
from fedpriv.runs.folder import RunFolder


class LedgerOnly:
    """A run folder for comparisons: charges and releases synced, and no files that no peer writes.

    Args:
        folder: The whole run folder.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.path, self.ledger, self._folder = folder.path, folder.ledger, folder

    @classmethod
    def create(cls, out: Path, experiment: Experiment, components: Components) -> LedgerOnly:
        """Return a new one in a folder that does not exist yet."""
        begun, files = components.begin(Key.simulation(0)), components.task.files()
        document = make_document(components, files, None, begun, reference=experiment.name)
        return cls(
            RunFolder.create(out, components, document, begun=begun, files=files, keep_last=2)
        )

    @property
    def is_hardened(self) -> bool:
        """As the run folder's."""
        return self._folder.is_hardened

    def keep(self, state: Any) -> None:
        """Sync the release; there is no checkpoint file that it could be the digest of."""
        self.ledger.release(state.round_num, self.ledger.last_attempt, "0" * 64)

    def record(self, released: Any, diagnostics: Any) -> None:
        """Append the round's records."""
        self._folder.record(released, diagnostics)
