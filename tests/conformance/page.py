"""Put every subject through every check, and write the table.

python -m tests.conformance.page --out conformance.md
"""

from __future__ import annotations

import argparse
from importlib.metadata import version
from pathlib import Path

from tests.conformance.checks import CHECKS, judged
from tests.conformance.subjects import SUBJECTS


def page() -> str:
    """Return the table, and under it what was measured."""
    found = {
        (check, subject.name): judged(ask, subject)
        for check, ask in CHECKS.items()
        for subject in SUBJECTS
    }
    names = [subject.name for subject in SUBJECTS]
    lines = [
        "# User-level DP of other aggregations, put through the same checks",
        "",
        f"flwr {version('flwr')}, its four DP wrappers around FedAvg without an accountant, and "
        "this project's own aggregation; ten users expected, C = 1. Measured, not read: each check "
        "gives the aggregation what users sent and looks at what it releases "
        "(`tests/conformance/checks.py`). By `python -m tests.conformance.page`.",
        "",
        f"| | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    for check in CHECKS:
        cells = ["holds" if found[check, name].ok else "**fails**" for name in names]
        lines.append(f"| {check} | {' | '.join(cells)} |")
    passed = [sum(found[check, name].ok for check in CHECKS) for name in names]
    lines.append(f"| of {len(CHECKS)} | {' | '.join(map(str, passed))} |")
    lines += ["", "## What was measured", ""]
    for check, ask in CHECKS.items():
        lines += [f"**{check}.** {(ask.__doc__ or '').strip()}", ""]
        lines += [f"- {name}: {found[check, name].text}" for name in names]
        lines.append("")
    lines += [
        "The wrappers that clip on clients trust them to; the check of a lying user holds them to "
        "what a server could do. With an accountant the fixed wrappers refuse rounds whose weights "
        "or numbers of replies differ, which any one user can bring about.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the page, and write it where a place is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    text = page()
    print(text)
    if given.out is not None:
        given.out.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
