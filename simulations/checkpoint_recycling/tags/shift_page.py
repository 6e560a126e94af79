"""The page of periodic shift on real threads, and its plot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulations.checkpoint_recycling.checkpoints import LAST, kind_of
from simulations.checkpoint_recycling.tags.page import epsilon_words, note_of
from simulations.checkpoint_recycling.tags.study import Epsilon, Halves, Period
from simulations.reproduction.study import (
    drawing,
    note_below,
    render,
    save,
    synthetic_words,
    t_half,
    table,
)

#: ε and the paper's gain under shift, relative, per cent.
PAPER = ((18.9, "+2.64"), (8.2, "+2.82"))

HALVES: Mapping[Halves, str] = {
    "questions": "text in threads that its writer asked, against text in threads of others "
    "(questions against answers, as nearly as tags' examples know)",
    "tags": "text of every second tag, against that of the others",
}

Case = tuple[Halves, str, Epsilon]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shifted:
    """Results of the study.

    Attributes:
        site: What is said of the corpus.
        synthetic: Whether it is.
        delta: Of every ε.
        rounds: Of a run.
        period: But for what alternates.
        accuracy: By what alternates, family and ε: by aggregate, (seeds, rounds of a period).
    """

    site: str
    synthetic: bool
    delta: float
    rounds: int
    period: Period
    accuracy: Mapping[Case, Mapping[str, np.ndarray]]


def page(found: Shifted, *, command: str, picture: str = "") -> str:
    """Return the page.

    Args:
        found: Of the study.
        command: That makes it.
        picture: Address of the plot; "" for none.
    """
    own = {
        halves: {case: one for case, one in found.accuracy.items() if case[0] == halves}
        for halves in HALVES
    }
    return render(
        "checkpoint_recycling/tags/shift.md.jinja",
        found=found, period=found.period, command=command, picture=picture, paper=PAPER,
        synthetic=synthetic_words(found.synthetic), epsilon_terms=epsilon_words(found.delta),
        described=HALVES, tables={halves: _table(cases) for halves, cases in own.items() if cases},
    )  # fmt: skip


def _table(own: Mapping[Case, Mapping[str, np.ndarray]]) -> str:
    rows = []
    for (_, family, epsilon), one in own.items():
        last = one[LAST].mean(axis=1)
        for name, values in one.items():
            gain = 100 * (values.mean(axis=1) - last)
            rows.append([
                f"{family}, {kind_of(epsilon)}", name, f"{100 * values.mean():.2f}",
                f"{100 * values.std(axis=1).mean():.2f}",
                "" if name == LAST else f"{gain.mean():+.2f} ± {t_half(gain):.2f}",
                f"{100 * values[:, -1].mean():.2f}",
            ])  # fmt: skip
    head = ["", "", "mean", "deviation over the period", "gain", "after the last round"]
    return table(head, rows, words=2)


def draw(found: Shifted, path: Path) -> None:
    """Draw accuracy over the last period, mean of the seeds."""
    cases = found.accuracy
    figure = drawing(3.3 * len(cases), 3.9)
    axes = figure.subplots(1, len(cases), squeeze=False)[0]
    for axis, ((halves, family, epsilon), one) in zip(axes, cases.items(), strict=True):
        for number, (name, values) in enumerate(one.items()):
            axis.plot(
                range(1, values.shape[1] + 1), 100 * values.mean(axis=0),
                color="#333333" if name == LAST else f"C{number - 1}", label=name,
                linewidth=1.6,
            )  # fmt: skip
        axis.axvline(found.period.rounds / 2 + 0.5, color="#999999", linewidth=0.8, linestyle=":")
        axis.set_title(f"{halves}: {family}, {kind_of(epsilon)}", fontsize=9)
        axis.set_xlabel("round of the last period", fontsize=8)
        axis.tick_params(labelsize=8)
    axes[0].set_ylabel("accuracy on test threads, %", fontsize=8)
    axes[0].legend(frameon=False, fontsize=7.5)
    made = "SYNTHETIC data" if found.synthetic else "real threads"
    figure.suptitle(f"Accuracy over a period of shift, {made}", weight="bold", fontsize=10)
    words = f"{note_of(found.delta)}:\na diagnostic, not covered by ε. Mean of "
    note_below(figure, f"{words}{found.period.seeds} seeds.", 7)
    save(figure, path)
