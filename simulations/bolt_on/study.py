"""Bolt-on: what is tuned, what is run, and what is found; see `simulations.bolt_on.command`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import mean
from typing import Any

import numpy as np

from fedpriv.runs.progress import Pace
from simulations.bolt_on.methods import (
    EPSILONS,
    GRIDS,
    HUBER_GRID,
    METHODS,
    OF_ONE_LINE,
    PASSES,
    Guarantee,
    Settings,
    model_of,
    perform,
    spec,
)
from simulations.linear_models.problems import problem
from simulations.linear_models.references import majority, not_private, public_only, softmax_fit
from simulations.linear_models.store import Row, Store

#: Comparators with noise in every step keep the settings that were best in one pass.
TUNED_IN_ONE_PASS = ("scs13", "bst14", "dp-sgd")
#: Beyond five passes they are run at these ε only: a run of them asks a question a batch.
LONG_RUNS = (0.1, 1.0, 4.0)

Cell = tuple[Guarantee, str, float, int]  # method, ε, passes


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One loss on one problem.

    Attributes:
        problem_key: Its name.
        loss: "softmax", "one-vs-all", "logistic" or "huber".
        store: Of finished runs.
        seeds: How many are reported; of methods that are noised in every step 3 at most beyond
            one pass.
        epsilons: At which.
        passes: k.
        tiny: Made-up data and a grid of two, to see whether everything runs.
    """

    problem_key: str
    loss: str
    store: Store
    seeds: int = 5
    epsilons: Sequence[float] = EPSILONS
    passes: Sequence[int] = PASSES
    tiny: bool = False

    def grid(self, method: str) -> tuple[Settings, ...]:
        """Return the settings that a method chooses from."""
        huber = self.loss == "huber" and method == "bolt-on"
        grid = HUBER_GRID if huber else GRIDS[method]
        return grid[1:3] if self.tiny else grid

    def methods(self, guarantee: Guarantee, passes: int) -> tuple[str, ...]:
        """Return the methods under a guarantee; objective perturbation has no passes."""
        whole = self.loss in OF_ONE_LINE and passes == self.passes[0]
        return tuple(name for name in METHODS[guarantee] if whole or name != "objective")

    def chosen(
        self, guarantee: Guarantee, method: str, epsilon: float, passes: int, **rest: Any
    ) -> tuple[Settings, list[float]]:
        """Return the settings that are best on the validation part, and what all of them reach."""
        if method in TUNED_IN_ONE_PASS:
            passes = 1
        found = [
            self.row(guarantee, method, epsilon, passes, settings, split="validation", **rest)[
                "accuracy"
            ]
            for settings in self.grid(method)
        ]
        return self.grid(method)[found.index(max(found))], found

    def cell(
        self, guarantee: Guarantee, method: str, epsilon: float, passes: int, **rest: Any
    ) -> list[Row]:
        """Return the reported runs of a method; none where a long one is left out."""
        slow = method in TUNED_IN_ONE_PASS
        if slow and passes > 5 and epsilon not in LONG_RUNS:
            return []
        settings, _ = self.chosen(guarantee, method, epsilon, passes, **rest)
        few = slow and passes > 1
        return [
            self.row(guarantee, method, epsilon, passes, settings, seed=seed, **rest)
            for seed in range(min(self.seeds, 3) if few else self.seeds)
        ]

    def row(
        self,
        guarantee: Guarantee | None,
        method: str,
        epsilon: float,
        passes: int,
        settings: Settings,
        **rest: Any,
    ) -> Row:
        """Return one run."""
        asked = spec(
            self.problem_key, self.loss, guarantee, method, epsilon, passes, settings,
            tiny=self.tiny, **rest,
        )  # fmt: skip
        return self.store.row(asked, perform)

    def references(self) -> dict[str, float]:
        """Return the rows that every table has."""
        own = problem(self.problem_key, tiny=self.tiny)
        asked = {"problem": self.problem_key, "references": True, "tiny": self.tiny}

        def found(_: object) -> Row:
            return {
                "majority class": majority(own.data),
                "public examples alone (ε = 0)": public_only(own.data, own.num_classes),
                "not private": not_private(own.data, own.num_classes),
                "num_train": own.data.num_train,
                "num_public": own.data.num_public,
            }

        row = self.store.row(asked, found)
        return {name: value for name, value in row.items() if name != "spec"}

    def excess(
        self, guarantee: Guarantee, method: str, epsilon: float, passes: int, rows: int
    ) -> list[float]:
        """Return excess risk on so many training rows, of the setting with the least of it.

        The setting is chosen by the same figure on a seed of its own: a diagnostic, not private.
        """
        model = model_of(self.problem_key, self.loss, "test", rows, self.tiny)
        fitted = softmax_fit(np.asarray(model.data.x_train), model.data.y_train, 2, 1e-9)
        best = {
            "weight": fitted["kernel"][:, 1] - fitted["kernel"][:, 0],
            "bias": fitted["bias"][1:] - fitted["bias"][:1],
        }
        least = model.mean_loss({n: a.astype(np.float32) for n, a in best.items()})

        def objective(settings: Settings, **rest: Any) -> float:
            done = self.row(guarantee, method, epsilon, passes, settings, rows=rows, **rest)
            return float(done["objective"])

        chosen = min(self.grid(method), key=objective)
        return [objective(chosen, seed=seed) - least for seed in range(self.seeds)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a study came to.

    Attributes:
        title: Of the problem.
        loss: Of the models.
        data: What its data are called.
        synthetic: Whether they were made up.
        references: Rows of one figure each.
        cells: Reported runs.
        grids: Accuracies of all settings on the validation part.
    """

    title: str
    loss: str
    data: str
    synthetic: bool
    references: Mapping[str, float]
    cells: Mapping[Cell, Sequence[Row]] = field(repr=False)
    grids: Mapping[Cell, Sequence[float]] = field(repr=False)

    def best(self, guarantee: Guarantee, method: str, epsilon: float) -> tuple[int, Sequence[Row]]:
        """Return the number of passes with the best mean, and its runs."""
        found = [
            (passes, rows)
            for (own, name, e, passes), rows in self.cells.items()
            if (own, name, e) == (guarantee, method, epsilon) and rows
        ]
        return max(found, key=lambda pair: mean(row["accuracy"] for row in pair[1]))


def found(study: Study) -> Found:
    """Do what a study still needs, and return what it came to."""
    own = problem(study.problem_key, tiny=study.tiny)
    cells: dict[Cell, Sequence[Row]] = {}
    grids: dict[Cell, Sequence[float]] = {}
    places: list[Cell] = [
        (guarantee, method, epsilon, passes)
        for passes in study.passes
        for guarantee in METHODS
        for method in study.methods(guarantee, passes)
        for epsilon in study.epsilons
    ]
    # Passes, as a cell of ten takes about ten times as long as one of one.
    total = sum(passes for *_, passes in places)
    pace = Pace(total, of="passes", rows=study.store.rows)
    for place in places:
        said = f"{study.problem_key} {study.loss} {place}"
        cells[place] = pace.work(said, partial(study.cell, *place), counts=place[-1])
        _, grids[place] = study.chosen(*place)
    return Found(
        title=own.title,
        loss=study.loss,
        data=own.data.name,
        synthetic=own.data.synthetic,
        references=study.references(),
        cells=cells,
        grids=grids,
    )
