"""A run's curves and tables as pandas data frames."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.privacy.statement.coverage import KEY
from fedpriv.privacy.statement.statement import Statement
from fedpriv.report.comparison.files import as_rows
from fedpriv.report.comparison.groups import gaps, mismatches, read_groups
from fedpriv.report.run_record import Row, RunRecord

# pandas takes half a second to import, and who runs without looking at frames never needs it.
if TYPE_CHECKING:
    import pandas as pd


def released(run: RunRecord, statement: Statement, *, every: bool) -> pd.DataFrame:
    """Return the released values, one row a round; without `every`, an evaluated round."""
    measured = [measure.released_name for measure in run.figures]
    usual = ("attempt", "epsilon", "epsilon_charges", "delta", *measured, "update_norm")
    frame = _by_round(run.released if every else _evaluated(run.released, measured), usual)
    frame.attrs = {"privacy": statement.headline, "covered_by_epsilon": True}
    return frame


def diagnosed(run: RunRecord, *, every: bool) -> pd.DataFrame:
    """Return the diagnostics, one row a round; without `every`, an evaluated round."""
    measured = [measure.name for measure in run.measures]
    usual = ("attempt", "cohort_size", "num_failed", *measured, "seconds")
    frame = _by_round(run.diagnosed if every else _evaluated(run.diagnosed, measured), usual)
    frame.attrs = {"privacy": "a diagnostic, not covered by ε", "covered_by_epsilon": False}
    return frame


def compared(directories: Sequence[Path]) -> pd.DataFrame:
    """Return the comparison of `fedpriv compare --json`, one row a group of runs.

    `.attrs["notes"]` says what ε does not cover, and in what the runs are not like with like.
    """
    import pandas as pd

    groups = read_groups(directories)
    rows = [
        {name: value for name, value in row.items() if name not in ("name", "runs")}
        for row in as_rows(groups)
    ]
    frame = pd.DataFrame(rows, index=pd.Index([g.name for g in groups], name="experiment"))
    unlike = mismatches(groups)
    notes = list(gaps(groups))
    if unlike:
        notes.append(f"not like with like: these runs differ in {', '.join(unlike)}")
    frame.attrs = {"notes": notes}
    return frame


def _evaluated(rows: Sequence[Row], measured: Sequence[str]) -> Sequence[Row]:
    """Return the rows in which something was measured; all of them where nothing ever was."""
    return [row for row in rows if any(row.get(name) is not None for name in measured)] or rows


def _by_round(rows: Sequence[Row], usual: Sequence[str]) -> pd.DataFrame:
    """Return rows under their names; a run without any has the usual columns, empty."""
    import pandas as pd

    left_out = ("round_num", "covered_by_epsilon", KEY)
    names = list(dict.fromkeys(name for row in rows for name in row if name not in left_out))
    index = pd.Index([int(row["round_num"]) for row in rows], name="round_num", dtype="int64")
    columns = {name: [row.get(name) for row in rows] for name in names or usual}
    frame = pd.DataFrame(columns, index=index)
    # A figure that was not measured in any round is a column of numbers all the same.
    unmeasured = [name for name in names if all(row.get(name) is None for row in rows)]
    return frame.astype(dict.fromkeys(unmeasured, float))
