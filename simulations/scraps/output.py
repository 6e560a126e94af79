"""What the commands have in common: how many seeds, and where a page and its plot go."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_output(parser: argparse.ArgumentParser, *, seeds: str) -> None:
    """Add --seeds, --out and --plot.

    Args:
        parser: Of a command.
        seeds: What is said of the default of --seeds.
    """
    parser.add_argument("--seeds", type=int, default=None, help=f"of each run; by default {seeds}")
    parser.add_argument("--out", type=Path, default=None, help="write the page here, too")
    parser.add_argument("--plot", type=Path, default=None, help="draw into this PNG or SVG")


def check_output(given: argparse.Namespace) -> None:
    """Refuse what `add_output` cannot rule out.

    Raises:
        ValueError: If seeds are below 1, or a plot is no PNG and no SVG.
    """
    if given.seeds is not None and given.seeds < 1:
        raise ValueError(f"--seeds {given.seeds} must be at least 1")
    if given.plot is not None and given.plot.suffix.lower() not in (".png", ".svg"):
        raise ValueError(f"--plot {given.plot} must end in .png or .svg")


def publish(text: str, out: Path | None) -> None:
    """Print a page, and write it where that is asked for."""
    print(text)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, "utf-8")
