"""Fifty SIGKILLs of servers, workers and nodes, at random moments: what was paid, what was lost.

    python -m tests.trust.kills --out build/kills

Four runs are killed and go on: the command, the command with Ray's workers, those workers while it
goes on, and a ServerApp and SuperNodes on loopback. After each kill, whatever any process has drawn
is compared with the ledger. The table is printed, and written as JSON and Markdown.
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

COMMANDS, WORKERS, RAY_SERVERS, SERVER_APPS, SUPERNODES = 20, 13, 3, 7, 7
PARTS = ("commands", "workers", "federation")


def play(part: str, scratch: Path, seed: int) -> Figures:
    """Return the figures of one part's kills, of which there are fifty in all."""
    choice = random.Random(f"{part} {seed}")
    if part == "commands":
        return kill_commands(scratch, COMMANDS, choice)
    if part == "workers":
        return kill_workers(scratch, WORKERS, RAY_SERVERS, choice)
    return kill_federation(scratch, SERVER_APPS, SUPERNODES, choice)


def table(found: Sequence[Figures]) -> str:
    """Return the figures as a page."""
    lines = [
        "# Fifty kills",
        "",
        "SIGKILLs at random moments of runs that go on afterwards, by `python -m "
        "tests.trust.kills`, on synthetic data. Every cohort and every noise that any process "
        "draws is written down by its key, and compared with the ledger after each kill: one "
        "that was drawn without a charge is an under-count.",
        "",
        "| run | killed | charges | under-counts | noise reused | cohorts reused | rounds lost | "
        "most by one kill | verified |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for each in found:
        killed = ", ".join(f"{number} {name}" for name, number in each.kills.items())
        lines.append(
            f"| {each.what} | {killed} | {each.charges} | {each.under_counts} | "
            f"{each.reused_noise} | {each.reused_cohorts} | {each.lost} | {each.most_lost} | "
            f"{'yes' if each.verified else '**NO**'} |"
        )
    names = ("num_kills", "charges", "under_counts", "reused_noise", "reused_cohorts", "lost")
    total = {name: sum(getattr(each, name) for each in found) for name in names}
    most = max((each.most_lost for each in found), default=0)
    lines.append(
        f"| all | {total['num_kills']} | {total['charges']} | {total['under_counts']} | "
        f"{total['reused_noise']} | {total['reused_cohorts']} | {total['lost']} | {most} | "
        f"{'yes' if all(each.verified for each in found) else '**NO**'} |"
    )
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
    parser.add_argument("--out", type=Path, default=None, help="a folder for JSON and page")
    given = parser.parse_args()
    found = []
    for part in given.parts:
        with tempfile.TemporaryDirectory() as scratch:
            found.append(play(part, Path(scratch) / part, given.seed))
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
