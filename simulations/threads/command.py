"""The options that the evaluation and its ablation share, and the study that they ask for."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from fedpriv.datasets.stackexchange.locate import resolve_corpus
from fedpriv.datasets.stackexchange.splits import KINDS, NUM_FOLDS, Split
from simulations.threads.methods import UNIT_NORM, Method
from simulations.threads.study import Study


def parser_of(described: str | None, program: str, *, seeds: int) -> argparse.ArgumentParser:
    """Return a parser of the options that every study has.

    Args:
        described: What the program does.
        program: Its name.
        seeds: How many a method has by default.
    """
    parser = argparse.ArgumentParser(description=described, prog=program)
    parser.add_argument("--corpus", default=None, help="a prepared corpus, a dump or a name")
    parser.add_argument("--roster", default=None, help="of the corpus; by default its own")
    parser.add_argument(
        "--split",
        default="by-thread",
        choices=[kind for kind in KINDS if kind != "by-sentence"],
        help="what is held out; by-time has no folds",
    )
    parser.add_argument(
        "--public-users", type=int, default=None, help="how many count as public; by default all"
    )
    parser.add_argument("--folds", type=int, default=NUM_FOLDS)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument(
        "--target-epsilon", dest="epsilon", type=float, nargs="+", default=[2.0, 8.0]
    )
    parser.add_argument("--results", type=Path, default=Path("results/tags"))
    parser.add_argument("--out", type=Path, default=None, help="write the page here, too")
    return parser


def study_of(
    given: argparse.Namespace, methods: Mapping[str, Method], inputs: str = UNIT_NORM
) -> Study:
    """Return the study that parsed options ask for; it says what it does on stderr.

    Raises:
        ValueError: If there are not so many folds or seeds, or no such corpus.
    """
    if not 1 <= given.folds <= NUM_FOLDS or given.seeds < 1:
        raise ValueError(f"--folds {given.folds} must be 1 to {NUM_FOLDS}, --seeds at least 1")
    if given.split == "by-time" and given.folds == NUM_FOLDS:  # which has no folds
        given.folds = 1
    splits = tuple(
        Split(kind=given.split, fold=number, public_users=given.public_users)
        for number in range(given.folds)
    )
    return Study(
        corpus=resolve_corpus(given.corpus, allow_synthetic=False),
        roster=given.roster,
        splits=splits,
        seeds=given.seeds,
        epsilons=tuple(given.epsilon),
        methods=methods,
        kept=given.results.with_suffix("") / "outcomes",
        inputs=inputs,
    )


def write(out: Path | None, page: str, found: object) -> None:
    """Print a page, and write it and what it is of, as JSON, where a place is named."""
    print(page)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page, "utf-8")
        text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        out.with_suffix(".json").write_text(text, "utf-8")
