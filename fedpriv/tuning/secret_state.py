"""What a study under way knows and nobody else may: how many trials there are, and how far it is.

==============  ==================================================================================
secret/number   how many trials; written once, before the first, and never drawn again
secret/state    trials done, the settings of the one under way, the rank of the best so far
secret/trial/   the run folder of the trial under way
secret/best/    that of the best so far
==============  ==================================================================================

All of it is readable by its owner alone, and removed with the end of the study. The folder of a
trial says nothing of which it is, so that what is released does not say it either.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedpriv.experiments.options import Option


class SecretState:
    """The secret part of a study's folder; every change is on disk before it is acted upon."""

    def __init__(self, out: Path) -> None:
        """Take a study's folder, in which there may be nothing secret yet."""
        self.path = out / "secret"
        self.trial, self.best = self.path / "trial", self.path / "best"
        self._state: dict[str, Any] = {"done": 0, "settings": None, "best": None, "verdict": None}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let no other process go on with the study meanwhile.

        Raises:
            ValueError: If one does.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ValueError(
                    f"another process runs the study in {self.path.parent}; wait for it, or stop it"
                ) from error
            yield
        finally:
            os.close(handle)

    @property
    def has_number(self) -> bool:
        """Whether a number was drawn."""
        return (self.path / "number").is_file()

    def keep_number(self, draw: Callable[[], int]) -> int:
        """Return the number of trials: the one that was drawn, or one that is drawn now, for good.

        Raises:
            ValueError: If the file does not hold a number.
            OSError: If it cannot be written; nothing is drawn twice then either.
        """
        file = self.path / "number"
        if not file.is_file():
            part = self.path / "number.part"
            part.unlink(missing_ok=True)
            _write(part, str(draw()))
            part.rename(file)
            _sync(self.path)
        text = file.read_text("ascii").strip()
        if not text.isdigit() or int(text) < 1:
            raise ValueError(f"{file} does not hold the number of trials; the study cannot go on")
        if (self.path / "state").is_file():
            self._state = json.loads((self.path / "state").read_text("utf-8"))
            self._settle()
        return int(text)

    @property
    def done(self) -> int:
        """Trials that were compared."""
        return int(self._state["done"])

    def settings(self, draw: Callable[[], Mapping[str, Option]]) -> Mapping[str, Option]:
        """Return the settings of the trial under way, drawn if there is none."""
        found = self._state["settings"]
        if found is None:
            shutil.rmtree(self.trial, ignore_errors=True)
            found = dict(draw())
            self._put(settings=found)
        return found

    def compare(self, score: float, tie: str) -> None:
        """Take a trial's score: its folder becomes the best one, or is removed.

        Args:
            score: The larger the better; minus infinity for none.
            tie: Decides between equal scores, without looking at which came first.
        """
        rank, best = [score, tie], self._state["best"]
        self._put(verdict={"rank": rank, "kept": best is None or rank > best})
        self._settle()

    def _settle(self) -> None:
        verdict = self._state["verdict"]
        if verdict is None:
            return
        if verdict["kept"] and self.trial.exists():
            shutil.rmtree(self.best, ignore_errors=True)
            self.trial.rename(self.best)
            _sync(self.path)
        elif not verdict["kept"]:
            shutil.rmtree(self.trial, ignore_errors=True)
        best = verdict["rank"] if verdict["kept"] else self._state["best"]
        self._put(done=self.done + 1, settings=None, best=best, verdict=None)

    def release(self, target: Path) -> None:
        """Put the best trial's folder where it is released, and remove all that is secret.

        Times of files are set to now: they would tell when in the study it was run.
        """
        if self.best.exists():
            for path in [self.best, *self.best.rglob("*")]:
                os.utime(path)
            self.best.rename(target)
            _sync(target.parent)
        shutil.rmtree(self.path, ignore_errors=True)

    def _put(self, **changes: Any) -> None:
        self._state |= changes
        part = self.path / "state.part"
        part.unlink(missing_ok=True)
        _write(part, json.dumps(self._state))
        part.replace(self.path / "state")
        _sync(self.path)


def _write(file: Path, text: str) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
