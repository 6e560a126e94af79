"""Heat maps: accuracy over learning rate and r of DP-NSGD, next to learning rate and c of DP-SGD.

r and c run over the same decades. Settings are judged on a tenth of the training set, held out, and
only the best of either rule is measured on test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.experiments.experiment import Experiment
from fedpriv.privacy.epsilon import format_delta, rounded_up_to
from fedpriv.runs.progress import Pace
from simulations.dpnsgd.images import RULES, Rule
from simulations.reproduction.items import TUNING_SEED, Split
from simulations.reproduction.runs import Run, complete, pending, read

Done = Mapping[str, Mapping[str, Any]]


def trained(
    grid: Iterable[Run],
    finals: Callable[[Done], Iterable[Run]],
    num_finals: int,
    results: Path,
    *,
    processes: int,
) -> Done:
    """Do what is not in the results yet, say how far it is on stderr, and return all of them.

    Args:
        grid: Runs to choose by.
        finals: From these to the runs that are reported.
        num_finals: How many there will be.
        results: JSON lines.
        processes: Runs at once.
    """
    squares = list(grid)
    pace = Pace(len(squares) + num_finals)

    def tell(number: int, total: int, row: Mapping[str, Any]) -> None:
        pace.done += 1
        pace.say(f"accuracy {row['accuracy']:.4f} in {row['seconds']:.0f} s")

    def stage(name: str, runs: list[Run]) -> Done:
        pace.keep(len(runs) - len(pending(runs, read(results))))
        pace.say(name)
        return complete(runs, results, processes=processes, tell=tell)

    return stage("seeds", list(finals(stage("grid", squares))))


SEEDS = (0, 1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMaps:
    """Two maps, one a rule.

    Attributes:
        title: Of the page.
        model: In words.
        make: From (rule, learning rate, r or c, split, reduced) to the experiment.
        rates: Learning rates.
        decades: Values of r and of c.
        reduced: Whether runs are of the reduced size.
    """

    title: str
    model: str
    make: Callable[[Rule, float, float, Split, bool], Experiment] = field(repr=False)
    rates: tuple[float, ...]
    decades: tuple[float, ...]
    reduced: bool = False

    def run(self, rule: Rule, rate: float, size: float, split: Split, seed: int) -> Run:
        """Return the run of one square."""
        made = self.make(rule, rate, size, split, self.reduced).with_options({"seed": seed})
        return Run(experiment=made, split=split, seed=seed, reduced=self.reduced)

    def grid(self) -> Iterator[Run]:
        """Yield every square of both maps."""
        for rule in RULES:
            for rate in self.rates:
                for size in self.decades:
                    yield self.run(rule, rate, size, "validation", TUNING_SEED)

    def accuracies(self, done: Done, rule: Rule) -> np.ndarray:
        """Return accuracies `(rates, decades)`; NaN where a run is missing."""
        out = np.full((len(self.rates), len(self.decades)), np.nan)
        for i, rate in enumerate(self.rates):
            for j, size in enumerate(self.decades):
                run = self.run(rule, rate, size, "validation", TUNING_SEED)
                if run.identity in done:
                    out[i, j] = done[run.identity]["accuracy"]
        return out

    def best(self, done: Done, rule: Rule) -> tuple[float, float]:
        """Return learning rate and r, or c, with the best accuracy on held-out examples.

        Raises:
            ValueError: If the grid is not complete.
        """
        found = self.accuracies(done, rule)
        if np.isnan(found).any():
            missing = int(np.isnan(found).sum())
            raise ValueError(f"{missing} runs of {RULES[rule]} are missing; run the grid first")
        i, j = np.unravel_index(int(found.argmax()), found.shape)
        return self.rates[int(i)], self.decades[int(j)]

    def finals(self, done: Done) -> Iterator[Run]:
        """Yield the best of either rule on test, several seeds each."""
        for rule in RULES:
            rate, size = self.best(done, rule)
            for seed in SEEDS:
                yield self.run(rule, rate, size, "test", seed)

    def spread(self, done: Done, rule: Rule) -> float:
        """Return how far accuracy moves over the decades at the best learning rate."""
        found = self.accuracies(done, rule)
        row = found[np.unravel_index(int(np.nanargmax(found)), found.shape)[0]]
        return float(np.nanmax(row) - np.nanmin(row))


def page(maps: HeatMaps, done: Done, picture: str) -> str:
    """Return the results in words and a table.

    Args:
        maps: What was run.
        done: Runs by identity.
        picture: Address of the plot, from where the page will lie.
    """
    first = done[next(iter(maps.grid())).identity]
    label = ", SYNTHETIC data" if first["synthetic"] else ""
    size = " (reduced)" if maps.reduced else ""
    lines = [
        f"# {maps.title}{size}{label}",
        "",
        f"Accuracy of {maps.model}, ε = {rounded_up_to(first['epsilon'], 3):.3g} at "
        f"δ = {format_delta(first['delta'])} ({first['relation']}, per {first['unit']}, "
        f"{first['accountant']}, simulated). Settings were chosen on held-out training examples, "
        "which no ε covers.",
        "",
        "| | best η | best r or c | held out | test, mean of seeds | spread over the decades |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for rule, title in RULES.items():
        rate, chosen = maps.best(done, rule)
        runs = [maps.run(rule, rate, chosen, "test", seed) for seed in SEEDS]
        tested = [done[run.identity]["accuracy"] for run in runs if run.identity in done]
        shown = f"{np.mean(tested):.4f} ± {np.std(tested, ddof=1):.4f}" if len(tested) > 1 else "–"
        lines.append(
            f"| {title} | {rate:g} | {chosen:g} | {maps.accuracies(done, rule).max():.4f} | "
            f"{shown} | {maps.spread(done, rule):.4f} |"
        )
    lines += [
        "",
        "The spread is from the best to the worst accuracy over the decades of r, or of c, at the "
        "learning rate of the best square. c also scales the step: along an anti-diagonal, where "
        "η times c stays the same, DP-SGD moves far less. What normalisation spares is searching "
        "the two together.",
        "",
        f"![accuracy over learning rate and r, and over learning rate and c]({picture})",
        "",
    ]
    return "\n".join(lines)


def plot(maps: HeatMaps, done: Done, path: Path) -> None:
    """Draw both maps on one scale."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found: dict[Rule, np.ndarray] = {rule: maps.accuracies(done, rule) for rule in RULES}
    synthetic = any(done[run.identity]["synthetic"] for run in maps.grid() if run.identity in done)
    top = max(float(np.nanmax(accuracies)) for accuracies in found.values())
    low = min(float(np.nanmin(accuracies)) for accuracies in found.values())
    figure, panels = plt.subplots(1, 2, figsize=(9.5, 4.2), layout="constrained", sharey=True)
    shown: Any = None
    for panel, (rule, accuracies) in zip(panels, found.items(), strict=True):
        shown = panel.imshow(accuracies, vmin=low, vmax=top, origin="lower", aspect="auto")
        panel.set_xticks(range(len(maps.decades)), _labels(maps.decades))
        panel.set_yticks(range(len(maps.rates)), _labels(maps.rates))
        panel.set(xlabel="r" if rule == "normalise" else "c", title=RULES[rule])
        for (i, j), value in np.ndenumerate(accuracies):
            colour = "w" if value < (low + top) / 2 else "k"
            panel.text(j, i, f"{100 * value:.0f}", ha="center", va="center", color=colour)
    panels[0].set_ylabel("learning rate η")
    figure.colorbar(shown, ax=panels, label="accuracy, held-out examples")
    figure.suptitle(f"{maps.model[0].upper()}{maps.model[1:]}{', SYNTHETIC' if synthetic else ''}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _labels(values: Sequence[float]) -> list[str]:
    return [f"{value:g}" for value in values]
