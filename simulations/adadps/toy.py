"""The toy of AdaDPS, Figure 3: linear regression on frequent and rare features.

1,000 examples of 500 binary features: 50 are there nine times in ten and hardly matter (weight
0.01), 450 once in a hundred and decide (weight 1). Knowing which are rare is the side information:
A is 1 for the frequent and 0.01 for the rare ones. Some minutes for 5 seeds.

    python -m simulations adadps-figure3            # the figure's four methods, 5 seeds, a plot

Numbers and data are those of the authors' code; the text at hand has lost most of them. There a
batch is a window of 8 neighbours from a random start. No accountant prices windows, so such runs
have no ε to state; `-s sampling=poisson` draws batches that have one.

Source: Li et al., "Private Adaptive Optimization with Side Information" (ICML 2022), Section 4.1.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Literal

import numpy as np

from fedpriv.mechanisms.bounds import Clip, Unbounded
from fedpriv.mechanisms.gaussian import Gaussian, Unprotected
from fedpriv.mechanisms.preconditioners import Fixed, Preconditioner
from fedpriv.optimizers import Sgd
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import PoissonSampler
from fedpriv.rng import Key
from fedpriv.runs.progress import Pace
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.training.per_example.example_sum import CentralSum, example_ids
from fedpriv.training.per_example.linear import LinearRegressionGradients
from fedpriv.training.work import Attempt, Users
from simulations.reproduction.items import Study
from simulations.reproduction.study import drawing, publish, save

Sampling = Literal["window", "poisson"]

NUM_EXAMPLES, NUM_FEATURES, NUM_FREQUENT = 1_000, 500, 50
BATCH, CLIP_NORM, NOISE_MULTIPLIER, DELTA = 8, 0.5, 0.7, 1e-3
SEEDS = (123, 124, 125, 126, 127)


@dataclass(frozen=True, slots=True, kw_only=True)
class Toy:
    """The data.

    Attributes:
        x: float64 `(1000, 500)` of zeros and ones.
        y: float64 `(1000,)`.
        weight: What y was made of, float64 `(500,)`.
    """

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray

    def loss(self, weight: np.ndarray) -> float:
        """Return half the mean squared error."""
        return float(0.5 * np.mean(np.square(self.x @ weight.astype(np.float64) - self.y)))


def toy() -> Toy:
    """Return the data of the authors' code, number for number: NumPy's old generator, seed 666.

    Features are drawn one after the other, then the errors, of standard deviation 0.01.
    """
    rng = np.random.RandomState(666)  # of this function alone; nothing private is drawn from it
    x = np.empty((NUM_EXAMPLES, NUM_FEATURES))
    for feature in range(NUM_FEATURES):
        share = 0.9 if feature < NUM_FREQUENT else 0.01
        x[:, feature] = rng.choice([0, 1], size=NUM_EXAMPLES, p=[1 - share, share])
    weight = np.where(np.arange(NUM_FEATURES) < NUM_FREQUENT, 0.01, 1.0)
    return Toy(x=x, y=x @ weight + rng.normal(0.0, 0.01, NUM_EXAMPLES), weight=weight)


def side_information() -> np.ndarray:
    """Return 1/(A + 0.001), float32 `(500,)`."""
    scale = np.where(np.arange(NUM_FEATURES) < NUM_FREQUENT, 1.0, 0.01)
    return (1.0 / (scale + 1e-3)).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One curve of the figure.

    Attributes:
        learning_rate: α.
        steps: Iterations.
        private: Whether gradients are clipped and noised.
        adaptive: Whether they are divided by A first.
    """

    learning_rate: float
    steps: int
    private: bool
    adaptive: bool


METHODS = {
    "SGD": Method(learning_rate=0.03, steps=40_000, private=False, adaptive=False),
    "AdaS": Method(learning_rate=0.003, steps=40_000, private=False, adaptive=True),
    "DP-SGD": Method(learning_rate=0.1, steps=2_250, private=True, adaptive=False),
    "AdaDPS": Method(learning_rate=0.2, steps=2_250, private=True, adaptive=True),
}


def plan(method: Method, steps: int | None = None) -> Plan:
    """Return the plan of Poisson batches of the same mean."""
    mechanism = Mechanism(
        sampler=PoissonSampler(num_users=NUM_EXAMPLES, expected_cohort_size=BATCH),
        bound=Clip(l2_clip_norm=CLIP_NORM) if method.private else Unbounded(),
        privatizer=(
            Gaussian(noise_multiplier=NOISE_MULTIPLIER) if method.private else Unprotected()
        ),
    )
    num_rounds = steps or method.steps
    return Plan(mechanism=mechanism, num_rounds=num_rounds, delta=DELTA, unit="example")


def train(
    method: Method,
    data: Toy,
    seed: int,
    *,
    sampling: Sampling = "window",
    steps: int | None = None,
    every: int = 250,
) -> list[tuple[int, float]]:
    """Return (step, loss on the training data) along a run; the losses are diagnostics."""
    the_plan, root = plan(method, steps), Key.simulation(seed)
    preconditioner: Preconditioner = Preconditioner()
    if method.adaptive:
        preconditioner = Fixed(multiplier={"weight": side_information()})
    server = FederatedAveraging(
        optimizer=Sgd(learning_rate=method.learning_rate),
        preconditioner=preconditioner,
    )
    mechanism = the_plan.live_mechanism
    sums = CentralSum(
        gradients=LinearRegressionGradients(data.x.astype(np.float32), data.y),
        num_examples=NUM_EXAMPLES,
    )
    start = root.fold("init").generator().normal(0.0, 0.1, NUM_FEATURES)
    state = server.init({"weight": start.astype(np.float32)})
    roster, losses = example_ids(NUM_EXAMPLES), [(0, data.loss(start))]
    draw = _sampler(sampling, the_plan, roster)
    for step in range(1, the_plan.num_rounds + 1):
        public, state = server.begin(state, root.fold("guide").fold(step))
        attempt = Attempt(bound=mechanism.bound, key=root.fold("users").fold(step))
        cohort = draw(root.fold("cohort").fold(step))
        total = sums.answer(server.request(state, public), attempt, Users(cohort))
        noise = mechanism.draw(state.params, root.fold("noise").fold(step))
        state = server.next(state, mechanism.release(total, noise), public)
        if step % every == 0 or step == the_plan.num_rounds:
            losses.append((step, data.loss(state.params["weight"])))
    return losses


def _sampler(
    sampling: Sampling, the_plan: Plan, roster: tuple[str, ...]
) -> Callable[[Key], tuple[str, ...]]:
    if sampling == "poisson":
        sampler = the_plan.live_mechanism.sampler
        return lambda key: sampler.next({}, key, roster)[0]

    def window(key: Key) -> tuple[str, ...]:
        first = int(key.generator().integers(NUM_EXAMPLES - BATCH + 1))
        return roster[first : first + BATCH]

    return window


def epsilon_words(method: Method, steps: int, sampling: Sampling) -> str:
    """Return what is known of the privacy of so many steps, in words."""
    if method.private and sampling == "window":
        return "no ε: no accountant prices batches of neighbours; use -s sampling=poisson"
    return f"{plan(method, steps).epsilon(steps)}{', simulated' if method.private else ''}"


def draw_losses(
    curves: dict[str, list[list[tuple[int, float]]]], path: Path, *, sampling: Sampling
) -> None:
    """Draw mean losses with their spread over seeds, private and not side by side."""
    figure = drawing(9, 3.8)
    for panel, private in zip(figure.subplots(1, 2), (False, True), strict=True):
        for name, runs in curves.items():
            if METHODS[name].private != private:
                continue
            steps = [step for step, _ in runs[0]]
            losses = np.array([[loss for _, loss in run] for run in runs])
            (line,) = panel.plot(steps, losses.mean(axis=0), label=name)
            panel.fill_between(
                steps, losses.min(axis=0), losses.max(axis=0), alpha=0.2, color=line.get_color()
            )
        panel.set(yscale="log", xlabel="step", ylabel="loss on the training data")
        steps = next(iter(curves["AdaDPS"]))[-1][0]
        words = f"clipped and noised, {epsilon_words(METHODS['AdaDPS'], steps, sampling)}"
        panel.set_title(textwrap.fill(words, 52) if private else "not private", fontsize=9)
        panel.locator_params(axis="x", nbins=5)
        panel.legend(frameon=False)
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle("AdaDPS, Figure 3: regression on SYNTHETIC data", fontsize=10)
    save(figure, path)


def reproduce(
    *,
    out: Path | None = None,
    plot: Path = Path("results/adadps-figure3.png"),
    sampling: Sampling = "window",
    share: int = 1,
    number: int = len(SEEDS),
) -> None:
    """Run the four methods, and print and draw their losses.

    Args:
        out: Where to write what is printed, too.
        plot: Where to draw the curves.
        sampling: "window", or "poisson", whose batches have an ε.
        share: By what the steps of the methods without privacy are divided. Those of the private
            ones are not: at a tenth of them AdaDPS is behind DP-SGD.
        number: Of seeds.
    """
    data, seeds, lines = toy(), SEEDS[:number], []
    curves: dict[str, list[list[tuple[int, float]]]] = {}
    pace = Pace(len(METHODS) * len(seeds))
    for name, method in METHODS.items():
        steps = method.steps if method.private else method.steps // share
        run = partial(train, method, data, sampling=sampling, steps=steps)
        curves[name] = [pace.work(f"{name}, seed {seed}", partial(run, seed)) for seed in seeds]
        final = [run[-1][1] for run in curves[name]]
        loss = f"loss {mean(final):.4g} (sd {stdev(final):.2g})"
        words = epsilon_words(method, steps, sampling)
        lines.append(f"{name:8s} {steps:6d} steps  {loss}  {words}")
    draw_losses(curves, plot, sampling=sampling)
    publish("\n".join(["AdaDPS, Figure 3 (SYNTHETIC data)", *lines]), out)


REPRODUCTIONS = (
    Study(
        name="adadps-figure3",
        title="AdaDPS, Figure 3, regression on frequent and rare features",
        run=reproduce,
        reduced={"share": 10, "number": 2},
        minutes=(4, 0.5),
    ),
)
