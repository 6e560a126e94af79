"""A private study: a random number of trials, with settings drawn at random; the best is released.

The guarantee (Papernot and Steinke 2022, arXiv:2110.03620) rests on four things, all of which are
done here and not left to the caller:

* the number of trials is drawn once from the law that the accountant is given, from the operating
  system's entropy (in a simulation from a seed, and labelled so), written down before the first
  trial and never drawn again, whatever crashes;
* settings are drawn by a law of their own, which looks at no data, for every trial by itself;
* nothing leaves a trial but the run folder of the best one: no number, no losing folder, no score,
  no log, no order;
* what is compared is public or was charged: a score on those whom the plan protects is refused.

How long a study takes is not hidden.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from fedpriv.checkpoints.tensor_files import sync_directory
from fedpriv.experiments.options import Option
from fedpriv.output_paths import write_private
from fedpriv.privacy.trials import Trials
from fedpriv.rng import Key
from fedpriv.runs.document import write_json
from fedpriv.studies.record import held

Source = Literal["public", "charged"]
RUN = "run"
"""Folder of the released run, within that of the study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Score by which a trial is compared.

    Attributes:
        value: The larger the better; None, NaN or infinite where there is no figure, which loses.
        source: Of what it was computed: "public" data, or of answers that the trial's own ledger
            "charged".

    Raises:
        ValueError: If it was computed of anything else: no ε would cover the choice.
    """

    value: float | None
    source: Source

    def __post_init__(self) -> None:
        if self.source not in get_args(Source):
            raise ValueError(
                f"a score of source {self.source!r} was neither public nor charged, and choosing "
                "by it is covered by no ε; score released figures on public examples, or answers "
                "that were charged"
            )

    @property
    def rank(self) -> float:
        """The value, minus infinity where there is none."""
        return -math.inf if self.value is None or not math.isfinite(self.value) else self.value


def private_study(
    out: Path,
    *,
    trials: Trials,
    draw: Callable[[Key], Mapping[str, Option]],
    run: Callable[[Mapping[str, Option], Path, Key], None],
    score: Callable[[Path], Score],
    root: Key,
    facts: Mapping[str, Any],
) -> Path:
    """Run a study, or go on with one that was interrupted, and return the released run's folder.

    Args:
        out: The study's folder. Its `study.json` is public, and `run/` once all is done; what is
            under `secret/` until then is not.
        trials: The law of the number of trials. The plan of every trial has it too.
        draw: Draws the settings of a trial, and looks at no private data.
        run: Runs a trial to its end in the folder given, or goes on with the run that is there;
            the key is the trial's own.
        score: Scores a finished trial.
        root: Where chance comes from, of the study: `Key.secure()`, or of a simulation's seed.
        facts: What else `study.json` says; public, the same whenever the study is gone on with.

    Guarantees:
        * The number of trials is drawn once, and is in no message, no name and no released file.
        * A trial whose score is worse is removed as soon as it was compared.

    Raises:
        ValueError: If the folder holds another study, one whose number was lost, or a score is
            refused; or the law may run nothing.
    """
    if trials.is_poisson:
        raise ValueError(
            "under the Poisson law a study may run nothing and release nothing; give a shape such "
            "as 1"
        )
    target, state = out / RUN, SecretState(out)
    stated = {
        "format": "fedpriv-private-selection",
        "trials": trials.to_json(),
        "mode": root.mode,
        **facts,
    }
    started = _check_same(out, stated)
    if target.exists() and not started:
        raise ValueError(f"{target} is there already and of no study; give another folder")
    if started and not target.exists() and not state.has_number:
        raise ValueError(
            f"{out} holds a study whose number of trials is gone, and another one may not be "
            "drawn: ε is of one draw; start a new study, whose ε comes on top"
        )
    with held(state.path, mode=0o700):
        started = _check_same(out, stated)  # another process may have begun, or ended it
        if target.exists():  # all was compared; of what is secret a crash may have left something
            state.release(target)
            return target
        number = state.keep_number(lambda: trials.number(_bits(root)))
        if not started:
            write_json(out / "study.json", stated)
        while state.done < number:
            key = _of_trial(root, state.done)
            settings = state.settings(lambda key=key: draw(key.fold("settings")))
            run(settings, state.trial, key)
            state.compare(score(state.trial).rank, key.fold("tie").to_bytes().hex())
        state.release(target)
    return target


def _check_same(out: Path, stated: Mapping[str, Any]) -> bool:
    """Return whether the study was begun.

    Raises:
        ValueError: If it was, as another one.
    """
    file = out / "study.json"
    if not file.is_file():
        return False
    found = json.loads(file.read_text("utf-8"))
    shown = json.loads(json.dumps(stated))
    odd = sorted(name for name in shown if found.get(name) != shown[name])
    if odd:
        raise ValueError(
            f"{out} holds a study with another {', '.join(odd)}; give what it was started with, or "
            "another folder"
        )
    return True


def _bits(root: Key) -> Callable[[int], int]:
    """Return what gives random bits: of the operating system, or of a simulation's seed."""
    if root.mode == "secure":
        return secrets.randbits
    value = int.from_bytes(root.fold("number of trials").to_bytes(), "big")
    return lambda bits: value >> (256 - bits)


def _of_trial(root: Key, number: int) -> Key:
    """Return the key of a trial: fresh, or in a simulation the same after a crash."""
    return Key.secure() if root.mode == "secure" else root.fold("trial").fold(number)


class SecretState:
    """The secret part of a study's folder; every change is on disk before it is acted upon.

    ==============  ===============================================================================
    secret/number   how many trials; written once, before the first, and never drawn again
    secret/state    trials done, the settings of the one under way, the rank of the best so far
    secret/trial/   the run folder of the trial under way
    secret/best/    that of the best so far
    ==============  ===============================================================================

    All of it is readable by its owner alone, and removed with the end of the study. The folder of a
    trial says nothing of which it is, so that what is released does not say it either.
    """

    def __init__(self, out: Path) -> None:
        """Take a study's folder, in which there may be nothing secret yet."""
        self.path = out / "secret"
        self.trial, self.best = self.path / "trial", self.path / "best"
        self._state: dict[str, Any] = {"done": 0, "settings": None, "best": None, "verdict": None}

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
            write_private(file, str(draw()))
            sync_directory(self.path)
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
            sync_directory(self.path)
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
            sync_directory(target.parent)
        shutil.rmtree(self.path, ignore_errors=True)

    def _put(self, **changes: Any) -> None:
        self._state |= changes
        write_private(self.path / "state", json.dumps(self._state))
        sync_directory(self.path)
