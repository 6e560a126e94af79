"""Proof that a change of the code changes nothing that comes out.

    python benchmarks/unchanged record --out OLD.json        # with the code as it was
    python benchmarks/unchanged record --out NEW.json --like OLD.json    # as it is
    python benchmarks/unchanged compare OLD.json NEW.json                # exits 1 if unlike

Some hundred and twenty small runs, through the command line and the files of the run folder: every
experiment by name, users and single examples, every backend, Flower's apps, runs killed right after
their k-th charge and resumed, the values of `fedpriv account` and `calibrate`, and a small case of
every study of `fedpriv reproduce` (`cases.py`). Of each run the SHA-256 of every released tensor,
every number as a hexadecimal float, and which keys its JSON files have; of a study the numbers of
its page and of what it stored. Runs that are held to 1e-6 keep their tensors beside, in OLD.npz.
About a quarter of an hour of one core, and an hour more with `--long`, which adds the studies that
take minutes; `--only 'examples*'` records or compares a part.

A recording holds every option of every run, and `--like` gives each run all of its options, so that
a default that has changed since changes nothing; `--set NAME=VALUE` is given to every run whose
experiment has that option, such as one that is new. Noise is drawn from the seed alone
(`same_noise.py`), so that a new option does not change it either.

The code is that of PYTHONPATH, otherwise of this checkout. Compare recordings of one machine and
one set of packages only: torch and NumPy compute differently on others.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import platform
import sys
import tempfile
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from cases import FigureCase, Option, RunCase, StudyCase, all_cases
from comparing import Outcome, compare
from names import CASES, options_named_now
from recorder import Recorder

FORMAT = "fedpriv-unchanged"
# Options that take any word, "none" too.
_WORDS = ("roster", "start-file")
_PACKAGES = ("numpy", "scipy", "torch", "numba", "ray", "flwr", "dp-accounting")


def record(
    out: Path, only: str, like: dict[str, Any], further: dict[str, Option], *, long: bool = False
) -> int:
    """Write a recording; return how many runs failed.

    Args:
        out: A JSON file.
        only: Pattern of names.
        like: `runs` of another recording, whose options are given to the runs here.
        further: Options for every run whose experiment has them.
        long: Whether to record studies that take minutes, too.
    """
    began = time.monotonic()
    runs: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    # A short name: Ray puts sockets below it, whose paths may have 107 letters.
    with tempfile.TemporaryDirectory(prefix="same-", ignore_cleanup_errors=True) as scratch:
        recorder = Recorder(Path(scratch).resolve(), further)
        try:
            tree = recorder.tree()
            print(f"recording {tree}", file=sys.stderr)
            for number, case in enumerate(all_cases(recorder.experiments())):
                if not fnmatch.fnmatch(case.name, only):
                    continue
                if isinstance(case, StudyCase) and case.minutes > 1 and not long:
                    continue
                if isinstance(case, RunCase) and "options" in like.get(case.name, {}):
                    typed = as_typed(options_named_now(like[case.name]["options"]))
                    if case.secure:
                        del typed["seed"]
                    case = replace(case, options={**case.options, **typed})
                since = time.monotonic()
                try:
                    if isinstance(case, FigureCase):
                        found = recorder.figures(case)
                    elif isinstance(case, StudyCase):
                        found = recorder.study(case, number)
                    else:
                        found, kept = recorder.run(case, number)
                        arrays |= kept
                except (RuntimeError, OSError, KeyError, json.JSONDecodeError) as error:
                    found = {"failed": str(error) or repr(error)}
                runs[case.name] = {"compared": case.compared, **found}
                note = f"FAILED: {found['failed']}" if "failed" in found else ""
                print(f"{time.monotonic() - since:6.1f} s  {case.name}  {note}", file=sys.stderr)
        finally:
            recorder.close()
    document = {
        "format": FORMAT,
        "tree": tree,
        "machine": {
            "processor": processor(),
            "python": platform.python_version(),
            **{name: version(name) for name in _PACKAGES},
        },
        "runs": runs,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    np.savez_compressed(out.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]
    failed = sum("failed" in run for run in runs.values())
    took = time.monotonic() - began
    print(f"{len(runs)} runs, {failed} failed, {took:.0f} s: {out}", file=sys.stderr)
    return failed


def as_typed(options: dict[str, Any]) -> dict[str, Option]:
    """Return a run's options as somebody types them; none of a word is left out, not typed.

    >>> as_typed({"roster": None, "users": None, "exact-sum": True, "rounds": 4})
    {'users': 'none', 'exact-sum': 'true', 'rounds': 4}
    """
    typed = {None: "none", True: "true", False: "false"}
    return {
        name: typed[value] if value is None or isinstance(value, bool) else value
        for name, value in options.items()
        if value is not None or name not in _WORDS
    }


def processor() -> str:
    """Return the processor's name, as far as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def read(file: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a recording and its arrays, with the names that cases have now.

    Raises:
        ValueError: If the file is something else.
    """
    document = json.loads(file.read_text("utf-8"))
    if document.get("format") != FORMAT:
        raise ValueError(f"{file} is no recording; give what `record --out` wrote")
    document["runs"] = {CASES.get(name, name): run for name, run in document["runs"].items()}
    with np.load(file.with_suffix(".npz")) as arrays:
        of_cases = [(file, *file.rpartition("/")) for file in arrays.files]
        return document, {
            f"{CASES.get(case, case)}/{name}": arrays[file] for file, case, _, name in of_cases
        }


def tell(outcomes: list[Outcome], new_only: list[str], most: int) -> None:
    """Print a table, run by run, with so many differences of each."""
    wide = max(len(outcome.name) for outcome in outcomes)
    for outcome in outcomes:
        shown = list(outcome.differences[:most]) or ["same"]
        if len(outcome.differences) > most:
            shown.append(f"and {len(outcome.differences) - most} more")
        print(f"{outcome.name:{wide}}  {outcome.compared:8} {shown[0]}")
        for text in shown[1:]:
            print(f"{'':{wide}}  {'':8} {text}")
    for name in new_only:
        print(f"{name:{wide}}  {'':8} only in the second")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="unchanged", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run everything and write what comes out")
    recording.add_argument("--out", type=Path, required=True, help="a JSON file")
    recording.add_argument("--only", default="*", help="pattern of names, for a part of the runs")
    recording.add_argument("--long", action="store_true", help="studies that take minutes, too")
    recording.add_argument("--like", type=Path, help="a recording, whose options runs are given")
    recording.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="for every run whose experiment has that option; repeat for more",
    )  # fmt: skip
    comparing = commands.add_parser("compare", help="say what differs between two recordings")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    comparing.add_argument("--only", default="*", help="pattern of names")
    comparing.add_argument("--most", type=int, default=4, help="differences to show of a run")
    arguments = parser.parse_args()
    if arguments.command == "record":
        further: dict[str, Option] = dict(item.split("=", 1) for item in arguments.set)
        try:
            like = {} if arguments.like is None else read(arguments.like)[0]["runs"]
        except (OSError, ValueError) as error:
            sys.exit(f"error: {error}")
        sys.exit(min(1, record(arguments.out, arguments.only, like, further, long=arguments.long)))
    try:
        (old, old_arrays), (new, new_arrays) = read(arguments.old), read(arguments.new)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    if old["machine"] != new["machine"]:
        print(f"WARNING: other packages: {old['machine']} and {new['machine']}")
    chosen = {
        name: run for name, run in old["runs"].items() if fnmatch.fnmatch(name, arguments.only)
    }
    if not chosen:
        sys.exit(f"error: no run is called like {arguments.only!r}")
    outcomes = compare(chosen, new["runs"], old_arrays, new_arrays)
    tell(
        outcomes,
        [name for name in new["runs"] if name not in old["runs"]],
        arguments.most,
    )
    unlike = sum(bool(outcome.differences) for outcome in outcomes)
    print(f"{len(outcomes)} runs compared, {unlike} differ")
    sys.exit(min(1, unlike))


if __name__ == "__main__":
    main()
