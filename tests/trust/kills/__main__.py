"""SIGKILLs of servers, workers and nodes, at random moments: what was paid, what was lost.

    python -m tests.trust.kills --out build/kills

A hundred and more runs are killed and go on: the command, simulated and secure, with noise anew in
each round, with tree noise, with one release that is replayed, and with a privacy filter (DP-AGD);
Ray's workers under it; a ServerApp and SuperNodes on loopback. After each kill, whatever any
process has drawn is compared with the ledger. The table is printed, and written as JSON and
Markdown.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.trust.kills.books import Figures
from tests.trust.kills.commands import kill_commands, kill_workers
from tests.trust.kills.federation import kill_federation

COMMANDS = {
    ("plain", False): 6, ("plain", True): 6, ("tree", False): 6, ("tree", True): 6,
    ("replayed", False): 3, ("replayed", True): 3, ("adaptive", False): 5, ("adaptive", True): 5,
}  # fmt: skip
"""Kills by method and whether the run is secure; half of those that the command makes."""
WORKERS, RAY_SERVERS, SERVER_APPS, SUPERNODES = 5, 2, 3, 2
PARTS = (
    *(f"{method}-{'secure' if secure else 'simulated'}" for method, secure in COMMANDS),
    "workers",
    "federation",
)


def play(part: str, scratch: Path, seed: int, times: int = 1) -> Figures:
    """Return the figures of one part's kills, so many times those that are listed above."""
    choice = random.Random(f"{part} {seed}")
    if part == "workers":
        return kill_workers(scratch, times * WORKERS, times * RAY_SERVERS, choice)
    if part == "federation":
        return kill_federation(scratch, times * SERVER_APPS, times * SUPERNODES, choice)
    method, mode = part.split("-")
    secure = mode == "secure"
    kills = times * COMMANDS[method, secure]
    return kill_commands(scratch, method, kills, choice, secure=secure)


COLUMNS = {
    "attempts": "attempts", "under_counts": "under-counts", "reused_noise": "noise reused",
    "reused_cohorts": "cohorts reused", "over_limit": "over the limit", "lost": "lost",
    "most_lost": "most by one kill",
}  # fmt: skip


def table(found: Sequence[Figures]) -> str:
    """Return the figures as a page."""
    lines = [
        "# Kills",
        "",
        "SIGKILLs at random moments of runs that go on afterwards, by `python -m "
        "tests.trust.kills`, on synthetic data. Every cohort, noise and noised sum of any process "
        "is compared with the ledger after each kill: what was drawn without a charge is an "
        "under-count. An attempt is a charge, or a row of noise where one charge pays for all.",
        "",
        f"| run | killed | {' | '.join(COLUMNS.values())} | verified |",
        f"|---|---|{'---:|' * len(COLUMNS)}---|",
    ]
    for each in found:
        killed = ", ".join(f"{number} {name}" for name, number in each.kills.items())
        counts = " | ".join(str(getattr(each, name)) for name in COLUMNS)
        verified = "yes" if each.verified else "**NO**"
        lines.append(f"| {each.what} | {killed} | {counts} | {verified} |")
    lines.append(f"\nIn all {sum(each.num_kills for each in found)} kills.")
    lines += [
        "",
        "A killed server loses the round that it was in, if its noise was not released yet; a "
        "killed worker or SuperNode loses none. A Ray worker's users are trained again with the "
        "same keys; a SuperNode's contribute zero until the server knows it again.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Kill, print the table, and return 0 if nothing was unpaid, reused or lost in excess."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS, help="only these")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--times", type=int, default=2, help="as many kills as the tests have")
    parser.add_argument("--out", type=Path, default=None, help="a folder for JSON and page")
    given = parser.parse_args()
    found = []
    for part in given.parts:
        with tempfile.TemporaryDirectory() as scratch:
            found.append(play(part, Path(scratch) / part, given.seed, given.times))
        print(json.dumps(found[-1].document()), flush=True)
    page = table(found)
    print(page)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        documents = [each.document() for each in found]
        (given.out / "kills.json").write_text(json.dumps(documents, indent=1) + "\n", "utf-8")
        (given.out / "kills.md").write_text(page, "utf-8")
    return 0 if all(each.hold for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
