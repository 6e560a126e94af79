"""Accuracy by sentence of public users' sentences alone, and of all sentences.

    python -m simulations public-only-tags

To be read next to private training in Figure 6. Split by sentence as the code of
AdaDPS does: test sentences share threads, titles and labels with training sentences, so every
figure here, this one too, is of memory. Rate and passes of public-only are chosen on a fifth of the
public users' sentences, then all of them are trained on. Training without privacy is shown as it
goes, pass by pass, and its best pass is taken on the test sentences: it is an upper mark and chosen
by looking.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

import numpy as np

from fedpriv.datasets.importers.locate import resolve_corpus
from fedpriv.datasets.stackexchange.splits import BY_SENTENCE
from fedpriv.datasets.stackexchange.tag_view import TagView
from fedpriv.measures import ACCURACY
from fedpriv.rng import Key
from fedpriv.runs.progress import Pace
from fedpriv.tasks.tag_prediction import evaluate_tags, majority_share
from fedpriv.training.public_learning import PublicLearner, choose, learn, tag_learner
from simulations.evaluation.held_out import held_rows
from simulations.reproduction.items import Study
from simulations.reproduction.study import Row

ROSTERS = ("onstartups-all", "onstartups-400")
INPUTS = ("tff", "unit-norm")


def _learner(view: TagView, inputs: str, rows: np.ndarray, seen: np.ndarray) -> PublicLearner:
    return tag_learner(
        view.columns.take(rows),
        inputs,
        Key.simulation(0).fold("public-only"),
        lambda params: evaluate_tags(params, view.columns, inputs, seen),
    )


ROWS = ("majority class", "public-only", "all, not private")


def lines(
    roster: str, inputs: str, *, rates: Sequence[float], most_passes: int, corpus: str | None = None
) -> Iterator[Row]:
    """Yield what each of `ROWS` reaches.

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
    about = {"synthetic": view.synthetic}
    labels = view.label_counts(view.roster, "test")
    yield {**about, "accuracy": round(majority_share(labels) or 0.0, 4)}

    started = time.perf_counter()
    trial = _learner(view, inputs, view.all_rows(public, "train"), view.all_rows(public, "test"))
    chosen = choose(trial, ACCURACY, rates=rates, factors=(1.0,), most_passes=most_passes).by_figure
    whole = _learner(view, inputs, view.all_rows(public, "all"), view.all_rows(public, "test"))
    reached = evaluate_tags(learn(whole, chosen), view.columns, inputs, tested)
    assert reached is not None
    yield {
        **about,
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
    rows = np.concatenate([view.all_rows(view.roster, "train"), view.all_rows(public, "all")])
    learner = _learner(view, inputs, rows, tested)
    passes = islice(learner.passes(chosen.learning_rate), max(1, most_passes // 3))
    curve = [
        0.0 if (seen := learner.measure(params)) is None else round(seen.get("accuracy") or 0.0, 4)
        for params in passes
    ]
    yield {
        **about,
        "accuracy": max(curve),
        "num_examples": learner.num_examples,
        "learning_rate": chosen.learning_rate,
        "passes": curve.index(max(curve)) + 1,
        "on_an_edge": ["passes"] if curve[-1] == max(curve) else [],
        "seconds": round(time.perf_counter() - started, 1),
    }


def reproduce(
    *,
    corpus: str | None = None,
    rosters: tuple[str, ...] = ROSTERS,
    inputs: tuple[str, ...] = INPUTS,
    rates: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0),
    most_passes: int = 30,
) -> None:
    """Print a JSON line for each row.

    Args:
        corpus: A prepared corpus, a dump or a name.
        rosters: Of the corpus.
        inputs: "tff" or "unit-norm".
        rates: Learning rates tried.
        most_passes: Passes over public sentences.
    """
    pace = Pace(len(rosters) * len(inputs))
    for roster in rosters:
        for kind in inputs:
            made = lines(roster, kind, rates=rates, most_passes=most_passes, corpus=corpus)
            found = pace.work(f"{roster}, {kind}", partial(list, made))
            for label, row in zip(ROWS, found, strict=True):
                about = {"data": f"{roster}, by-sentence", "inputs": kind, "row": label}
                print(json.dumps({**about, **row}), flush=True)


REPRODUCTIONS = (
    Study(
        name="public-only-tags",
        title="Public users' sentences alone, split by sentence, and all sentences",
        run=reproduce,
        minutes=(10, 1),
    ),
)
