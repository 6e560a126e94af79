"""Growth of a round with the cohort, the users, the params and the workers. All data SYNTHETIC.

    OMP_NUM_THREADS=1 python benchmarks/growth.py               all of it, about 25 minutes
    OMP_NUM_THREADS=1 python benchmarks/growth.py --quick       small sizes, under 2 minutes
    OMP_NUM_THREADS=1 python benchmarks/growth.py --smallest    a few users, to see that it runs
    OMP_NUM_THREADS=1 python benchmarks/growth.py --endurance   memory over 1,000 and 5,000 rounds

Every measurement is a process of its own: seconds of steady rounds with ledger and checkpoints,
without evaluation, and memory of the process tree. The corpora are made once and kept in fedpriv's
cache (`FEDPRIV_CACHE`), about 900 MB. Results go to `benchmarks/results/growth.*`; parts that are
not measured again stay as they are.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from growing.case import Case
from growing.plot import plot
from growing.report import growth, write_markdown
from harness.machine import describe

from fedpriv.datasets.importers.locate import cached
from fedpriv.datasets.importers.synthetic import GENERATOR, Shape, synthesize

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
BACKENDS = (("serial", 1), ("serial", 2), ("ray", 1), ("ray", 2))  # threads, then workers
SENTENCES = 6  # of every user where the number of users grows
LONG = 100  # and where the params or the workers do

PANELS = ("cohort", "users", "params", "workers", "equal")
ENDURANCE = ("serial", "raising", "ray", "large", "long")
Panels = dict[str, list[tuple[str, Case]]]


def corpus(shape: Shape, *, max_words: int = 10_000, max_tags: int = 500) -> str:
    """Return the folder of a synthetic corpus, made on first use."""
    sizes = {"max_words": max_words, "max_tags": max_tags}
    name = f"synthetic-growth-{shape.num_users}"

    def make(target: Path, progress: Any) -> Any:
        say(f"making the SYNTHETIC corpus {name} of {shape.num_users:,} users")
        return synthesize(target, shape=shape, name=name, progress=progress, **sizes)

    options = {"generator": GENERATOR, "shape": asdict(shape), **sizes}
    return str(cached(name, make, source=None, options=options).directory)


def equal_users(users: int, public_users: int) -> str:
    """Return a corpus of small equal users: the first of them are the same in all of these."""
    return corpus(
        Shape(
            num_users=users,
            num_sentences=SENTENCES * users,
            public_users=public_users,
            spread=0.0,
        )
    )


def sized(words: int, tags: int, *, public_users: int) -> str:
    """Return a corpus of 400 longer equal users whose model has about words x tags params."""
    shape = Shape(
        num_users=400,
        num_sentences=LONG * 400,
        public_users=public_users,
        num_words=24_000,
        num_tags=1_200,
        spread=0.0,
    )
    return corpus(shape, max_words=words, max_tags=tags)


def full_panels() -> Panels:
    """Return the cases of the full benchmark."""
    most = equal_users(342_477, 34_247)
    return {
        "cohort": [
            (backend, Case(corpus=most, cohort=cohort, rounds=15, backend=backend, workers=workers))
            for backend, workers in (("serial", 1), ("serial", 2))
            for cohort in (20, 50, 100, 200, 500, 1_000)
        ],
        "users": [
            ("serial", Case(corpus=equal_users(users, 34_247), cohort=100, rounds=15))
            for users in (400, 4_000, 40_000, 342_477)
        ],
        "params": [
            ("serial", Case(corpus=sized(*size, public_users=2_000), cohort=20, rounds=15))
            for size in ((100, 500), (1_000, 500), (10_000, 500), (20_000, 1_000))
        ],
        "workers": [
            (said, Case(corpus=path, cohort=cohort, rounds=15, backend=backend, workers=workers))
            for said, path, cohort in (
                ("1,000 users of 6 sentences", most, 1_000),
                ("200 users of 100 sentences", sized(10_000, 500, public_users=2_000), 200),
            )
            for backend, workers in BACKENDS
        ],
        "equal": _equal(most, equal_users(400, 34_247), repeats=3, rounds=20),
    }


def quick_panels() -> Panels:
    """Return small cases that show that everything runs."""
    many, few = equal_users(4_000, 2_000), equal_users(400, 2_000)
    return {
        "cohort": [("serial", Case(corpus=many, cohort=c, rounds=5)) for c in (20, 200)],
        "users": [("serial", Case(corpus=path, cohort=100, rounds=5)) for path in (few, many)],
        "params": [
            ("serial", Case(corpus=sized(*size, public_users=200), cohort=20, rounds=5))
            for size in ((100, 500), (5_000, 500))
        ],
        "workers": [
            (
                "200 users of 6 sentences",
                Case(corpus=many, cohort=200, rounds=5, backend=backend, workers=workers),
            )
            for backend, workers in BACKENDS
        ],
        "equal": _equal(many, few, repeats=1, rounds=10),
    }


def smallest_panels() -> Panels:
    """Return the fewest and smallest cases; their figures mean nothing."""
    many, few = equal_users(120, 100), equal_users(80, 100)
    return {
        "cohort": [
            (backend, Case(corpus=few, cohort=5, rounds=2, backend=backend, workers=workers))
            for backend, workers in (("serial", 1), ("serial", 2))
        ],
        "equal": [
            (said, Case(corpus=path, cohort=5, rounds=2))
            for said, path in (("few", few), ("many", many), ("many, large cohort", many))
        ],
    }


def _equal(many: str, few: str, *, repeats: int, rounds: int) -> list[tuple[str, Case]]:
    """Return cases that compare a user's cost among many users and among few, alternating."""
    return [
        (said, Case(corpus=path, cohort=cohort, rounds=rounds, warm_up=5))
        for _ in range(repeats)
        for said, path, cohort in (
            ("few", few, 200),
            ("many", many, 200),
            ("many, large cohort", many, 1_000),
        )
    ]


def endurance_cases(quick: bool, smallest: bool, *, only: Sequence[str] = ()) -> dict[str, Case]:
    """Return cases of many rounds; memory is read and the model evaluated in between.

    Args:
        quick: Few rounds.
        smallest: A few users.
        only: Which, all where none is named; a corpus takes minutes to make.
    """
    if smallest:
        few = Case(corpus=equal_users(80, 100), cohort=5, rounds=4, warm_up=2, look_every=2)
        return {"serial": few, "raising": replace(few, failing=True)}
    some = Case(
        corpus=sized(1_000, 500, public_users=2_000),
        cohort=40,
        rounds=40 if quick else 1_000,
        warm_up=20 if quick else 200,
        look_every=10 if quick else 100,
    )
    cases = {
        "serial": some,
        "raising": replace(some, failing=True),
        "ray": replace(some, backend="ray", workers=2, rounds=min(some.rounds, 400)),
    }
    if not quick:
        small = sized(100, 50, public_users=200)
        cases["long"] = replace(
            some, corpus=small, cohort=20, rounds=4_500, warm_up=500, look_every=500
        )
    if not quick and (not only or "large" in only):
        most = equal_users(342_477, 34_247)
        cases["large"] = replace(some, corpus=most, cohort=1_000, warm_up=50, look_every=50)
    return {said: case for said, case in cases.items() if not only or said in only}


def measured(panels: Panels) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run every case and yield (panel, figures)."""
    total, done = sum(map(len, panels.values())), 0
    for panel, cases in panels.items():
        for said, case in cases:
            done += 1
            figures = run_case(case)
            outcome = figures.get("skipped") or (
                f"{figures['median'] * 1000:.1f} ms a round, "
                f"{figures['peak_pss_mib']:.0f} MiB at most"
            )
            size = f"cohort {case.cohort}, {case.backend} x {case.workers}"
            say(f"[{done}/{total}] {panel}: {said}, {size}: {outcome}")
            yield panel, {"said": said, **figures}


def run_case(case: Case) -> dict[str, Any]:
    """Measure one case in a fresh process."""
    command = [sys.executable, str(HERE / "growing" / "case.py"), json.dumps(asdict(case))]
    found = filter(None, [str(HERE), os.environ.get("PYTHONPATH")])
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(found)},
    )
    if done.returncode:
        raise SystemExit(f"{case} ended with status {done.returncode}; its error is above")
    figures = json.loads(done.stdout.splitlines()[-1])
    # Where the cache lies is this machine's own affair: only the corpus's name is kept.
    return {**asdict(case), "corpus": Path(case.corpus).name, **figures}


def summarise(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return a user's CPU cost among many users over that among few, medians of the repeats.

    It is NaN where the few took no time that the clock of a thread shows, as in the smallest cases.
    """

    def ratio(said: str, figure: str) -> float:
        many, few = (
            median(row[figure] for row in rows if row["said"] == each) for each in (said, "few")
        )
        return many / few if few else math.nan

    return {
        "work": ratio("many", "cpu_per_user"),
        "work_large_cohort": ratio("many, large cohort", "cpu_per_user"),
        "round": ratio("many", "round_cpu_per_user"),
    }


def say(text: str) -> None:
    """Tell progress on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, printed and not kept")
    parser.add_argument("--smallest", action="store_true", help="a few users, as quick")
    parser.add_argument("--endurance", action="store_true", help="only the 1,000 and more rounds")
    parser.add_argument(
        "--only", nargs="+", choices=(*PANELS, *ENDURANCE), help="measure these panels or runs only"
    )
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--redraw", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    out = arguments.out or (None if arguments.quick or arguments.smallest else RESULTS)
    kept = out and out / "growth.json"
    results = json.loads(kept.read_text()) if kept and kept.exists() else {}
    if not arguments.redraw:
        machine = describe()
        if arguments.endurance:
            # A row stays on the page until it is measured again, whatever it showed.
            rows = {row["said"]: row for row in results.get("endurance", ())}
            cases = endurance_cases(arguments.quick, arguments.smallest, only=arguments.only or ())
            for said, case in cases.items():
                rows[said] = {"said": said, **run_case(case), "machine": machine}
                say(f"endurance, {said}: {rows[said].get('skipped') or growth(rows[said])}")
            results["endurance"] = list(rows.values())
        else:
            quick = quick_panels if arguments.quick else full_panels
            panels = smallest_panels() if arguments.smallest else quick()
            if arguments.only:
                panels = {panel: panels[panel] for panel in arguments.only}
            fresh: dict[str, list[dict[str, Any]]] = {panel: [] for panel in panels}
            for panel, row in measured(panels):
                fresh[panel].append(row)
            results |= fresh
            results["machine"] = machine
            if "equal" in fresh:
                results["equal_ratios"] = summarise(fresh["equal"])
    text = write_markdown(results)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "growth.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        (out / "growth.md").write_text(text, "utf-8")
        if results.get("cohort"):
            plot(results, out / "growth.png")
    print(text)


if __name__ == "__main__":
    main()
