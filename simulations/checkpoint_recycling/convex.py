r"""Recycling checkpoints on synthetic convex problems: measures, prints a page and draws.

fedpriv reproduce recycling-convex --out docs/results/checkpoints.md \
        --plot docs/results/checkpoints.png
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, variance

import numpy as np

from fedpriv.privacy.epsilon import format_delta, format_epsilon
from fedpriv.runs.progress import Pace
from simulations.checkpoint_recycling.checkpoints import kind_of
from simulations.checkpoint_recycling.convex_studies import (
    DELTA,
    KS,
    LENGTHS,
    NUM,
    STEPS,
    Coverage,
    Figures,
    Widths,
    best_rate,
    control,
    coverage,
    hard_ratio,
    ordinary_ratios,
    widths,
)
from simulations.reproduction.items import Study
from simulations.reproduction.study import drawing, note_below, publish, save, spread, table

#: What the last iterate's best rate is multiplied by.
FASTER = (1.0, 10.0)
_AT = "trained at"
_EPSILON = f"ε at δ = {format_delta(DELTA)} (add-remove, per example, by PLD, simulated)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Results of the studies.

    Attributes:
        hard: Last over average on the hard function, by the number of steps.
        ordinary: Excess risks run by run, by steps and by aggregate.
        control: Figures of every method, by ε (None for no noise) and by how many times the rate.
        rates: The last iterate's best rate at each ε.
        coverage: Of intervals for parameters.
        widths: Of scores' intervals, by two arms.
    """

    hard: Mapping[int, float]
    ordinary: Mapping[int, Mapping[str, Sequence[float]]]
    control: Mapping[tuple[float | None, float], Mapping[str, Figures]]
    rates: Mapping[float | None, float]
    coverage: Sequence[Coverage]
    widths: Sequence[Widths]


def page(found: Found, *, command: str, picture: str = "") -> str:
    """Return the page.

    Args:
        found: Of the studies.
        command: That makes it.
        picture: Address of the plot; "" for none.
    """
    lines = [
        "# Recycling checkpoints on convex problems (synthetic)",
        "",
        f"`{command}`",
        "",
        "Every problem here is *synthetic* and convex, and small enough to be run a hundred times. "
        "Intervals are 95 % t-intervals over runs. What it is about, and which claims are the "
        "paper's, is in [checkpoints](../checkpoints.md).",
    ]
    if picture:
        lines += ["", f"![Synthetic: last iterate, control, coverage]({picture})"]
    for part in (_theorem, _control, _coverage, _widths):
        lines += part(found)
    return "\n".join(lines) + "\n"


def log_slope(values: Mapping[int, float]) -> float:
    """Return how much a ratio grows for each unit of ln T, by least squares."""
    logs = np.log(list(values))
    return float(np.polyfit(logs, list(values.values()), 1)[0])


def ratios(found: Found) -> dict[int, float]:
    """Return the last iterate's mean excess over that of UPA T/2, on the ordinary problem."""
    return {t: mean(one["last"]) / mean(one["upa T/2"]) for t, one in found.ordinary.items()}


def _theorem(found: Found) -> list[str]:
    names, usual = list(next(iter(found.ordinary.values()))), ratios(found)
    runs = len(next(iter(next(iter(found.ordinary.values())).values())))
    rows = [
        [f"{steps:,}", *(f"{mean(one[n]):.4f} ± {spread(one[n]):.4f}" for n in names),
         f"{usual[steps]:.2f}"]
        for steps, one in found.ordinary.items()
    ]  # fmt: skip
    hard = table(
        ["T", *(f"{t:,}" for t in found.hard)],
        [["last / average", *(f"{value:.2f}" for value in found.hard.values())]],
        align="---",
    )
    better = sum(value > 1 for value in usual.values())
    return [
        "", "## Theorem 3.2: the last iterate against averages", "",
        "The paper: the last iterate's excess empirical risk is log(n) times that of a weighted "
        "average of the past k checkpoints. On a hard function of subgradient descent, made for it "
        "(Harvey et al., 2019; without noise, f* = 0), the ratio of last iterate to the mean of "
        "the last half is", "", *hard, "",
        f"It grows by {log_slope(found.hard):.3f} for each unit of ln T: the logarithm is real, on "
        "this function. On an ordinary problem (synthetic absolute-error regression, 10 columns, "
        f"noise of stddev 1 a coordinate, step R/(G √t), {runs} runs), mean excess risk:", "",
        *table(["T", *names, "last / upa T/2"], rows, align="---"), "",
        f"There the ratio goes from {usual[min(usual)]:.2f} at the shortest to "
        f"{usual[max(usual)]:.2f} at the longest, above 1 at {better} of {len(usual)} lengths, by "
        "a factor that is the problem's own: while the start is not forgotten an average does not "
        "help, and once noise is what is left it does.",
    ]  # fmt: skip


def _control(found: Found) -> list[str]:
    kinds = list(found.rates)
    heads = [_short(e) for e in kinds]
    seeds = len(next(iter(found.control.values()))["last"].accuracy)
    lines = [
        "", "## What aggregates bring, and the noiseless control", "",
        f"DP-SGD on synthetic logistic regression, {NUM:,} examples, {STEPS} steps, {seeds} seeds; "
        f"{_EPSILON}. Methods at one ε, and its control, draw the same batches and noise. Gain: "
        "accuracy on test less the last iterate's, in points, paired. Training over aggregates "
        "starts after half of the steps. The rate is the one that the last iterate does best "
        "with, and then ten times that.",
    ]  # fmt: skip
    for by in FASTER:
        shown = [
            f"{head} (rate {by * found.rates[e]:g})" for head, e in zip(heads, kinds, strict=True)
        ]
        title = "The last iterate's best rate" if by == 1 else f"{by:g} times that rate"
        head = ["method"]
        for one in shown:
            head += [f"{one}: accuracy %", "gain", "variance"]
        rows = []
        for name in next(iter(found.control.values())):
            cells = [name]
            for kind in kinds:
                own, last = (found.control[kind, by][one].accuracy for one in (name, "last"))
                gains = _gains(found, (kind, by), name)
                gain = "–" if name == "last" else f"{mean(gains):+.2f} ± {spread(gains):.2f}"
                cells += [f"{100 * mean(own):.2f}", gain, f"{variance(own) / variance(last):.2f}"]
            rows.append(cells)
        lines += ["", f"### {title}", "", *table(head, rows, align="---")]
        lines += ["", *_verdicts(found, by)]
    return [*lines, "", "Variance: of accuracy over seeds, over the last iterate's; below 1 is "
            "steadier."]  # fmt: skip


def _short(epsilon: float | None) -> str:
    return kind_of(epsilon).replace(" =", "")


def _gains(found: Found, kind: tuple[float | None, float], name: str) -> list[float]:
    one = found.control[kind]
    return [100 * (a - b) for a, b in zip(one[name].accuracy, one["last"].accuracy, strict=True)]


def _verdicts(found: Found, by: float) -> list[str]:
    """Return two verdicts: of inference aggregates, and of training over aggregates."""
    lines = []
    for title, trained in (("Inference aggregates", False), ("Training over aggregates", True)):
        said = []
        for kind in found.rates:
            names = [n for n in found.control[kind, by] if n != "last" and trained == (_AT in n)]
            gains = {name: _gains(found, (kind, by), name) for name in names}
            above = {n: mean(g) for n, g in gains.items() if mean(g) > spread(g)}
            below = [n for n, g in gains.items() if mean(g) < -spread(g)]
            text = "without noise" if kind is None else f"at ε {kind:g}"
            text += f" {len(above)} of {len(names)} are above the last iterate"
            if above:
                best = max(above, key=lambda name: above[name])
                text += f" (most {best}, by {above[best]:.2f} points)"
            if below:
                text += f" and {len(below)} below it"
            said.append(text)
        lines += [f"**{title}**, by more than their interval: {'; '.join(said)}.", ""]
    return lines[:-1]


def _coverage(found: Found) -> list[str]:
    rows = [
        [one.k, one.spacing, f"{100 * one.plain:.1f} ± {196 * one.error:.1f}",
         f"{100 * one.corrected:.1f}"]
        for one in found.coverage
    ]  # fmt: skip
    head = ["k", "spacing, rounds", "covered, %", "with the lag-1 correction, %"]
    return [
        "", "## Coverage of parameter intervals", "",
        "Noisy gradient descent on synthetic least squares (5 parameters, all rows in every step). "
        "How often f̄ ± t √(S/k) holds the least-squares solution of these rows; it says nothing "
        "of the parameters that the rows were made by. Spacing in shares of the one that "
        "`fedpriv uncertainty --plan` gives (S/k at most 5 % short of the mean's variance).", "",
        *table(head, rows, align="---"),
    ]  # fmt: skip


def _widths(found: Found) -> list[str]:
    head = ["ε", "k", "t1", "t2", "T", "σ", "median width, checkpoints", "runs",
            "within a factor 2", "the same of two samples of one law",
            "checkpoints below"]  # fmt: skip
    rows = [
        [
            format_epsilon(w.epsilon), w.k, w.burn_in, w.spacing, w.steps, f"{w.sigma:.3f}",
            f"{w.medians['checkpoints']:.3f}", f"{w.medians['runs']:.3f}",
            *(f"{100 * share:.0f} %" for share in (w.within_two, w.chance, w.below)),
        ]
        for w in found.widths
    ]  # fmt: skip
    lines = [
        "", "## Checkpoints against independent runs", "",
        "The width of the 95 % interval of one draw of the predicted class's score, of 200 test "
        "examples, by k checkpoints of one run and by k runs of their own; both arms have the same "
        "σ and T = t1 + k t2, so that the runs cost k times as much. t2 is measured: where the "
        f"scores' correlation has fallen to 0.05. {_EPSILON}, of one run.", "",
        *table(head, rows, align="---"),
    ]  # fmt: skip
    enough = all(w.within_two >= 0.8 for w in found.widths)
    lower = all(w.below > 0.5 and w.ratio < 1 for w in found.widths)
    lines += [
        "",
        f"Within a factor 2 for at least 80 % of examples: {'yes' if enough else 'no'}, at every ε "
        "above. The paper calls checkpoints' widths a lower bound: here they are the smaller ones "
        f"for {' and '.join(f'{100 * w.below:.0f} %' for w in found.widths)} of examples, with "
        f"median ratios {' and '.join(f'{w.ratio:.2f}' for w in found.widths)}; "
        + ("smaller more often than not, and no bound for a single example."
           if lower else "no bound for a single example, and not smaller at every ε."),
    ]  # fmt: skip
    return lines


def draw(found: Found, path: Path) -> None:
    """Draw the ratio over T, the gains at each ε and the coverage over the spacing."""
    figure = drawing(13.2, 5.6)
    one, two, three = figure.subplots(1, 3)
    for name, values, style in (
        ("hard function", found.hard, "o-"),
        ("ordinary problem", ratios(found), "s--"),
    ):
        one.plot(list(values), list(values.values()), style, label=name)
    one.set_xscale("log", base=2)
    one.set_title("Last iterate's excess risk over an average's", fontsize=10)
    one.set_xlabel("steps T")
    one.legend(frameon=False, fontsize=8)
    names = [n for n in next(iter(found.control.values())) if n != "last"]
    for place, (kind, by) in enumerate(found.control):
        gains = [_gains(found, (kind, by), name) for name in names]
        heights = np.arange(len(names)) + 0.13 * (place - (len(found.control) - 1) / 2)
        two.errorbar(
            [mean(g) for g in gains], heights, xerr=[spread(g) for g in gains],
            fmt="osDosD"[place % 6], color=f"C{place % 3}", markersize=4, capsize=2,
            markerfacecolor=None if by == 1 else "white",
            label=_short(kind) + (", rate × 10" if by > 1 else ""),
        )  # fmt: skip
    two.axvline(0, color="#666666", linewidth=0.8)
    two.set_yticks(range(len(names)), names, fontsize=8)
    two.invert_yaxis()
    two.set_title("Gain over the last iterate, points of accuracy", fontsize=10)
    two.legend(frameon=False, fontsize=8)
    for place, k in enumerate(sorted({c.k for c in found.coverage})):
        own = sorted((c for c in found.coverage if c.k == k), key=lambda c: c.spacing)
        colour = f"C{place}"
        three.errorbar([c.spacing for c in own], [100 * c.plain for c in own],
                       yerr=[196 * c.error for c in own], fmt="o-", color=colour, markersize=4,
                       label=f"k = {k}")  # fmt: skip
        three.plot([c.spacing for c in own], [100 * c.corrected for c in own], ":", color=colour)
    three.axhline(95, color="#666666", linewidth=0.8)
    three.set_xscale("log")
    three.set_title("Parameters covered, % (dotted: corrected)", fontsize=10)
    three.set_xlabel("rounds between checkpoints")
    three.legend(frameon=False, fontsize=8)
    figure.suptitle("Recycling checkpoints on convex problems, SYNTHETIC data", weight="bold")
    note_below(figure, f"{_EPSILON}.")
    save(figure, path)


def measured(epsilons: tuple[float, ...], *, tiny: bool = False) -> Found:
    """Return what the studies give at these ε, and without noise."""
    steps = LENGTHS[:3] if tiny else LENGTHS
    kinds = (None, *epsilons)
    runs, seeds, of_runs = (5, 4, 20) if tiny else (50, 50, 400)
    ks = KS[:2] if tiny else KS
    total = 2 * len(steps) + (1 + len(FASTER)) * len(kinds) + len(ks) + len(epsilons)
    run = Pace(total, of="parts").work
    return Found(  # the long ones first, so that what is left is not said to be short
        widths=[
            run(f"widths, ε = {e:g}", partial(widths, e, repeats=2 if tiny else 20))
            for e in epsilons
        ],
        coverage=[
            one
            for k in ks
            for one in run(f"coverage, k = {k}", partial(coverage, runs=of_runs, ks=[k]))
        ],
        rates={e: run(f"rate, ε = {e}", partial(best_rate, e)) for e in kinds},
        control={
            (e, by): run(f"control, ε = {e}", partial(control, e, faster=by, seeds=seeds))
            for by in FASTER
            for e in kinds
        },
        ordinary={t: run(f"T = {t}", partial(ordinary_ratios, t, runs=runs)) for t in steps},
        hard={t: run(f"T = {t}, hard", partial(hard_ratio, t)) for t in steps},
    )


def reproduce(
    *,
    out: Path | None = None,
    plot: Path | None = None,
    epsilons: tuple[float, ...] = (8.0, 1.0),
    tiny: bool = False,
) -> None:
    """Run the studies and publish their page; tiny with few runs, short ones."""
    found = measured(epsilons, tiny=tiny)
    if plot is not None:
        draw(found, plot)
    picture = plot.name if plot else ""
    publish(page(found, command="fedpriv reproduce recycling-convex", picture=picture), out)


REPRODUCTIONS = (
    Study(
        name="recycling-convex",
        title="Checkpoint aggregates, Theorem 3.2 and intervals on synthetic convex problems",
        run=reproduce,
        reduced={"tiny": True},
        minutes=(6, 0.5),
    ),
)
