"""Tag prediction with whole threads held out: what private training adds to public data alone.

    fedpriv reproduce tags --corpus Posts.xml.xz

Every row is measured on the same held-out sentences: the majority class, a model of public threads
alone (ε = 0), private training from zero and from the public start, and training without privacy,
federated and central. What counts is the gain over public-only, and the share that it closes of the
gap to the best model without privacy. Settings are committed here; they were chosen on validation
threads of Answers on Startups, never on test threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulations.evaluation.table import markdown
from simulations.reproduction.items import Script
from simulations.reproduction.study import publish
from simulations.threads.methods import METHODS, UNIT_NORM
from simulations.threads.page import chart, layout, parser_of, promise, study_of

REPRODUCTIONS = (
    Script(
        name="tags",
        title="Tags with whole threads held out: public-only, private, not private",
        module="simulations.threads.by_thread",
        calls=((),),
        reduced=(("--folds", "1", "--seeds", "1"),),
        minutes=(120, 6),
        passes=("corpus", "seeds", "results", "out", "plot"),
    ),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Evaluate a corpus and print the page."""
    parser = parser_of(
        __doc__, "simulations.threads.by_thread", seeds=3, plot="draw accuracy against ε, an SVG"
    )
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--inputs", default=UNIT_NORM, choices=(UNIT_NORM, "tf-idf"))
    given = parser.parse_args(arguments)
    if given.plot is not None and given.plot.suffix.lower() != ".svg":
        raise ValueError(f"--plot {given.plot} of tags must end in .svg")
    study = study_of(given, {name: METHODS[name] for name in given.methods}, given.inputs)
    found = replace(study.evaluated(), promise=promise(study))
    if given.plot is not None:
        given.plot.parent.mkdir(parents=True, exist_ok=True)
        given.plot.write_text(chart(found, study), "utf-8")
    publish(markdown(found, layout(study)), given.out, found.to_json())


if __name__ == "__main__":
    main()
