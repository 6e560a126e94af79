"""Accuracy by the papers' split of public users' sentences alone, and of all sentences.

    python -m simulations.adadps.public_only.tags

For the rows that stand in Figure 6 next to private training. Split by sentence as the papers did:
test sentences share threads, titles and labels with training sentences, so every figure here, this
one too, is of memory. Rate and passes of public-only are chosen on a fifth of the public users'
sentences, then all of them are trained on. Training without privacy is shown as it goes, pass by
pass, and its best pass is taken on the test sentences: it is an upper mark and chosen by looking.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from fedpriv.datasets.importers.locate import resolve_corpus
from fedpriv.datasets.stackexchange.splits import BY_SENTENCE
from fedpriv.datasets.stackexchange.tag_view import TagView
from fedpriv.measures import ACCURACY
from fedpriv.rng import Key
from fedpriv.tasks.tag_prediction import evaluate_tags, majority_share
from fedpriv.training.public_learning import TagLearner, choose, learn
from simulations.evaluation.held_out import held_rows

ROSTERS = ("onstartups-all", "onstartups-400")
INPUTS = ("tff", "unit-norm")


def _rows(view: TagView, users: Sequence[str], subset: str) -> np.ndarray:
    return view.all_rows(users, subset)


def _learner(view: TagView, inputs: str, rows: np.ndarray, seen: np.ndarray) -> TagLearner:
    return TagLearner(
        examples=view.columns.take(rows),
        inputs=inputs,
        key=Key.simulation(0).fold("public-only"),
        measured=lambda params: evaluate_tags(params, view.columns, inputs, seen),
    )


def lines(
    roster: str, inputs: str, *, rates: Sequence[float], most_passes: int, corpus: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield a line of the majority class, of public-only and of all sentences.

    Args:
        roster: Whose held-out sentences are measured.
        inputs: "tff" or "unit-norm".
        rates: Learning rates tried.
        most_passes: Passes over public sentences at the most; of all sentences a third.
        corpus: As of `resolve_corpus`.

    Raises:
        ValueError: If there is no such corpus or roster.
    """
    found = resolve_corpus(corpus, allow_synthetic=False)
    view = found.view(roster=roster, split=BY_SENTENCE)
    tested, public = held_rows(view), view.public_users
    about = {"data": f"{roster}, by-sentence", "synthetic": view.synthetic, "inputs": inputs}
    labels = view.label_counts(view.roster, "test")
    yield {**about, "row": "majority class", "accuracy": round(majority_share(labels) or 0.0, 4)}

    started = time.perf_counter()
    trial = _learner(view, inputs, _rows(view, public, "train"), _rows(view, public, "test"))
    chosen = choose(trial, ACCURACY, rates=rates, factors=(1.0,), most_passes=most_passes).by_figure
    whole = replace(trial, examples=view.columns.take(_rows(view, public, "all")))
    reached = evaluate_tags(learn(whole, chosen).params, view.columns, inputs, tested)
    assert reached is not None
    yield {
        **about,
        "row": "public-only",
        "accuracy": round(reached.get("accuracy") or 0.0, 4),
        "num_examples": whole.num_examples,
        "learning_rate": chosen.learning_rate,
        "passes": chosen.passes,
        "on_an_edge": [
            *(["learning_rate"] if chosen.learning_rate in (min(rates), max(rates)) else []),
            *(["passes"] if chosen.passes == most_passes else []),
        ],
        "seconds": round(time.perf_counter() - started, 1),
    }

    started = time.perf_counter()
    rows = np.concatenate([_rows(view, view.roster, "train"), _rows(view, public, "all")])
    learner = _learner(view, inputs, rows, tested)
    passes = islice(learner.passes(chosen.learning_rate), max(1, most_passes // 3))
    curve = [
        0.0 if (seen := learner.measure(params)) is None else round(seen.get("accuracy") or 0.0, 4)
        for params in passes
    ]
    yield {
        **about,
        "row": "all, not private",
        "accuracy": max(curve),
        "num_examples": learner.num_examples,
        "learning_rate": chosen.learning_rate,
        "passes": curve.index(max(curve)) + 1,
        "on_an_edge": ["passes"] if curve[-1] == max(curve) else [],
        "seconds": round(time.perf_counter() - started, 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a JSON line for each row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--corpus", default=None, help="a prepared corpus, a dump or a name")
    parser.add_argument("--rosters", nargs="+", default=list(ROSTERS))
    parser.add_argument("--inputs", nargs="+", default=list(INPUTS), choices=INPUTS)
    parser.add_argument("--rates", nargs="+", type=float, default=[0.1, 0.3, 1.0, 3.0])
    parser.add_argument("--most-passes", type=int, default=30)
    given = parser.parse_args(arguments)
    for roster in given.rosters:
        for inputs in given.inputs:
            for line in lines(
                roster,
                inputs,
                rates=given.rates,
                most_passes=given.most_passes,
                corpus=given.corpus,
            ):
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
