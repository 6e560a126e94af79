"""What the wider unit costs in accuracy: a person's words wherever they stand, threads held out.

    python -m simulations.threads.by_owners --corpus Posts.xml.xz --folds 1

With `owners all` the training examples that another rostered user asked are dropped, so that
blanking all of a person's titles, tags and sentences moves one bounded update. Every row is
measured on the same held-out sentences, with the settings that were chosen for the plain unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from fedpriv.rng import Key
from simulations.evaluation.evaluate import Estimate, differences
from simulations.evaluation.table import markdown, shown
from simulations.reproduction.study import publish
from simulations.threads.methods import METHODS, Method
from simulations.threads.page import layout, parser_of, promise, study_of
from simulations.threads.study import PUBLIC, Study, model_name

_WIDER = ", owners all"


def _wider(method: Method) -> Method:
    options = {epsilon: {**chosen, "owners": "all"} for epsilon, chosen in method.options.items()}
    return replace(method, label=f"{method.label}{_WIDER}", options=options)


#: The best private method and the one without privacy, each with either unit.
OWNED: Mapping[str, Method] = {
    name: method
    for plain in ("public start", "federated")
    for name, method in (
        (plain, METHODS[plain]),
        (f"{plain}{_WIDER}", _wider(METHODS[plain])),
    )
}


def pairs(study: Study) -> list[tuple[str, str]]:
    """Return which models are compared: the wider unit with the plain one, and with public-only."""
    found = []
    for name, method, epsilon in study.trained:
        if name.partition(", ε")[0].endswith(_WIDER):
            plain = next(one for one, other in OWNED.items() if _WIDER not in one and
                         other.experiment == method.experiment)  # fmt: skip
            found += [(name, model_name(plain, epsilon)), (name, PUBLIC)]
    return found


def lines(found: Mapping[tuple[str, str], Estimate]) -> Iterator[str]:
    """Yield the table of differences."""
    yield from ("", "### Accuracy of the wider unit less another's, percentage points", "")
    yield from ("| | against | difference |", "|---|---|---:|")
    for (first, second), estimate in found.items():
        yield f"| {first} | {second} | {shown(estimate, signed=True)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing and print the page."""
    given = parser_of(__doc__, "simulations.threads.by_owners", seeds=3).parse_args(arguments)
    study = study_of(given, OWNED)
    folds = study.folds()
    found = replace(study.evaluated(folds), promise=promise(study))
    compared = differences(
        folds, pairs(study), generator=Key.simulation(0).fold("owners").generator()
    )
    rows = [{"model": a, "against": b, **asdict(one)} for (a, b), one in compared.items()]
    page = "\n".join([markdown(found, layout(study)).rstrip("\n"), *lines(compared)]) + "\n"
    publish(page, given.out, {**found.to_json(), "differences": rows})


if __name__ == "__main__":
    main()
