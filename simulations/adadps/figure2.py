"""AdaDPS, Figure 2: what noise does to the statistics that adaptive methods divide by.

    python -m simulations.adadps.figure2 --plot figure2.png   # half a minute
    python -m simulations.adadps.figure2 --reduced            # seconds

Along a private run on IMDB, second moments of gradients are gathered in three ways: of clean
private batches (never released: a diagnostic that no ε covers), of what DP-SGD releases, and
of public batches. What counts is whether they tell coordinates apart as the clean ones do: their
rank correlation with these. That the paper's figure shows this is remembered, not read.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from fedpriv.backends import SerialBackend
from fedpriv.experiments.build import build
from fedpriv.rng import Key
from fedpriv.runs.loop import rounds
from fedpriv.runs.progress import Pace
from fedpriv.training.per_example.example_sum import public_gradient
from simulations.adadps.setups import imdb
from simulations.reproduction.items import Script

KINDS = ("clean private", "released by DP-SGD", "public")

REPRODUCTIONS = (
    Script(
        name="adadps-figure2",
        title="AdaDPS, Figure 2, second moments: clean, noisy and public",
        module="simulations.adadps.figure2",
        calls=(("--plot", "results/adadps-figure2.png"),),
        reduced=(("--reduced", "--plot", "results/adadps-figure2.png"),),
        minutes=(1, 0.5),
    ),
)


def moments(warm_up: int, steps: int) -> dict[str, np.ndarray]:
    """Return √v of the weights by kind, float64 `(10000,)`: root mean squares over steps.

    Args:
        warm_up: Steps of DP-SGD before.
        steps: Over which the squares are averaged.
    """
    made = imdb.SETUP.make("DP-SGD", "right", "test", False)
    made = made.with_options({"l2-clip-norm": 0.5, "learning-rate": 3.0})
    components = build(made)
    task, plan, key = components.task, components.plan, Key.simulation(0)
    mechanism = plan.live_mechanism
    clean = public_gradient(task.train, task.num_train, imdb.BATCH)
    public = public_gradient(task.public_examples(), task.num_public, 20)
    noise = key.fold("figure").generator()
    squares = {kind: np.zeros(imdb.NUM_WORDS) for kind in KINDS}
    backend = SerialBackend(trainer=components.trainer, measure=task.evaluate)
    played = rounds(components, backend, key, eval_every=plan.planned_rounds or steps)
    pace = Pace(warm_up + steps, of="steps")
    for step, (_, state) in enumerate(islice(played, warm_up + steps)):
        if step % 20 == 0:
            pace.say("adadps-figure2")
        pace.done += 1
        if step < warm_up:
            continue
        own = key.fold("look").fold(step - warm_up)
        index = own.generator().choice(task.num_train, imdb.BATCH, replace=False)
        total = task.train.bounded_sum(state.params, np.sort(index), mechanism.bound)["weight"]
        noised = total + mechanism.stddev * noise.standard_normal(total.shape)
        released = noised / mechanism.denominator
        found = (
            clean(state.params, own.fold("clean"))["weight"],
            released,
            public(state.params, own.fold("public"))["weight"],
        )
        for kind, gradient in zip(KINDS, found, strict=True):
            squares[kind] += np.square(gradient, dtype=np.float64) / steps
    return {kind: np.sqrt(found) for kind, found in squares.items()}


def agreement(found: dict[str, np.ndarray]) -> dict[str, float]:
    """Return each kind's rank correlation with the clean one."""
    ranks = {kind: rankdata(value) for kind, value in found.items()}
    clean = ranks[KINDS[0]]
    return {kind: float(np.corrcoef(clean, ranks[kind])[0, 1]) for kind in KINDS[1:]}


def plot(found: dict[str, np.ndarray], path: Path, *, synthetic: bool) -> None:
    """Draw √v with coordinates in the order of the clean one, means of a hundred neighbours."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    order, correlation = np.argsort(found[KINDS[0]]), agreement(found)
    for kind, colour in zip(KINDS, ("#0072b2", "#d55e00", "#009e73"), strict=True):
        groups = found[kind][order].reshape(-1, 100).mean(1)
        rank = "" if kind == KINDS[0] else f", rank correlation {correlation[kind]:.2f}"
        axes.plot(50 + 100 * np.arange(len(groups)), groups, color=colour, label=kind + rank)
    axes.set(xlabel="word, in the order of the clean moment", ylabel="√v")
    axes.set_yscale("symlog", linthresh=1e-6)
    axes.set_title(f"Second moments of gradients on IMDB{', SYNTHETIC' if synthetic else ''}")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main(given: Sequence[str] | None = None) -> None:
    """Print how far noisy and public moments agree with the clean ones."""
    parser = argparse.ArgumentParser(description="AdaDPS, Figure 2: noisy second moments.")
    parser.add_argument("--reduced", action="store_true", help="a tenth of the steps")
    parser.add_argument("--plot", type=Path, help="where to draw, a .png")
    arguments = parser.parse_args(given)
    scale = 10 if arguments.reduced else 1
    found, synthetic = moments(400 // scale, 200 // scale), imdb.reviews().synthetic
    label = "SYNTHETIC reviews: " if synthetic else ""
    for kind, correlation in agreement(found).items():
        print(f"{label}√v {kind}: rank correlation with the clean one {correlation:.3f}")
    if arguments.plot:
        plot(found, arguments.plot, synthetic=synthetic)


if __name__ == "__main__":
    main()
