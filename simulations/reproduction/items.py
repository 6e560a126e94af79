"""What is reproduced: a table or a figure, its methods, and how their values come about."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.options import Option
from fedpriv.measures import ACCURACY, Measure

Split = Literal["validation", "test"]
Settings = Mapping[str, Option]

#: A seed that no table reports.
TUNING_SEED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """How one figure comes about.

    Attributes:
        make: From (split, reduced) to the experiment, before its settings; its task brings the
            data, a federated one's its corpus.
        grid: Settings to choose from; a single one is taken as it is.
        tuned_as: Takes over the settings of another cell instead of choosing from a grid.
        adapt: What is made of settings that are taken over.
    """

    make: Callable[[Split, bool], Experiment] = field(repr=False)
    grid: tuple[Settings, ...] = ({},)
    tuned_as: Cell | None = None
    adapt: Callable[[Settings], Settings] = field(default=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One method.

    Attributes:
        label: Its name.
        paper: What the paper printed; None where it did not.
        cells: By column.
    """

    label: str
    paper: float | None = None
    cells: Mapping[str, Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A row of figures that no run of the table made, as of public data alone.

    Attributes:
        label: What it is.
        figures: By column, before they are scaled; a column may be left out.
    """

    label: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Columns that stand together, in a page or in a plot.

    Attributes:
        title: Above them.
        columns: Headings by key, as they are called there.
    """

    title: str
    columns: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a table is printed and drawn.

    Attributes:
        digits: Behind the point.
        spread: What stands behind ±: the standard "deviation" over seeds, or half the 95 %
            t-"interval" of their mean.
        bold_best: Whether the best mean of a column is bold, among what is private.
        sections: Tables of the page, one below the other; none for one of all columns.
        panels: Of the plot, side by side; likewise.
        choices: Whether the page lists the settings that were chosen, and the grid.
    """

    digits: int = 3
    spread: Literal["deviation", "interval"] = "deviation"
    bold_best: bool = False
    sections: tuple[Block, ...] = ()
    panels: tuple[Block, ...] = ()
    choices: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """One table.

    Attributes:
        name: What `fedpriv reproduce` calls it.
        title: Of the table.
        measure: What is measured; it says whether the higher is the better.
        scale: What the measure is multiplied by in the table, as the paper prints it.
        measured_on: Which examples it is of, in words.
        columns: Headings by key.
        rows: Methods.
        given: Rows above them that were measured elsewhere; a note says where.
        paper_epsilon: The ε as the paper counted it, with where that is known from.
        orderings: Pairs of labels of which the paper has the first ahead of the second.
        minutes: How long it takes on 2 cores, about, and reduced.
        notes: What a reader has to know, a paragraph each.
        layout: How it is printed and drawn.
    """

    kind: ClassVar[Literal["table"]] = "table"

    name: str
    title: str
    measure: Measure = ACCURACY
    scale: float = 1.0
    measured_on: str = "test"
    columns: Mapping[str, str]
    rows: tuple[Row, ...]
    given: tuple[Given, ...] = ()
    paper_epsilon: str
    orderings: tuple[tuple[str, str], ...] = ()
    minutes: tuple[float, float]
    notes: tuple[str, ...] = ()
    layout: Layout = field(default_factory=Layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure: a measure over the steps.

    Attributes:
        name: What `fedpriv reproduce` calls it.
        title: Of the figure.
        measure: What is measured; it says whether the higher is the better.
        scale: What the measure is multiplied by.
        columns: Headings by key; one panel each.
        series: Methods, one curve each in every panel that they have a cell of.
        points: How many points a curve has, at most; the last is at the last step.
        minutes: How long it takes on 2 cores, about, and reduced.
        notes: What a reader has to know, a paragraph each.
    """

    kind: ClassVar[Literal["figure"]] = "figure"
    layout: ClassVar[Layout] = Layout()

    name: str
    title: str
    measure: Measure = ACCURACY
    scale: float = 1.0
    columns: Mapping[str, str]
    series: tuple[Row, ...]
    points: int = 20
    minutes: tuple[float, float]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.points < 1:
            raise ValueError(f"{self.name}: a curve of {self.points} points; give at least 1")

    @property
    def rows(self) -> tuple[Row, ...]:
        """The series, as a table calls them."""
        return self.series


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A figure that a program of its own makes: it is listed, and run by name, with the others.

    Attributes:
        name: What `fedpriv reproduce` calls it.
        title: Of the figure.
        module: Has `main(arguments)`.
        calls: Arguments of each call, one after the other; empty where a person has to choose.
        reduced: Likewise, in the size that takes minutes; empty where there is none.
        minutes: How long it takes on 2 cores, about, and reduced.
        passes: Options of `fedpriv reproduce` that it takes too, by name.
    """

    kind: ClassVar[Literal["script"]] = "script"

    name: str
    title: str
    module: str
    calls: tuple[tuple[str, ...], ...]
    reduced: tuple[tuple[str, ...], ...] = ()
    minutes: tuple[float, float]
    passes: tuple[str, ...] = ()

    def run(self, *, reduced: bool = False, given: Mapping[str, object] | None = None) -> None:
        """Run the program.

        Args:
            reduced: Whether in the size that takes minutes.
            given: Options by name; those of `passes` that are not None are handed on.

        Raises:
            ValueError: If it needs options of its own, or has no reduced size.
        """
        calls = self.reduced if reduced else self.calls
        if not calls:
            why = "has no reduced size" if reduced else "needs options of its own"
            raise ValueError(f"{self.name} {why}; see `python -m {self.module} --help`")
        values = {name: (given or {}).get(name) for name in self.passes}
        more = [text for n, v in values.items() if v is not None for text in (f"--{n}", str(v))]
        main = importlib.import_module(self.module).main
        for arguments in calls:
            main([*more, *arguments])  # what makes it small comes last, and holds


Item = Reproduction | Figure
AnyItem = Item | Script
