"""Plot of how labels are spread over users: some users' labels, and sizes and entropies of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.report import theme
from fedpriv.untrusted_text import plain

KINDS = (".svg", ".png")
_MOST_USERS = 40  # bars that can still be told apart
_MOST_NAMED = 10  # labels that a legend has room for
_DPI, _BINS, _WIDE = 150, 30, 50


def write_label_plot(
    counts: np.ndarray,
    path: Path,
    *,
    labels: Sequence[Any],
    title: str,
    users: Sequence[str] = (),
) -> None:
    """Write the plot of a table of examples by user and label, as `LabelSummary` has it.

    Of up to 40 users, evenly spaced in the order of the table, a bar shows the shares of labels;
    histograms show numbers of examples and entropies of the labels of all users. Of private users
    it is a diagnostic that no ε covers. The same table gives the same SVG.

    Args:
        counts: Examples of each user and label, integers (users, labels).
        path: An SVG or PNG file that is not there yet.
        labels: What the columns are called.
        title: Heads the plot.
        users: What the rows are called; none to number them.

    Raises:
        ValueError: As `fedpriv.report.theme.check_plot_file`; or if the table is empty or has other
            numbers of rows and columns than there are names.
    """
    theme.check_plot_file(path, KINDS)
    counts = np.asarray(counts)
    names = [plain(user) for user in users] or [str(row) for row in range(len(counts))]
    if counts.ndim != 2 or counts.shape != (len(names), len(labels)) or not counts.any():
        raise ValueError(
            f"counts of shape {counts.shape} of {len(names):,} users and {len(labels):,} labels; "
            "give a row a user and a column a label, with an example at least"
        )
    figure = theme.new_figure(9.0, 5.6)
    held = counts.sum(axis=1)
    _bars(figure, counts, names, labels)
    shares = counts / np.maximum(1, held)[:, None]
    logs = np.log2(shares, where=shares > 0, out=np.zeros_like(shares))
    for place, values, said in (
        ((0.66, 0.56, 0.29, 0.26), held, "examples a user"),
        ((0.66, 0.15, 0.29, 0.26), -(shares * logs).sum(axis=1), "label entropy a user, bits"),
    ):
        _histogram(theme.plain_axes(figure, place), values, said)
    ink, muted = theme.LIGHT["ink"], theme.LIGHT["muted"]
    figure.text(0.03, 0.94, plain(title), fontsize=13, weight="bold", color=ink)
    figure.text(
        0.03, 0.895,
        f"{len(counts):,} users, {held.sum():,} examples of {len(labels):,} labels",
        fontsize=10, color=muted,
    )  # fmt: skip
    if path.suffix.lower() == ".png":
        figure.savefig(path, dpi=_DPI, format="png")
    else:
        path.write_bytes(theme.as_svg(figure, "labels"))


def _bars(figure: Any, counts: np.ndarray, names: Sequence[str], labels: Sequence[Any]) -> None:
    axes = theme.plain_axes(figure, (0.12, 0.15, 0.44, 0.67))
    number = min(len(counts), _MOST_USERS)
    shown = np.linspace(0, len(counts) - 1, number).round().astype(int)
    rows = counts[shown] / np.maximum(1, counts[shown].sum(axis=1))[:, None]
    colours, left = _colours(len(labels)), np.zeros(number)
    for column, colour in enumerate(colours):
        label = plain(str(labels[column]))
        axes.barh(np.arange(number), rows[:, column], left=left, color=colour, label=label)
        left += rows[:, column]
    step = max(1, number // 10)
    axes.set_yticks(range(0, number, step), [names[row] for row in shown[::step]])
    axes.set_ylim(number - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    said = "share of the user's examples"
    if len(labels) > _MOST_NAMED:
        said += f", by label: {plain(str(labels[0]))} (dark) to {plain(str(labels[-1]))} (light)"
    else:
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, 1.11), ncols=_MOST_NAMED, frameon=False,
            fontsize=8, handlelength=0.8, handletextpad=0.3, columnspacing=0.8,
            labelcolor=theme.LIGHT["muted"],
        )  # fmt: skip
    axes.set_xlabel(said, fontsize=9, color=theme.LIGHT["muted"])


def _colours(number: int) -> Sequence[Any]:
    """Return as many colours as there are labels, dark to light."""
    from matplotlib import colormaps

    places = np.linspace(0.0, 0.95, number) if number > 1 else [0.3]
    return [colormaps["viridis"](place) for place in places]


def _histogram(axes: Any, values: np.ndarray, said: str) -> None:
    colours: Mapping[str, str] = theme.LIGHT
    low, high = float(values.min()), float(values.max())
    whole = values.dtype.kind == "i"
    if whole and high - low < _BINS:  # a bar a number
        edges = np.arange(low - 0.5, high + 1.0)
        axes.set_xlim(min(low - 0.5, high - 4.5), high + 4.5)
    elif whole and high > _WIDE * max(1.0, low):
        edges = np.geomspace(max(0.5, low), high + 0.5, _BINS + 1)
        values = np.maximum(values, edges[0])  # of users without any
        axes.set_xscale("log")
    else:
        edges = np.linspace(low, high if high > low else low + 1.0, _BINS + 1)
    found, _ = np.histogram(values, edges)
    axes.stairs(found, edges, fill=True, color=colours["s1"], alpha=0.85)
    axes.grid(axis="y", color=colours["grid"], linewidth=1)
    axes.set_title("users", loc="left", fontsize=9, color=colours["muted"])
    axes.set_xlabel(said, fontsize=9, color=colours["muted"])
    axes.locator_params(axis="y", nbins=5, integer=True)
    if axes.get_xscale() == "linear":
        axes.locator_params(axis="x", nbins=5, integer=whole)
