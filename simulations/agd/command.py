r"""DP-AGD beside its comparators at ε 0.1 to 1.6: tunes, runs, prints a page and draws.

    python -m simulations.agd.command --problem mnist-3-8 covertype imdb --ablate mnist-3-8 \
        --results docs/results/runs.jsonl --out docs/results/agd.md --plot docs/results/agd.png
    python -m simulations.agd.command --tiny     # seconds, made-up data

What has been run is in --results and is not run again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from simulations.agd.page import page, plot
from simulations.agd.study import Study, found
from simulations.linear_models.store import Store
from simulations.reproduction.items import Script

_PASSES = ("seeds", "results", "out", "plot")
_TINY = ("--tiny", "--seeds", "2", "--target-epsilon", "0.4", "1.6")

REPRODUCTIONS = tuple(
    Script(
        name=f"agd-{name}",
        title=f"DP-AGD at ε 0.1 to 1.6 and its comparators, {title}",
        module="simulations.agd.command",
        calls=(("--problem", name, *more),),
        reduced=(("--problem", "mnist-3-8" if name == "imdb" else name, *_TINY),),
        minutes=minutes,
        passes=_PASSES,
    )
    for name, title, more, minutes in (
        ("mnist-3-8", "MNIST 3 or 8", ("--ablate", "mnist-3-8"), (25, 0.5)),
        ("covertype", "Covertype", (), (20, 0.5)),
        ("imdb", "IMDB", (), (20, 0.5)),
    )
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the studies of problems and print one page of them."""
    parser = argparse.ArgumentParser(description=__doc__, prog="simulations.agd.command")
    parser.add_argument("--problem", nargs="+", default=["mnist-3-8"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--target-epsilon", dest="epsilon", type=float, nargs="+", default=[0.1, 0.4, 0.8, 1.6]
    )
    parser.add_argument(
        "--ablate", nargs="*", default=[], help="problems of which one thing at a time is changed"
    )
    parser.add_argument("--tiny", action="store_true", help="synthetic data and a grid of two")
    parser.add_argument("--results", type=Path, default=None, help="JSON lines of all runs")
    parser.add_argument("--out", type=Path, default=None, help="write the page here, too")
    parser.add_argument("--plot", type=Path, default=None, help="draw into this PNG or SVG")
    given = parser.parse_args(arguments)
    store, made, pictures = Store.at(_own(given.results)), [], []
    for name in given.problem:
        study = Study(
            problem_key=name,
            store=store,
            seeds=given.seeds,
            epsilons=tuple(given.epsilon),
            tiny=given.tiny,
        )
        made.append(found(study, ablated=(0.4, 1.6) if name in given.ablate else ()))
        if given.plot is not None:
            pictures.append(given.plot.with_stem(f"{given.plot.stem}-{name}"))
            plot(made[-1], pictures[-1])
    own = f"-{given.problem[0]}" if len(made) == 1 else ""
    size = "--reduced" if given.tiny else f"--seeds {given.seeds}"
    command = f"fedpriv reproduce agd{own} {size}"
    text = page(
        made,
        seeds=given.seeds,
        command=command,
        pictures=[p.name for p in pictures],
        reduced=given.tiny,
    )
    print(text)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text, "utf-8")


def _own(results: Path | None) -> Path | None:
    """Return a file of its own beside that of tables and figures, whose rows are others."""
    return None if results is None else results.with_name(f"agd-{results.name}")


if __name__ == "__main__":
    main()
