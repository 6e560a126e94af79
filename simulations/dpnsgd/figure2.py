"""DP-NSGD, Figure 2: curves of normalised and clipped SGD, without noise and private.

    python -m simulations dpnsgd-figure2-mnist

The paper's text describes its figure: training loss and accuracy without noise for several r and c,
and accuracy in the private setting. It says of it (Sections 3.3 and 3.4) that

- the training loss of normalised SGD with a small r fluctuates more than that of SGD clipped to
  a c that makes steps about as long,
- a small r or c keeps the training loss from falling,
- accuracy of clipped SGD varies with c, that of normalised SGD hardly with r,
- and the same holds with noise.

Each of these is computed, and judged by the 95 % interval of paired differences over seeds. The
values of r and c are lost in the text at hand; ours are chosen.
The paper's is of ResNet-20 on CIFAR-10; here it is a CNN on MNIST.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from fedpriv.measures import ACCURACY, Measure
from fedpriv.privacy.epsilon import format_delta, rounded_up_to
from fedpriv.runs.progress import Pace
from simulations.dpnsgd.grid import counted
from simulations.dpnsgd.images import SETUPS, TRAINING_LOSS, Rule, studies
from simulations.reproduction.page import fluctuation
from simulations.reproduction.runs import Run, complete, curve_of
from simulations.reproduction.study import (
    drawing,
    note_below,
    publish,
    render,
    save,
    synthetic_words,
    t_half,
    table,
    trained_on,
)

#: Curves by label: rule, and r or c.
CURVES: Mapping[str, tuple[Rule, float]] = {
    "normalised, r = 0.01": ("normalise", 0.01),
    "normalised, r = 1": ("normalise", 1.0),
    "clipped, c = 0.1": ("clip", 0.1),
    "clipped, c = 1": ("clip", 1.0),
}
POINTS = 16
_TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}

#: Rows by label and whether they are private, one a seed.
Found = Mapping[tuple[str, bool], Sequence[Mapping[str, Any]]]


def runs(key: str, seeds: int, reduced: bool) -> dict[tuple[str, bool], list[Run]]:
    """Return the runs of all curves, by label and whether they are private."""
    setup, found = SETUPS[key], {}
    for private in (False, True):
        for label, (rule, size) in CURVES.items():
            made: Any = setup.experiment(
                rule, setup.rate, size, "test", reduced, private=private, curves=True
            )
            steps = made.num_steps(setup.task("test").num_train)
            found[label, private] = [
                Run(
                    experiment=made.with_options({"seed": seed}), split="test", seed=seed,
                    reduced=reduced, curve=math.ceil(steps / POINTS),
                )
                for seed in range(seeds)
            ]  # fmt: skip
    return found


def jump(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return how much the training loss still fluctuates in the second half, mean of the seeds."""
    curves = [[value for _, value in curve_of(row, TRAINING_LOSS)] for row in rows]
    return mean(fluctuation(curve[len(curve) // 2 :]) for curve in curves)


def claims(found: Found) -> list[tuple[str, str]]:
    """Return what the paper says of its figure, and whether it is so here.

    Judged by the 95 % interval of paired differences over seeds.
    """

    def of(label: str, private: bool, measure: Measure) -> np.ndarray:
        return np.array([row[measure.name] for row in found[label, private]], np.float64)

    def jumps(label: str) -> np.ndarray:
        return np.array([jump([row]) for row in found[label, False]], np.float64)

    large, small, loose, tight = "normalised, r = 1", "normalised, r = 0.01", "clipped, c = 1", (
        "clipped, c = 0.1"
    )  # fmt: skip
    said = [(
        "without noise the training loss of normalised SGD with a small r (0.01) fluctuates more "
        "than that of SGD clipped to a c that makes steps about as long (1): "
        f"{jump(found[small, False]):.4f} against {jump(found[loose, False]):.4f}",
        _judged(jumps(small) - jumps(loose)),
    )]  # fmt: skip
    for letter, less, more in (("r", small, large), ("c", tight, loose)):
        losses = [of(label, False, TRAINING_LOSS) for label in (less, more)]
        said.append((
            f"without noise the training loss of the smaller {letter} stays higher "
            f"({losses[0].mean():.4f} against {losses[1].mean():.4f})",
            _judged(losses[0] - losses[1]),
        ))  # fmt: skip
    for private in (False, True):
        over_c = abs(of(loose, private, ACCURACY) - of(tight, private, ACCURACY))
        over_r = abs(of(large, private, ACCURACY) - of(small, private, ACCURACY))
        said.append((
            f"{'with' if private else 'without'} noise accuracy differs more over c than over r "
            f"({100 * over_c.mean():.1f} against {100 * over_r.mean():.1f} points)",
            _judged(over_c - over_r),
        ))  # fmt: skip
    return said


def _judged(ahead: np.ndarray) -> str:
    """Return whether differences, one a seed, are above 0 by more than their interval."""
    yes = "yes" if ahead.mean() > 0 else "NO"
    if len(ahead) == 1:  # of too few points a curve has no jumps: NaN
        return "no value" if math.isnan(ahead[0]) else f"{yes} in this one seed"
    if not abs(ahead.mean()) > t_half(ahead):
        return f"not distinguished by {len(ahead)} seeds"
    return yes


def page(key: str, found: Found, *, command: str, picture: str) -> str:
    """Return the page.

    Args:
        key: Of the setup.
        found: Rows of all curves.
        command: That makes it.
        picture: Address of the plot.
    """
    private = next(rows[0] for (_, private), rows in found.items() if private)
    rows = []
    for (label, noise), own in found.items():
        cells = [_mean([row[measure.name] for row in own]) for measure in (TRAINING_LOSS, ACCURACY)]
        jumps = "–" if math.isnan(jump(own)) else f"{jump(own):.4f}"
        rows.append([label, "private" if noise else "no noise", *cells, jumps])
    head = ["", "", TRAINING_LOSS.label, "accuracy on test", "jump of the training loss"]
    setup = SETUPS[key]
    return render(
        "dpnsgd/figure2.md.jinja",
        title=_TITLES[key], synthetic=synthetic_words(private["synthetic"]), command=command,
        model=setup.model, key=key, rate=setup.rate, batch=setup.batch_size, first=private,
        seeds=len(next(iter(found.values()))), picture=picture, claims=claims(found),
        epsilon=f"{rounded_up_to(private['epsilon'], 3):.3g}",
        devices=trained_on(row for own in found.values() for row in own),
        delta=format_delta(private["delta"]), rows=table(head, rows, words=2),
    )  # fmt: skip


def _mean(values: Sequence[float]) -> str:
    behind = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
    return f"{mean(values):.4f}{behind}"


def draw(key: str, found: Found, path: Path) -> None:
    """Draw training loss and accuracy without noise, and accuracy with noise."""
    figure = drawing(13.2, 4.6)
    panels = figure.subplots(1, 3)
    shown = (
        ("training loss, no noise (not private)", False, TRAINING_LOSS),
        ("accuracy on test, no noise (not private)", False, ACCURACY),
        ("accuracy on test, private", True, ACCURACY),
    )
    for panel, (title, private, measure) in zip(panels, shown, strict=True):
        for number, label in enumerate(CURVES):
            curves = [curve_of(row, measure) for row in found[label, private]]
            steps = [step for step, _ in curves[0]]
            values = np.array([[value for _, value in curve] for curve in curves], np.float64)
            style = "-" if number < len(CURVES) / 2 else "--"
            panel.plot(steps, values.mean(axis=0), style, color=f"C{number}", label=label)
            if len(values) > 1:
                half = values.std(axis=0, ddof=1)
                low, high = values.mean(axis=0) - half, values.mean(axis=0) + half
                panel.fill_between(steps, low, high, color=f"C{number}", alpha=0.15, linewidth=0)
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("step")
        panel.grid(color="#dddddd", linewidth=0.8)
    panels[0].set_yscale("log")
    panels[0].legend(frameon=False, fontsize=8)
    rows = found[next(iter(CURVES)), True]
    row, number = rows[0], len(rows)
    seeds = "One seed" if number == 1 else f"Mean of {number} seeds, bands of a standard deviation"
    model = SETUPS[key].model
    figure.suptitle(model[0].upper() + model[1:] + synthetic_words(row["synthetic"]), weight="bold")
    note_below(
        figure,
        f"{seeds}. Private: ε = "
        f"{rounded_up_to(row['epsilon'], 3):.3g} at δ = {format_delta(row['delta'])} "
        f"({row['relation']}, per {row['unit']}, {row['accountant']}, simulated).",
    )
    save(figure, path)


def reproduce(
    *,
    seeds: int = 3,
    out: Path | None = None,
    plot: Path = Path("results/dpnsgd-figure2.png"),
    processes: int = 1,
    device: str | None = None,
    data: str = "mnist",
    small: bool = False,
) -> None:
    """Run the curves, and publish page and picture."""
    every = runs(data, seeds, small)
    todo, done = [run for own in every.values() for run in own], dict[str, dict[str, Any]]()
    pace = Pace(len(todo))
    pace.say("curves")
    complete(todo, done, processes=processes, device=device, tell=counted(pace))
    found = {place: [done[run.identity] for run in own] for place, own in every.items()}
    draw(data, found, plot)
    size = f" --seeds {seeds}{' --reduced' if small else ''}"
    command = f"python -m simulations dpnsgd-figure2-{data}{size}"
    publish(page(data, found, command=command, picture=plot.name), out)


REPRODUCTIONS = studies(2, "curves of normalised and clipped SGD", reproduce, (18, 2), (2_000, 10))
