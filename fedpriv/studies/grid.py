"""A study of an experiment over a grid of options: each trial draws one cell, evenly by chance."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.build import build, in_study
from fedpriv.experiments.experiment import Components, Experiment
from fedpriv.experiments.options import Option
from fedpriv.measures import Measure
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.privacy.trials import Trials
from fedpriv.rng import Key
from fedpriv.runs.document import write_json
from fedpriv.runs.prepared import start_or_resume
from fedpriv.studies.private_selection import Score, private_study
from fedpriv.tasks.checks import public_of_rostered

MOST_CELLS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GridStudy:
    """Settings that a study tries and the measure that it compares; all of it public.

    Attributes:
        experiment: What is run in every trial; the grid changes some of its options.
        reference: The name under which it is found again, if it has one.
        corpus: Its corpus; None for tasks that bring their own data.
        grid: Values to try, by option name.
        trials: The law of the number of trials.
        measure: By which figure trials are compared, such as "accuracy_public"; None for the
            task's first. Only what was released will do: it is measured on public examples.
        secure: Entropy from the operating system instead of the experiment's seed.

    Guarantees:
        * Every trial has one plan but for its bound: the same events, rounds, relation and δ. So
          ε of the study is that of any of its trials' plans.

    Raises:
        ValueError: If an option or value does not fit, the grid is empty or has a cell whose plan
            is another, there is no noise, or the figure is not a released one.
    """

    experiment: Experiment
    reference: str | None
    corpus: Corpus | None
    grid: Mapping[str, Sequence[Option]]
    trials: Trials
    measure: str | None = None
    secure: bool = False

    def __post_init__(self) -> None:
        number = 1
        for name, values in self.grid.items():
            if name == "seed":
                raise ValueError("seed is not for a grid: every trial has chance of its own")
            if not values:
                raise ValueError(f"grid {name} has no values; give some")
            number *= len(values)
        if not self.grid or number > MOST_CELLS:
            raise ValueError(
                f"a grid of {number if self.grid else 0} cells is not of 1 to {MOST_CELLS:,}; give "
                "options with a few values each"
            )

    def run(self, out: Path) -> Path:
        """Run the study, or go on with it, and return the folder of the released run.

        Nothing is shown of how far it is: that would tell how many trials there are.

        Raises:
            ValueError: As of `private_study` and of the class.
        """
        measure = self._checked()
        seed = None if self.secure else self.experiment.seed
        root = Key.secure() if seed is None else Key.simulation(seed).fold("study")
        released = private_study(
            out,
            trials=self.trials,
            draw=self._drawn,
            run=self._trial,
            score=lambda folder: _score(folder, measure),
            root=root,
            facts={
                "experiment": self.experiment.name,
                "reference": self.reference,
                "options": self.experiment.options(),
                "grid": {name: list(values) for name, values in self.grid.items()},
                "score": measure.released_name,
                "higher_is_better": measure.higher_is_better,
                "seed": seed,
            },
        )
        _finish(out, released)
        return released

    def _cells(self) -> list[dict[str, Option]]:
        return [dict(zip(self.grid, cell, strict=True)) for cell in product(*self.grid.values())]

    def _drawn(self, key: Key) -> Mapping[str, Option]:
        cells = self._cells()
        if key.mode == "secure":
            return cells[secrets.randbelow(len(cells))]
        return cells[int(key.generator().integers(len(cells)))]

    def _checked(self) -> Measure:
        """Return what trials are compared by, after every cell was looked at."""
        first = None
        for cell in self._cells():
            made = self._components(self.experiment.with_options(cell))
            if first is None:
                first = made
            if _charges_of(made) != _charges_of(first):
                said = ", ".join(f"{name} {value}" for name, value in cell.items())
                raise ValueError(
                    f"with {said} a round costs something else than with the first values of the "
                    "grid, and ε is of trials of equal cost; try options that leave the cohort, "
                    "the rounds and the noise multiplier as they are"
                )
        assert first is not None
        if not first.plan.is_private:
            raise ValueError(
                f"{self.experiment.name} adds no noise, and its trials have no ε that a choice "
                "could add to; run them one by one, or add noise"
            )
        return self._measure(first)

    def _components(self, experiment: Experiment) -> Components:
        return in_study(experiment, build(experiment, self.corpus), self.trials)

    def _measure(self, made: Components) -> Measure:
        equal = 0
        if not self.secure:
            found = public_of_rostered(made.task, learnt_from=False)
            equal = found.get("public_of_rostered", 0)
        return released_measure(made.task.measures, self.measure, equal)

    def _trial(self, settings: Mapping[str, Option], folder: Path, key: Key) -> None:
        options = dict(settings)
        if not self.secure:
            options["seed"] = int.from_bytes(key.fold("seed").to_bytes()[:4], "big")
        experiment = self.experiment.with_options(options)
        prepared = start_or_resume(
            experiment,
            self.reference,
            self.corpus,
            folder,
            secure=self.secure,
            trials=self.trials,
        )
        prepared.run(ends_if_all_fail=False)  # a setting that diverges is a bad one, and no error


def released_measure(measures: Sequence[Measure], score: str | None, equal: int) -> Measure:
    """Return the measure that trials are compared by: a released one, of public examples.

    Args:
        measures: Of the task, the headline first.
        score: Its released name; None for the first.
        equal: How many public examples equal rostered users'.

    Raises:
        ValueError: If it is measured on those whom ε protects, or is unknown.
    """
    released = {one.released_name: one for one in measures if not one.diagnostic_only}
    if not released:
        raise ValueError("the task measures nothing on public examples to compare by")
    name = next(iter(released)) if score is None else score
    if name in {one.name for one in measures} - set(released):
        raise ValueError(
            f"score {name!r} is measured on those whom ε protects and was not charged, so no "
            f"ε would cover a choice by it; compare by {', '.join(released)}"
        )
    if name not in released:
        raise ValueError(f"score {name!r} is unknown; compare by one of {', '.join(released)}")
    if equal:
        raise ValueError(
            f"{name} is measured on public examples of which {equal} equal rostered users', so "
            "that no ε would cover a choice by it; take other public examples"
        )
    return released[name]


def _charges_of(made: Components) -> tuple[Any, ...]:
    """Return what the charges of an experiment are, and of whom."""
    plan = made.plan
    assert isinstance(plan, Plan)  # `in_study` refuses others
    return (
        *(plan.event, plan.num_rounds, plan.relation, plan.delta, plan.unit, plan.trials),
        *(plan.target_epsilon, plan.num_users, plan.roster_sha256, plan.charged_once),
    )


def _score(folder: Path, measure: Measure) -> Score:
    """Return the released figure of a trial, which is on public examples."""
    value = json.loads((folder / "summary.json").read_text("utf-8")).get(measure.released_name)
    if value is not None and not measure.higher_is_better:
        value = -value
    return Score(value=value, source="public")


def _finish(out: Path, released: Path) -> None:
    """Write down where the released run is, and the ε of the study."""
    spent = verify_run(released).epsilon
    stated = json.loads((out / "study.json").read_text("utf-8"))
    privacy = None if spent is None else spent.to_json()
    if stated.get("privacy") != privacy:
        write_json(out / "study.json", {**stated, "privacy": privacy})
