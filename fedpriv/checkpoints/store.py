"""The released checkpoints of a run, and the state from which it resumes.

The two have different jobs. A checkpoint is a result: it is pruned by rule, and never rewritten
with other content by accident. The resume state is overwritten every round, in one step: a process
killed at any moment, or a power cut, leaves the old state or the new one. Both are forced to the
disk. A checksum notices other damage of the state, which is then refused.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedpriv.checkpoints.tensor_files import check_tensors, read_tensors, write_tensors
from fedpriv.hashes import file_sha256

_NAME = re.compile(r"round-(\d{6,})\.safetensors")
_CHECKSUM = "fedpriv.crc32"


def keep_last_from(text: str) -> int | None:
    """Return how many checkpoints "--keep-checkpoints" asks for; None is all of them.

    Raises:
        ValueError: If the text is neither "all" nor a number from 1.

    >>> keep_last_from("3"), keep_last_from("all")
    (3, None)
    """
    if text.strip().lower() == "all":
        return None
    if not text.strip().isascii() or not text.strip().isdigit() or int(text) < 1:
        raise ValueError(f"cannot keep {text!r} checkpoints; give 'all' or a number from 1")
    return int(text)


class CheckpointStore:
    """Safetensors checkpoints of one run, one file a round.

    Opening a store touches nothing, so that a report may read while a run writes. There is one
    writer.

    Args:
        directory: Where the files are; made at the first `save`.
        keep_last: Newest checkpoints to keep; None keeps all.
        keep_every: Checkpoints of rounds divisible by this are kept besides; None keeps none of
            them. Round 0, the initial model, is divisible.

    Raises:
        ValueError: If `keep_last` or `keep_every` is below 1.
    """

    def __init__(
        self, directory: str | Path, keep_last: int | None = 10, keep_every: int | None = 10
    ) -> None:
        for name, value in (("keep_last", keep_last), ("keep_every", keep_every)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; give a number from 1, or None")
        self._directory = Path(directory)
        self._keep_last = keep_last
        self._keep_every = keep_every

    def path(self, round_num: int) -> Path:
        """Return where the checkpoint of a round is, or would be."""
        if round_num < 0:
            raise ValueError(f"round_num is {round_num}; rounds count from 1 (0: initial model)")
        return self._directory / f"round-{round_num:06d}.safetensors"

    def save(
        self,
        round_num: int,
        tensors: Mapping[str, np.ndarray],
        metadata: Mapping[str, str] | None = None,
    ) -> Path:
        """Write a checkpoint, on the disk when this returns. Returns its path.

        Older ones stay until `prune` is called: a run must not lose the checkpoint that its resume
        state refers to before the next state is in place.

        Raises:
            ValueError: If a tensor's dtype or a metadata entry cannot be stored.
        """
        path = self.path(round_num)
        self._directory.mkdir(parents=True, exist_ok=True)
        write_tensors(path, tensors, metadata)
        return path

    def load(
        self, round_num: int, template: Mapping[str, np.ndarray] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Return tensors and metadata of a round.

        Args:
            round_num: Which checkpoint.
            template: If given, the names, shapes and dtypes that the checkpoint must have.

        Raises:
            ValueError: If there is no such checkpoint, it is not a complete safetensors file, or
                it does not match the template.
        """
        path = self.path(round_num)
        if not path.is_file():
            kept = ", ".join(map(str, self.rounds())) or "none"
            raise ValueError(f"no checkpoint of round {round_num} in {path.parent}; kept: {kept}")
        tensors, metadata = read_tensors(path)
        if template is not None:
            check_tensors(path, tensors, template)
        return tensors, metadata

    def rounds(self) -> tuple[int, ...]:
        """Return the rounds that have a checkpoint, increasing."""
        if not self._directory.is_dir():
            return ()
        matches = (_NAME.fullmatch(entry.name) for entry in self._directory.iterdir())
        return tuple(sorted(int(match[1]) for match in matches if match))

    def digest(self, round_num: int) -> str:
        """Return the SHA-256 of a checkpoint file in hex, read as a stream.

        Raises:
            ValueError: If there is no such checkpoint.
        """
        path = self.path(round_num)
        if not path.is_file():
            raise ValueError(f"no checkpoint of round {round_num} in {path.parent}")
        return file_sha256(path)

    def prune(self) -> None:
        """Remove the checkpoints that the rule does not keep."""
        # A part file here is what a killed writer left; the one writer has just finished its own.
        for part in self._directory.glob(".round-*.safetensors.part"):
            part.unlink()
        if self._keep_last is None:
            return
        for round_num in self.rounds()[: -self._keep_last]:
            if self._keep_every is None or round_num % self._keep_every:
                self.path(round_num).unlink()


def save_state(
    path: str | Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> None:
    """Replace the resume state in one step.

    Args:
        path: The file, such as `state.safetensors`; its directory exists.
        tensors: Everything the next round needs.
        metadata: Strings, such as the round and the head of the ledger.

    Raises:
        ValueError: If a tensor's dtype or a metadata entry cannot be stored.
    """
    write_tensors(Path(path), tensors, {**(metadata or {}), _CHECKSUM: _checksum(tensors)})


def load_state(
    path: str | Path, template: Mapping[str, np.ndarray] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return tensors and metadata of the resume state.

    Raises:
        ValueError: If the file is absent, incomplete, damaged, or does not match the template.
    """
    path = Path(path)
    tensors, metadata = read_tensors(path)
    if metadata.pop(_CHECKSUM, None) != _checksum(tensors):
        raise ValueError(
            f"{path} is damaged (its checksum is wrong); restore it from a copy, or start a new run"
        )
    if template is not None:
        check_tensors(path, tensors, template)
    return tensors, metadata


def _checksum(tensors: Mapping[str, np.ndarray]) -> str:
    """Return a CRC-32 over names, shapes, dtypes and bytes, in order of name."""
    crc = 0
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        crc = zlib.crc32(f"{name}|{array.dtype}|{np.shape(tensors[name])}".encode(), crc)
        if array.size:
            crc = zlib.crc32(array.reshape(-1).view(np.uint8).data, crc)
    return f"{crc:08x}"
