"""The page of the evaluation, and its chart: accuracy against ε."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from pathlib import Path

from fedpriv.datasets.stackexchange.locate import resolve_corpus
from fedpriv.datasets.stackexchange.splits import KINDS, NUM_FOLDS, Split
from fedpriv.privacy.epsilon import format_delta
from fedpriv.report.plots.charts import Point, Reference, tradeoff_plot
from simulations.evaluation.evaluate import Evaluation
from simulations.evaluation.table import Layout, Row, wider
from simulations.reproduction.study import study_parser
from simulations.threads.methods import UNIT_NORM, Method
from simulations.threads.study import CENTRAL, LOCAL, PUBLIC, Study, model_name

# Of methods in their order; reference lines have the others.
_COLOURS = ("s1", "s4", "s5", "s6", "s7", "s8", "ink")
_MARKERS = ("o", "s", "^")
_LINE = 100  # characters of a title


def layout(study: Study) -> Layout:
    """Return the rows and columns of the page."""
    rows = [Row(label="majority class", models="majority"), Row(label=PUBLIC, models=PUBLIC)]
    rows += [
        Row(
            label=method.label,
            models={f"{e:g}": model_name(name, e) for e in study.epsilons}
            if method.is_private
            else name,
        )
        for name, method in study.methods.items()
    ]
    rows += [
        Row(label="central, not private", models=CENTRAL),
        Row(label="each user's own majority", models="own majority"),
    ]
    if LOCAL in study.untrained:
        rows.append(Row(label="each user alone, from public-only", models=LOCAL))
    return Layout(
        columns={f"{e:g}": f"ε = {e:g}" for e in study.epsilons},
        rows=rows,
        promise=promise(study),
    )


def promise(study: Study) -> str:
    """Return what the ε of every row is: δ, unit, relation, accountant, and what it leaves out."""
    return f"{_terms(study)}; tuning on validation threads is not covered."


def _terms(study: Study) -> str:
    n = len(study.corpus.view(roster=study.roster, split=study.splits[0]).roster)
    return (
        f"ε by PLD at δ = n^-1.1 = {format_delta(n**-1.1)}, user-level, add-remove, Poisson "
        "cohorts, simulated (seeded noise)"
    )


def chart(evaluation: Evaluation, study: Study, more: str = "") -> str:
    """Return accuracy against ε as a drawing: private methods between public-only and the best.

    Args:
        evaluation: What is drawn.
        study: Whose methods; more than two are drawn side by side at each ε.
        more: A further line of the title.
    """
    best = evaluation.best_nonprivate
    assert best is not None
    lines = {"majority class": "majority", "public-only, ε = 0": PUBLIC, "not private": best}
    values = {name: model.values["accuracy"] for name, model in evaluation.models.items()}
    references = [
        Reference(value=values[name].value or 0.0, label=label, colour=colour)
        for (label, name), colour in zip(lines.items(), ("muted", "s2", "s3"), strict=True)
    ]
    points = []
    private = [(name, method) for name, method in study.methods.items() if method.is_private]
    for number, (name, method) in enumerate(private):
        aside = 2.0 ** (0.07 * (number - (len(private) - 1) / 2)) if len(private) > 2 else 1.0
        for epsilon in study.epsilons:
            found = values[model_name(name, epsilon)]
            ends = wider(found)
            points.append(
                Point(
                    label=method.label,
                    epsilon=epsilon * aside,
                    value=found.value or 0.0,
                    half_width=None if ends is None else (ends.high - ends.low) / 2,
                    colour=_COLOURS[number % len(_COLOURS)],
                    series=number,
                    marker=_MARKERS[number // len(_COLOURS) % len(_MARKERS)],
                )
            )
    made = "SYNTHETIC " if evaluation.data.get("synthetic") else ""
    return tradeoff_plot(
        points,
        alternative="Accuracy on threads held out against ε.",
        width=760,
        height=380,
        references=references,
        share=True,
        title=f"Accuracy on threads held out, {made}{evaluation.data.get('name')}: a diagnostic, "
        "not covered by ε.\n" + "\n".join([f"{_terms(study)}.", *textwrap.wrap(more, _LINE)]),
        alone=True,
    )


def parser_of(
    described: str | None, program: str, *, seeds: int, plot: str = ""
) -> argparse.ArgumentParser:
    """Return a parser of the options that every study has.

    Args:
        described: What the program does.
        program: Its name.
        seeds: How many a method has by default.
        plot: What --plot draws; "" for no such option.
    """
    parser = study_parser(
        described,
        program,
        seeds=seeds,
        epsilons=(2.0, 8.0),
        results=Path("results/tags"),
        plot=plot,
    )
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
