"""The scoreboard as a page and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def markdown(found: Sequence[dict[str, Any]], *, quick: bool, made: str) -> str:
    """Return the table; the quick form leaves out tests that are marked slow.

    Args:
        found: The rows.
        quick: Whether it is the quick form.
        made: Commit and date.
    """
    lines = [
        "# The scoreboard",
        "",
        "Each row is a claim with its tests; a mutant is the same code with one named fault, "
        f"which must turn them red. By `make {'trust-quick' if quick else 'trust'}`"
        f"{', without the tests that are marked slow' if quick else ''}, {made}. Tests that draw "
        "fix their seeds themselves.",
        "",
        "| | claim | tests | holds | mutants, red |",
        "|---|---|---:|---|---|",
    ]
    for row in found:
        twins = ", ".join(
            f"{twin['name'].replace('_', ' ')} {'✓' if twin['red'] else '**not red**'}"
            for twin in row["twins"]
        )
        holds = "yes" if row["holds"] else "**NO**"
        lines.append(f"| {row['row']} | {row['claim']} | {row['tests']} | {holds} | {twins} |")
    return "\n".join([*lines, "", "![A mark for each claim and each mutant](trust.svg)"]) + "\n"


def picture(found: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw a line a row: a mark for the claim, one for each twin."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(12, 0.36 * len(found) + 0.8))
    for place, row in enumerate(found):
        y = len(found) - place
        color = "#1b7f4d" if row["holds"] else "#b3261e"
        axes.text(0.0, y, row["row"], va="center", weight="bold", color=color)
        axes.text(0.55, y, f"{row['claim']} ({row['tests']} tests)", va="center")
        for number, twin in enumerate(row["twins"]):
            axes.plot(
                9.9 + 0.3 * number,
                y,
                marker="o" if twin["red"] else "X",
                color="#1b7f4d" if twin["red"] else "#b3261e",
                markersize=8,
            )
    axes.text(9.75, len(found) + 0.9, "mutants: a dot for each that turns red", va="center", size=9)
    axes.set(xlim=(0, 12.6), ylim=(0.4, len(found) + 1.3))
    axes.axis("off")
    with plt.rc_context({"svg.hashsalt": "trust"}):
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
