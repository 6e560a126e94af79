"""DP-NSGD on language: RoBERTa-base on SST-2, its embeddings frozen; clipping next to normalising.

    pip install 'fedpriv[transformers]'
    fedpriv data fetch sst2
    python -m simulations.dpnsgd.figure4 --weights DIR --method dp-nsgd --rate 0.4 --size 0.01
    python -m simulations.dpnsgd.figure4 --weights DIR            # every setting of every method
    python -m simulations.dpnsgd.figure4 --reduced                # minutes, SYNTHETIC sentences

`DIR` holds RoBERTa-base as transformers saves it: `config.json`, `model.safetensors` and a
tokeniser. As in the paper: 67,349 training sentences, batches of 1000, 10 epochs (680 steps), full
precision; ε = 8, 4 or 2 at δ = 1e-5 as RDP counts it (σ = .6558, .8429, 1.1457). Its grids, dropout
and schedule are not known here; these grids are ours, nothing is dropped, rates are constant.

One core took 0.24 s an example (16 sentences of 4 to 40 tokens), so about 45 hours a run, and 4
GiB; the command times some examples first and says how long it will take. Every run is one line of
the results file, found again, so that a killed command goes on where it was. Settings are judged on
a tenth of the training set, held out, which no ε covers.

What ε means here: GLUE's training examples are phrases, and many are cut from one sentence. The
unit is one of these examples, not the sentence, nor who wrote it. That the weights have seen none
of them is an assumption.

Source: Yang, Zhang, Chen and Liu, "Normalized/Clipped SGD with Perturbation for Differentially
Private Non-Convex Optimization" (2022, arXiv:2206.13033), section 5.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.datasets.sst2 import load_sst2
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.experiment import Experiment
from fedpriv.privacy.epsilon import format_delta, rounded_up_to
from fedpriv.rng import Key
from fedpriv.tasks.central import CentralTask
from simulations.dpnsgd.heat_maps import Done, trained
from simulations.dpnsgd.images import RULES, bounded
from simulations.dpnsgd.sst2 import SIGMA, ByLength, Setup, digest, reduced_setup, task
from simulations.reproduction.items import TUNING_SEED, Script, Split
from simulations.reproduction.runs import Run, read

DELTA = 1e-5
SEEDS = (0, 1, 2)
CLIPS, REGULARISERS = (0.1, 0.4, 1.6, 6.4, 25.6), (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
SGD_RATES, ADAM_RATES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2), (5e-5, 1e-4, 2e-4, 5e-4, 1e-3)


REPRODUCTIONS = (
    Script(
        name="dpnsgd-figure4-sst2",
        title="DP-NSGD, Figure 4, heat maps of DP-NSGD and DP-SGD: RoBERTa-base on SST-2",
        module="simulations.dpnsgd.figure4",
        calls=(),  # it wants --weights
        reduced=(("--reduced",),),
        minutes=(300_000, 2),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A bound and an optimiser.

    Attributes:
        title: In tables.
        normalise: g / (r + ‖g‖) instead of clipping to c.
        optimizer: Of the noised mean.
        rates: Learning rates of the grid; of clipped gradients they multiply what c bounds.
        reduced_rates: Of the reduced one.
    """

    title: str
    normalise: bool
    optimizer: str
    rates: tuple[float, ...]
    reduced_rates: tuple[float, ...]

    @property
    def sizes(self) -> tuple[float, ...]:
        """Values of r or c."""
        return REGULARISERS if self.normalise else CLIPS


METHODS = {
    "dp-sgd": Method(
        title=RULES["clip"],
        normalise=False,
        optimizer="sgd",
        rates=SGD_RATES,
        reduced_rates=(0.8, 3.2),
    ),
    "dp-nsgd": Method(
        title=RULES["normalise"],
        normalise=True,
        optimizer="sgd",
        rates=SGD_RATES,
        reduced_rates=(0.8, 3.2),
    ),
    "dp-adam": Method(
        title="DP-Adam, clipped to c",
        normalise=False,
        optimizer="adam",
        rates=ADAM_RATES,
        reduced_rates=(0.003, 0.01),
    ),
    "dp-nadam": Method(
        title="DP-NAdam, g / (r + ‖g‖)",
        normalise=True,
        optimizer="adam",
        rates=ADAM_RATES,
        reduced_rates=(0.003, 0.01),
    ),
}


def experiment(
    setup: Setup, method: str, rate: float, size: float, split: Split
) -> CentralExperiment:
    """Return one run.

    Args:
        setup: Of all runs.
        method: A key of `METHODS`.
        rate: η. Of clipped gradients too it multiplies what is bounded by c, as in the paper.
        size: r, or c.
        split: What it is measured on.
    """
    kind = METHODS[method]
    noise: dict[str, Any] = (
        {"target_epsilon": setup.epsilon}
        if setup.reduced
        else {"noise_multiplier": SIGMA[setup.epsilon]}
    )
    return CentralExperiment(
        name=f"{setup.data.name}-roberta-{digest(setup.weights)[:12]}-{setup.length}-tokens-"
        f"dropout-{setup.dropout:g}",
        description=f"{kind.title}, RoBERTa with frozen embeddings.",
        task=lambda chosen, corpus: _shown(task(setup, split), chosen),
        batch_size=float(setup.batch),
        steps=setup.steps(split),
        delta=DELTA,
        eval_every=10**9,
    ).with_options(
        {
            "optimizer": kind.optimizer,
            "learning_rate": rate,
            **noise,
            **bounded("normalise" if kind.normalise else "clip", size),
        }
    )


class _Progress:
    """Says after the second step of a run, and then twice a minute, how far it is."""

    def __init__(self, steps: int) -> None:
        self._steps, self._done = steps, 0
        self._first = self._reported = 0.0

    def __call__(self) -> None:
        now = time.perf_counter()
        self._done += 1
        if self._done == 1:  # it has to find out how gradients are made
            self._first = now
        if self._done == 1 or (self._done > 2 and now - self._reported < 30.0):
            return
        self._reported = now
        each = (now - self._first) / (self._done - 1)
        left = _duration(each * (self._steps - self._done))
        line = f"  step {self._done}/{self._steps}, {each:.1f} s a step, {left} left"
        print(line, file=sys.stderr, flush=True)


def _shown(made: CentralTask, experiment: Experiment) -> CentralTask:
    """Return the task with a progress of its own."""
    assert isinstance(experiment, CentralExperiment)
    train, steps = made.train, experiment.num_steps(made.num_train)
    assert isinstance(train, ByLength)
    return replace(made, train=replace(train, after=_Progress(steps)))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def seconds_a_step(setup: Setup, number: int = 32) -> float:
    """Return about how long a step takes, by the gradients of some training examples."""
    made = task(setup, "test")
    params, key = made.init_params(Key.simulation(0)), Key.simulation(0)
    bound = experiment(setup, "dp-nsgd", 0.1, 0.1, "test").bound.make()
    index = np.linspace(0, made.num_train - 1, number).astype(np.int64)
    made.train.bounded_sum(params, index, bound, key)  # finds out how
    started = time.perf_counter()
    made.train.bounded_sum(params, index, bound, key)
    return (time.perf_counter() - started) * setup.batch / number


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Settings of one method; from its own grid where none are given.

    Attributes:
        setup: Of all runs.
        method: A key of `METHODS`.
        rates: Learning rates.
        sizes: Values of r or c.
    """

    setup: Setup = field(repr=False)
    method: str
    rates: tuple[float, ...] = ()
    sizes: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        chosen, reduced = METHODS[self.method], self.setup.reduced
        rates = self.rates or (chosen.reduced_rates if reduced else chosen.rates)
        object.__setattr__(self, "rates", rates)
        sizes = self.sizes or (chosen.sizes[1::2] if reduced else chosen.sizes)
        object.__setattr__(self, "sizes", sizes)

    def run(self, rate: float, size: float, split: Split, seed: int) -> Run:
        """Return one run."""
        made = experiment(self.setup, self.method, rate, size, split).with_options({"seed": seed})
        return Run(experiment=made, split=split, seed=seed, reduced=self.setup.reduced)

    def tuning(self) -> Iterator[Run]:
        """Yield every square of the heat map; nothing where there is no choice."""
        if len(self.rates) * len(self.sizes) > 1:
            for rate in self.rates:
                for size in self.sizes:
                    yield self.run(rate, size, "validation", TUNING_SEED)

    def finals(self, done: Mapping[str, Mapping[str, Any]]) -> Iterator[Run]:
        """Yield the best setting on the development set, several seeds."""
        rate, size = self.best(done)
        for seed in SEEDS:
            yield self.run(rate, size, "test", seed)

    def heat_map(self, done: Mapping[str, Mapping[str, Any]]) -> np.ndarray:
        """Return held-out accuracies `(rates, sizes)`; NaN where a run is missing."""
        found = [done.get(run.identity, {}).get("accuracy", np.nan) for run in self.tuning()]
        shape = (len(self.rates), len(self.sizes))
        return np.array(found or [np.nan], np.float64).reshape(shape)

    def best(self, done: Mapping[str, Mapping[str, Any]]) -> tuple[float, float]:
        """Return learning rate and size of the best square.

        Raises:
            ValueError: If the grid is not complete.
        """
        found = self.heat_map(done)
        if found.size == 1:
            return self.rates[0], self.sizes[0]
        if np.isnan(found).any():
            missing = int(np.isnan(found).sum())
            raise ValueError(f"{missing} runs of {self.method} are missing; run the grid")
        i, j = np.unravel_index(int(found.argmax()), found.shape)
        return self.rates[int(i)], self.sizes[int(j)]


def page(grids: Sequence[Grid], done: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the results in words and tables."""
    finals = {g.method: [done[r.identity] for r in g.finals(done)] for g in grids}
    setup, first = grids[0].setup, next(iter(finals.values()))[0]
    label = ", SYNTHETIC sentences and a tiny random model" if first["synthetic"] else ""
    of = "a tiny RoBERTa" if setup.reduced else "RoBERTa"
    lines = [
        f"# DP-NSGD and DP-SGD on SST-2{label}",
        "",
        f"Accuracy of {of} with frozen embeddings after {first['steps']} steps of about "
        f"{setup.batch:,} examples. ε = {rounded_up_to(first['epsilon'], 3):.3g} at "
        f"δ = {format_delta(first['delta'])} ({first['relation']}, per {first['unit']}, "
        f"{first['accountant']}; RDP {rounded_up_to(first['epsilon_rdp'], 3):.3g}; simulated). "
        "Settings were chosen on held-out training examples, which no ε covers.",
        "",
        "| | best η | best size | held out | test, mean of seeds |",
        "|---|---:|---:|---:|---:|",
    ]
    for grid in grids:
        tested = [row["accuracy"] for row in finals[grid.method]]
        rate, size = grid.best(done)
        held = grid.heat_map(done)
        top = "–" if np.isnan(held).all() else f"{held.max():.4f}"
        lines.append(
            f"| {METHODS[grid.method].title} | {rate:g} | {size:g} | {top} | "
            f"{np.mean(tested):.4f} ± {np.std(tested, ddof=1):.4f} |"
        )
    for grid in grids:
        if len(grid.rates) * len(grid.sizes) > 1:
            lines += ["", *_table(grid, done)]
    return "\n".join([*lines, ""])


def _table(grid: Grid, done: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    letter = "r" if METHODS[grid.method].normalise else "c"
    yield f"{METHODS[grid.method].title}, held out, by η (down) and {letter} (across):"
    yield ""
    yield "| η | " + " | ".join(f"{size:g}" for size in grid.sizes) + " |"
    yield "|---:|" + "---:|" * len(grid.sizes)
    for rate, row in zip(grid.rates, grid.heat_map(done), strict=True):
        yield f"| {rate:g} | " + " | ".join(f"{value:.4f}" for value in row) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run grids and finals that are not in the results yet, and write the page."""
    given = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        options = {"epsilon": given.epsilon, "device": given.device, "dropout": given.dropout}
        try:
            if given.reduced:
                setup = reduced_setup(Path(folder), **options)
            elif given.weights is None:
                raise ValueError("give --weights DIR, or --reduced for synthetic sentences")
            else:
                setup = Setup(weights=given.weights, data=load_sst2(given.data), **options)
            _perform(setup, given)
        except ValueError as error:
            raise SystemExit(str(error)) from None


def _perform(setup: Setup, given: argparse.Namespace) -> None:
    methods = given.method or list(METHODS)
    rates, sizes = tuple(given.rate), tuple(given.size)
    grids = [Grid(setup=setup, method=name, rates=rates, sizes=sizes) for name in methods]
    tuning, done = [run for grid in grids for run in grid.tuning()], read(given.results)

    def reported(done: Done) -> Iterator[Run]:
        return (run for grid in grids for run in grid.finals(done))

    left = sum(run.identity not in done for run in tuning)
    finals = all_finals = len(SEEDS) * len(grids)
    if not left:
        finals = sum(run.identity not in done for run in reported(done))
    kind = "SYNTHETIC sentences, a tiny random model: " if setup.data.synthetic else ""
    print(f"{kind}{left} of {len(tuning)} settings to try, then {finals} final runs", flush=True)
    if left + finals:
        each = seconds_a_step(setup) * setup.steps("test")
        total = _duration(each * (left + finals) / given.processes)
        print(f"about {_duration(each)} a run, {total} in all on this machine", flush=True)

    done = trained(tuning, reported, all_finals, given.results, processes=given.processes)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "dpnsgd_sst2.md").write_text(page(grids, done), "utf-8")
    print(page(grids, done))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="DP-NSGD and DP-SGD on SST-2.")
    parser.add_argument("--weights", type=Path, help="folder of RoBERTa-base")
    parser.add_argument("--data", help="SST-2.zip or its folder; looked for if not given")
    parser.add_argument("--target-epsilon", dest="epsilon", type=float, default=8.0)
    parser.add_argument("--method", action="append", choices=METHODS, help="may be repeated")
    parser.add_argument("--rate", action="append", type=float, default=[], help="instead of grid's")
    parser.add_argument("--size", action="append", type=float, default=[], help="r or c, likewise")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, default=Path("results/dpnsgd_sst2.jsonl"))
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--reduced", action="store_true")
    return parser


if __name__ == "__main__":
    main()
