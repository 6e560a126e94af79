"""Secret state of a run: kept apart from everything that is released, and only where it is needed.

A memoryless release keeps nothing here. A stream of correlated noise keeps one key, a sampler with
a memory whom it drew. Files are readable by their owner alone, and synced before they are used:
what is drawn from them must be drawn again after a crash.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load, save

from fedpriv.checkpoints.tensor_files import sync_directory
from fedpriv.rng import Key

REPLAY = "replay"
"""Name of all that a release which was cut off is made again from."""
STREAM = "stream"
"""Name of the key of correlated noise."""
COHORTS = "cohorts"
"""Name of who took part so far, of samplers with a memory."""


class SecretState:
    """The secret files of a run folder, or the same in memory.

    Guarantees:
        * In secure mode a key is 32 bytes from the operating system, written once with mode 0600;
          in simulation it comes from the run's seed and is written nowhere.
        * No two runs share one.

    Args:
        folder: Where files go; made when the first is written. None keeps everything in memory.
        root: The run's root key.
    """

    def __init__(self, folder: Path | None, root: Key) -> None:
        self._folder, self._root = folder, root
        self._keys: dict[str, Key] = {}
        self._memories: dict[str, dict[str, np.ndarray]] = {}

    def key(self, name: str, *, fresh: bool = False, renew: bool = False) -> Key:
        """Return the run's secret key of a name, the same after a restart.

        Args:
            name: Of the key.
            fresh: Whether nothing was drawn from it yet, so that it may be made here.
            renew: Whether the run has drawn nothing at all: a key that lies there is another's.

        Raises:
            ValueError: If its file is not a key, or gone although something was drawn from it.
        """
        if name not in self._keys:
            self._keys[name] = self._make_or_read(name, fresh, renew)
        return self._keys[name]

    def _make_or_read(self, name: str, fresh: bool, renew: bool) -> Key:
        if self._root.mode == "simulation":
            return self._root.fold("vault").fold(name)
        if self._folder is None:
            return Key.secure()
        path = self._folder / f"{name}.key"
        if renew or not path.exists():
            if not fresh:
                raise ValueError(
                    f"{path} is gone: restore it, or start a new run (without it the noise that "
                    "was drawn cannot be continued)"
                )
            self._write(path, Key.secure().to_bytes())
        value = path.read_bytes()
        if len(value) != 32:
            emptied = "; it is empty since the run ended, on a newer ledger than this: restore that"
            raise ValueError(
                f"{path} is not a key of 32 bytes; restore it, or start a new run (without it the "
                f"noise that was drawn cannot be continued){'' if value else emptied}"
            )
        return Key.from_bytes(value, "secure")

    def forget(self, name: str) -> None:
        """Delete the key of a name and what was remembered under names that begin with it.

        For what a run that has ended needs no more: who finds it later could take the noise off,
        or learn who took part. An empty file stays in the key's place, so that an older ledger
        that is put back draws no second noise on the same result. A disk may keep what a file no
        longer names.
        """
        self._keys.pop(name, None)
        for known in [known for known in self._memories if known.startswith(f"{name}-")]:
            del self._memories[known]
        if self._folder is None or not self._folder.is_dir():
            return
        key = self._folder / f"{name}.key"
        if key.exists() and key.stat().st_size:
            self._write(key, b"")
        for path in self._folder.glob(f"{name}-*.safetensors"):
            path.unlink(missing_ok=True)
        sync_directory(self._folder)
        if not any(self._folder.iterdir()):
            self._folder.rmdir()
            sync_directory(self._folder.parent)

    def remember(self, name: str, memory: Mapping[str, np.ndarray]) -> None:
        """Keep arrays of a name in the place of those before; synced when this returns."""
        if not memory and name not in self._memories:
            return
        self._memories[name] = dict(memory)
        if self._folder is not None:
            self._write(self._folder / f"{name}.safetensors", save(dict(memory)))

    def recall(self, name: str) -> dict[str, np.ndarray] | None:
        """Return the arrays that were remembered last, or None."""
        path = None if self._folder is None else self._folder / f"{name}.safetensors"
        if name not in self._memories and path is not None and path.exists():
            self._memories[name] = load(path.read_bytes())
        return self._memories.get(name)

    def _write(self, path: Path, content: bytes) -> None:
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700)
            sync_directory(path.parent.parent)
        part = path.with_name(f".{path.name}.part")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            written = 0
            while written < len(content):
                written += os.write(descriptor, content[written:])
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(part, path)
        sync_directory(path.parent)
