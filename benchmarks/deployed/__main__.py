"""A deployed round: Flower's own processes, the launcher's, and many nodes.

    python benchmarks/deployed                 three SuperNodes of ten users, 3 alternating blocks
    python benchmarks/deployed --many          one user each: 30 SuperNodes, 100 nodes in a process

A block is one run on fresh processes over loopback; its first round, in which nodes compile what
they never compiled, is not counted. Both kinds are run without TLS and with it. The corpus is
synthetic: 10,000 words, 500 tags, 5,000,500 parameters of float32, which every node gets in every
round; answers are row-sparse.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]

from federation import LAUNCHER, ROOT, STOCK, Federation, copy_app  # noqa: E402
from harness import machine, process_tree  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402
from stamps import stamp_app  # noqa: E402
from timeline import STEPS, Round, rounds  # noqa: E402

from fedpriv.datasets.importers.synthetic import Shape, synthesize  # noqa: E402

RESULTS = HERE.parent / "results" / "deployed.md"
NODES, USERS = 3, 30
STOCK_TLS, TLS = f"{STOCK} with TLS", f"{LAUNCHER} with TLS"
_ROUNDS = 5


@dataclass
class Watch:
    """The highest PSS of some processes and theirs, and their CPU time now and then."""

    roots: list[int]
    peak_mib: float = 0.0
    cpu: list[tuple[float, float]] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watch:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            roots = list(self.roots)
            self.cpu.append((time.time(), sum(_cpu(root) for root in roots)))
            found = sum(process_tree.pss_mib(root)["total"] for root in roots)
            self.peak_mib = max(self.peak_mib, found)

    def between(self, begins: float, ends: float) -> float:
        """Return the CPU seconds from the last look before one time to the first after another."""
        before = [cpu for at, cpu in self.cpu if at <= begins]
        after = [cpu for at, cpu in self.cpu if at >= ends]
        return (after[0] if after else self.cpu[-1][1]) - before[-1]


def _cpu(root: int) -> float:
    """Return a tree's CPU seconds, those of its dead and buried included."""
    total = 0.0
    for pid in process_tree.descendants(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(int(value) for value in fields[11:15])
    return total / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One run of one kind: its rounds but the first, and a digest of its last params."""

    rounds: list[Round]
    cpu_seconds: float
    peak_mib: float
    load: float
    params: str


def block(
    kind: str, nodes: int, users: int, corpus: Path, num_rounds: int, *, tls: bool = False
) -> Block:
    """Run a federation once."""
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        stamp_app(copy_app(base / "app"))
        federation = Federation(base / "home", kind, tls)
        try:
            federation.start(
                [
                    {"partition-id": number, "num-partitions": nodes, "corpus": str(corpus)}
                    for number in range(nodes)
                ]
            )
            with Watch(federation.roots()) as watch:
                log = federation.train(
                    base / "app", _config(corpus, base / "run", num_rounds, users)
                )
            load = os.getloadavg()[0]
            if not (base / "run" / "summary.json").is_file():
                raise RuntimeError(f"no run of {kind} processes:\n{log[-4000:]}")
        finally:
            federation.stop()
        said = federation.lines
        found = rounds(
            log,
            [sorted(said[f"supernode-{n}"] + said.get(f"clientapp-{n}", [])) for n in range(nodes)],
        )
        counted = found[1:] or found
        ends = counted[-1].begins + counted[-1].seconds
        last = base / "run" / "checkpoints" / f"round-{num_rounds:06d}.safetensors"
        return Block(
            rounds=counted,
            cpu_seconds=watch.between(counted[0].begins, ends) / len(counted),
            peak_mib=watch.peak_mib,
            load=load,
            params=params_digest(last),
        )


def params_digest(path: Path) -> str:
    """Return the SHA-256 of the tensors of a file, whatever else is in it."""
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(path).items()):
        digest.update(name.encode() + tensor.tobytes())
    return digest.hexdigest()


def _config(corpus: Path, out: Path, num_rounds: int, users: int) -> dict[str, object]:
    return {
        "experiment": "adadps-tags", "corpus": str(corpus), "out": str(out), "rounds": num_rounds,
        "cohort": 0.9 * users, "noise-multiplier": 0.5, "seed": 11,
        "options": f"eval-every = {num_rounds}",
    }  # fmt: skip


def _corpus(folder: Path, users: int) -> Path:
    path = folder / f"synthetic-{users}"
    if not path.exists():
        shape = Shape(num_users=users, num_sentences=300 * users, public_users=30, spread=0.3)
        synthesize(path, shape=shape)
    return path


def page(blocks: dict[str, list[Block]], about: str) -> str:
    """Return the table of the two kinds."""
    seconds = {
        kind: sorted(one.seconds for each in several for one in each.rounds)
        for kind, several in blocks.items()
    }

    def of(slow: str, fast: str) -> list[float]:
        return [
            median(one.seconds for one in a.rounds) / median(one.seconds for one in b.rounds)
            for a, b in zip(blocks[slow], blocks[fast], strict=True)
        ]

    ratios = of(STOCK, LAUNCHER)
    kinds = (STOCK, LAUNCHER, STOCK_TLS, TLS)
    same = len({each.params for several in blocks.values() for each in several}) == 1
    lines = [
        "# A deployed round",
        "",
        "Three SuperNodes of ten users each (synthetic), 5,000,500 parameters, over loopback "
        f"without TLS and with it; {len(ratios)} alternating blocks of "
        f"{len(blocks[STOCK][0].rounds)} counted rounds on fresh processes. "
        + ("All runs' last params are the same, bit for bit. " if same else "PARAMS DIFFER. ")
        + "Seconds are wall time of a machine that had other work; CPU seconds are of all "
        "processes, the server's and the nodes'.",
        "",
        about,
        "",
        "| | Flower's processes | launcher | Flower's, TLS | launcher, TLS |",
        "|---|---:|---:|---:|---:|",
    ]

    def row(name: str, cells: dict[str, str]) -> str:
        return f"| {name} | {' | '.join(cells[kind] for kind in kinds)} |"

    figures = {
        "**seconds a round**, median": lambda k: f"**{median(seconds[k]):.2f}**",
        "lowest to highest": lambda k: f"{seconds[k][0]:.2f} to {seconds[k][-1]:.2f}",
        "CPU seconds a round": lambda k: f"{median(b.cpu_seconds for b in blocks[k]):.1f}",
        "peak PSS of all processes, MiB": lambda k: f"{max(b.peak_mib for b in blocks[k]):.0f}",
        "load at the end": lambda k: ", ".join(f"{b.load:.1f}" for b in blocks[k]),
    }
    lines += [row(name, {k: figure(k) for k in kinds}) for name, figure in figures.items()]
    for name, said in STEPS.items():
        cells = {
            kind: f"{median(one.steps[name] for each in blocks[kind] for one in each.rounds):.2f}"
            for kind in kinds
        }
        lines.append(row(said, cells))
    lines += [
        "",
        f"Ratio of medians, block by block: {_listed(ratios)}; with TLS "
        f"{_listed(of(STOCK_TLS, TLS))}. Steps "
        "are medians over rounds of means over nodes, in the order in which they come.",
    ]
    return "\n".join(lines) + "\n"


def _listed(ratios: list[float]) -> str:
    return ", ".join(f"{ratio:.1f}" for ratio in ratios)


def many(folder: Path) -> str:
    """Return what many nodes of one user each took."""
    nodes = 30
    found = block(LAUNCHER, nodes, nodes, _corpus(folder, nodes), 2)
    lines = [
        "## Many nodes of one user each",
        "",
        f"- {nodes} SuperNodes of the launcher on loopback: a round in "
        f"{found.rounds[-1].seconds:.1f} s, {found.cpu_seconds:.0f} CPU seconds; peak PSS of all "
        f"{2 * nodes + 2} processes and theirs {found.peak_mib:,.0f} MiB "
        f"({found.peak_mib / nodes:,.0f} a node); load {found.load:.1f}.",
    ]
    nodes = 100
    corpus = _corpus(folder, nodes)
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        process = subprocess.Popen(
            [sys.executable, str(HERE / "on_flower.py"), str(nodes),
             json.dumps(_config(corpus, run, 2, nodes))],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        with Watch([process.pid]) as watch:
            if process.wait():
                raise RuntimeError("no run over the in-process grid")
        *_, last = (run / "diagnostics.jsonl").read_text().splitlines()
        took = json.loads(last)["seconds"]
    lines.append(
        f"- {nodes} nodes over a grid within one process, each message through Flower's encoding: "
        f"a round in {took:.1f} s; peak PSS {watch.peak_mib:,.0f} MiB."
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a deployed round.")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--many", action="store_true", help="30 and 100 nodes of one user instead")
    parser.add_argument("--folder", type=Path, default=HERE.parent / ".data" / "deployed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    about = machine.sentence(machine.describe())
    if arguments.many:
        text = many(arguments.folder)
        before = arguments.out.read_text("utf-8") if arguments.out.exists() else ""
        text = before.partition("\n## Many nodes")[0].rstrip() + "\n\n" + text
    else:
        corpus = _corpus(arguments.folder, USERS)
        block(LAUNCHER, NODES, USERS, corpus, 1)  # what is compiled once is compiled here
        kinds = (STOCK, LAUNCHER, STOCK_TLS, TLS)
        blocks: dict[str, list[Block]] = {kind: [] for kind in kinds}
        for number in range(arguments.blocks):
            for kind in kinds if number % 2 == 0 else kinds[::-1]:
                tls = kind in (STOCK_TLS, TLS)
                plain = kind.removesuffix(" with TLS")
                one = block(plain, NODES, USERS, corpus, arguments.rounds, tls=tls)
                blocks[kind].append(one)
                took = ", ".join(f"{each.seconds:.2f}" for each in one.rounds)
                print(f"[{number + 1}] {kind}: {took} s, load {one.load:.1f}", flush=True)
        text = page(blocks, about)
        before = arguments.out.read_text("utf-8") if arguments.out.exists() else ""
        _, found, rest = before.partition("\n## Many nodes")
        text += found + rest
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
