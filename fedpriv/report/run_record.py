"""The records of a run as its folder holds them, and what its ledger says of ε.

The ledger is the authority on charges: it also counts attempts that were lost and released
nothing, which `rounds.jsonl` cannot know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

from fedpriv import json_lines
from fedpriv.checkpoints.tensor_files import PUBLIC_MODELS
from fedpriv.measures import ACCURACY, MAJORITY, Measure, figures_of, read_measures
from fedpriv.privacy.accounting import rho_of
from fedpriv.privacy.epsilon import Epsilon
from fedpriv.privacy.ledger.state import LedgerState
from fedpriv.privacy.plan import AnyPlan, UnitWords, unit_words
from fedpriv.privacy.statement.coverage import USER_LOOP
from fedpriv.privacy.statement.sealed import DOCUMENT, LEDGER, SealedRun, read_object, read_sealed
from fedpriv.untrusted_text import is_device_name

Row = Mapping[str, Any]
DECIDED = "decided_"
"""Prefix of values that a method decided on, from what it had released."""
_Run = TypeVar("_Run", bound="RunRecord")


@dataclass(frozen=True, kw_only=True)
class RunRecord(SealedRun):
    """The contents of a run folder, read once: a sealed run and the records of its rounds.

    Attributes:
        attempts: Every line of `rounds.jsonl`: released values.
        diagnosed_attempts: Every line of `diagnostics.jsonl`: not covered by ε, empty in secure
            mode.
        summary: `summary.json`, empty while the run is under way.
        devices: For each time that it was started or resumed, the device that was asked for; None
            where none was. `backends.jsonl` has it, which the ledger does not seal.
    """

    attempts: tuple[Row, ...]
    diagnosed_attempts: tuple[Row, ...]
    summary: Row
    devices: tuple[str | None, ...] = ()

    @property
    def decided(self) -> tuple[str, ...]:
        """Names of columns of released rounds that say what the method decided."""
        return tuple(
            dict.fromkeys(key for row in self.released for key in row if key.startswith(DECIDED))
        )

    @property
    def described_options(self) -> Row:
        """The options, and where user-defined code runs in their place its name."""
        found = dict(self.options)
        for path, name in _mapping(self.description.get("user_defined")).items():
            found = {n: v for n, v in found.items() if n != path and not n.startswith(f"{path}.")}
            found[path] = f"user-defined: {name}"
        return found

    @property
    def plan(self) -> Row:
        """The plan, as written down before the first round."""
        return _mapping(self.description.get("plan"))

    @property
    def mechanism(self) -> Row:
        """The plan's mechanism as recorded; nothing of a plan that has none."""
        return _mapping(self.plan.get("mechanism"))

    @property
    def corpus(self) -> Row:
        """Which corpus and roster the run trained on."""
        return _mapping(self.description.get("corpus"))

    @property
    def title(self) -> str:
        """Its label, with the experiment's name behind it where that is another."""
        return self.name if self.label == self.name else f"{self.label} ({self.name})"

    @property
    def about(self) -> str:
        """The experiment's one-line description, or nothing."""
        return str(self.description.get("description") or "")

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Measures of the task, the headline first; also those that are diagnostics alone."""
        return read_measures(self.description)

    @property
    def figures(self) -> tuple[Measure, ...]:
        """Of these, what is released, compared and shown."""
        return figures_of(self.measures)

    @property
    def files(self) -> tuple[str, ...]:
        """Names of files that the task brought; one that is not a plain name here is left out."""
        found = sorted(map(str, _mapping(self.description.get("files"))))
        here = {path.name for path in self.folder.iterdir() if path.is_file()}
        return tuple(name for name in found if name in here)

    def baseline(self, measure: Measure, *, public: bool = False) -> float | None:
        """Return the accuracy of always answering the commonest class, where the task gives one.

        Args:
            measure: None of another than accuracy is known.
            public: Of the examples that released figures are measured on; else of rostered users'.
        """
        if measure.name != ACCURACY.name:
            return None
        return _mapping(self.description.get("baseline")).get(MAJORITY[public])

    def public_only(self, measure: Measure) -> float | None:
        """Return what the best model of public data alone reached, at ε = 0; None if not measured.

        It was measured on the very examples that the run's own figure was measured on.
        """
        return self._reference(f"{measure.name}_public_only")

    @property
    def gain(self) -> float | None:
        """Gain of the headline over public-only; None where that was not measured."""
        return self._reference("gain")

    def _reference(self, name: str) -> float | None:
        for found in (self.summary, _mapping(self.description.get("baseline"))):
            value = found.get(name)
            if isinstance(value, int | float) and math.isfinite(value):
                return float(value)
        return None

    @property
    def selection(self) -> Row:
        """Selection of the model that the run returns; empty where it is the last."""
        return _mapping(self.summary.get("selection"))

    @property
    def returns_public(self) -> bool:
        """Whether selection returned a model that public examples alone made."""
        return self.selection.get("selected") in PUBLIC_MODELS

    @property
    def aggregates(self) -> bool:
        """Whether values of rounds are of an aggregate of the models released by then."""
        return self.options.get("aggregate") not in (None, "none")

    @property
    def round_model(self) -> str:
        """Model that values of a round are of."""
        turn = self.words.turn
        if self.aggregates:
            return f"the '{self.options['aggregate']}' aggregate of each {turn}"
        return f"the model after each {turn}"

    @property
    def spent_all_the_same(self) -> str:
        """Remark on a returned model that public examples alone made; "" on any other."""
        if not self.returns_public or not self.private:
            return ""
        # Not that it saw no rostered user's data: public examples may equal theirs, and not every
        # task or mode looks for such.
        return (
            "ε was spent on training and holds of the checkpoints; the returned model is made of "
            "public examples alone"
        )

    def reached(self, name: str, rows: tuple[Row, ...]) -> float | None:
        """Return a figure of the returned model; of rounds their last where none was selected."""
        if not self.selection:
            return last_value(rows, name)
        value = self.summary.get(name)
        return None if value is None or not math.isfinite(value) else float(value)

    @property
    def settings(self) -> Row:
        """Options that were chosen from the data's size, and what they follow from; or nothing."""
        return _mapping(self.description.get("settings"))

    @property
    def given_options(self) -> Row:
        """Options that were given, without those chosen from the data's size."""
        chosen = self.settings.get("chosen")
        left = set(chosen) if isinstance(chosen, list) else set()
        return {name: value for name, value in self.options.items() if name not in left}

    @property
    def held_out(self) -> str:
        """Split and part that were held out, where recorded: others are not comparable."""
        split, where = self.options.get("task.split"), self.options.get("task.measured_on")
        if split is None:
            return ""
        return f"split {split}" + ("" if where in (None, "test") else f", measured on {where}")

    @property
    def user_loop(self) -> Row | None:
        """Progress of a user-defined loop, by its ledger; None of a run of an experiment."""
        return self.description.get(USER_LOOP)

    @property
    def device(self) -> str | None:
        """The device that was asked for (`--device`), the first of a run that changed it."""
        return self.devices[0] if self.devices else None

    @property
    def backend(self) -> str | None:
        """The backend in words, with every device that was asked for."""
        named = self.description.get("backend")
        if not any(self.devices):
            return named
        asked = [f"device {one}" if one else "no device" for one in dict.fromkeys(self.devices)]
        return f"{named}, {', then '.join(asked)}"

    @property
    def finished(self) -> bool:
        """Whether the run came to its end, early or not."""
        if self.user_loop is not None:
            return bool(self.user_loop["finished"])
        planned = self.rounds_planned
        return bool(self.summary) or (planned is not None and self.rounds_done >= planned)

    @property
    def released(self) -> tuple[Row, ...]:
        """One line a round, increasing; of a round that was redone, the last attempt."""
        return _last_by_round(self.attempts)

    @property
    def diagnosed(self) -> tuple[Row, ...]:
        """One diagnostic line a round, increasing; of a round that was redone, the last."""
        return _last_by_round(self.diagnosed_attempts)

    @property
    def simulated(self) -> bool:
        """Whether the noise came from a seed instead of a secure source."""
        return self.mode != "secure"

    @property
    def private(self) -> bool:
        """Whether the plan guarantees anything; noise may be added without a guarantee."""
        return self.state.plan.is_private

    @property
    def rounds_done(self) -> int:
        """Rounds released; of single examples not every one is written down."""
        if self.user_loop is not None:
            return int(self.user_loop["rounds_done"])
        if self.unit != "user":
            return int(self.released[-1]["round_num"]) if self.released else 0
        return len(self.released)

    @property
    def unit(self) -> str:
        """Unit of privacy: "user", "example" or "owner"."""
        return str(self.plan.get("unit") or "user")

    @property
    def words(self) -> UnitWords:
        """Words for those whom the plan is for, and whom figures are of."""
        words = unit_words(self.unit)
        if self.corpus.get("public_of_rostered"):
            words = replace(words, publicity="some equal rostered users', not covered by ε")
        return words if self.num_test_examples is None else replace(words, tested="test example")

    @property
    def num_test_examples(self) -> int | None:
        """Size of a test set that is of no rostered user and that diagnostics are measured on."""
        return self.corpus.get("num_test_examples")

    @property
    def rounds_planned(self) -> int | None:
        """Rounds planned; None of an adaptive plan, whose rounds are counted at its end."""
        planned = self.plan.get("num_rounds")
        return None if planned is None else int(planned)

    @property
    def last_round(self) -> int:
        """Last round of an axis: the last one planned, or done."""
        return max(self.rounds_planned or 0, self.rounds_done, 1)


def read_run(directory: str | Path, kind: type[_Run] = RunRecord) -> _Run:
    """Read a run folder, finished or under way; also that of a user-defined training loop.

    Args:
        directory: The folder.
        kind: What is returned.

    Raises:
        ValueError: If the folder is not a run, its document is not the one that its ledger seals,
            or a file in it is no JSON anywhere but in the last line, which a running or killed
            process may have torn.
    """
    directory = Path(directory)
    path, ledger = directory / DOCUMENT, directory / LEDGER
    if not path.is_file() and not ledger.is_file():
        raise ValueError(f"{directory} is not a run folder: it has no {DOCUMENT}, and no {LEDGER}")
    # What states values of the ledger is read before it: of a run under way it has them then.
    summary, finished = directory / "summary.json", dict[str, Any]()
    if summary.is_file():
        try:
            finished = read_object(summary)
        except ValueError as error:
            raise ValueError(f"{summary} cannot be read: {error}") from error
    attempts = tuple(json_lines.read(directory / "rounds.jsonl"))
    diagnostics = tuple(json_lines.read(directory / "diagnostics.jsonl"))
    sealed = read_sealed(directory)
    run = kind(
        folder=sealed.folder,
        records=sealed.records,
        state=sealed.state,
        document=sealed.document,
        attempts=attempts,
        diagnosed_attempts=diagnostics,
        summary=finished,
        devices=tuple(
            row["device"] if is_device_name(row.get("device")) else None
            for row in json_lines.read(directory / "backends.jsonl")
        ),
    )
    _ = run.description  # refuses a folder that lost its document
    return run


def points(rows: tuple[Row, ...], key: str) -> tuple[list[int], list[float]]:
    """Return rounds and values of a column, leaving out what was not measured or not finite."""
    found = [
        (int(row["round_num"]), float(row[key]))
        for row in rows
        if isinstance(row.get(key), int | float) and math.isfinite(row[key])
    ]
    return [x for x, _ in found], [y for _, y in found]


def last_value(rows: tuple[Row, ...], key: str) -> float | None:
    """Return the newest measured value of a column, or None."""
    values = points(rows, key)[1]
    return values[-1] if values else None


def _last_by_round(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    by_round = {int(row["round_num"]): row for row in rows if "round_num" in row}
    return tuple(by_round[round_num] for round_num in sorted(by_round))


def _mapping(value: object) -> Row:
    return value if isinstance(value, Mapping) else {}


def total_epsilon(run: RunRecord) -> Epsilon:
    """Return the ε after all planned rounds with δ, relation, unit and accountant."""
    return run.coverage.explained(run.state.plan.total())


def spent(run: RunRecord, round_num: int | None = None) -> Epsilon:
    """Return the ε spent so far, lost attempts included.

    Args:
        run: The run.
        round_num: Count charges up to the release of this round only, which is what covers its
            model; None counts all.

    Raises:
        ValueError: If the ledger has no release of the round.
    """
    state = run.state
    count = len(state.charges) if round_num is None else _charged_before(state).get(round_num)
    if count is None:
        raise ValueError(f"the ledger of {run.folder} has no release of round {round_num}")
    return run.coverage.explained(_epsilon(state.plan, count))


def rho_spent(run: RunRecord) -> tuple[list[int], list[float]]:
    """Return released rounds of an adaptive plan and ρ spent by then, lost attempts included."""
    state = run.state
    prices = (rho_of(charge.event, state.plan.relation) for charge in state.charges)
    spent, counts = [0.0, *accumulate(prices)], _charged_before(state)
    return list(counts), [spent[count] for count in counts.values()]


_MOST_PRICED = 20


def epsilon_spent(run: RunRecord) -> tuple[list[int], list[float]]:
    """Return about twenty released rounds and ε spent by then, by the ledger alone."""
    made = list(_charged_before(run.state).items())
    every = made[:: -max(1, math.ceil(len(made) / _MOST_PRICED))][::-1]
    return [n for n, _ in every], [_epsilon(run.state.plan, c).value for _, c in every]


def _charged_before(state: LedgerState) -> dict[int, int]:
    """Return how many charges there were when a round was released, for the last time."""
    made = zip(state.releases, state.charged_before, strict=True)
    return {release.round_num: count for release, count in made}


# A page asks for the same number several times; it takes a few tenths of a second.
@lru_cache(maxsize=256)
def _epsilon(plan: AnyPlan, num_charges: int) -> Epsilon:
    return plan.epsilon(num_charges)
