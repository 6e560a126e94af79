"""Studies of methods by ε with whole threads held out; settings are committed in `methods`.

`tags`: what private training adds to public data alone. Every row is measured on the same held-out
sentences: the majority class, a model of public threads alone (ε = 0), private training from zero
and from the public start, and training without privacy, federated and central. What counts is the
gain over public-only, and the share that it closes of the gap to the best model without privacy.

`ablation-tags`: what each part of the best private method is worth. One thing is changed at a time:
the start, adaptivity, cohort and rounds, averaging, features.

`tags-by-method`: adaptive descent and bolt-on against averaging at equal ε, on a reduced task (such
as `fedpriv data import FILE --max-words 200 --max-tags 20`), as bolt-on's pure ε perturbs by
2d/(mε) of the furthest that a training can go. Neither draws cohorts.

`tags-by-stream`: correlated noise against independent noise, which comes twice: over Poisson
cohorts, whose amplification ε counts, and over groups that take turns, where nothing may be claimed
for sampling (one band). The others are all of the second kind, but for one of bands over
independent draws within groups, which amplify it.

`tags-by-owners`: what the wider unit costs in accuracy. With `owners all` the training examples
that another rostered user asked are dropped, so that blanking all of a person's titles, tags and
sentences moves one bounded update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.datasets.importers.locate import resolve_corpus
from fedpriv.datasets.stackexchange.splits import KINDS, NUM_FOLDS, Split
from fedpriv.rng import Key
from simulations.evaluation.evaluate import differences
from simulations.evaluation.held_out import MAJORITY
from simulations.evaluation.table import markdown
from simulations.reproduction import items
from simulations.reproduction.study import publish, write
from simulations.threads import methods
from simulations.threads.methods import ABLATION, BY_METHOD, BY_STREAM, METHODS, OWNED, UNIT_NORM
from simulations.threads.page import (
    Differences,
    ablation_page,
    chart,
    differences_table,
    epsilon_words,
    layout,
)
from simulations.threads.study import PUBLIC, Study, check_options, model_name

Pairs = list[tuple[str, str]]


def _wider_pairs(study: Study) -> Pairs:
    """Return the wider unit with the plain one, and with public-only."""
    found = []
    for name, _, epsilon in study.trained:
        plain, wider, _ = name.partition(methods.WIDER)
        if wider:
            found += [(name, model_name(plain, epsilon)), (name, PUBLIC)]
    return found


def _pairs(study: Study, beginnings: tuple[str, ...], others: tuple[str, ...]) -> Pairs:
    """Return the models whose names begin so, each with models of the same ε and the majority."""
    known = {name for name, *_ in study.trained} | {MAJORITY, PUBLIC}
    found = []
    for name, _, epsilon in study.trained:
        if name.startswith(beginnings):
            at = [o if o in (MAJORITY, PUBLIC) else model_name(o, epsilon) for o in others]
            found += [(name, other) for other in at if other != name and other in known]
    firsts = dict.fromkeys(first for first, _ in found)
    return [*found, *((one, MAJORITY) for one in firsts if (one, MAJORITY) not in found)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One of the studies.

    Attributes:
        methods: By start, the usual one first, and by name.
        settled: Whether methods are left out that have no settings at the ε asked for.
        pairs: Which models are compared; None for none.
        fold: Of the key that draws for differences.
        differences: Title of their table.
        otherwise: What else is to be said of their ε.
    """

    methods: Mapping[str, Mapping[str, methods.Method]]
    settled: bool = False
    pairs: Callable[[Study], Pairs] | None = None
    fold: str = "methods"
    differences: str = "Differences in accuracy, percentage points"
    otherwise: str = ""


KINDS_OF_STUDY: Mapping[str, Kind] = {
    "tags": Kind(methods={"as listed": METHODS}),
    "ablation": Kind(methods={"as listed": ABLATION}),
    "by-method": Kind(
        methods={"as listed": BY_METHOD},
        settled=True,
        pairs=lambda study: _pairs(study, ("agd", "bolt-on"), (MAJORITY, PUBLIC, "AdaDPS")),
        otherwise="DP-AGD draws no cohorts, and its ε is its ρ's by RDP; nor does bolt-on, whose "
        "pure ε is by composition and has δ = 0.",
    ),
    "by-stream": Kind(
        methods={
            "public": BY_STREAM,
            "zero": {name: methods.from_zero(method) for name, method in BY_STREAM.items()},
        },
        settled=True,
        pairs=lambda study: _pairs(
            study,
            ("tree", "banded", "blt", "one band", "amplified"),
            (PUBLIC, "one band", "Poisson"),
        ),
        otherwise="Streams and one band: zero-out, one charge a run, no assumption on how cohorts "
        "are drawn, except for the amplified bands, whose draws within groups are independent and "
        "secret.",
    ),
    "by-owners": Kind(
        methods={"as listed": OWNED},
        pairs=_wider_pairs,
        fold="owners",
        differences="Accuracy of the wider unit less another's, percentage points",
    ),
}


def reproduce(
    *,
    corpus: str | None = None,
    seeds: int = 3,
    out: Path | None = None,
    plot: Path | None = None,
    kind: str = "tags",
    roster: str | None = None,
    split: str = "by-thread",
    public_users: int | None = None,
    folds: int = NUM_FOLDS,
    epsilons: tuple[float, ...] = (2.0, 8.0),
    start: str = "",
    only: tuple[str, ...] = (),
    inputs: str = UNIT_NORM,
) -> None:
    """Train a study and publish its page.

    Args:
        corpus: A prepared corpus, a dump or a name.
        seeds: Of every method.
        out: Where the page is written, with what it is of as JSON.
        plot: Accuracy against ε, an SVG.
        kind: Of `KINDS_OF_STUDY`.
        roster: Of the corpus; None for its own.
        split: What is held out; by-time has no folds.
        public_users: How many count as public; None for all.
        folds: How many are pooled.
        epsilons: Targets.
        start: Of all private rows, where there are several.
        only: Names of methods; none for all.
        inputs: "unit-norm", or "tf-idf", words weighted by their rarity.

    Raises:
        ValueError: If an option is refused, or there is no such corpus.
    """
    chosen = KINDS_OF_STUDY[kind]
    known = chosen.methods.get(start or next(iter(chosen.methods)))
    if known is None:
        raise ValueError(f"start {start!r} is not one of {', '.join(chosen.methods)}")
    check_options(folds, seeds, plot)
    if split not in KINDS or split == "by-sentence":
        raise ValueError(f"split {split!r} holds out no threads; use by-thread, by-user or by-time")
    if split == "by-time" and folds == NUM_FOLDS:  # which has no folds
        folds = 1
    study = Study(
        corpus=resolve_corpus(corpus, allow_synthetic=False),
        roster=roster,
        splits=tuple(
            Split(kind=split, fold=number, public_users=public_users) for number in range(folds)
        ),
        seeds=seeds,
        epsilons=epsilons,
        methods={
            name: method
            for name, method in known.items()
            if (name in only or not only)
            and (set(epsilons) <= set(method.options) or not chosen.settled)
        },
        features={"inputs": inputs},
    )
    measured, words = study.folds(), epsilon_words(study, chosen.otherwise)
    if kind == "ablation":
        found = differences(measured, _ablated(study), generator=_generator("ablation"))
        about = {name: measured[0].data[name] for name in ("roster", "synthetic")}
        about |= {"data": measured[0].data["name"], "guarantee": words}
        rows = [{**row, **about} for row in _rows(found)]
        publish(ablation_page(study, measured[0], found), out, rows)
        return
    evaluation = replace(study.evaluated(measured), guarantee=words)
    if plot is not None:
        write(chart(evaluation, study, chosen.otherwise), plot)
    document, compared = evaluation.to_json(), None
    if chosen.pairs is not None:
        found = differences(measured, chosen.pairs(study), generator=_generator(chosen.fold))
        compared = chosen.differences, differences_table(found)
        document["differences"] = _rows(found)
    text = markdown(evaluation, layout(study, words), compared)
    publish(text, out, document)


def _ablated(study: Study) -> Pairs:
    """Return every model with the whole method's at its ε, and that with public-only."""
    whole = {epsilon: model_name("whole", epsilon) for epsilon in study.epsilons}
    pairs = [
        (model_name(name, epsilon), one)
        for epsilon, one in whole.items()
        for name in study.methods
        if name != "whole"
    ]
    return [*pairs, *((one, PUBLIC) for one in whole.values())]


def _generator(fold: str) -> np.random.Generator:
    return Key.simulation(0).fold(fold).generator()


def _rows(found: Differences) -> list[dict[str, Any]]:
    return [{"model": a, "against": b, **asdict(one)} for (a, b), one in found.items()]


_ONE_FOLD = {"folds": 1}
REPRODUCTIONS = tuple(
    items.Study(
        name=name,
        title=f"Tags with whole threads held out: {title}",
        run=reproduce,
        options={"kind": kind},
        reduced=reduced,
        minutes=minutes,
    )
    for name, kind, title, reduced, minutes in (
        ("tags", "tags", "public-only, private, not private", {"folds": 1, "seeds": 1}, (120, 6)),
        ("ablation-tags", "ablation", "what each part of the method is worth", _ONE_FOLD, (60, 10)),
        ("tags-by-method", "by-method", "adaptive descent and bolt-on", _ONE_FOLD, (120, 10)),
        (
            "tags-by-stream",
            "by-stream",
            "correlated noise next to independent",
            _ONE_FOLD,
            (120, 10),
        ),
        ("tags-by-owners", "by-owners", "what the wider unit costs", _ONE_FOLD, (120, 10)),
    )
)
