"""From blocks of rounds to figures, a markdown table, a plot and a record."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from harness import machine
from harness.contestants import Contestant
from harness.worker_process import Block

RESULTS = Path(__file__).resolve().parents[1] / "results"
COLOURS = {"fedpriv": "#0b6e4f", "flower": "#c77d0a", "pfl": "#4a6fa5", "none": "#555555"}


@dataclass(slots=True, kw_only=True)
class Entry:
    """Measurements of one contestant.

    Attributes:
        contestant: Who.
        ready: The versions it reported.
        setup_seconds: From its command to ready.
        first_seconds: The first round, with whatever the tool starts only then.
        blocks: Blocks of steady rounds, in the order of the harness's blocks.
        pss_mib: Highest PSS of its process tree in a block of its own; None if it died there.
        note: Why it counts for nothing, if it does; its blocks up to then stay in the record.
    """

    contestant: Contestant
    ready: dict[str, Any] = field(default_factory=dict)
    setup_seconds: float = 0.0
    first_seconds: float = 0.0
    blocks: list[Block] = field(default_factory=list)
    pss_mib: float | None = None
    note: str = ""

    @property
    def counts(self) -> bool:
        """Whether it ran all blocks: only those are compared."""
        return bool(self.blocks) and not self.note

    @property
    def medians(self) -> list[float]:
        """The median round of each block, seconds."""
        return [median(block.seconds) for block in self.blocks]

    @property
    def seconds(self) -> float:
        """The median of the blocks' medians."""
        return median(self.medians)

    @property
    def spread(self) -> tuple[float, float]:
        """Quartiles of the blocks' medians."""
        if len(self.blocks) < 2:
            return self.seconds, self.seconds
        low, _, high = quantiles(self.medians, n=4, method="inclusive")
        return low, high

    @property
    def cpu_seconds(self) -> float:
        """Median CPU seconds a round."""
        return median(block.cpu_seconds for block in self.blocks)


def ratio(entry: Entry, base: Entry) -> float:
    """Return how many times slower an entry is: the median of the ratios block by block.

    Blocks of the same number ran next to each other, so a slow spell of the machine cancels.
    """
    return median(a / b for a, b in zip(entry.medians, base.medians, strict=True))


def quickest(entries: list[Entry], tool: str) -> Entry | None:
    """Return the quickest setting of a tool, if any ran."""
    ran = [e for e in entries if e.contestant.tool == tool and e.counts]
    return min(ran, key=lambda e: e.seconds, default=None)


def markdown(title: str, entries: list[Entry], users: int, about: list[str]) -> str:
    """Return the section of one comparison."""
    base = quickest(entries, "fedpriv")
    lines = [f"## {title}", "", *about, ""]
    lines += [
        "| | s a round | quartiles | × fedpriv | ms a user | CPU s a round | PSS MiB "
        "| first round s | set-up s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for entry in entries:
        name = entry.contestant.name
        if not entry.counts:
            note = entry.note.replace("|", r"\|")
            lines.append(f"| {name} | {note} | | | | | | | |")
            continue
        low, high = entry.spread
        times = f"{ratio(entry, base):.2f}" if base is not None else ""
        bold = "**" if entry is base else ""
        memory = "died" if entry.pss_mib is None else f"{entry.pss_mib:.0f}"
        lines.append(
            f"| {bold}{name}{bold} | {entry.seconds:.4g} | {low:.4g} to {high:.4g} | {times} "
            f"| {1000 * entry.seconds / users:.3g} | {entry.cpu_seconds:.3g} "
            f"| {memory} | {entry.first_seconds:.2f} | {entry.setup_seconds:.1f} |"
        )
    ran = [e for e in entries if e.counts]
    if base is not None:
        lines += ["", *_headlines(entries, base)]
    if ran:
        others = median(b.other_cores for e in ran for b in e.blocks)
        number = len(ran[0].blocks)
        rounds = ", ".join(
            f"{e.contestant.name} {sum(len(b.seconds) for b in e.blocks)}" for e in ran
        )
        lines += [
            "",
            f"{number} alternating blocks, the order drawn for each; rounds: {rounds}. "
            f"Other work kept {others:.2f} cores busy (median).",
        ]
    return "\n".join(lines) + "\n"


def _headlines(entries: list[Entry], base: Entry) -> list[str]:
    rows = []
    for tool, name in (("flower", "Flower"), ("pfl", "pfl")):
        ran = [e for e in entries if e.contestant.tool == tool and e.counts]
        # The setting that comes nearest, by the very ratio that is stated.
        peer = min(ran, key=lambda entry: ratio(entry, base), default=None)
        if peer is not None:
            rows.append(
                f"- {base.contestant.name} against {peer.contestant.name}: "
                f"**{ratio(peer, base):.2f} times** the rounds a second of {name}."
            )
    bare = quickest(entries, "none")
    one = next((e for e in entries if e.contestant.name == "fedpriv" and e.counts), None)
    if bare is not None and one is not None:
        rows.append(
            f"- fedpriv in one process takes **{ratio(one, bare):.2f} times** local steps alone."
        )
    return rows


def record(entries: list[Entry]) -> list[dict[str, Any]]:
    """Return everything that was measured, for the JSON file."""
    return [
        {
            "name": entry.contestant.name,
            "tool": entry.contestant.tool,
            "note": entry.note,
            "versions": entry.ready,
            "setup_seconds": entry.setup_seconds,
            "first_round_seconds": entry.first_seconds,
            "pss_mib": entry.pss_mib,
            "blocks": [
                {
                    "seconds": block.seconds,
                    "cpu_seconds_per_round": block.cpu_seconds,
                    "other_cores": block.other_cores,
                }
                for block in entry.blocks
            ],
        }
        for entry in entries
    ]


def plot(sections: list[tuple[str, list[Entry]]], file: Path) -> None:
    """Draw seconds a round on a logarithmic axis: every block a dot, the median a diamond."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator, NullLocator

    ran = [(title, [e for e in entries if e.counts]) for title, entries in sections]
    ran = [(title, entries) for title, entries in ran if entries]
    if not ran:
        return
    heights = [len(entries) + 1.2 for _, entries in ran]
    figure, axes = pyplot.subplots(
        len(ran),
        1,
        figsize=(8.5, 0.36 * sum(heights) + 0.5),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for (title, entries), axis in zip(ran, axes[:, 0], strict=True):
        base = quickest(entries, "fedpriv")
        for row, entry in enumerate(entries):
            colour = COLOURS[entry.contestant.tool]
            axis.axhline(row, color="#e3e3e3", linewidth=0.8, zorder=0)
            axis.plot(entry.medians, [row] * len(entry.medians), ".", color=colour, alpha=0.5)
            axis.plot(entry.seconds, row, "D", color=colour, markersize=6)
            times = "" if base in (None, entry) else f"  {ratio(entry, base):.3g} ×"
            axis.annotate(
                f"{entry.seconds:.3g} s{times}",
                (max(entry.medians), row),
                xytext=(8, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )
        axis.set_yticks(range(len(entries)), [e.contestant.name for e in entries], fontsize=8)
        axis.set_ylim(len(entries) - 0.4, -0.6)
        # No bars: on a logarithmic axis their lengths would mean nothing.
        axis.set_xscale("log")
        lowest = min(min(e.medians) for e in entries)
        axis.set_xlim(lowest / 1.6, max(max(e.medians) for e in entries) * 3.5)
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_title(title, fontsize=9, loc="left")
        axis.tick_params(axis="x", labelsize=8)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    label = (
        "seconds a round, logarithmic (diamond: median of blocks; dots: blocks; ×: of fedpriv's)"
    )
    axes[-1, 0].set_xlabel(label, fontsize=8)
    figure.savefig(file, dpi=140)
    pyplot.close(figure)


def results_folder(given: Path | None, *, smallest: bool) -> Path:
    """Return the folder of results, by default the committed ones.

    A run that only shows that everything runs writes to a new folder: its values mean nothing.
    """
    if given is None:
        given = Path(tempfile.mkdtemp(prefix="fedpriv-smallest-")) if smallest else RESULTS
    given.mkdir(parents=True, exist_ok=True)
    return given


def where() -> list[str]:
    """Return lines that describe the machine and this checkout."""
    described = machine.describe()
    return [
        f"- {machine.hardware(described)}. No GPU was used.",
        f"- fedpriv at commit {described['commit']}.",
    ]


def versions(entries: list[Entry]) -> str:
    """Return one line with each tool's versions."""
    tools: dict[str, str] = {}
    for entry in entries:
        found = {k: v for k, v in entry.ready.items() if isinstance(v, str)}
        if found:
            words = ", ".join(f"{name} {value}" for name, value in sorted(found.items()))
            tools.setdefault(entry.contestant.tool, words)
    return "- Versions: " + "; ".join(f"{tool}: {words}" for tool, words in tools.items()) + "."


def write(name: str, text: str, sections: list[tuple[str, list[Entry]]], folder: Path) -> None:
    """Write the markdown, JSON and plot of a comparison."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(text, "utf-8")
    values = {title: record(entries) for title, entries in sections}
    (folder / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n", "utf-8")
    plot(sections, folder / f"{name}.png")
