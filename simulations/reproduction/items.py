"""What `python -m simulations` runs: tables and figures of runs, and studies of a function."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.options import Option
from fedpriv.measures import ACCURACY, Measure
from simulations.reproduction.study import reduced_size

Split = Literal["validation", "test"]
Settings = Mapping[str, Option]

#: A seed that no table reports.
TUNING_SEED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Runs that give one value of a table.

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
    """Format of a table and its plot.

    Attributes:
        digits: Behind the point.
        spread: What is behind ±: the standard "deviation" over seeds, or half the 95 %
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
class Table:
    """A table of methods, or a figure of the same: a measure over the steps.

    Attributes:
        name: What the command calls it.
        title: Of the table.
        measure: What is measured; it says whether the higher is the better.
        scale: What the measure is multiplied by, as the paper prints it.
        measured_on: Which examples it is of, in words.
        columns: Headings by key; of a figure one panel each.
        rows: Methods; of a figure one curve each in every panel that they have a cell of.
        points: How many points a curve has, at most, the last at the last step; 0 for a table.
        paper_epsilon: The ε as the paper counted it, with where that is known from.
        orderings: Pairs of labels of which the paper has the first ahead of the second.
        minutes: How long it takes on 2 cores, about, and reduced; one number where there is no
            reduced size.
        notes: What a reader has to know, a paragraph each.
        layout: How it is printed and drawn.
    """

    name: str
    title: str
    measure: Measure = ACCURACY
    scale: float = 1.0
    measured_on: str = "test"
    columns: Mapping[str, str]
    rows: tuple[Row, ...]
    points: int = 0
    paper_epsilon: str = ""
    orderings: tuple[tuple[str, str], ...] = ()
    minutes: tuple[float, ...]
    notes: tuple[str, ...] = ()
    layout: Layout = field(default_factory=Layout)

    @property
    def has_reduced(self) -> bool:
        """Whether there is a size that takes minutes."""
        return len(self.minutes) > 1

    @property
    def kind(self) -> Literal["table", "figure"]:
        """Which of the two it is."""
        return "figure" if self.points else "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A page that a function makes of keyword options: it trains, and publishes the page.

    Options named `corpus`, `seeds`, `out`, `plot`, `processes` and `device` are those of the
    command; the others are set by `-s name=value`, and have the type of their default.

    Attributes:
        name: What the command calls it.
        title: Of the page.
        run: The function.
        options: Which of its options this study sets.
        reduced: Likewise in the size that takes minutes, over `-s`; what the command's own options
            give, such as `--seeds`, goes over it. None where there is none.
        minutes: How long it takes on 2 cores, about, and reduced.
    """

    kind: ClassVar[Literal["study"]] = "study"

    name: str
    title: str
    run: Callable[..., None]
    options: Mapping[str, Any] = field(default_factory=dict)
    reduced: Mapping[str, Any] | None = None
    minutes: tuple[float, ...]

    @property
    def has_reduced(self) -> bool:
        """Whether there is a size that takes minutes."""
        return self.reduced is not None

    def takes(self, option: str) -> bool:
        """Return whether its function has an option."""
        return option in inspect.signature(self.run).parameters

    def call(
        self, given: Mapping[str, Any], settings: tuple[str, ...] = (), *, reduced: bool = False
    ) -> None:
        """Run it; arguments and errors as of `chosen`."""
        with reduced_size() if reduced else nullcontext():
            self.run(**self.chosen(given, settings, reduced=reduced))

    def chosen(
        self, given: Mapping[str, Any], settings: tuple[str, ...] = (), *, reduced: bool = False
    ) -> dict[str, Any]:
        """Return the options that its function is called with.

        Args:
            given: Options of the command by name; those that it takes and are not None count.
            settings: "name=value" of its further options.
            reduced: Whether in the size that takes minutes.

        Raises:
            ValueError: If a setting is unknown or of another type, or one without a default is
                missing.
        """
        parameters = inspect.signature(self.run).parameters
        own = {n: value for n, value in given.items() if value is not None and self.takes(n)}
        further = {
            name: parameter.default for name, parameter in parameters.items() if name not in given
        } | dict(self.options)
        read = dict(_setting(self.name, text, further) for text in settings)
        small = self.reduced or {} if reduced else {}
        chosen = {**self.options, **read, **small, **own}
        required = (name for name, one in parameters.items() if one.default is one.empty)
        missing = [f"-s {name}=…" for name in required if name not in chosen]
        if missing:
            raise ValueError(f"{self.name} needs {', '.join(missing)}")
        return chosen


def _setting(study: str, text: str, known: Mapping[str, Any]) -> tuple[str, Any]:
    name, equals, written = text.partition("=")
    name = name.replace("-", "_")
    if name not in known or not equals:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"-s {text}: {hint}{study} has the settings {', '.join(known) or 'none'}")
    value, usual = _read(written), known[name]
    if isinstance(usual, tuple) and not isinstance(value, tuple):
        value = (value,) if written else ()
    if isinstance(usual, float) and isinstance(value, int):
        value = float(value)
    if usual not in (None, inspect.Parameter.empty) and type(value) is not type(usual):
        raise ValueError(f"-s {text}: {name} is {type(usual).__name__}, such as {usual}")
    return name, value


def _read(text: str) -> Any:
    if "," in text:
        return tuple(_read(part) for part in text.split(",") if part)
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False, "none": None}.get(text, text)


Item = Table | Study
