"""Tag prediction with whole threads held out: what private training adds to public data alone.

    fedpriv reproduce tags --corpus Posts.xml.xz

Every row is measured on the same held-out sentences: the majority class, a model of public threads
alone (ε = 0), private training from zero and from the public start, and training without privacy,
federated and central. What counts is the gain over public-only, and the share that it closes of the
gap to the best model without privacy. Settings are committed here; they were chosen on validation
threads of Answers on Startups, never on test threads.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fedpriv.data.corpus.splits import NUM_FOLDS, Split
from fedpriv.data.locate import resolve_corpus
from fedpriv.evaluation.table import markdown
from fedpriv.reproduction import Script
from simulations.threads.methods import METHODS, UNIT_NORM
from simulations.threads.page import chart, layout
from simulations.threads.study import Study

EPSILONS = (2.0, 8.0)

REPRODUCTIONS = (
    Script(
        name="tags",
        title="Tags with whole threads held out: public-only, private, not private",
        module="simulations.tags_by_thread",
        calls=((),),
        reduced=(("--folds", "1", "--seeds", "1"),),
        minutes=(120, 8),
        passes=("corpus", "seeds", "results", "out", "plot"),
    ),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Evaluate a corpus and print the page."""
    parser = argparse.ArgumentParser(description=__doc__, prog="simulations.tags_by_thread")
    parser.add_argument("--corpus", default=None, help="a prepared corpus, a dump or a name")
    parser.add_argument("--roster", default=None, help="of the corpus; by default its own")
    parser.add_argument("--folds", type=int, default=NUM_FOLDS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilon", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--inputs", default=UNIT_NORM, choices=(UNIT_NORM, "tf-idf"))
    parser.add_argument("--results", type=Path, default=Path("results/tags"))
    parser.add_argument("--out", type=Path, default=None, help="write the page here, too")
    parser.add_argument("--plot", type=Path, default=None, help="draw accuracy against ε, an SVG")
    given = parser.parse_args(arguments)
    if not 1 <= given.folds <= NUM_FOLDS or given.seeds < 1:
        raise ValueError(f"--folds {given.folds} must be 1 to {NUM_FOLDS}, --seeds at least 1")
    if given.plot is not None and given.plot.suffix.lower() != ".svg":
        raise ValueError(f"--plot {given.plot} of tags must end in .svg")
    study = Study(
        corpus=resolve_corpus(given.corpus, allow_synthetic=False),
        roster=given.roster,
        splits=tuple(Split(fold=number) for number in range(given.folds)),
        seeds=given.seeds,
        epsilons=tuple(given.epsilon),
        methods={name: METHODS[name] for name in given.methods},
        kept=given.results.with_suffix("") / "outcomes",
        inputs=given.inputs,
        said=partial(print, file=sys.stderr, flush=True),
    )
    found = study.evaluated()
    page = markdown(found, layout(study))
    print(page)
    if given.plot is not None:
        given.plot.parent.mkdir(parents=True, exist_ok=True)
        given.plot.write_text(chart(found, study), "utf-8")
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(page, "utf-8")
        given.out.with_suffix(".json").write_text(
            json.dumps(found.to_json(), indent=1, ensure_ascii=False) + "\n", "utf-8"
        )


if __name__ == "__main__":
    main()
