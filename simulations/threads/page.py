"""Pages of the studies by thread, and their chart: accuracy against ε."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from fedpriv.privacy.epsilon import format_delta
from fedpriv.report.charts import Point, Reference, tradeoff_plot
from simulations.evaluation.evaluate import Estimate, Evaluation
from simulations.evaluation.held_out import MAJORITY, Fold
from simulations.evaluation.table import Layout, Row, percent, wider
from simulations.reproduction.study import render, table
from simulations.threads.study import CENTRAL, LOCAL, PUBLIC, Study, model_name

# Of methods in their order; reference lines have the others.
_COLOURS = ("s1", "s4", "s5", "s6", "s7", "s8", "ink")
_MARKERS = ("o", "s", "^")
_LINE = 100  # characters of a title


def layout(study: Study, words: str) -> Layout:
    """Return the rows and columns of the page; `words` are of every ε."""
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
        guarantee=words,
    )


def epsilon_words(study: Study, otherwise: str = "") -> str:
    """Return what the ε of every row is: δ, unit, relation, accountant, and what it leaves out."""
    words = f"{_terms(study)}; tuning on validation threads is not covered."
    return f"{words} {otherwise}".rstrip()


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
            points.append(
                point(
                    values[model_name(name, epsilon)],
                    label=method.label,
                    epsilon=epsilon * aside,
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


def point(found: Estimate, **drawn: Any) -> Point:
    """Return an estimate as a point with its wider interval; `drawn` is all else of the point."""
    ends = wider(found)
    half = None if ends is None else (ends.high - ends.low) / 2
    return Point(value=found.value or 0.0, half_width=half, **drawn)


Differences = Mapping[tuple[str, str], Estimate]


def differences_table(found: Differences) -> str:
    """Return the table of differences.

    A difference counts where one of the two is above the majority class by more than its interval;
    where neither is, both have learnt nothing that a rule without an ε does not know. Of models
    that were not compared with the majority class every difference counts.
    """
    above = {
        first: estimate.excludes_zero and (estimate.value or 0.0) > 0.0
        for (first, second), estimate in found.items()
        if second == MAJORITY
    }
    rows = []
    for (first, second), estimate in found.items():
        mute = second != MAJORITY and not above.get(first, True) and not above.get(second, True)
        text = (
            "no signal: neither is above the majority" if mute else percent(estimate, signed=True)
        )
        rows.append([first, second, text])
    return table(["", "against", "difference"], rows, words=2)


def ablation_page(study: Study, held: Fold, found: Differences) -> str:
    """Return the page of what each part of a method is worth; `held` is one of the folds."""
    rows = []
    for name, method in study.methods.items():
        against, label = model_name, f"{method.label}, against it"
        if name == "whole":
            against, label = lambda *_: PUBLIC, f"{method.label}, over public-only"
        pairs = [(model_name(name, e), against("whole", e)) for e in study.epsilons]
        rows.append([label, *(percent(found[pair], signed=True) for pair in pairs)])
    return render(
        "threads/ablation.md.jinja",
        data=held.data, folds=[split.fold for split in study.splits], seeds=study.seeds,
        guarantee=epsilon_words(study),
        rows=table(["", *(f"ε = {target:g}" for target in study.epsilons)], rows),
    )  # fmt: skip
