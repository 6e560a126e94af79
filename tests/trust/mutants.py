"""Mutation testing: small changes to privacy-critical code, each of which a test must notice.

    make mutants                                  all groups (hours)
    make mutants MUTANTS="noise --keep /tmp/m"    one group, its working copy kept

Mutants are made and run by mutmut, a group of modules at a time with the fast tests nearest to it,
on a copy of the checkout; of a mutant those tests are run that call its function. What is printed
is the table of modules and each survivor's difference. docs/results/mutants.md says what has become
of them. mutmut makes no mutants of decorated functions (properties among them) nor of what stands
outside of functions.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Modules below `fedpriv/`, and the tests below `tests/` that should kill their mutants."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


GROUPS = {
    "noise": Group(
        modules=(
            "rng.py",
            "mechanisms/gaussian.py",
            "mechanisms/privatizer.py",
            "mechanisms/rounded_gaussian.py",
            "mechanisms/selection.py",
        ),
        tests=(
            "test_rng.py",
            "mechanisms/test_noisy_min.py",
            "mechanisms/test_rounded.py",
            "mechanisms/test_release.py",
            "laws/test_noise.py",
        ),
    ),
    "mechanisms": Group(
        modules=("mechanisms/bounds.py",),
        tests=(
            "mechanisms/test_capped.py",
            "mechanisms/test_rounding.py",
            "laws/bounds",
            "laws/test_exact_sum.py",
        ),
    ),
    "door": Group(
        modules=("runs/door.py", "runs/secret_state.py"),
        tests=(
            "running/door",
            "backends/door/test_paid_by_another.py",
            "backends/door/test_streams.py",
            "backends/door/test_door.py",
        ),
    ),
    "mechanism": Group(
        modules=("privacy/mechanism.py", "privacy/sampling.py", "privacy/event.py"),
        tests=(
            "privacy/test_mechanism.py",
            "privacy/test_sampling.py",
            "privacy/test_event.py",
            "privacy/test_devices.py",
            "backends/door/test_streams.py",
        ),
    ),
    "accounting": Group(
        modules=("privacy/accounting.py", "privacy/accounting.py", "privacy/plan.py"),
        tests=(
            "privacy/test_accounting.py",
            "privacy/test_calibration.py",
            "privacy/plans/test_plan.py",
            "golden/test_privacy_golden.py",
        ),
    ),
}

_CONFIG = """\
[mutmut]
source_paths=fedpriv
only_mutate=
    {modules}
also_copy=
    simulations
    server
    client
pytest_add_cli_args_test_selection=
    {tests}
pytest_add_cli_args=
    -p
    no:cacheprovider
    -m
    not slow and not ray and not flower
    --hypothesis-profile=mutants
do_not_mutate_patterns=
    raise \\w+
track_dependencies=false
timeout_multiplier=3.0
timeout_constant=4.0
"""


def run(group: Group, copy: Path) -> None:
    """Run a group on a copy of the checkout, and print what became of its mutants."""
    copy.mkdir(parents=True, exist_ok=True)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0"):
        if name and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    modules = "\n    ".join(f"fedpriv/{module}" for module in group.modules)
    tests = "\n    ".join(f"tests/{test}" for test in group.tests)
    (copy / "setup.cfg").write_text(_CONFIG.format(modules=modules, tests=tests), "utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    mutmut = [sys.executable, "-m", "mutmut"]
    where = {"cwd": copy, "env": environment}
    subprocess.run([*mutmut, "run", "--max-children", "1"], check=True, **where)
    said = subprocess.check_output([*mutmut, "results", "--all", "true"], text=True, **where)
    found = dict(line.strip().rsplit(": ", 1) for line in said.splitlines() if ": " in line)
    print("| module | mutants | killed | survived | no test |\n|---|---:|---:|---:|---:|")
    for module in group.modules:
        dotted = "fedpriv." + module.removesuffix(".py").replace("/", ".")
        count = Counter(end for name, end in found.items() if name.rpartition(".")[0] == dotted)
        killed = count["killed"] + count["timeout"]
        print(
            f"| {module} | {count.total()} | {killed} | {count['survived']} | {count['no tests']} |"
        )
    for name in (name for name, end in found.items() if end not in ("killed", "timeout")):
        print(f"\n{name}: {found[name]}", flush=True)
        subprocess.run([*mutmut, "show", name], check=False, **where)


def main() -> None:
    """Run the groups that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], default=[])
    parser.add_argument("--keep", type=Path, default=None, help="where working copies are kept")
    given = parser.parse_args()
    for name in given.groups or GROUPS:
        print(f"\n## {name}\n", flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            run(GROUPS[name], (given.keep or Path(scratch)) / name)


if __name__ == "__main__":
    main()
