"""Reproductions: a table or figure of a paper next to what its methods do here, tuned, accounted.

A `Reproduction` says which rows a table has, what the paper printed, and how each cell is run: a
grid of settings that is searched on a validation split, never on test, and then several seeds on
the test split. A `Figure` is the same with curves over the steps; a `Script` is
a program that makes a figure of its own. Every run is one line of a
JSON-lines file, found again by all its options, so a killed command goes on where it was and two
tables share what they have in common.
"""

from fedpriv.reproduction.page import figure_markdown, table_markdown
from fedpriv.reproduction.plot import draw
from fedpriv.reproduction.runs import (
    Run,
    best,
    figures,
    final_runs,
    perform,
    synthetic_data,
    tuning_runs,
)
from fedpriv.reproduction.store import complete, pending, read
from fedpriv.reproduction.table import (
    TUNING_SEED,
    AnyItem,
    Block,
    Cell,
    Figure,
    Given,
    Item,
    Layout,
    Reproduction,
    Row,
    Script,
    Settings,
    Split,
)

__all__ = [
    "TUNING_SEED",
    "AnyItem",
    "Block",
    "Cell",
    "Figure",
    "Given",
    "Item",
    "Layout",
    "Reproduction",
    "Row",
    "Run",
    "Script",
    "Settings",
    "Split",
    "best",
    "complete",
    "draw",
    "figure_markdown",
    "figures",
    "final_runs",
    "pending",
    "perform",
    "read",
    "synthetic_data",
    "table_markdown",
    "tuning_runs",
]
