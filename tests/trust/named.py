"""Put each named fault into the code, and see the default tests that should notice it turn red.

    python -m tests.trust.named                          all, one after the other
    python -m tests.trust.named --only "*momentum*"      those whose names match
    python -m tests.trust.named --state FILE             goes on where it was stopped

The faults are those of `twins.breaks`, with their tests in `rows`, and those of `twins.faults`. A
fault is red if a test fails; a test file that cannot be imported under it does not count. Delete
the state file to begin anew, as after a change of the code.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.trust.rows import ROWS
from tests.trust.scoreboard import Outcome, run
from tests.trust.twins.faults import FAULTS, Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A fault of either kind.

    Attributes:
        name: Of the fault.
        tests: That turn red.
        fault: Where it is a change of text; None of one of `twins.breaks`.
    """

    name: str
    tests: tuple[str, ...]
    fault: Fault | None = None

    def tried(self) -> Outcome:
        """Return what its tests do under it."""
        if self.fault is None:
            return run(self.tests, slow=False, twin=self.name)
        with changed_file(self.fault) as file:
            return run(self.tests, slow=False, source=f"{self.fault.module}={file}")


def all_named() -> list[Named]:
    """Return every named fault: those of rows, then those of texts."""
    twins = [twin for row in ROWS for twin in row.twins]
    return [
        *(Named(name=twin.name, tests=twin.tests) for twin in twins),
        *(Named(name=fault.name, tests=fault.tests, fault=fault) for fault in FAULTS),
    ]


def text_of(module: str) -> str:
    """Return the text of a module's file."""
    found = importlib.util.find_spec(module)
    assert found is not None and found.origin is not None
    return Path(found.origin).read_text("utf-8")


@contextmanager
def changed_file(fault: Fault) -> Iterator[Path]:
    """Give a file with the module's text under a fault."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "changed.py"
        file.write_text(text_of(fault.module).replace(fault.old, fault.new), "utf-8")
        yield file


def main() -> int:
    """Try the faults, print those that stay green, and return 0 if there are none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names, as a shell's glob")
    parser.add_argument("--state", type=Path, default=None, metavar="FILE", help="of results, JSON")
    given = parser.parse_args()
    chosen = [one for one in all_named() if fnmatch.fnmatchcase(one.name, given.only)]
    known: dict[str, bool] = {}
    if given.state is not None and given.state.exists():
        known = json.loads(given.state.read_text("utf-8"))
    for one in chosen:
        if one.name in known:
            continue
        found = one.tried()
        known[one.name] = found.failed > 0
        print(f"{'red  ' if known[one.name] else 'GREEN'} {one.name}", flush=True)
        if not known[one.name]:
            print(found.said, file=sys.stderr)
        if given.state is not None:
            part = given.state.with_name(f"{given.state.name}.part")
            part.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
            part.replace(given.state)
    green = [one.name for one in chosen if not known[one.name]]
    if green:
        print(f"stay green: {', '.join(green)}")
    print(f"{len(chosen) - len(green)} of {len(chosen)} named faults are red")
    return 1 if green else 0


if __name__ == "__main__":
    sys.exit(main())
