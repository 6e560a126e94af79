"""Run the scoreboard: every claim's tests must pass, and each of its mutants must fail them.

    make trust          all rows, slow tests too
    make trust-quick    the default suite's tests of each row

A test that cannot fail proves nothing. So each row is run again with a named fault put into the
code (`twins.breaks`), in the processes that tests start as well, and counts only if it turns red.
The table is printed, and written as Markdown and a picture.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.trust.page import markdown, picture
from tests.trust.rows import ROWS, Row, Twin

TESTS = Path(__file__).resolve().parents[1]
TWINS = Path(__file__).resolve().parent / "twins"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a pytest did.

    Attributes:
        passed: Tests.
        failed: Tests; errors too.
        seconds: It took.
        said: The end of its output, where it is not what was wanted.
    """

    passed: int
    failed: int
    seconds: float
    said: str


def run(
    tests: tuple[str, ...], *, slow: bool, twin: str | None = None, source: str | None = None
) -> Outcome:
    """Run tests in a process of their own, with a fault or without.

    Args:
        tests: Below `tests/`.
        slow: Whether those marked slow are run too.
        twin: A fault of `twins.breaks`.
        source: "MODULE=FILE": a module that is executed from another file's text.

    Returns:
        What came of it. Under a fault a module that cannot be imported is no failed test.
    """
    broken = twin is not None or source is not None
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        found = Path(scratch) / "found.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", f"--junitxml={found}"]
        command += ["-p", "no:cacheprovider", "-m", "slow or not slow" if slow else "not slow"]
        command += ["--basetemp", str(Path(scratch) / "tmp")]
        if broken:
            command.append("-x")
        command += [str(TESTS / test) for test in dict.fromkeys(tests)]
        environment = dict(os.environ)
        faults = {"FEDPRIV_TWIN": twin, "FEDPRIV_SOURCE": source}
        environment |= {name: value for name, value in faults.items() if value is not None}
        if broken:
            beside = [str(TWINS), str(TESTS.parent), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, beside))
        done = subprocess.run(
            command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, check=False
        )
        passed = failed = 0
        if found.exists():
            written = ElementTree.parse(found)
            if broken:
                unread = (error.get("message") == _UNREAD for error in written.iter("error"))
                failed -= sum(unread)
            for suite in written.iter("testsuite"):
                number = {name: int(suite.get(name, 0)) for name in _COUNTS}
                failed += number["failures"] + number["errors"]
                passed += number["tests"] - sum(number[name] for name in _COUNTS[1:])
    if done.returncode not in (0, 1):  # usage, interrupts, nothing collected: not a verdict
        failed, passed = (0, 0) if broken else (failed + 1, passed)
    return Outcome(
        passed=passed,
        failed=failed,
        seconds=time.monotonic() - began,
        said=done.stdout[-2000:] + done.stderr[-500:],
    )


_COUNTS = ("tests", "failures", "errors", "skipped")
_UNREAD = "collection failure"  # pytest's word, in its XML, for a test file that it cannot import


def judged(row: Row, *, quick: bool) -> dict[str, object]:
    """Return a row's figures."""
    tests = row.tests if quick else (*row.tests, *row.long)
    whole = run(tests, slow=not quick and bool(row.long))
    twins = [(twin, run(twin.tests, slow=False, twin=twin.name)) for twin in row.twins]
    holds = whole.failed == 0 and whole.passed > 0
    return {
        "row": row.name,
        "claim": row.claim,
        "holds": holds,
        "tests": whole.passed,
        "failed": whole.failed,
        "twins": [_twin(twin, found) for twin, found in twins],
        "seconds": round(whole.seconds + sum(found.seconds for _, found in twins), 1),
        "said": "" if holds else whole.said,
    }


def _twin(twin: Twin, found: Outcome) -> dict[str, object]:
    red = found.failed > 0
    return {"name": twin.name, "red": red, "said": "" if red else found.said}


def main() -> int:
    """Run the rows, print the table, and return 0 if every row holds and every twin is red."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without tests marked slow")
    parser.add_argument("--rows", nargs="+", default=None, metavar="R1", help="only these")
    parser.add_argument("--out", type=Path, default=None, help="a folder for page and picture")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    chosen = [row for row in ROWS if given.rows is None or row.name in given.rows]
    began, found = time.monotonic(), []
    with ThreadPoolExecutor(given.workers) as pool:
        for figures in pool.map(lambda row: judged(row, quick=given.quick), chosen):
            found.append(figures)
            red = sum(bool(twin["red"]) for twin in figures["twins"])
            print(
                f"{figures['row']:<4}{'holds' if figures['holds'] else 'FAILS':<7}"
                f"{figures['tests']:>5} tests   {red} of {len(figures['twins'])} mutants red   "
                f"{figures['seconds']:>6} s   {figures['claim']}",
                flush=True,
            )
            for said in (figures["said"], *(twin["said"] for twin in figures["twins"])):
                if said:
                    print(said, file=sys.stderr)
    holding = sum(bool(figures["holds"]) for figures in found)
    twins = [twin for figures in found for twin in figures["twins"]]
    red = sum(bool(twin["red"]) for twin in twins)
    print(
        f"{holding} of {len(found)} rows hold, {red} of {len(twins)} mutants are red, "
        f"{time.monotonic() - began:.0f} s"
    )
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        git = ["git", "-C", str(TESTS), "log", "-1", "--format=commit %h, %cs"]
        made = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
        page = markdown(found, quick=given.quick, made=made)
        (given.out / "trust.md").write_text(page, "utf-8")
        picture(found, given.out / "trust.svg")
    return 0 if holding == len(found) and red == len(twins) else 1


if __name__ == "__main__":
    sys.exit(main())
