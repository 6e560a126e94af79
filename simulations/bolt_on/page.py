"""The page and the plots of the study of bolt-on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from fedpriv.privacy.epsilon import rounded_up_to
from simulations.bolt_on.methods import BATCH, LABELS, METHODS, OF_ONE_LINE, Guarantee
from simulations.bolt_on.study import TUNED_IN_ONE_PASS, Found
from simulations.bolt_on.timing import Timed
from simulations.linear_models.drawing import Curve, Panel, draw
from simulations.linear_models.references import REDUCED, shown, spread

_LEVELS = ("majority class", "public examples alone (ε = 0)", "not private")
_TITLES: Mapping[Guarantee, str] = {"pure": "pure ε, δ = 0", "approximate": "(ε, δ = 1/m²)"}

Excess = Mapping[str, Mapping[int, Sequence[float]]]
Batches = Mapping[tuple[Guarantee, int], Sequence[float]]


def page(
    items: Sequence[Found],
    *,
    seeds: int,
    command: str,
    pictures: Sequence[str] = (),
    times: Sequence[Timed] = (),
    excess: Excess | None = None,
    excess_picture: str | None = None,
    batches: Batches | None = None,
    reduced: bool = False,
) -> str:
    """Return the page.

    Args:
        items: One problem and loss after the other.
        seeds: How many a figure is of.
        command: That makes it.
        pictures: Addresses of the plots, in the same order; none leaves them out.
        times: Of training.
        excess: Excess risk by method and training rows.
        excess_picture: Address of its plot.
        batches: Accuracies by guarantee and b.
        reduced: Whether they are of made-up data, and of a grid of two.
    """
    lines = [
        "# Bolt-on against noise in every step",
        "",
        f"`{command}`",
        "",
        *((REDUCED, "") if reduced else ()),
        f"Accuracy on test in per cent, mean of {seeds} seeds (3 of methods noised in every step "
        f"beyond one pass) ± half a 95 % t-interval; b = {BATCH}, k passes. ε is of one example "
        "that is there or whose place stays empty, so that how many there are is public "
        "(add-remove, per example, simulated), pure ε by composition and (ε, δ) by PLD; the "
        "papers' replaced example, which `relation` is of by default, would be 2ε, for every "
        "method alike. Each method has five settings of one number, chosen on a tenth of the "
        "training set for each ε, and no ε "
        f"covers that choice; {', '.join(LABELS[m] for m in TUNED_IN_ONE_PASS)} keep beyond one "
        "pass what was best in one, and are run beyond five at three ε only. BST14 has its step "
        "sizes and projection and the least noise that today's accountant allows, which favours "
        "it over the published one. Rows are projected to 50 columns by a fixed Gaussian matrix "
        "(IMDB 300, Covertype as it is) and have length at most 1. Left out: DP-SVRG, Protein, "
        "and the non-convex random start.",
        *_notes(items),
    ]
    for number, item in enumerate(items):
        lines += ["", f"## {item.title}, {item.loss}{' (SYNTHETIC data)' * item.synthetic}", ""]
        own = item.references
        lines += [
            f"Data: {item.data}{', synthetic' * item.synthetic}; {int(own['num_train']):,} private "
            f"and {int(own['num_public']):,} public examples.",
        ]
        if pictures:
            lines += ["", f"![Accuracy against ε, {item.title}]({pictures[number]})"]
        for guarantee in METHODS:
            lines += ["", f"### {_TITLES[guarantee]}", "", *_table(item, guarantee)]
            lines += ["", *_verdict(item, guarantee)]
        lines += ["", "### Over the grid", "", *_grids(item)]
    if batches:
        lines += ["", "## Batch size", "", *_batches(batches)]
    if times:
        lines += ["", "## Time", "", *_times(times)]
    if excess:
        lines += ["", "## Excess risk", "", *_excess(excess)]
        if excess_picture is not None:
            lines += ["", f"![Excess risk against m]({excess_picture})"]
    return "\n".join(lines) + "\n"


def _notes(items: Sequence[Found]) -> list[str]:
    lines = []
    if any(item.loss in OF_ONE_LINE for item in items):
        lines += [
            "",
            "Objective perturbation releases an approximate minimum, noised for what is not exact "
            "about it; its number is the share of ε that its regulariser costs. It has no passes, "
            "and wants a loss whose gradients are along one line.",
        ]
    if any(item.loss == "one-vs-all" for item in items):
        lines += [
            "",
            "One-vs-all is ten logistic regressions in one vector, perturbed by their joint Δ₂, "
            "√10 times that of one. Under pure ε that is as much noise as with ε/10 for each, "
            "under (ε, δ) about √10 times less. Gradients of the others are bounded by 1 over all "
            "classes. Public examples alone, and not private, are softmax regression.",
        ]
    return lines


def plot(item: Found, path: Path) -> None:
    """Draw accuracy against ε at the best number of passes, one panel a guarantee."""
    place = {name: number for number, name in enumerate(LABELS)}
    panels = [
        Panel(
            title=_TITLES[guarantee],
            curves=[
                Curve(
                    label=LABELS[method],
                    points={
                        e: [row["accuracy"] for row in item.best(guarantee, method, e)[1]]
                        for e in _epsilons(item)
                    },
                    place=place[method],
                )
                for method in _methods(item, guarantee)
            ],
            levels={name: item.references[name] for name in _LEVELS},
        )
        for guarantee in METHODS
    ]
    draw(
        panels,
        path,
        title=f"Bolt-on against noise in every step: {item.title}, {item.loss}"
        f"{' (SYNTHETIC data)' * item.synthetic}",
        below=f"ε (add-remove, per example, simulated), b = {BATCH}, at the best of "
        f"{', '.join(map(str, _passes(item)))} passes for each. Data: {item.data}.",
    )


def _methods(item: Found, guarantee: Guarantee) -> list[str]:
    known = {(own, method) for own, method, *_ in item.cells}
    return [method for method in METHODS[guarantee] if (guarantee, method) in known]


def _epsilons(item: Found) -> list[float]:
    return sorted({epsilon for _, _, epsilon, _ in item.cells})


def _passes(item: Found) -> list[int]:
    return sorted({passes for *_, passes in item.cells})


def _table(item: Found, guarantee: Guarantee) -> list[str]:
    columns = _epsilons(item)
    lines = [
        "| | k | " + " | ".join(f"ε = {e:g}" for e in columns) + " |",
        "|---|---:|" + "---:|" * len(columns),
    ]
    for name in _LEVELS:
        lines.append(f"| {name} | – |" + f" {100 * item.references[name]:.1f} |" * len(columns))
    for method in _methods(item, guarantee):
        for passes in _passes(item)[: 1 if method == "objective" else None]:
            cells = [
                shown([row["accuracy"] for row in item.cells[guarantee, method, e, passes]])
                for e in columns
            ]
            named = "–" if method == "objective" else str(passes)
            lines.append(f"| {LABELS[method]} | {named} | " + " | ".join(cells) + " |")
    return lines


def _verdict(item: Found, guarantee: Guarantee) -> list[str]:
    """Say where bolt-on wins, each method at its best number of passes."""
    known = _methods(item, guarantee)
    noisy = [m for m in known if m in TUNED_IN_ONE_PASS]
    lines = [
        "Bolt-on at its best, against the best of those with noise in every step, each with the k "
        f"that these very figures favour: {_against(item, guarantee, noisy)}."
    ]
    if "objective" in known:
        found = _against(item, guarantee, ["objective"])
        lines += ["", f"Against objective perturbation, likewise: {found}."]
    return lines


def _against(item: Found, guarantee: Guarantee, others: Sequence[str]) -> str:
    parts = []
    for epsilon in _epsilons(item):
        own, name = max(
            (mean(_best(item, guarantee, m, epsilon)), m)
            for m in METHODS[guarantee]
            if m.startswith("bolt-on")
        )
        other, theirs = max((mean(_best(item, guarantee, m, epsilon)), m) for m in others)
        half = math.hypot(
            *(spread(_best(item, guarantee, method, epsilon)) for method in (name, theirs))
        )
        said = "ahead of" if own > other else "behind"
        if abs(own - other) <= half:
            said = "even with"
        parts.append(
            f"ε {rounded_up_to(epsilon, 3):g}: {said} {LABELS[theirs]} ({100 * own:.1f} to "
            f"{100 * other:.1f}, {own / other:.2f} times)"
        )
    return "; ".join(parts)


def _best(item: Found, guarantee: Guarantee, method: str, epsilon: float) -> list[float]:
    return [row["accuracy"] for row in item.best(guarantee, method, epsilon)[1]]


def _grids(item: Found) -> list[str]:
    lines = [
        "Accuracy on the validation part over the five settings, one pass: worst to best, and the "
        "standard deviation. What spreads less is easier to tune.",
        "",
        "| guarantee | method | " + " | ".join(f"ε = {e:g}" for e in _epsilons(item)) + " |",
        "|---|---|" + "---|" * len(_epsilons(item)),
    ]
    first = _passes(item)[0]
    for guarantee in METHODS:
        for method in _methods(item, guarantee):
            cells = []
            for epsilon in _epsilons(item):
                found = [100 * v for v in item.grids[guarantee, method, epsilon, first]]
                cells.append(f"{min(found):.1f} to {max(found):.1f} (sd {stdev(found):.1f})")
            row = f"| {_TITLES[guarantee]} | {LABELS[method]} | "
            lines.append(row + " | ".join(cells) + " |")
    return lines


def _batches(batches: Batches) -> list[str]:
    sizes = sorted({size for _, size in batches})
    lines = [
        "Bolt-on, convex, constant step, ε = 1, 5 passes, the step chosen for each b; the largest "
        "b is m, which is full gradient descent.",
        "",
        "| | " + " | ".join(f"b = {size:,}" for size in sizes) + " |",
        "|---|" + "---:|" * len(sizes),
    ]
    for guarantee in METHODS:
        cells = [shown(batches[guarantee, size]) for size in sizes]
        lines.append(f"| {_TITLES[guarantee]} | " + " | ".join(cells) + " |")
    return lines


def _times(times: Sequence[Timed]) -> list[str]:
    return [
        f"CPU seconds of one pass over MNIST (softmax, b = {BATCH}), medians of "
        f"{len(times[0].ratios)} pairs in turns, and the ratio of pairs: median and range. Each "
        "method next to the same without noise. Both kinds go through the door: permutation SGD "
        "asks one question, the others one a batch, and so pay for a charge, a cohort and a record "
        "each time, with noise or without; the difference between rows is mostly that.",
        "",
        "| | with noise | without | ratio |",
        "|---|---:|---:|---:|",
        *(item.shown for item in times),
    ]


def slope(points: Mapping[int, Sequence[float]]) -> float:
    """Return the exponent of m in mean excess risk, by least squares of logarithms."""
    x = [math.log(m) for m in points]
    y = [math.log(max(1e-12, mean(values))) for values in points.values()]
    return float(np.polyfit(x, y, 1)[0])


def _excess(excess: Excess) -> list[str]:
    sizes = sorted({m for points in excess.values() for m in points})
    lines = [
        "Mean training loss above its minimum, logistic regression on MNIST 3 or 8, (ε = 1, δ = "
        "1/m²), 10 passes, the best of five settings by this very figure on another seed. Last: "
        "the exponent of m.",
        "",
        "| | " + " | ".join(f"m = {m:,}" for m in sizes) + " | exponent |",
        "|---|" + "---:|" * (len(sizes) + 1),
    ]
    for method, points in excess.items():
        cells = [f"{mean(points[m]):.4f} ± {spread(points[m]):.4f}" for m in sizes]
        lines.append(f"| {LABELS[method]} | " + " | ".join(cells) + f" | {slope(points):.2f} |")
    return lines


def plot_excess(excess: Excess, path: Path) -> None:
    """Draw excess risk against m."""
    curves = [
        Curve(
            label=LABELS[method],
            points={float(m): v for m, v in points.items()},
            place=list(LABELS).index(method),
        )
        for method, points in excess.items()
    ]
    draw(
        [Panel(title="logistic regression, MNIST 3 or 8", curves=curves)],
        path,
        title="Excess risk against the number of training examples",
        below="(ε = 1, δ = 1/m²) (add-remove, per example, simulated), b = 50, 10 passes.",
        xlabel="training examples m",
        ylabel="mean training loss above its minimum",
        scale=1.0,
        log_y=True,
    )
