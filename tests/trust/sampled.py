"""How much the default tests notice: a seeded sample of small changes, and of deleted refusals.

    make mutants                                        covers, then both samples
    python -m tests.trust.sampled cover --state DIR     which test executes which line (20 minutes)
    python -m tests.trust.sampled changes --state DIR   300 changes of privacy-critical code
    python -m tests.trust.sampled raises --state DIR    150 `raise` statements, deleted

A change is of an operator, a comparison, a number, a truth value, a returned value or a call that
is left out; messages, docstrings and annotations are not changed. Of each change the tests that
execute its line are run, those nearest to its module first, up to the first that fails. A change is
noticed by that, or by tests that do not end in time. Results are appended to the state folder, and
what is there is not run again. The last line has the share that was noticed, with a 95 % interval
(Wilson).
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]
TWINS = Path(__file__).resolve().parent / "twins"
PLACES = (
    "rng.py", "ranges.py", "sums.py", "tree.py", "optimizers.py", "mechanisms", "privacy",
    "checkpoints", "training", "runs/door.py", "runs/attendance.py", "runs/loop.py",
    "runs/secret_state.py", "runs/noise_root.py", "backends/guard.py", "backends/backend.py",
    "backends/flower",
)  # fmt: skip
"""Modules and folders of `fedpriv` whose code is changed; of all of it refusals are deleted."""
SEED, CHANGES, RAISES = 58, 300, 150
MOST_TESTS, SECONDS = 300, 300
"""Tests that are run of one change, and the time that they have."""


@dataclass(frozen=True)
class Change:
    """One change of a module's text.

    Attributes:
        module: Its path below `fedpriv`.
        line: Of the text that is changed, from 1.
        start: Offset of that text.
        end: Offset of its end.
        text: What stands there instead.
    """

    module: str
    line: int
    start: int
    end: int
    text: str

    @property
    def name(self) -> str:
        """By which a result is found again."""
        return f"{self.module}:{self.line} {self.start}-{self.end} {self.text}"


# -- changes ----------------------------------------------------------------------------------

_SWAPPED: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn,
    ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div,
    ast.Div: ast.Mult, ast.Pow: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def replaced(node: ast.AST) -> Iterator[str]:
    """Yield what may stand in a node's place."""
    new = deepcopy(node)
    if isinstance(new, ast.Compare) and type(new.ops[0]) in _SWAPPED:
        new.ops[0] = _SWAPPED[type(new.ops[0])]()
    elif isinstance(new, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(new.op) in _SWAPPED:
        if isinstance(getattr(getattr(new, "left", None), "value", None), str):
            return  # a text
        new.op = _SWAPPED[type(new.op)]()
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not | ast.USub):
        new = new.operand
    elif isinstance(new, ast.Constant) and isinstance(new.value, bool):
        new.value = not new.value
    elif isinstance(new, ast.Constant) and isinstance(new.value, int | float):
        new.value = new.value + 1 if isinstance(new.value, int) else 2 * new.value + 0.5
    elif isinstance(new, ast.Return) and new.value is not None:
        if isinstance(new.value, ast.Constant) and new.value.value is None:
            return
        new.value = ast.Constant(None)
    elif isinstance(new, ast.Expr) and isinstance(new.value, ast.Call | ast.Await):
        new = ast.Pass()
    else:
        return
    text = ast.unparse(new)
    yield text if isinstance(new, ast.stmt) else f"({text})"


class _Finder(ast.NodeVisitor):
    """Collects the nodes that may be changed: code of functions, without what it says."""

    def __init__(self) -> None:
        self.found: list[ast.AST] = []
        self.raises: list[ast.Raise] = []
        self._inside = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._inside += 1
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self._inside -= 1

    def visit_Raise(self, node: ast.Raise) -> None:
        if node.exc is not None:
            self.raises.append(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def generic_visit(self, node: ast.AST) -> None:
        if self._inside:
            self.found.append(node)
        super().generic_visit(node)


def changes(path: Path, *, raises: bool) -> Iterator[Change]:
    """Yield every change of a module, or every deletion of a `raise`."""
    text = path.read_text("utf-8")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    finder = _Finder()
    finder.visit(ast.parse(text))
    module = path.relative_to(ROOT / "fedpriv").as_posix()
    for node in finder.raises if raises else finder.found:
        if not hasattr(node, "lineno"):
            continue
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        for new in ["pass"] if raises else replaced(node):
            yield Change(module, node.lineno, start, end, new)


def changed(change: Change) -> bytes:
    """Return a module's text with a change in it."""
    text = (ROOT / "fedpriv" / change.module).read_bytes()
    return text[: change.start] + change.text.encode() + text[change.end :]


def sample(*, raises: bool) -> list[Change]:
    """Return the seeded sample; what does not compile is not in it."""
    places = [ROOT / "fedpriv" / place for place in (("",) if raises else PLACES)]
    files = sorted({f for p in places for f in (p.rglob("*.py") if p.is_dir() else [p])})
    found = [change for file in files for change in changes(file, raises=raises)]
    random.Random(SEED).shuffle(found)
    kept = list[Change]()
    for change in found:
        if len(kept) == (RAISES if raises else CHANGES):
            break
        try:
            compile(changed(change), change.module, "exec")
        except SyntaxError:
            continue
        kept.append(change)
    return kept


# -- which tests execute a line ---------------------------------------------------------------

_CONFIG = """\
[run]
source = fedpriv
data_file = {data}
parallel = true
dynamic_context = test_function
patch = subprocess
"""


def cover(state: Path) -> None:
    """Run the default tests and write which of them execute which line."""
    config = state / "coveragerc"
    config.write_text(_CONFIG.format(data=state / "data"), "utf-8")
    command = [sys.executable, "-m", "coverage"]
    pytest = ["-m", "pytest", "-n", "auto", "--dist", "worksteal", "-p", "no:cacheprovider"]
    subprocess.run([*command, "run", f"--rcfile={config}", *pytest], cwd=ROOT, check=False)
    subprocess.run([*command, "combine", f"--rcfile={config}", "--quiet"], cwd=ROOT, check=True)


def covering(state: Path, change: Change) -> list[str]:
    """Return node ids of the test functions that execute a change's line, nearest first."""
    path = str(ROOT / "fedpriv" / change.module)
    query = """SELECT context.context, line_bits.numbits FROM line_bits
        JOIN file ON file.id = line_bits.file_id JOIN context ON context.id = line_bits.context_id
        WHERE file.path = ? AND context.context != ''"""
    with sqlite3.connect(state / "data") as data:
        rows = data.execute(query, (path,)).fetchall()
    # A bit is a line: https://coverage.readthedocs.io/en/7.17.3/dbschema.html
    place, bit = divmod(change.line, 8)
    names = {name for name, bits in rows if place < len(bits) and bits[place] >> bit & 1}
    found = [(name, node) for name in names if (node := node_id(name)) is not None]
    near = {part.removesuffix(".py") for part in Path(change.module).parts}
    found.sort(key=lambda one: (-len(near & set(one[0].replace("_", ".").split("."))), one[0]))
    return [node for _, node in found[:MOST_TESTS]]


def node_id(context: str) -> str | None:
    """Return pytest's name of a test function, or the file of one made within another; else None.

    >>> node_id("tests.trust.test_rows.test_names")
    'tests/trust/test_rows.py::test_names'
    """
    parts = context.split(".")
    for number in range(len(parts), 0, -1):
        file = ROOT.joinpath(*parts[:number]).with_suffix(".py")
        if file.is_file():
            inside = parts[number:]
            if "<locals>" in inside:
                return file.relative_to(ROOT).as_posix()
            if not inside or not inside[-1].startswith("test"):
                return None
            return "::".join([file.relative_to(ROOT).as_posix(), *inside])
    return None


# -- running ----------------------------------------------------------------------------------


def noticed(change: Change, tests: list[str]) -> str:
    """Return which test fails under a change, "timeout", or "" where none does."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "changed.py"
        file.write_bytes(changed(change))
        module = "fedpriv." + change.module.removesuffix(".py").replace("/", ".")
        module = module.removesuffix(".__init__")
        paths = [str(TWINS), str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "FEDPRIV_SOURCE": f"{module}={file}",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no"]
        command += ["-p", "no:xdist", "-p", "no:cacheprovider", "--basetemp", f"{scratch}/tmp"]
        try:
            done = subprocess.run(
                [*command, *tests], cwd=ROOT, env=environment, capture_output=True, text=True,
                check=False, timeout=SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "timeout"
    if done.returncode == 0:
        return ""
    gone = set(re.findall(r"^ERROR: not found: (\S+)", done.stderr + done.stdout, re.MULTILINE))
    if gone:  # tests that were removed, or moved, since lines were recorded
        left = [test for test in tests if str(ROOT / test) not in gone]
        return noticed(change, left) if left else ""
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0][:200] if lines else f"status {done.returncode}"


def interval(noticed: int, number: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share.

    >>> interval(90, 100)
    (0.826, 0.945)
    """
    z, share = 1.96, noticed / number
    middle = (share + z * z / (2 * number)) / (1 + z * z / number)
    half = z / (1 + z * z / number) * (share * (1 - share) / number + z**2 / (4 * number**2)) ** 0.5
    return round(middle - half, 3), round(middle + half, 3)


def run(state: Path, *, raises: bool) -> None:
    """Try every change of a sample that has no result yet, and print those that none notices."""
    results = state / ("raises.jsonl" if raises else "changes.jsonl")
    lines = results.read_text("utf-8").splitlines() if results.exists() else []
    known = {line["name"]: line for line in map(json.loads, lines)}
    drawn = sample(raises=raises)
    left = [change for change in drawn if change.name not in known]

    def tried(change: Change) -> dict[str, Any]:
        tests = covering(state, change)
        by = noticed(change, tests) if tests else ""
        return {"name": change.name, "tests": len(tests), "by": by}

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for one in tqdm(pool.map(tried, left), total=len(left), mininterval=5):
            known[one["name"]] = one
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(one) + "\n")
    found = [known[change.name] for change in drawn]
    for one in found:
        if not one["by"]:
            print(f"{one['name']}   ({one['tests']} tests)")
    number, total = sum(bool(one["by"]) for one in found), len(found)
    low, high = interval(number, total)
    print(
        f"{number} of {total} {'deleted refusals' if raises else 'changes'} are noticed: "
        f"{number / total:.1%} ({low:.1%} to {high:.1%}), "
        f"{sum(one['by'] == 'timeout' for one in found)} of them as tests that did not end"
    )


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["cover", "changes", "raises"])
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "mutants")
    given = parser.parse_args()
    given.state.mkdir(parents=True, exist_ok=True)
    if given.what == "cover":
        cover(given.state)
    else:
        run(given.state, raises=given.what == "raises")


if __name__ == "__main__":
    main()
