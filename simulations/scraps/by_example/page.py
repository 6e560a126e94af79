"""The page of aggregates of runs whose unit is an example, and its plot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from simulations.scraps.by_example.problem import Problem
from simulations.scraps.by_example.runs import Case, Found
from simulations.scraps.checkpoints import LAST
from simulations.scraps.gains import Marks, draw_gains, save
from simulations.scraps.seeds import t_half

Values = Mapping[str, np.ndarray]


def page(problem: Problem, found: Found, *, command: str, picture: str = "") -> str:
    """Return the page.

    Args:
        problem: What was asked.
        found: What the runs gave.
        command: That makes it.
        picture: Address of the plot; "" for none.
    """
    made = " (SYNTHETIC data)" if found.synthetic else ""
    better = "higher is better" if problem.measure.higher_is_better else "lower is better"
    lines = [
        f"# {problem.title}{made}", "", f"`{command}`", "",
        f"{problem.about} Only the direction of gains may be compared, not figures.", "",
        f"{found.data}; {problem.seeds} seeds that are paired: all aggregates at inference are of "
        f"one run's checkpoints. ε at {found.promise}, simulated (seeded noise). Figures are "
        f"measured on test examples and are not covered by ε. Chance has {100 * problem.chance:g} "
        "%. No aggregate is chosen: all are "
        "shown, at every rate that was tried.", "",
        "| the paper | |", "|---|---|", *(f"| {of} | {says} |" for of, says in problem.paper),
    ]  # fmt: skip
    if picture:
        lines += ["", f"![Gains over the last iterate]({picture})"]
    lines += [
        "", "## Ours", "",
        f"The table has {problem.measure.label}, %, {better}: mean over seeds (standard "
        "deviation), and the gain over the last iterate in points ± its 95 % t-interval over "
        "paired seeds, of these test examples alone. A gain above 0 is for the better. A variance "
        "of few seeds says little.", "",
    ]  # fmt: skip
    for case, values in found.values.items():
        lines += [
            f"### {case.said()}", "",
            f"| | {problem.measure.label} | gain | variance over seeds, of the last iterate's |",
            "|---|---:|---:|---:|",
        ]  # fmt: skip
        for name, own in values.items():
            gain = gains(problem, values, name)
            lines.append(
                f"| {name} | {100 * own.mean():.2f}{_deviation(own)} | "
                f"{'' if name == LAST else _shown(gain)} | "
                f"{_variance(values, name)} |"
            )
        lines += ["", verdict(problem, values), ""]
    if problem.public is not None:
        lines += _starts(problem, found)
    return "\n".join(lines).rstrip() + "\n"


def gains(problem: Problem, values: Values, name: str) -> np.ndarray:
    """Return by how many points each seed is better than its last iterate, `(seeds,)`."""
    apart = 100 * (values[name] - values[LAST])
    return apart if problem.measure.higher_is_better else -apart


def verdict(problem: Problem, values: Values) -> str:
    """Return which aggregates are clearly better or worse than the last iterate."""
    if len(values[LAST]) < 2:
        return "One seed says nothing of differences."
    above = 100 * (values[LAST] - problem.chance)
    if (above.mean() if problem.measure.higher_is_better else -above.mean()) <= t_half(above):
        return "No signal: the last iterate is not clearly better than chance."
    groups: dict[str, list[str]] = {"better": [], "worse": []}
    for name in values:
        gain = gains(problem, values, name)
        if name != LAST and abs(gain.mean()) > t_half(gain):
            groups["better" if gain.mean() > 0 else "worse"].append(name)
    shown = [f"clearly {kind}: {', '.join(names)}" for kind, names in groups.items() if names]
    return f"Over seeds {'; '.join(shown)}." if shown else "No difference over seeds is clear."


def _starts(problem: Problem, found: Found) -> list[str]:
    """Return what starting from the average of public models brings the last iterate."""
    _, last, average = dict.fromkeys(case.start for case in found.values)
    lines = [
        "## What starting from the average of public models brings",
        "",
        "| | gain of the last iterate over the other start, points |",
        "|---|---:|",
    ]
    for case, values in found.values.items():
        if case.start == average:
            other = found.values[Case(last, case.epsilon, case.rate)]
            gain = 100 * (values[LAST] - other[LAST])
            lines.append(f"| {case.said()} | {_shown(gain)} |")
    return [*lines, "", "One public run; its own chance is in no interval."]


def _shown(gain: np.ndarray) -> str:
    half = t_half(gain)
    return f"{gain.mean():+.2f}" + (f" ± {half:.2f}" if math.isfinite(half) else " (one seed)")


def _deviation(values: np.ndarray) -> str:
    return f" ({_stddev(values):.2f})" if len(values) > 1 else ""


def _stddev(values: np.ndarray) -> float:
    return 100 * float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _variance(values: Values, name: str) -> str:
    base = _stddev(values[LAST])
    if name == LAST or base == 0:
        return ""
    return f"{100 * ((_stddev(values[name]) / base) ** 2 - 1):+.0f} %"


def plot(problem: Problem, found: Found, path: Path) -> None:
    """Draw the gains of all aggregates over the last iterate."""
    from matplotlib.figure import Figure

    names = [name for name in next(iter(found.values.values())) if name != LAST]
    figure = Figure(figsize=(9.5, 1.6 + 0.42 * len(names)), layout="constrained")
    axis = figure.subplots()
    draw_gains(axis, names, [
        Marks(label=case.said(), color=f"C{number % 10}", gains={
            name: (float(gain.mean()), t_half(gain))
            for name in names for gain in [gains(problem, values, name)]
        })
        for number, (case, values) in enumerate(found.values.items())
    ])  # fmt: skip
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=7.5)
    data = "SYNTHETIC data" if found.synthetic else "real data"
    figure.suptitle(f"{problem.title}: gain over the last iterate, {data}", weight="bold")
    figure.supxlabel(
        f"points of {problem.measure.label}, above 0 is better; 95 % t-intervals over "
        f"{problem.seeds} paired seeds. ε at {found.promise}, simulated:\na diagnostic, not "
        "covered by ε.",
        fontsize=7.5, color="#666666", x=0.01, ha="left",
    )  # fmt: skip
    save(figure, path)
