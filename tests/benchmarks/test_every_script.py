"""Every script of benchmarks/ starts and ends well in its smallest case; no figure is looked at.

What a script starts is run too: the scripts that a case ran are compared with what it says of them.
By default those that take seconds say what their options are, and are run by `make test-full`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedpriv.datasets.importers.synthetic import Shape, synthesize
from tests.harness.tiny_bert import write_tiny_bert

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
# With peers' packages, in environments of their own: `benchmarks/peers.py` makes them.
PEERS = {"jobs/flower_jobs.py", "jobs/pfl_jobs.py"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One command.

    Attributes:
        argv: The script and its options; {corpus}, {out} and {root} stand for folders.
        runs: Scripts that it starts.
        slow: Why it runs in a process of its own and is no default test; "" for all others.
        seconds: Whether it takes some, and so is no default test either.
    """

    argv: str
    runs: tuple[str, ...] = ()
    slow: str = ""
    seconds: bool = False


OURS = "--only fedpriv --only fedpriv,?[w2-9]* --only fedpriv,?torch*"
CASES = (
    Case(argv="export_tags.py {out}/tags --corpus {corpus}", seconds=True),
    Case(argv="export_words.py {out}/words --corpus {corpus} --sentences 2"),
    Case(argv="round_time.py --corpus {corpus} --rounds 6", seconds=True),
    Case(argv="floor.py --corpus {corpus} --rounds 3", seconds=True),
    Case(
        argv=f"compare.py same best plumbing plumbing-dp --smallest {OURS} --corpus {{corpus}} "
        "--results {out}/results",
        runs=("export_tags.py", "jobs/fedpriv_jobs.py"),
        seconds=True,
    ),
    Case(
        argv="compare.py words cifar --smallest --only fedpriv --only fedpriv,?torch* "
        "--only local?steps* --corpus {corpus} --results {out}/results",
        runs=("export_words.py", "jobs/fedpriv_jobs.py", "jobs/bare_jobs.py"),
        seconds=True,
    ),
    Case(
        argv="compare.py plumbing --smallest --only fedpriv* --results {out}/results",
        runs=("jobs/fedpriv_jobs.py",),
        slow="starts Ray",
    ),
    Case(argv="dense_training.py softmax --blocks 1 --users 3", seconds=True),
    Case(
        argv="gpu.py path linear users --device cpu --smallest --gpus 1 --corpus {corpus} "
        "--results {out}/results",
        runs=("growing/case.py",),
        seconds=True,
    ),
    Case(
        argv="gpu.py users --device cpu --smallest --gpus 2 --results {out}/results",
        slow="starts Ray with two logical GPUs",
    ),
    Case(
        argv="gpu.py best words cifar --device cpu --smallest --gpus 1 --corpus {corpus} "
        "--results {out}/results",
        runs=("export_tags.py", "export_words.py", "jobs/fedpriv_jobs.py"),
        slow="trains the LSTM and the CNN on the processor",
    ),
    Case(
        argv="per_example.py --model autoencoder --tool fedpriv --blocks 1 "
        "--batch 2 --threads 1 --out {out}",
        runs=("jobs/per_example_worker.py",),
        seconds=True,
    ),
    Case(argv="growth.py --smallest --out {out}", runs=("growing/case.py",), seconds=True),
    Case(
        argv="growth.py --smallest --endurance --out {out}",
        runs=("growing/case.py",),
        slow="several fresh processes one after the other",
    ),
    Case(argv="secure_rounds.py --blocks 1 --inputs 5 --corpus {corpus}"),
    Case(
        argv="encoding.py {encoder} --corpus {corpus} --sentences 16 --processes 1 --blocks 1",
        runs=("jobs/encoding_worker.py",),
        seconds=True,
    ),
    Case(argv="streams --rows 1 --size 100"),
    Case(
        argv="study_runner.py --smallest --corpus {corpus} --results {out}",
        slow="eight fresh commands one after the other",
    ),
    *(  # what takes seconds, and peers.py, which would download gigabytes
        Case(argv=f"{name} --help")
        for name in (
            *("study_runner.py", "export_tags.py", "round_time.py", "floor.py", "compare.py"),
            *("dense_training.py", "gpu.py", "per_example.py", "growth.py", "encoding.py"),
            *("deployed", "first_round.py", "peers.py", "two_trees.py"),
        )
    ),
    Case(
        argv="two_trees.py {root} best --blocks 6 --block-seconds 0 --only fedpriv "
        "--corpus {corpus} --out {out}/two_trees.md",
        runs=("export_tags.py", "jobs/fedpriv_jobs.py"),
        slow="twelve blocks one after the other",
    ),
    Case(
        argv="first_round.py --repeats 1 --corpus {corpus} --out {out}",
        slow="starts Ray three times, once without compiled kernels",
    ),
    Case(
        argv="two_trees.py {root} small commands --blocks 6 --block-seconds 0 "
        "--corpus {corpus} --out {out}/two_trees.md",
        runs=("jobs/small_jobs.py",),
        slow="thirty-six fresh processes one after the other",
    ),
    Case(
        argv="two_trees.py {root} floor --blocks 6 --corpus {corpus} --out {out}/two_trees.md",
        slow="twelve fresh processes one after the other",
    ),
    Case(
        argv="deployed --blocks 1 --rounds 1 --folder {out} --out {out}/deployed.md",
        slow="starts Flower's processes five times",
    ),
    Case(
        argv='deployed/on_flower.py 3 {{"corpus":"{corpus}","out":"{out}/run","rounds":2,'
        '"cohort":6,"delta":0.01}}',
        slow="imports Flower's server anew",
    ),
)  # fmt: skip


def named(argv: str, **folders: Path) -> list[str]:
    """Return a case's arguments; a question mark between words stands for a blank in one."""
    words = [word.format(**folders) for word in argv.split()]
    return [
        word.replace("?", " ") if word.startswith("fedpriv") or "dense" in word else word
        for word in words
    ]


def script(first: str) -> str:
    """Return the script that a command names, as a path within benchmarks/."""
    return f"{first}/__main__.py" if (BENCHMARKS / first).is_dir() else first


def scripts() -> set[str]:
    """Return every script of the folder."""
    return {
        str(path.relative_to(BENCHMARKS))
        for path in BENCHMARKS.rglob("*.py")
        if '__name__ == "__main__"' in path.read_text("utf-8") and ".envs" not in path.parts
    }


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora") / "smallest"
    shape = Shape(
        num_users=400, num_sentences=2_000, public_users=60, num_words=300, num_tags=8,
        num_topics=4, spread=0.0,
    )  # fmt: skip
    synthesize(folder, shape=shape, max_words=200, max_tags=8)
    return folder


Run = Callable[[Case, Path], tuple[int, str, set[str]]]


@pytest.fixture(scope="module")
def run(corpus: Path) -> Iterator[Run]:
    """What runs a case and returns its exit status, what was printed and which scripts ran."""
    forking: list[subprocess.Popen] = []

    def answer(case: Case, out: Path) -> tuple[int, str, set[str]]:
        log, ran = out / "printed.log", out / "scripts.log"
        if "{encoder}" in case.argv:
            pytest.importorskip("transformers")
            write_tiny_bert(out / "encoder")
        folders = {"corpus": corpus, "out": out, "root": ROOT, "encoder": out / "encoder"}
        first, *rest = named(case.argv, **folders)
        env = {
            **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
            "FEDPRIV_CACHE": str(out / "cache"), "FEDPRIV_BENCHMARK_DATA": str(out / "data"),
            "FORKED_SCRIPTS": str(ran), "MPLBACKEND": "agg",
        }  # fmt: skip
        argv = [str(BENCHMARKS / first), *rest]
        if case.slow:
            with log.open("wb") as said:
                status = subprocess.run(
                    [sys.executable, *argv], env=env, stdout=said, stderr=said, check=False
                ).returncode
            return status, log.read_text("utf-8"), {script(first), *case.runs}
        if not forking:
            command = [sys.executable, str(Path(__file__).parent / "forking.py")]
            forking.append(
                subprocess.Popen(
                    command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
        process = forking[0]
        assert process.stdin is not None and process.stdout is not None
        asked = {"argv": argv, "env": env, "cwd": str(out), "log": str(log)}
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        status = json.loads(process.stdout.readline())["status"]
        files = {Path(line) for line in ran.read_text("utf-8").splitlines()}
        ours = {str(file.relative_to(BENCHMARKS)) for file in files if BENCHMARKS in file.parents}
        return status, log.read_text("utf-8"), ours

    yield answer
    for process in forking:
        process.communicate()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            marks=[pytest.mark.slow] if case.slow or case.seconds else [],
            id=case.argv.split(" -")[0],
        )
        for case in CASES
    ],
)
def test_a_script_starts_and_ends_well(case: Case, run: Run, tmp_path: Path) -> None:
    status, printed, ran = run(case, tmp_path)
    assert status == 0, printed[-6000:]
    assert ran == {script(case.argv.split()[0]), *case.runs}


def test_no_script_is_forgotten() -> None:
    """A peer's own worker is started where its environment is; all others have a case."""
    covered = {script(case.argv.split()[0]) for case in CASES}.union(*(c.runs for c in CASES))
    assert covered | PEERS == scripts()
