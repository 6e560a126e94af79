"""What `fedpriv run` prints: what is promised, progress, and the figures at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from fedpriv.cli.output import console, errors
from fedpriv.privacy.accounting import rounded_up
from fedpriv.privacy.statement.coverage import Coverage

# torch takes seconds to import; who calls this has loaded it.
if TYPE_CHECKING:
    from fedpriv.run.loop import RoundRecord
    from fedpriv.run.prepared import PreparedRun


def import_progress() -> Callable[[int, int], None]:
    """Return a callback (done, total) that prints nothing until an import really happens."""
    state: dict[str, int] = {"shown": -1}

    def show(done: int, total: int) -> None:
        percent = int(100 * done / total) if total else 0
        if percent // 10 != state["shown"]:
            state["shown"] = percent // 10
            errors.print(f"preparing the corpus: {percent} %", highlight=False)

    return show


def follow(prepared: PreparedRun, covers: Coverage, *, quiet: bool) -> dict[str, Any]:
    """Run to the end below what is promised and behind a progress bar; return the summary."""
    if not quiet:
        _print_head(prepared, covers)
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("accuracy {task.fields[accuracy]}  ε {task.fields[epsilon]}"),
        TimeRemainingColumn(),
    )
    plan = prepared.components.plan
    with Progress(*columns, console=errors, disable=quiet) as bar:
        label = prepared.experiment.name + (" (synthetic)" if prepared.synthetic else "")
        line = bar.add_task(
            label,
            total=plan.num_rounds,
            completed=prepared.ledger.rows or prepared.ledger.charges,
            accuracy="–",
            epsilon="–" if plan.is_private else "∞",
        )

        def show(record: RoundRecord) -> None:
            seen, spent = record.diagnostics, record.released.epsilon
            accuracy = None if seen is None else seen.accuracy
            if accuracy is None:
                accuracy = record.released.accuracy_public
            if accuracy is not None:
                bar.update(line, accuracy=f"{accuracy:.1%}")
            if spent is not None:  # accounted where a round is evaluated
                gap = " (does NOT cover all)" if covers.mark else ""
                bar.update(line, epsilon=f"{rounded_up(spent, 2):.2f}{gap}")
            bar.update(line, completed=prepared.ledger.rows or prepared.ledger.charges)

        return prepared.run(on_round=show)


def _print_head(prepared: PreparedRun, covers: Coverage) -> None:
    from fedpriv.run.announcement import announcement

    experiment = prepared.experiment
    head = announcement(
        experiment.name,
        experiment.description,
        prepared.components.plan,
        mode=prepared.ledger.mode,
        covers=covers,
    )
    for line in (head.title, head.promise):
        errors.print(escape(line), highlight=False, soft_wrap=True)
    for caution in head.cautions:
        errors.print(f"[yellow]{escape(caution)}[/]", highlight=False, soft_wrap=True)


def print_summary(summary: dict[str, Any], covers: Coverage, report: Path) -> None:
    """Print the figures of a finished run, one a line."""
    from fedpriv.run.announcement import early_end

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
