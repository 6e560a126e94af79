"""Another checkout of fedpriv next to this one, in one run of alternating blocks.

    python benchmarks/two_trees.py CHECKOUT [PART ...] --blocks 7

Whether a change of the code made it slower. Both run under this Python with the packages it has;
each checkout brings its own benchmark scripts, so names may differ between them; of a script that
the other has not, this one's is run. Parts are rounds of workers that stay up (`best`, `same`,
`cifar`, `words`, and `small`: a network of one's own, single examples, secure rounds) and figures
of fresh processes in turns (`floor`, `first_round`, and `commands`: account, calibrate, plan).
The ratio is this checkout's time over the other's, taken block by block, with the 95 % interval of
the median ratio that order statistics give, whatever the distribution.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatch
from math import comb
from pathlib import Path
from statistics import median

import first_round
from compare import COHORTS, measure, tell
from harness import contestants, figures
from harness.contestants import Contestant
from jobs.cifar_job import NUM_USERS

HERE = Path(__file__).resolve().parent
ROUNDS: dict[str, Callable[[str | None], list[Contestant]]] = {
    "best": lambda corpus: contestants.best(corpus, peers_too=False),
    "same": lambda corpus: contestants.same(corpus, peers_too=False),
    "cifar": lambda corpus: contestants.cifar(None, NUM_USERS, COHORTS["cifar"]),
    "words": lambda corpus: contestants.words(corpus, COHORTS["words"]),
    "small": contestants.small,
}
PARTS = (*ROUNDS, "floor", "first_round", "commands")
COMMANDS = {
    "account": "account --users 400 --cohort 20 --rounds 237 --noise-multiplier 1.2 --delta 1e-3",
    "calibrate": "calibrate --users 400 --cohort 20 --rounds 237 --target-epsilon 8 --delta 1e-3",
    "plan": "plan adadps-tags",
}
#: Beyond this a checkout is called slower.
TOLERANCE = 1.05


def environment(checkout: Path) -> dict[str, str]:
    """Return what makes Python take fedpriv and the benchmarks of a checkout."""
    folders = (checkout, checkout / "benchmarks", checkout / "benchmarks" / "jobs")
    return {"PYTHONPATH": os.pathsep.join(str(each) for each in folders if each.exists())}


def script_of(checkout: Path, script: Path) -> Path:
    """Return a checkout's script of this name, from a room or next to the commands; else ours."""
    room = checkout / "benchmarks" / script.relative_to(HERE)
    plain = checkout / "benchmarks" / script.name
    return next((each for each in (room, plain) if each.exists()), script)


def interval(values: list[float], level: float = 0.95) -> tuple[float, float, float]:
    """Return a distribution-free interval of the median, and the level that it reaches.

    >>> interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    (1.0, 7.0, 0.984375)
    """
    ordered, size = sorted(values), len(values)

    def reached(cut: int) -> float:
        return 1 - 2 * sum(comb(size, k) for k in range(cut + 1)) / 2**size

    cut = 0
    while cut + 1 <= (size - 1) // 2 and reached(cut + 1) >= level:
        cut += 1
    return ordered[cut], ordered[size - 1 - cut], reached(cut)


def row(name: str, ours: list[float], others: list[float], unit: str = "s") -> str:
    """Return a line of the table."""
    ratios = [a / b for a, b in zip(ours, others, strict=True)]
    low, high, level = interval(ratios)
    verdict = "slower" if median(ratios) > TOLERANCE else "not slower"
    return (
        f"| {name} | {median(others):.4g} {unit} | {median(ours):.4g} {unit} "
        f"| {median(ratios):.3f} | {low:.3f} to {high:.3f} ({100 * level:.0f} %) | {verdict} |"
    )


def of_checkout(person: Contestant, checkout: Path, label: str) -> Contestant:
    """Return a contestant of ours as another checkout has it."""
    # Only the script: the data that it is given are the same.
    scripts = [
        str(script_of(checkout, Path(part))) if part.startswith(str(HERE)) else part
        for part in person.command
    ]
    return replace(
        person,
        name=f"{person.name} ({label})",
        command=scripts,
        environment={**person.environment, **environment(checkout)},
    )


def rounds(part: str, checkout: Path, arguments: argparse.Namespace) -> list[str]:
    """Return the rows of rounds: every setting of ours in both checkouts."""
    ours = [
        person
        for person in ROUNDS[part](arguments.corpus)
        if person.tool == "fedpriv" and fnmatch(person.name, arguments.only)
    ]
    people = [
        of_checkout(person, tree, label)
        for person in ours
        for tree, label in ((HERE.parent, "this"), (checkout, "other"))
    ]
    entries = measure(
        people,
        blocks=arguments.blocks,
        block_seconds=arguments.block_seconds,
        warm_up=6,
        logs=contestants.DATA / "logs" / "two-trees",
    )
    return [
        row(f"{part}: {person.name}", this.medians, other.medians)
        for person, this, other in zip(ours, entries[::2], entries[1::2], strict=True)
    ]


def in_turns(
    name: str, blocks: int, figures_of: Callable[[Path], dict[str, float]], checkout: Path
) -> list[str]:
    """Return the rows of figures of fresh processes."""
    found: dict[Path, list[dict[str, float]]] = {HERE.parent: [], checkout: []}
    order, trees = random.Random(0), list(found)
    for block in range(1, blocks + 1):
        order.shuffle(trees)
        for tree in trees:
            found[tree].append(figures_of(tree))
        tell(f"{name}: block {block} of {blocks}")
    return [
        row(
            f"{name}: {figure}",
            [one[figure] for one in found[HERE.parent]],
            [one[figure] for one in found[checkout]],
            "×" if figure == "round / floor" else "s",
        )
        for figure in found[checkout][0]
    ]


def floor_of(arguments: argparse.Namespace, tree: Path) -> dict[str, float]:
    """Run a checkout's floor on one core and read what it printed."""
    command = [sys.executable, str(tree / "benchmarks" / "floor.py"), "--rounds=20"]
    command += [] if arguments.corpus is None else [f"--corpus={arguments.corpus}"]
    core = str(min(os.sched_getaffinity(0)))
    text = subprocess.run(
        ["taskset", "-c", core, *command],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment(tree), "OMP_NUM_THREADS": "1"},
    ).stdout
    kinds = {"round": r"round +([\d.]+) s", "round / floor": r"ratio +([\d.]+)"}
    return {kind: float(re.findall(pattern, text)[0]) for kind, pattern in kinds.items()}


def commands_of(arguments: argparse.Namespace, tree: Path) -> dict[str, float]:
    """Run each command of a checkout once, from its start to its exit."""
    found = {}
    for name, command in COMMANDS.items():
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "fedpriv", *command.split()],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **environment(tree)},
        )
        found[name] = time.perf_counter() - began
    return found


def first_round_of(arguments: argparse.Namespace, tree: Path) -> dict[str, float]:
    """Start a checkout's command once, with its kernels at hand."""
    command = [sys.executable, "-m", "fedpriv", "run", first_round.NAME, "--backend=ray"]
    command += ["--workers=2", "--rounds=1"]
    command += [] if arguments.corpus is None else [f"--corpus={arguments.corpus}"]
    one = first_round.start(["env", *map("=".join, environment(tree).items()), *command], None)
    return {"command to first round, less Ray's start": one.without_ray}


def main() -> None:
    parser = argparse.ArgumentParser(description="Another checkout next to this one.")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("parts", nargs="*", default=[], help=f"of {', '.join(PARTS)}; all of them")
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--block-seconds", type=float, default=6.0)
    parser.add_argument("--corpus", default=None, help="as for `fedpriv run`")
    parser.add_argument("--only", default="*", help="pattern of settings of rounds")
    parser.add_argument("--out", type=Path, default=None, help="file of the table")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"parts {', '.join(sorted(unknown))} are not known; use {', '.join(PARTS)}")
    if arguments.blocks < 6:
        parser.error(f"blocks {arguments.blocks} give no 95 % interval; use 6 or more")
    checkout = arguments.checkout.resolve()
    if not script_of(checkout, HERE / "jobs" / "fedpriv_jobs.py").exists():
        parser.error(f"{arguments.checkout} is no checkout of fedpriv with its benchmarks")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rows: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # no file next to a script shall be taken for a package
        for part in arguments.parts or PARTS:
            if part in ROUNDS:
                rows += rounds(part, checkout, arguments)
                continue
            of = {"floor": floor_of, "commands": commands_of}.get(part, first_round_of)
            if part == "first_round":
                for tree in (HERE.parent, checkout):  # each compiles its kernels once
                    first_round_of(arguments, tree)
            rows += in_turns(
                part, arguments.blocks, lambda tree, of=of: of(arguments, tree), checkout
            )
    lines = [
        "# This checkout next to another",
        "",
        *figures.where(),
        "",
        f"{arguments.blocks} alternating blocks; medians, and this checkout's time over the "
        "other's block by block.",
        "",
        "| | other | this | ratio | interval of the median | beyond 5 % |",
        "|---|---:|---:|---:|---:|---|",
        *rows,
    ]
    text = "\n".join(lines) + "\n"
    if arguments.out is not None:
        arguments.out.write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
