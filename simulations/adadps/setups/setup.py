"""A setup is a model on a data set, in the paper's way and in a careful one; tables are rows of it.

Column *as the paper ran it*: features as its text has them, micro-batches of 4, noise of σ C
although one example moves the sum by 2 C, and the clip norms and learning rates of Table 5 where it
gives them. What Table 5 does not have is searched; ε_s and its place are of the authors' code.
Column *as its code ran it*, where the authors' code has features that the text does not describe:
the same with those features, of the methods of Table 5 and those given settings.
Column *done right*: every example bounded alone, Poisson batches, and one grid for every method of
a family, searched on a tenth of the private training set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.options import Option
from fedpriv.measures import ACCURACY, Measure
from fedpriv.tasks.central import CentralTask
from simulations.reproduction.items import Cell, Layout, Row, Settings, Split, Table

#: Methods of one family see gradients of one scale, and so search the same learning rates.
Family = Literal["plain", "adaptive", "adagrad", "preconditioned", "divided later"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One row.

    Attributes:
        label: What it is called; with "(not private)" where nothing is guaranteed.
        options: Of the experiment, but for clip norm, learning rate and what a setup adds.
        family: Whose learning rates it searches.
        public: Whether it looks at public gradients, in batches of the setup's size.
        table5_as: Label of the method whose settings of Table 5 it has; none for its own.
    """

    label: str
    options: Mapping[str, Option] = field(default_factory=dict)
    family: Family = "plain"
    public: bool = False
    table5_as: str | None = None

    @property
    def is_private(self) -> bool:
        """Whether anything is guaranteed."""
        return "(not private)" not in self.label

    @property
    def divides(self) -> bool:
        """Whether it divides by moments, so that ε_s matters."""
        return self.options.get("preconditioner", "none") not in (
            "none",
            "side-information",
            "mirror-descent",
        )


_PLAIN: Mapping[str, Option] = {"noise": "none", "bound": "none"}
_NORMALISED = {"bound": "normalise", "bound.regulariser": 0.01}


def _guided(
    label: str,
    preconditioner: str,
    more: Mapping[str, Option] | None = None,
    *,
    public: bool = True,
) -> Method:
    return Method(
        label=label,
        options={**(more or {}), "preconditioner": preconditioner},
        family="preconditioned",
        public=public,
    )


def _knowing(label: str, kind: str, more: Mapping[str, Option] | None = None) -> Method:
    return Method(
        label=label,
        options={**(more or {}), "preconditioner": "side-information", "side-information": kind},
    )


METHODS: Mapping[str, Method] = {
    method.label: method
    for method in (
        Method(label="DP-SGD"),
        Method(label="DP-Adam", options={"optimizer": "adam"}, family="adaptive"),
        Method(label="DP-RMSProp", options={"optimizer": "rmsprop"}, family="adaptive"),
        Method(label="DP-AdaGrad", options={"optimizer": "adagrad"}, family="adagrad"),
        _guided("AdaDPS, public RMSProp", "public-rmsprop"),
        _guided("AdaDPS, public Adam", "public-adam"),
        _guided("AdaDPS, public AdaGrad", "public-adagrad"),
        # Algorithm 1 as it is written. The authors' code, as the other rows, looks once an epoch.
        replace(
            _guided("AdaDPS, public RMSProp, every step", "public-rmsprop", {"refresh": "step"}),
            table5_as="AdaDPS, public RMSProp",
        ),
        _knowing("AdaDPS, token frequency", "frequency"),
        _knowing("AdaDPS, TF-IDF", "tf-idf"),
        _knowing("AdaDPS, mean magnitude", "magnitude"),
        _knowing("AdaDPS, word rank", "rank"),
        Method(
            label="DP-R-Pub",
            options={"preconditioner": "r-pub"},
            family="divided later",
            public=True,
        ),
        Method(
            label="DP-Adam-Pub",
            options={"preconditioner": "r-pub", "optimizer": "ema-momentum"},
            family="divided later",
            public=True,
        ),
        Method(label="PDA-DPMD", options={"preconditioner": "mirror-descent"}),
        Method(label="DP-SGD, warm start", options={"warm-start-epochs": 20}),
        Method(label="DP²", options={"preconditioner": "delayed"}),
        Method(
            label="Scale, then privatise",
            options={"preconditioner": "past-releases", "optimizer": "adam"},
            family="adaptive",
        ),
        Method(label="DP-NSGD", options=_NORMALISED),
        Method(label="DP-NAdam", options={**_NORMALISED, "optimizer": "adam"}, family="adaptive"),
        _guided("ideal (not private)", "ideal", public=False),
        Method(label="SGD (not private)", options=_PLAIN),
        Method(
            label="Adam (not private)", options={**_PLAIN, "optimizer": "adam"}, family="adaptive"
        ),
        _guided("AdaS, public (not private)", "public-rmsprop", _PLAIN),
        _knowing("AdaS, token frequency (not private)", "frequency", _PLAIN),
        _knowing("AdaS, word rank (not private)", "rank", _PLAIN),
    )
}


Column = Literal["paper", "coded", "right"]
Rates = Mapping[Family, tuple[float, ...]]

#: Expected examples a step, of every setup.
BATCH = 64

COLUMNS: Mapping[Column, str] = {"paper": "as the paper ran it", "right": "done right"}


def experiment_of(
    name: str,
    title: str,
    column: Column,
    task: Callable[[], CentralTask],
    *,
    epochs: float,
    delta: float,
    **options: Option,
) -> Experiment:
    """Return one run of a setup, before its method.

    Args:
        name: Of the data and the model; the column is appended.
        title: In words, likewise.
        column: In the paper's ones micro-batches are of 4 examples.
        task: Makes it.
        epochs: Over batches of `BATCH`.
        delta: δ.
        options: Of the experiment.
    """
    paper = column != "right"
    return CentralExperiment(
        name=f"{name}-{column}",
        description=f"{title}, {'as the paper ran it' if paper else 'done right'}.",
        task=lambda chosen, corpus: task(),
        batch_size=BATCH,
        epochs=epochs,
        micro_batch=4 if paper else 1,
        delta=delta,
        eval_every=10**9,
    ).with_options(options)


def divided(
    *, paper: float, right: float, inside: bool = False, adaptivity: float = 1e-5
) -> Mapping[Column, Mapping[str, Option]]:
    """Return options of what divides by moments, by column.

    Args:
        paper: ε_s of the paper's columns, inside the root.
        right: ε_s of the careful one.
        inside: Whether it is inside the root there too.
        adaptivity: Of an adaptive optimiser.
    """

    def options(regulariser: float, inside: bool) -> Mapping[str, Option]:
        return {
            "preconditioner.regulariser": regulariser,
            "preconditioner.regulariser_inside": inside,
            "optimizer.adaptivity": adaptivity,
        }

    of_paper = options(paper, True)
    return {"paper": of_paper, "coded": of_paper, "right": options(right, inside)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A model on a data set, and what is searched on it.

    Attributes:
        key: Ends the names of its tables.
        title: Of it in their headings.
        columns: Headings of its tables' columns.
        base: From (column, split, reduced) to the experiment, before its method.
        measure: As in `Reproduction`.
        scale: Likewise.
        public: Options of every method that looks at public gradients, unless it has its own.
        divided: Options of every method that has them, likewise, by column.
        own: Options of single methods, by label; not of the reduced size, whose rounds are too few.
        table5: Clip norm and learning rate of the paper's Table 5, by label.
        table5_regularisers: ε_s searched with them by what divides by moments, by column; none
            for the experiment's own.
        regulariser: ε_s, in the paper's column, of what divides and is not in Table 5.
        rates: Learning rates by column and family.
        clips: Clip norms by family; "plain" for those not named.
        code_grids: By method, in the column as its code ran it, what is not in Table 5.
        unbounded: Learning rates of runs without bound are these times the family's.
        unbounded_too: Further learning rates of runs without bound, by column and family.
        paper_epsilon: As in `Reproduction`.
        seconds: A run takes on one core, about, in full and reduced.
        notes: A paragraph each.
    """

    key: str
    title: str
    columns: Mapping[Column, str] = field(default_factory=lambda: dict(COLUMNS))
    base: Callable[[Column, Split, bool], Experiment] = field(repr=False)
    measure: Measure = ACCURACY
    scale: float = 1.0
    public: Mapping[str, Option]
    divided: Mapping[Column, Mapping[str, Option]]
    own: Mapping[str, Mapping[str, Option]] = field(default_factory=dict)
    table5: Mapping[str, tuple[float, float]]
    table5_regularisers: Mapping[Column, tuple[float, ...]] = field(default_factory=dict)
    regulariser: float | None = None
    rates: Mapping[Column, Rates]
    clips: Mapping[Family, tuple[float, ...]]
    code_grids: Mapping[str, tuple[Settings, ...]] = field(default_factory=dict)
    unbounded: Mapping[Family, float] = field(default_factory=dict)
    unbounded_too: Mapping[Column, Rates] = field(default_factory=dict)
    paper_epsilon: str
    seconds: tuple[float, float]
    notes: tuple[str, ...]

    def rows(self, printed: Mapping[str, float | None]) -> tuple[Row, ...]:
        """Return the rows of methods; what the paper printed by label, None where it did not."""
        return tuple(self.row(label, paper) for label, paper in printed.items())

    def row(self, label: str, paper: float | None) -> Row:
        """Return a method's row, with a grid a column."""
        cells = {
            column: Cell(make=partial(self.make, label, column), grid=self.grid(label, column))
            for column in self.columns
            if column != "coded" or self.printed(label) is not None or label in self.code_grids
        }
        return Row(label=label, paper=paper, cells=cells)

    def make(self, label: str, column: Column, split: Split, reduced: bool) -> Experiment:
        """Return a method's experiment, before its clip norm and learning rate."""
        method = METHODS[label]
        public = self.public if method.public else {}
        own = {} if reduced else self.own.get(label, {})
        given = {**public, **method.options, **own}
        made = self.base(column, split, reduced).with_options(given)
        there = made.options()
        usual = {path: value for path, value in self.divided[column].items() if path in there}
        return made.with_options({**usual, **given})

    def printed(self, label: str) -> Settings | None:
        """Return a method's clip norm and learning rate in Table 5; None where it has none."""
        found = self.table5.get(METHODS[label].table5_as or label)
        return None if found is None else {"l2-clip-norm": found[0], "learning-rate": found[1]}

    def grid(self, label: str, column: Column) -> tuple[Settings, ...]:
        """Return the settings a method is searched over; the paper's own where it gives them."""
        method, printed = METHODS[label], self.printed(label)
        if column != "right" and printed is not None:
            tried = self.table5_regularisers.get(column)
            if not method.divides or tried is None:
                return (printed,)
            return tuple({**printed, "regulariser": value} for value in tried)
        if column == "coded":
            return self.code_grids[label]
        given: Settings = {}
        if column == "paper" and method.divides and self.regulariser is not None:
            given = {"regulariser": self.regulariser}
        rates = self.rates[column][method.family]
        if method.options.get("bound") == "none":
            factor = self.unbounded.get(method.family, 1.0)
            tried = (
                *self.unbounded_too.get(column, {}).get(method.family, ()),
                *(rate * factor for rate in rates),
            )
            return tuple({"learning-rate": rate, **given} for rate in tried)
        clips = self.clips.get(method.family, self.clips["plain"])
        return tuple(
            {"l2-clip-norm": clip, "learning-rate": rate, **given}
            for clip in clips
            for rate in rates
        )


def table(
    name: str,
    title: str,
    setup: Setup,
    rows: tuple[Row, ...],
    *,
    orderings: tuple[tuple[str, str], ...] = (),
    notes: tuple[str, ...] = (),
    points: int = 0,
) -> Table:
    """Return a table of rows on a setup, or a figure of their curves.

    Args:
        name: Of the table; the setup's key is appended.
        title: Likewise.
        setup: What the rows are run on, or variants of it.
        rows: As `Setup.rows` makes them.
        orderings: Of which label ahead of which; where the paper printed both, and not the same.
        notes: After the setup's.
        points: Of a curve; 0 for a table.
    """
    printed = {row.label: row.paper for row in rows}
    return Table(
        name=f"{name}-{setup.key}",
        title=f"{title}: {setup.title}",
        measure=setup.measure,
        scale=setup.scale,
        columns={c: n for c, n in setup.columns.items() if any(c in row.cells for row in rows)},
        rows=rows,
        points=points,
        paper_epsilon=setup.paper_epsilon,
        orderings=tuple(
            (one, other)
            for one, other in orderings
            if _is_ahead(setup, printed.get(one), printed.get(other))
        ),
        minutes=(_minutes(rows, setup.seconds[0]), _minutes(rows, setup.seconds[1])),
        notes=(*setup.notes, *notes),
        layout=Layout(choices=not points),
    )


def _is_ahead(setup: Setup, one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return False
    return one > other if setup.measure.higher_is_better else one < other


_SEEDS, _CORES = 3, 2


def _minutes(rows: tuple[Row, ...], seconds: float) -> float:
    """Return how long rows take, about: every setting once, and every cell for each seed."""
    cells = [cell for row in rows for cell in row.cells.values()]
    runs = sum(len(cell.grid) if len(cell.grid) > 1 else 0 for cell in cells) + _SEEDS * len(cells)
    return max(1, math.ceil(runs * seconds / 60 / _CORES))
