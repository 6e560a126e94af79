"""What `fedpriv run` prints at its end: the figures, one a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedpriv.cli.output import console
from fedpriv.privacy.accounting import rounded_up
from fedpriv.privacy.statement.coverage import Coverage
from fedpriv.running.announcement import early_end


def print_summary(summary: dict[str, Any], covers: Coverage, report: Path) -> None:
    """Print the figures of a finished run, one a line."""
    epsilon = summary["epsilon"]
    said = covers.beside(
        f"no privacy (ε = ∞): {covers.reason}"
        if epsilon is None
        else (
            f"ε = {rounded_up(epsilon, 3):.3f} at δ = {summary['delta']:.2e} "
            f"({summary['unit']}-level, {summary['relation']}, {summary['accountant']}, "
            f"{summary['mode']})"
        )
    )
    central = summary["unit"] == "example"
    kind, whom = ("data", "training examples") if central else ("corpus", "users")
    made = f"SYNTHETIC {kind} " if summary["synthetic"] else f"{kind} "
    rows: dict[str, str] = {}
    rows["data"] = f"{made}{summary['corpus']}, {summary['users']:,} {whom}"
    if summary["accuracy"] is not None:
        recall = summary["recall_at_5"]
        more = f", recall@5 {recall:.2%}" if recall is not None else ""
        rows["accuracy"] = f"{summary['accuracy']:.2%}{more} (not covered by ε)"
    elif summary["accuracy_public"] is not None:
        where = "the test set" if central else "users outside the roster"
        rows["accuracy"] = f"{summary['accuracy_public']:.2%} on {where}"
    rows["privacy"] = said
    turn = "step" if central else "round"
    seconds = summary["seconds_per_round"]
    digits = ".2f" if seconds and seconds >= 0.1 else ".1g"
    took = f" at {seconds:{digits}} s" if seconds else ""
    why = early_end(summary)
    rows[f"{turn}s"] = f"{summary['rounds']}{took}" + (f"; {why}" if why else "")
    if summary["rounds_mostly_failed"]:
        rows["FAILURES"] = (
            f"in {summary['rounds_mostly_failed']} recorded {turn}s more than half of the drawn "
            f"{summary['unit']}s failed and contributed zero (not covered by ε)"
        )
    rows["run folder"] = str(summary["run_dir"])
    rows["report"] = str(report)
    for label, value in rows.items():  # no table: it would cut long paths short
        console.print(f"{label:<12}{value}", soft_wrap=True, markup=False, highlight=False)
