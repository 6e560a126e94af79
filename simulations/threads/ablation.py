"""What each part of the best private method is worth, with whole threads held out.

    fedpriv reproduce ablation-tags --corpus Posts.xml.xz

One thing is changed at a time: the start, adaptivity, cohort and rounds, averaging, features. What
counts is the difference to the whole method on the same held-out sentences, with its interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from fedpriv.rng import Key
from simulations.evaluation.evaluate import Estimate, differences
from simulations.evaluation.held_out import Fold
from simulations.evaluation.table import shown
from simulations.reproduction.items import Script
from simulations.reproduction.study import publish
from simulations.threads.methods import ABLATION
from simulations.threads.page import parser_of, promise, study_of
from simulations.threads.study import PUBLIC, Study, model_name

WHOLE = "whole"

REPRODUCTIONS = (
    Script(
        name="ablation-tags",
        title="Tags with whole threads held out: what each part of the method is worth",
        module="simulations.threads.ablation",
        calls=((),),
        reduced=(("--folds", "1"),),
        minutes=(60, 10),
        passes=("corpus", "seeds", "results", "out"),
    ),
)


def compared(study: Study, folds: Sequence[Fold]) -> dict[tuple[str, str], Estimate]:
    """Return accuracy less the whole method's, by model and the whole method's at its ε."""
    pairs = [
        (model_name(name, epsilon), model_name(WHOLE, epsilon))
        for epsilon in study.epsilons
        for name in study.methods
        if name != WHOLE
    ]
    pairs += [(model_name(WHOLE, epsilon), PUBLIC) for epsilon in study.epsilons]
    return differences(folds, pairs, generator=Key.simulation(0).fold("ablation").generator())


def page(study: Study, held: Fold, found: Mapping[tuple[str, str], Estimate]) -> Iterator[str]:
    """Yield the lines of the page; `held` is one of the folds."""
    if held.data.get("synthetic"):
        yield from ("**Synthetic data: these figures say nothing of people.**", "")
    yield (
        f"{held.data['name']}, roster {held.data['roster']}, folds "
        f"{', '.join(str(split.fold) for split in study.splits)} of threads pooled, "
        f"{study.seeds} seed{'s' if study.seeds > 1 else ''} a model. Accuracy on held-out "
        "sentences of rostered users, percentage points, with 95 % intervals: the wider of a "
        f"paired bootstrap by thread and one by user. {promise(study)} Figures are not covered "
        "by ε."
    )
    columns = " | ".join(f"ε = {target_epsilon:g}" for target_epsilon in study.epsilons)
    yield from ("", f"| | {columns} |")
    yield f"|---|{'---:|' * len(study.epsilons)}"
    cells = [
        shown(found[model_name(WHOLE, epsilon), PUBLIC], signed=True) for epsilon in study.epsilons
    ]
    yield f"| {study.methods[WHOLE].label}, over public-only | {' | '.join(cells)} |"
    for name, method in study.methods.items():
        if name == WHOLE:
            continue
        cells = [
            shown(found[model_name(name, epsilon), model_name(WHOLE, epsilon)], signed=True)
            for epsilon in study.epsilons
        ]
        yield f"| {method.label}, against it | {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing and print the page."""
    given = parser_of(__doc__, "simulations.threads.ablation", seeds=1).parse_args(arguments)
    study = study_of(given, ABLATION)
    folds = study.folds()
    found = compared(study, folds)
    about = {name: folds[0].data[name] for name in ("roster", "synthetic")}
    about |= {"data": folds[0].data["name"], "promise": promise(study)}
    rows = [
        {"model": first, "against": second, **asdict(estimate), **about}
        for (first, second), estimate in found.items()
    ]
    publish("\n".join(page(study, folds[0], found)) + "\n", given.out, rows)


if __name__ == "__main__":
    main()
