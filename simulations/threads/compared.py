"""A study of methods by ε with a table of differences between pairs of them, and a plot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from fedpriv.rng import Key
from simulations.evaluation.evaluate import Estimate, differences
from simulations.evaluation.held_out import MAJORITY
from simulations.evaluation.table import markdown, shown
from simulations.reproduction.study import publish
from simulations.threads.methods import Method
from simulations.threads.page import chart, layout, parser_of, promise, study_of
from simulations.threads.study import Study


def lines(found: Mapping[tuple[str, str], Estimate]) -> Iterator[str]:
    """Yield the table of differences.

    A difference counts where one of the two is above the majority class by more than its interval;
    where neither is, both have learnt nothing that a rule without an ε does not know.
    """
    above = {
        first: estimate.excludes_zero and (estimate.value or 0.0) > 0.0
        for (first, second), estimate in found.items()
        if second == MAJORITY
    }
    yield from ("", "### Differences in accuracy, percentage points", "")
    yield from ("| | against | difference |", "|---|---|---:|")
    for (first, second), estimate in found.items():
        mute = second != MAJORITY and not above.get(first, True) and not above.get(second, True)
        said = "no signal: neither is above the majority" if mute else shown(estimate, signed=True)
        yield f"| {first} | {second} | {said} |"


def _with_majority(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the pairs, and each first model beside the majority class."""
    firsts = dict.fromkeys(first for first, _ in pairs)
    trivial = [(first, MAJORITY) for first in firsts if (first, MAJORITY) not in pairs]
    return [*pairs, *trivial]


def compare(
    arguments: Sequence[str] | None,
    *,
    described: str | None,
    program: str,
    methods: Mapping[str, Mapping[str, Method]],
    pairs: Callable[[Study], list[tuple[str, str]]],
    otherwise: str,
) -> None:
    """Train what is missing and print the page.

    Args:
        arguments: Of the command line.
        described: What the program does.
        program: Its name.
        methods: By the usual start first, then others that `--start` chooses, and by name; at the
            ε asked for, those that have settings there.
        pairs: Which models of a study are compared.
        otherwise: What else is to be said of their ε.
    """
    parser = parser_of(described, program, seeds=3, plot="draw accuracy against ε, an SVG")
    starts = list(methods)
    parser.set_defaults(start=starts[0])
    if len(starts) > 1:
        parser.add_argument("--start", choices=starts, help="of all private rows")
    given = parser.parse_args(arguments)
    if given.plot is not None and given.plot.suffix.lower() != ".svg":
        raise ValueError(f"--plot {given.plot} must end in .svg")
    own = {
        name: method
        for name, method in methods[given.start].items()
        if all(epsilon in method.options for epsilon in given.epsilon)
    }
    study = study_of(given, own)
    folds = study.folds()
    said = f"{promise(study)} {otherwise}"
    found = replace(study.evaluated(folds), promise=said)
    if given.plot is not None:
        given.plot.parent.mkdir(parents=True, exist_ok=True)
        given.plot.write_text(chart(found, study, otherwise), "utf-8")
    compared = differences(
        folds, _with_majority(pairs(study)), generator=Key.simulation(0).fold("methods").generator()
    )
    rows = [{"model": a, "against": b, **asdict(one)} for (a, b), one in compared.items()]
    page = (
        "\n".join(
            [markdown(found, replace(layout(study), promise=said)).rstrip("\n"), *lines(compared)]
        )
        + "\n"
    )
    publish(page, given.out, {**found.to_json(), "differences": rows})
