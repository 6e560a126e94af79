"""What correlated noise costs a round, in independent noise: rows of five million numbers.

    python benchmarks/streams [--rows 40]

Rows of every kind are drawn in turn, simulated and secure (whole numbers, exactly rounded), so that
a busy machine slows all of them alike. The mean counts: banded rows are made eight at a time, and a
tree's cost more the more nodes end with them. The first rows, which compile and allocate, do not.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from fedpriv.mechanisms.correlated.binary_tree import BinaryTree
from fedpriv.mechanisms.correlated.noise import Correlated
from fedpriv.mechanisms.correlated.optimise import optimised_bands, optimised_buffers
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.mechanisms.privatizer import Participation
from fedpriv.rng import Key

BANDS, SPACING = 20, 2.0**-24


def main() -> None:
    """Draw, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=40, help="counted rows, of each kind")
    parser.add_argument("--size", type=int, default=5_000_000, help="numbers a row")
    given = parser.parse_args()
    total = given.rows + 8
    limit = Participation(most=-(-total // BANDS), min_separation=BANDS, num_rows=total)
    strategies = {
        "banded, 20 bands": optimised_bands(BANDS, limit),
        "BLT, 3 buffers": optimised_buffers(3, limit),
        "binary tree": BinaryTree(num_rows=total),
    }
    template = {"w": np.zeros(given.size, np.float32)}
    plain = Gaussian(noise_multiplier=1.0)
    print("| | " + " | ".join(["independent, ms", *strategies]) + " |")
    print("|---|---:" + "|---:" * len(strategies) + "|")
    for mode, key in (("simulation", Key.simulation(0)), ("secure", Key.secure())):
        noises = {
            name: Correlated(noise_multiplier=1.0, strategy=one, participation=limit)
            for name, one in strategies.items()
        }
        common = {"template": template, "sensitivity": 1.0}
        if mode == "secure":
            common["granularity"] = SPACING
        rows = {name: noise.draws(**common, key=key) for name, noise in noises.items()}
        taken: dict[str, list[float]] = {name: [] for name in ("independent", *noises)}
        for row in range(total):
            for name, times in taken.items():
                begun = time.perf_counter()
                if name == "independent":
                    next(plain.draws(**common, key=key.fold(row)))
                else:
                    next(rows[name])
                times.append(time.perf_counter() - begun)
        means = {name: statistics.fmean(times[8:]) for name, times in taken.items()}
        base = means.pop("independent")
        shown = [f"{mean / base:.2f} times" for mean in means.values()]
        print(f"| {mode} | {1e3 * base:.0f} | " + " | ".join(shown) + " |", flush=True)


if __name__ == "__main__":
    main()
