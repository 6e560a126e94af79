"""Every script of benchmarks/ starts and ends well in its smallest case; no figure is looked at.

What a script starts is run too: the scripts that a case ran are compared with what it says of them.
By default those that take seconds say what their options are, and are run by `make test-full`.
"""

import os
import subprocess
import sys
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
        slow: Why it is no default test and what it starts is not looked at; "" for all others.
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
        argv="two_trees.py {root} small --blocks 6 --block-seconds 0 "
        "--corpus {corpus} --out {out}/two_trees.md",
        runs=("jobs/small_jobs.py",),
        slow="a dozen fresh processes one after the other",
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

#: What takes seconds, and peers.py, which would download gigabytes.
HELPED = (
    *("study_runner.py", "export_tags.py", "round_time.py", "floor.py", "compare.py"),
    *("dense_training.py", "gpu.py", "per_example.py", "growth.py", "encoding.py"),
    *("deployed/__main__.py", "first_round.py", "peers.py", "two_trees.py"),
)
#: Asked for their options in one process, which imports fedpriv and torch once.
ASKED = """
import runpy, sys
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    try:
        runpy.run_path(name, run_name="__main__")
    except SystemExit as done:
        assert not done.code, name
    else:
        raise AssertionError(name)
"""


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


@pytest.fixture(scope="module")
def noting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that lets every Python process with it on its path note which file it runs."""
    folder = tmp_path_factory.mktemp("noting")
    (folder / "sitecustomize.py").write_text(
        "import os, sys\n"
        "with open(os.environ['NOTED_SCRIPTS'], 'a') as log:\n"
        "    print(sys.orig_argv[1], file=log)\n"
    )
    return folder


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
def test_a_script_starts_and_ends_well(
    case: Case, corpus: Path, noting: Path, tmp_path: Path
) -> None:
    noted = tmp_path / "scripts.log"
    if "{encoder}" in case.argv:
        pytest.importorskip("transformers")
        write_tiny_bert(tmp_path / "encoder")
    folders = {"corpus": corpus, "out": tmp_path, "root": ROOT, "encoder": tmp_path / "encoder"}
    first, *rest = named(case.argv, **folders)
    env = {
        **os.environ, "PYTHONPATH": f"{noting}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1",
        "FEDPRIV_CACHE": str(tmp_path / "cache"), "FEDPRIV_BENCHMARK_DATA": str(tmp_path / "data"),
        "NOTED_SCRIPTS": str(noted), "MPLBACKEND": "agg",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / first), *rest], cwd=tmp_path, env=env,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    if not case.slow:
        files = {Path(line) for line in noted.read_text("utf-8").splitlines()}
        ran = {file.relative_to(BENCHMARKS) for file in files if BENCHMARKS in file.parents}
        noted_too = {script(str(file)) for file in ran}
        # Contestants have a path of their own, and note nothing.
        assert script(first) in noted_too and noted_too <= {script(first), *case.runs}


def test_scripts_that_take_seconds_say_their_options() -> None:
    names = [str(BENCHMARKS / name.removesuffix("/__main__.py")) for name in HELPED]
    done = subprocess.run(
        [sys.executable, "-c", ASKED, *names], cwd=BENCHMARKS, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.count("usage: ") == len(HELPED)


def test_no_script_is_forgotten() -> None:
    """A peer's own worker is started where its environment is; all others have a case."""
    covered = {script(case.argv.split()[0]) for case in CASES}.union(*(c.runs for c in CASES))
    assert covered.union(HELPED, PEERS) == scripts()
