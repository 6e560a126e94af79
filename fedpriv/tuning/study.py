"""A private study: a random number of trials, each with settings drawn anew; the best is released.

What is promised (Papernot and Steinke 2022, arXiv:2110.03620) holds because of four things, all of
which are done here and not left to the caller:

* the number of trials is drawn once from the law that the accountant is told, from the operating
  system's entropy (in a simulation from a seed, and labelled so), written down before the first
  trial and never drawn again, whatever crashes;
* settings are drawn by a law of their own, which looks at no data, anew for every trial;
* nothing leaves a trial but the run folder of the best one: no number, no losing folder, no score,
  no log, no order;
* what is compared is public or was charged: a score on those whom the plan protects is refused.

How long a study takes is not hidden.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from fedpriv.experiments.options import Option
from fedpriv.privacy.trials import Trials
from fedpriv.rng import Key
from fedpriv.runs.document import write_json
from fedpriv.tuning.secret_state import SecretState

Source = Literal["public", "charged"]
RUN = "run"
"""Folder of the released run, within that of the study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a trial is compared by.

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
    stated = {"format": "fedpriv-study", "trials": trials.to_json(), "mode": root.mode, **facts}
    started = _check_same(out, stated)
    if target.exists() and not started:
        raise ValueError(f"{target} is there already and of no study; give another folder")
    if target.exists():  # all was compared; of what is secret a crash may have left something
        state.release(target)
        return target
    if started and not state.has_number:
        raise ValueError(
            f"{out} holds a study whose number of trials is gone, and another one may not be "
            "drawn: ε is of one draw; start a new study, whose ε comes on top"
        )
    with state.held():
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
