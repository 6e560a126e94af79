"""DP-NSGD, Figures 2 to 4: normalisation needs less tuning than clipping; on MNIST.

    python -m simulations.dpnsgd run  --results results/dpnsgd.jsonl     # about an hour on 2 cores
    python -m simulations.dpnsgd run  --reduced                          # minutes
    python -m simulations.dpnsgd page --results results/dpnsgd.jsonl --out docs/results

The paper's figures are of ResNet-20 on CIFAR-10 for 100 epochs of 50 steps, which a CPU does not
do in a day; here a CNN of 26,010 parameters on MNIST, batches of 250, 2 epochs, ε = 4. A heat map
shows accuracy over learning rate and regulariser r of DP-NSGD, g / (r + ‖g‖), beside learning rate
and clip norm c of DP-SGD; r and c run over the same decades. Settings are judged on a tenth of the
training set, held out, and only the best of either method is measured on test.

Source: Yang, Zhang, Chen and Liu, "Normalized/Clipped SGD with Perturbation for Differentially
Private Non-Convex Optimization" (2022, arXiv:2206.13033), section 5.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.central_experiment import CentralExperiment
from fedpriv.reproduction import TUNING_SEED, Run, Split, complete, read
from simulations.adadps import mnist

RATES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
DECADES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
SEEDS = (0, 1, 2)
KINDS = {"normalise": "DP-NSGD, g / (r + ‖g‖)", "clip": "DP-SGD, clipped to c"}


def experiment(
    bound: str, rate: float, size: float, split: Split, reduced: bool
) -> CentralExperiment:
    """Return one run.

    Args:
        bound: "normalise" or "clip".
        rate: η. Of clipped gradients too it multiplies what is bounded by c, as in the paper.
        size: r, or c.
        split: What it is measured on.
        reduced: A tenth of the steps.
    """
    normalise = bound == "normalise"
    return CentralExperiment(
        name=f"{mnist.dataset().name}-dpnsgd",
        description=KINDS[bound],
        task=lambda chosen: mnist.task("classifier", "right", split),
        bound="normalise" if normalise else "clip",
        l2_clip_norm=1.0 if normalise else size,
        normalise_regulariser=size if normalise else 0.0,
        batch_size=250,
        epochs=0.2 if reduced else 2.0,
        target_epsilon=4.0,
        delta=1e-5,
        learning_rate=rate,
        eval_every=10**9,
    )


def grid(reduced: bool) -> Iterator[Run]:
    """Yield every square of both heat maps."""
    rates, decades = (RATES[2::3], DECADES[::2]) if reduced else (RATES, DECADES)
    for bound in KINDS:
        for rate in rates:
            for size in decades:
                yield _run(bound, rate, size, "validation", TUNING_SEED, reduced)


def _run(bound: str, rate: float, size: float, split: Split, seed: int, reduced: bool) -> Run:
    made = experiment(bound, rate, size, split, reduced).with_options({"seed": seed})
    return Run(experiment=made, split=split, seed=seed, reduced=reduced)


def heat_map(done: Mapping[str, Mapping[str, Any]], bound: str, *, reduced: bool) -> np.ndarray:
    """Return accuracies `(rates, decades)`; NaN where a run is missing."""
    rates, decades = (RATES[2::3], DECADES[::2]) if reduced else (RATES, DECADES)
    out = np.full((len(rates), len(decades)), np.nan)
    for i, rate in enumerate(rates):
        for j, size in enumerate(decades):
            run = _run(bound, rate, size, "validation", TUNING_SEED, reduced)
            if run.identity in done:
                out[i, j] = done[run.identity]["accuracy"]
    return out


def best(
    done: Mapping[str, Mapping[str, Any]], bound: str, *, reduced: bool
) -> tuple[float, float]:
    """Return learning rate and size with the best accuracy on held-out examples.

    Raises:
        ValueError: If the grid is not complete.
    """
    found = heat_map(done, bound, reduced=reduced)
    if np.isnan(found).any():
        raise ValueError(f"{int(np.isnan(found).sum())} runs of {bound} are missing; run the grid")
    rates, decades = (RATES[2::3], DECADES[::2]) if reduced else (RATES, DECADES)
    i, j = np.unravel_index(int(found.argmax()), found.shape)
    return rates[int(i)], decades[int(j)]


def finals(done: Mapping[str, Mapping[str, Any]], *, reduced: bool) -> Iterator[Run]:
    """Yield the best of either method on test, several seeds each."""
    for bound in KINDS:
        rate, size = best(done, bound, reduced=reduced)
        for seed in SEEDS:
            yield _run(bound, rate, size, "test", seed, reduced)


def spread(found: np.ndarray) -> float:
    """Return how far accuracy moves over the decades at the best learning rate."""
    row = found[np.unravel_index(int(np.nanargmax(found)), found.shape)[0]]
    return float(np.nanmax(row) - np.nanmin(row))


def page(done: Mapping[str, Mapping[str, Any]], *, reduced: bool) -> str:
    """Return the results in words and a table."""
    lines = ["# DP-NSGD beside DP-SGD on MNIST" + (" (reduced)" if reduced else ""), ""]
    first = next(iter(done.values()))
    if first["synthetic"]:
        lines[0] += ", SYNTHETIC digits"
    lines += [
        f"Accuracy of a CNN of 26,010 parameters, ε = {first['epsilon']:.3g} at δ = "
        f"{first['delta']:g} ({first['relation']}, per {first['unit']}, {first['accountant']}, "
        "simulated). Settings were chosen on held-out training examples, which no ε covers.",
        "",
        "| | best η | best size | held out | test, mean of seeds | spread over the decades |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for bound, title in KINDS.items():
        found = heat_map(done, bound, reduced=reduced)
        rate, size = best(done, bound, reduced=reduced)
        runs = [_run(bound, rate, size, "test", seed, reduced) for seed in SEEDS]
        tested = [done[run.identity]["accuracy"] for run in runs if run.identity in done]
        shown = f"{np.mean(tested):.4f} ± {np.std(tested, ddof=1):.4f}" if len(tested) > 1 else "–"
        lines.append(
            f"| {title} | {rate:g} | {size:g} | {np.nanmax(found):.4f} | {shown} | "
            f"{spread(found):.4f} |"
        )
    return "\n".join([*lines, "", "![heat maps](dpnsgd.png)", ""])


def plot(done: Mapping[str, Mapping[str, Any]], path: Path, *, reduced: bool) -> None:
    """Draw both heat maps on one scale."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rates, decades = (RATES[2::3], DECADES[::2]) if reduced else (RATES, DECADES)
    maps = {bound: heat_map(done, bound, reduced=reduced) for bound in KINDS}
    top = max(float(np.nanmax(found)) for found in maps.values())
    figure, panels = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained", sharey=True)
    shown: Any = None
    for panel, (bound, found) in zip(panels, maps.items(), strict=True):
        shown = panel.imshow(found, vmin=0.1, vmax=top, origin="lower", aspect="auto")
        panel.set_xticks(range(len(decades)), [f"{size:g}" for size in decades])
        panel.set_yticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        panel.set(xlabel="r" if bound == "normalise" else "c", title=KINDS[bound])
        for (i, j), value in np.ndenumerate(found):
            dark = value < (0.1 + top) / 2
            panel.text(
                j, i, f"{100 * value:.0f}", ha="center", va="center", color="w" if dark else "k"
            )
    panels[0].set_ylabel("learning rate η")
    figure.colorbar(shown, ax=panels, label="accuracy, held-out examples")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the grid and the finals, or write the page."""
    parser = argparse.ArgumentParser(description="DP-NSGD beside DP-SGD, Figures 3 and 4.")
    parser.add_argument("stage", choices=("run", "page"))
    parser.add_argument("--results", type=Path, default=Path("results/dpnsgd.jsonl"))
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--reduced", action="store_true")
    given = parser.parse_args(arguments)

    def tell(done: int, total: int, row: Mapping[str, Any]) -> None:
        print(f"[{done}/{total}] accuracy {row['accuracy']:.4f} in {row['seconds']:.0f} s")

    if given.stage == "run":
        done = complete(grid(given.reduced), given.results, processes=given.processes, tell=tell)
        chosen = list(finals(done, reduced=given.reduced))
        complete(chosen, given.results, processes=given.processes, tell=tell)
        return
    done = read(given.results)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "dpnsgd.md").write_text(page(done, reduced=given.reduced), "utf-8")
    plot(done, given.out / "dpnsgd.png", reduced=given.reduced)


if __name__ == "__main__":
    main()
