"""Measuring in parts: the figures of the whole, whoever measured which part."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.training.evaluate import Metrics, Total, chunks, combined
from tests.harness.toys_of_training import drawn, labelled, zeros
from tests.tasks.people import task

COUNTS = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**6))


@given(st.lists(COUNTS, min_size=1, max_size=6))
def test_shares_are_counted_again_exactly(parts):
    metrics = [
        Metrics(
            totals={
                "accuracy": Total.of_mean(min(right, of) / of, of),
                "recall_at_5": Total(sum=min(found, 3 * of), count=3 * of),
            },
            num_examples=of,
        )
        for right, found, of in parts
    ]
    together, total = combined(metrics), sum(of for _, _, of in parts)
    assert together.get("accuracy") == sum(min(right, of) for right, _, of in parts) / total
    found = sum(min(found, 3 * of) for _, found, of in parts)
    assert together.get("recall_at_5") == found / (3 * total)
    assert together.num_examples == total
    assert together.totals["recall_at_5"].count == 3 * total


def test_a_figure_that_a_part_lacks_or_lost_is_not_invented():
    one, other = Metrics.of(2, accuracy=0.5, loss=1.0), Metrics(num_examples=2)
    assert combined([one, other]) == Metrics(num_examples=4)
    lost = Metrics.of(1, accuracy=float("nan"), loss=float("nan"))
    together = combined([one, lost])
    assert np.isnan(together.get("accuracy")) and np.isnan(together.get("loss"))


@given(st.integers(0, 5000), st.integers(1, 9))
def test_every_example_is_in_one_chunk_and_the_chunks_are_always_the_same(number, of):
    parts = [list(chunks(number, (part, of))) for part in range(of)]
    assert sorted((c.start, c.stop) for part in parts for c in part) == [
        (c.start, c.stop) for c in chunks(number)
    ]
    assert sum(c.stop - c.start for part in parts for c in part) == number


@pytest.mark.parametrize("public", [True, False])
@pytest.mark.parametrize("of", [2, 3, 100])
def test_tag_prediction_in_parts(tiny_corpus, public, of):
    experiment = load_experiment("dp-fedavg-tags").with_options(
        {"noise-multiplier": 1, "cohort": 8}
    )
    tags = build(experiment, tiny_corpus).task
    params = drawn(tags.init_params(None))
    whole = tags.evaluate(params, public=public)
    parts = [tags.evaluate(params, public=public, part=(part, of)) for part in range(of)]
    together = combined(parts)
    assert together.get("loss") == pytest.approx(whole.get("loss"), rel=1e-9)
    for name in ("accuracy", "recall_at_5"):
        assert together.get(name) == whole.get(name)
    assert together.num_examples == whole.num_examples > of / 10
    assert sum(part is not None for part in parts) > 1


def test_a_module_in_parts():
    examples, params = labelled(2500, (7,), 3), drawn(zeros(weight=(3, 7), bias=3))
    x, y = examples.x, examples.y
    made = task(module=lambda: nn.Linear(7, 3), users={"a": examples}, public=examples)
    whole = made.evaluate(params, public=True)
    scores = x @ params["weight"].T + params["bias"]
    assert whole.get("accuracy") == pytest.approx((scores.argmax(axis=1) == y).mean(), abs=1e-9)
    for of in (2, 3, 5):
        parts = [made.evaluate(params, public=True, part=(part, of)) for part in range(of)]
        together = combined(parts)
        assert together.get("accuracy") == whole.get("accuracy") and together.num_examples == 2500
        assert together.get("loss") == pytest.approx(whole.get("loss"), rel=1e-9)
    assert made.evaluate(params, public=False) is None
