"""AdaDPS, Figure 2: what noise does to the statistics that adaptive methods divide by.

    python -m simulations adadps-figure2 --plot figure2.png   # half a minute

Along a private run on IMDB, second moments of gradients are gathered in three ways: of clean
private batches (never released: a diagnostic that no ε covers), of what DP-SGD releases, and
of public batches. What counts is whether they tell coordinates apart as the clean ones do: their
rank correlation with these. The paper's figure shows that statistics of noisy gradients are
themselves noisy (Section 3); of which quantity, its text does not say.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from fedpriv import tree
from fedpriv.backends import SerialBackend
from fedpriv.experiments.build import build
from fedpriv.rng import Key
from fedpriv.runs.loop import rounds
from fedpriv.runs.progress import Pace
from fedpriv.sums import RunningSum
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.bounded_sum import sum_bounded
from fedpriv.training.per_example.example_sum import public_gradient
from simulations.adadps.setups import imdb
from simulations.adadps.setups.setup import BATCH
from simulations.reproduction.items import Study
from simulations.reproduction.study import drawing, publish, save, synthetic_words

KINDS = ("clean private", "released by DP-SGD", "public")


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
    clean = public_gradient(task.train, task.num_train, BATCH)
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
        index = own.generator().choice(task.num_train, BATCH, replace=False)
        stacks = [task.train.stacks(state.params, np.sort(index))]
        running = RunningSum(state.params, None)
        done = sum_bounded(running, stacks, mechanism.bound, state.params, NO_CONTEXT)
        total = tree.to_dense(done.total)["weight"]
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


def draw_moments(found: dict[str, np.ndarray], path: Path, *, synthetic: bool) -> None:
    """Draw √v with coordinates in the order of the clean one, means of a hundred neighbours."""
    figure = drawing(7.0, 4.2)
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
    save(figure, path)


def reproduce(
    *, plot: Path = Path("results/adadps-figure2.png"), warm_up: int = 400, steps: int = 200
) -> None:
    """Print and draw how far noisy and public moments agree with the clean ones."""
    found, synthetic = moments(warm_up, steps), imdb.reviews().synthetic
    lines = [
        f"√v {kind}: rank correlation with the clean one {correlation:.3f}"
        for kind, correlation in agreement(found).items()
    ]
    title = "AdaDPS, Figure 2, second moments" + synthetic_words(synthetic)
    publish("\n".join([title, *lines]), None)
    draw_moments(found, plot, synthetic=synthetic)


REPRODUCTIONS = (
    Study(
        name="adadps-figure2",
        title="AdaDPS, Figure 2, second moments: clean, noisy and public",
        run=reproduce,
        reduced={"warm_up": 40, "steps": 20},
        minutes=(1, 0.5),
    ),
)
