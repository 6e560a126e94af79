"""The runs of `simulations.defaults.sweep` as tables, cell by cell: the rule beside the best run.

`python -m simulations.defaults.table RUNS.jsonl` prints Markdown. A gain is that of the last model
over public-only on rostered users' test examples (a diagnostic), in points. The best run of a cell
is the best of few at one seed, so it is somewhat lucky.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedpriv.experiments.settings import FEWEST_PUBLIC_EXAMPLES, LONGEST_NOISE

_PLATEAU = (None, 0.7, 0.8)  # of the noise on a logit: None is the rule's own
_VARIED = (
    "words",
    "decay",
    "quantile",
    "seed",
    "clip_share",
    "factor",
    "most_rounds",
)


def cells(lines: Iterable[dict[str, Any]]) -> dict[tuple[str, int, float], list[dict[str, Any]]]:
    """Return runs by kind, users and ε; those of smaller vocabularies are of other corpora."""
    found = defaultdict(list)
    for line in lines:
        asked = line["asked"]
        if "words" not in asked:
            found[asked["kind"], line["facts"]["users"], asked["epsilon"]].append(line)
    return dict(sorted(found.items()))


def is_rule(asked: dict[str, Any]) -> bool:
    """Return whether a run is what the rule says, with nothing changed."""
    return (
        bool(asked.get("by_rule"))
        and asked["rate"] == 10.0
        and asked.get("logit_noise") in _PLATEAU
        and not any(name in asked for name in _VARIED)
    )


def gain(line: dict[str, Any]) -> float:
    """Return the last model's gain over public-only."""
    return line["accuracy"]["last 1"] - line["public_only"]


def main(path: Path) -> None:
    """Print the table."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    print("| corpus | users | ε | public-only | rule: T, q, C/u | gain | best of runs | s √d |")
    print("|---|---:|---:|---:|---|---:|---:|---:|")
    for (kind, users, target), runs in cells(lines).items():
        ruled = [line for line in runs if is_rule(line["asked"])]
        if not ruled:
            continue
        line, facts = ruled[-1], ruled[-1]["facts"]
        best = max(map(gain, runs))
        length = facts["single"] * math.sqrt(facts["params"])
        enough = facts["public_examples"] >= FEWEST_PUBLIC_EXAMPLES
        gains = length <= LONGEST_NOISE and enough
        share = facts["norm"] / facts["public_length"][1]
        made = "synthetic " if facts["synthetic"] else ""
        print(
            f"| {made}{kind} | {users:,} | {target:g} | {line['public_only']:.1f} "
            f"| {facts['rounds']}, {facts['q']:.2f}, {share:.2f} "
            f"| {gain(line):+.1f} | {best:+.1f} of {len(runs)} "
            f"| {length:.2f}{'' if gains else ' (none)'} |"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
