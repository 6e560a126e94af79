"""Recycling checkpoints on synthetic convex problems: measures, prints a page and draws.

python -m simulations recycling-convex --out checkpoints.md --plot checkpoints.png
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, variance
from typing import Any

import numpy as np

from fedpriv.privacy.epsilon import format_delta, format_epsilon
from fedpriv.runs.progress import Pace
from simulations.checkpoint_recycling.checkpoints import Marks, draw_gains, kind_of
from simulations.checkpoint_recycling.convex_studies import (
    DELTA,
    KS,
    LENGTHS,
    NUM,
    RATES,
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
from simulations.linear_models.study import verdict
from simulations.reproduction.items import Study
from simulations.reproduction.study import (
    drawing,
    note_below,
    publish,
    render,
    save,
    spread,
    table,
)

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
    usual, control = ratios(found), next(iter(found.control.values()))
    return render(
        "checkpoint_recycling/convex.md.jinja",
        command=command, picture=picture, epsilon_terms=_EPSILON, num=NUM, steps=STEPS,
        hard_table=table(
            ["T", *(f"{t:,}" for t in found.hard)],
            [["last / average", *(f"{value:.2f}" for value in found.hard.values())]],
            align="---",
        ),
        slope=log_slope(found.hard),
        runs=len(next(iter(found.ordinary.values()))["last"]),
        ordinary_table=_ordinary_table(found),
        ratios=[usual[steps] for steps in sorted(usual)],
        clear=sum(
            verdict(one["last"], one["upa T/2"]) == "ahead" for one in found.ordinary.values()
        ),
        seeds=len(control["last"].accuracy),
        tried_rates=", ".join(f"{rate:g}" for rate in RATES),
        rates={
            by: "The last iterate's best rate" if by == 1 else f"{by:g} times that rate"
            for by in FASTER
        },
        control_table=partial(_control_table, found),
        verdicts=partial(_verdicts, found),
        coverage_table=_coverage_table(found),
        widths_table=_widths_table(found),
        within=[f"{100 * w.within_two:.0f} %" for w in found.widths],
        chance=[f"{100 * w.chance:.0f} %" for w in found.widths],
        always=all(w.within_two == 1.0 for w in found.widths),
        lower=all(w.below > 0.5 and w.ratio < 1 for w in found.widths),
        below=[f"{100 * w.below:.0f} %" for w in found.widths],
        width_ratios=[f"{w.ratio:.2f}" for w in found.widths],
    )  # fmt: skip


def log_slope(values: Mapping[int, float]) -> float:
    """Return how much a ratio grows for each unit of ln T, by least squares."""
    logs = np.log(list(values))
    return float(np.polyfit(logs, list(values.values()), 1)[0])


def ratios(found: Found) -> dict[int, float]:
    """Return the last iterate's mean excess over that of UPA T/2, on the ordinary problem."""
    return {t: mean(one["last"]) / mean(one["upa T/2"]) for t, one in found.ordinary.items()}


def _ordinary_table(found: Found) -> str:
    names, usual = list(next(iter(found.ordinary.values()))), ratios(found)
    rows = [
        [f"{steps:,}", *(f"{mean(one[n]):.4f} ± {spread(one[n]):.4f}" for n in names),
         f"{usual[steps]:.2f}"]
        for steps, one in found.ordinary.items()
    ]  # fmt: skip
    return table(["T", *names, "last / upa T/2"], rows, align="---")


def _control_table(found: Found, by: float) -> str:
    head, rows = ["method"], []
    for kind, rate in found.rates.items():
        head += [f"{_short(kind)} (rate {by * rate:g}): accuracy %", "gain", "variance"]
    for name in next(iter(found.control.values())):
        cells = [name]
        for kind in found.rates:
            own, last = (found.control[kind, by][one].accuracy for one in (name, "last"))
            gains = _gains(found, (kind, by), name)
            gain = "–" if name == "last" else f"{mean(gains):+.2f} ± {spread(gains):.2f}"
            cells += [f"{100 * mean(own):.2f}", gain, f"{variance(own) / variance(last):.2f}"]
        rows.append(cells)
    return table(head, rows, align="---")


def _short(epsilon: float | None) -> str:
    return kind_of(epsilon).replace(" =", "")


def _gains(found: Found, kind: tuple[float | None, float], name: str) -> list[float]:
    one = found.control[kind]
    return [100 * (a - b) for a, b in zip(one[name].accuracy, one["last"].accuracy, strict=True)]


def _verdicts(found: Found, by: float, trained: bool) -> list[str]:
    """Return how many aggregates are above the last iterate, of inference or trained over."""
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
    return said


def _coverage_table(found: Found) -> str:
    rows = [
        [one.k, one.spacing, f"{100 * one.plain:.1f} ± {196 * one.error:.1f}",
         f"{100 * one.corrected:.1f}"]
        for one in found.coverage
    ]  # fmt: skip
    head = ["k", "spacing, rounds", "covered, %", "with the lag-1 correction, %"]
    return table(head, rows, align="---")


def _widths_table(found: Found) -> str:
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
    return table(head, rows, align="---")


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
    cases = []
    for place, (kind, by) in enumerate(found.control):
        gains = {name: _gains(found, (kind, by), name) for name in names}
        cases.append(Marks(
            label=_short(kind) + (", rate × 10" if by > 1 else ""), color=f"C{place % 3}",
            gains={name: (mean(own), spread(own)) for name, own in gains.items()}, filled=by == 1,
        ))  # fmt: skip
    draw_gains(two, names, cases)
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
    note_below(
        figure,
        f"{_EPSILON}. Left: ratio of means over runs. Middle: 95 % t-intervals over seeds, paired. "
        "Right: 95 % intervals over runs.",
    )
    save(figure, path)


def measured(epsilons: tuple[float, ...], *, tiny: bool = False) -> Found:
    """Return what the studies give at these ε, and without noise.

    Args:
        epsilons: Of DP-SGD, at δ = 1e-5.
        tiny: Whether few runs, short ones.
    """
    steps, ks = (LENGTHS[:3], KS[:2]) if tiny else (LENGTHS, KS)
    kinds = (None, *epsilons)
    runs, seeds, of_runs, repeats = (5, 4, 20, 2) if tiny else (50, 50, 400, 20)
    total = 2 * len(steps) + (1 + len(FASTER)) * len(kinds) + len(ks) + len(epsilons)
    pace = Pace(total, of="parts")

    def part(name: str, make: Callable[..., Any], *of: Any, **given: Any) -> Any:
        title = " ".join([name, *map(str, of)])
        return pace.work(title, partial(make, *of, **given))

    return Found(  # the long ones first, so that what is left is not said to be short
        widths=[part("widths", widths, e, repeats=repeats) for e in epsilons],
        coverage=[one for k in ks for one in part("coverage", coverage, runs=of_runs, ks=[k])],
        rates={e: part("rate", best_rate, e) for e in kinds},
        control={
            (e, by): part("control", control, e, faster=by, seeds=seeds)
            for by in FASTER
            for e in kinds
        },
        ordinary={t: part("ordinary", ordinary_ratios, t, runs=runs) for t in steps},
        hard={t: part("hard", hard_ratio, t) for t in steps},
    )


def reproduce(
    *,
    out: Path | None = None,
    plot: Path | None = None,
    epsilons: tuple[float, ...] = (8.0, 1.0),
    tiny: bool = False,
) -> None:
    """Run all parts and publish the page.

    Args:
        out: Where the page is written.
        plot: Where it is drawn.
        epsilons: Of DP-SGD.
        tiny: Whether with few runs, short ones.
    """
    found = measured(epsilons, tiny=tiny)
    if plot is not None:
        draw(found, plot)
    command = "python -m simulations recycling-convex" + " --reduced" * tiny
    publish(page(found, command=command, picture=plot.name if plot else ""), out)


REPRODUCTIONS = (
    Study(
        name="recycling-convex",
        title="Checkpoint aggregates, Theorem 3.2 and intervals on synthetic convex problems",
        run=reproduce,
        reduced={"tiny": True},
        minutes=(6, 0.5),
    ),
)
