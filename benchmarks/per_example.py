"""Per-example gradients: fedpriv and plain Opacus 1.6, in time and memory.

    python benchmarks/per_example.py [--blocks 9] [--threads 1 2]

From the positions of a batch of 64 to the sum of its clipped gradients, on the CPU: the MNIST
auto-encoder (2,837,314 parameters) and ResNet-20 with group norm (269,722). Every tool runs in a
process of its own and blocks of steps of all of them alternate; memory is the peak resident set
of a process that has the machine's other workers gone. All must find the same sum. The table goes
to `results/per_example.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from harness import machine, peers
from harness.worker_process import WorkerProcess

HERE = Path(__file__).resolve().parent
TOOLS = ("fedpriv", "opacus")
MODELS = {"autoencoder": 10, "resnet20": 4}  # and steps a block
_AGREE = 1e-4


@dataclass(slots=True)
class Measured:
    """Result of one tool on one model with some threads.

    Attributes:
        seconds: Median wall time of a step, block by block.
        cpu_seconds: CPU time of a step, block by block.
        before: Peak resident memory, MiB, before the first step.
        peak: The same after six steps.
    """

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    before: float = 0.0
    peak: float = 0.0


def command(tool: str, model: str, batch: int, threads: int, mode: str) -> list[str]:
    python = str(peers.environment("opacus")) if tool == "opacus" else sys.executable
    worker = str(HERE / "jobs" / "per_example_worker.py")
    return [python, worker, tool, model, str(batch), str(threads), mode]


def environment(threads: int) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def measure(
    model: str, batch: int, threads: int, blocks: int, tools: Sequence[str] = TOOLS
) -> dict[str, Measured]:
    """Return what is found of the tools, by name.

    Raises:
        RuntimeError: If their sums differ.
    """
    found, norms = {tool: Measured() for tool in tools}, {}
    workers = {}
    with tempfile.TemporaryDirectory() as logs:
        try:
            for tool in tools:
                asked = command(tool, model, batch, threads, "time")
                log = Path(logs) / f"{tool}.log"
                workers[tool] = WorkerProcess(tool, asked, environment(threads), log)
            for tool, worker in workers.items():
                norms[tool] = worker.ready()["ready"]["norm"]
                worker.rounds(MODELS[model])  # warms up
            for block in range(blocks):
                turns = list(workers.items())
                for tool, worker in turns if block % 2 else reversed(turns):
                    done = worker.rounds(MODELS[model])
                    found[tool].seconds.append(median(done.seconds))
                    found[tool].cpu_seconds.append(done.cpu_seconds)
        finally:
            for worker in workers.values():
                worker.stop()
    if max(norms.values()) > min(norms.values()) * (1 + _AGREE):
        raise RuntimeError(f"the tools find different sums, of norms {norms}")
    for tool, measured in found.items():
        done = subprocess.run(
            command(tool, model, batch, threads, "memory"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment(threads)},
            check=True,
        )
        answer = json.loads(done.stdout.splitlines()[-1])["ready"]
        measured.before, measured.peak = answer["before"], answer["peak"]
    return found


def rows(model: str, threads: int, found: dict[str, Measured]) -> list[str]:
    """Return lines of the table; ratios are Opacus' time by the tool's, block by block.

    Where Opacus was left out, they are the last tool's.
    """
    lines, base = [], found.get("opacus", list(found.values())[-1])
    for tool, measured in found.items():
        pairs = zip(base.seconds, measured.seconds, strict=True)
        ratios = sorted(theirs / ours for theirs, ours in pairs)
        pairs = zip(base.cpu_seconds, measured.cpu_seconds, strict=True)
        cpu = median(theirs / ours for theirs, ours in pairs)
        lines.append(
            f"| {model} | {threads} | {tool} | {median(measured.seconds) * 1e3:.1f} "
            f"| {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) | {cpu:.2f} "
            f"| {measured.peak:.0f} | {measured.peak - measured.before:.0f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Time per-example gradients of fedpriv and Opacus."
    )
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--model", action="append", choices=MODELS, help="instead of both")
    parser.add_argument("--tool", action="append", choices=TOOLS, help="instead of all")
    arguments = parser.parse_args()
    tools = arguments.tool or TOOLS
    about = machine.describe()
    table = [
        "| model | threads | tool | ms a step | times faster than Opacus | by CPU time "
        "| peak MiB | of it steps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(table), flush=True)
    for threads in arguments.threads:
        for model in arguments.model or MODELS:
            found = measure(model, arguments.batch, threads, arguments.blocks, tools)
            table += rows(model, threads, found)
            print("\n".join(table[-len(tools) :]), flush=True)
            # After each model: a run that is stopped leaves what it has.
            write(arguments, about, table)


def write(arguments: argparse.Namespace, about: dict[str, Any], table: list[str]) -> None:
    opacus = peers.PINS["opacus"][0][0].replace("==", " ")
    text = [
        "# Per-example gradients",
        "",
        f"From a batch of {arguments.batch} to the sum of its clipped gradients; "
        f"{arguments.blocks} alternating blocks, medians, ratios block by block (least to most). "
        f"Plain {opacus}: GradSampleModule with hooks and its DPOptimizer's clipping. Peak memory "
        "is the resident set of a process alone; its last column leaves out what was there before "
        "the first step.",
        "",
        *table,
        "",
        machine.hardware(about) + f". torch {about['versions']['torch']}.",
        "",
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "per_example.md").write_text("\n".join(text), "utf-8")


if __name__ == "__main__":
    main()
