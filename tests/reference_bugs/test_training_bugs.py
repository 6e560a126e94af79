"""Bugs 7 and 9 of the published reference code: data and measures.

A post without a known tag (7) is left out and counted: `tests/datasets/corpus/test_corpus.py`. Ties
(9) go to the lower class in `tests/tasks/test_tag_scores.py`. Incomplete batches (10) are trained
on in `tests/training/local/test_trainer.py`.

Momentum (8) is compared with plain NumPy in `tests/oracles/test_adadps.py`.

A fresh random subset of users above the cap is tested in `tests/training/local/test_trainer.py`,
and one norm of all tensors in `tests/laws/bounds/test_norm.py`.
"""

import math

import numpy as np
import pytest

from fedpriv.backends import SerialBackend
from fedpriv.experiments.build import build
from fedpriv.runs.loop import rounds
from fedpriv.tasks.tag_prediction import evaluate_tags, majority_share
from fedpriv.training.evaluate import combined
from tests.harness.toys_of_training import KEY, drawn, zeros
from tests.reference_bugs.small_runs import experiment


class TestData7:
    def test_7_local_order_is_new_every_round(self, tiny_corpus):
        seen = []

        class Examples:
            inner = tiny_corpus.view().examples("u00")
            labels = inner.labels

            def __init__(self, user):
                self.user = user

            def __len__(self):
                return len(self.inner)

            def take(self, index):
                seen.append((self.user, tuple(index.tolist())))
                return self.inner.take(index)

        class Data:
            def examples(self, user_id):
                return Examples(user_id)

        class One(SerialBackend):
            def sum(self, request, attempt, cohort):
                return super().sum(request, attempt, ["u00"])

        components = build(experiment(local_batch_size=3), tiny_corpus)
        backend = One(trainer=components.trainer, data=Data(), measure=components.task.evaluate)
        list(rounds(components, backend, KEY))
        assert len({order for user, order in seen if user == "u00"}) == 6
        assert all(sorted(order) == list(range(len(Examples.inner))) for _, order in seen)


def gather(view):
    """The held-out examples of everybody on the roster."""
    return view.columns.take(np.concatenate(list(view.rows(view.roster, "test"))))


def naive_metrics(params, examples, inputs):
    """Accuracy, recall@5 and loss, one example at a time."""
    x = examples.features(inputs).toarray().astype(np.float64)
    tags = np.zeros((len(examples), examples.num_tags), bool)
    tags[
        np.repeat(np.arange(len(examples)), np.diff(examples.tag_indptr)), examples.tag_indices
    ] = True
    right = found = 0
    loss = 0.0
    for row, label, own in zip(x, examples.labels, tags, strict=True):
        logits = row @ params["kernel"].astype(np.float64) + params["bias"]
        best = np.argsort(-logits, kind="stable")
        right += int(best[0] == label)
        found += int(own[best[:5]].sum())
        loss += math.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[label]
    return right / len(examples), found / tags.sum(), loss / len(examples)


class TestMeasures9:
    def test_9_averages_divide_by_the_number_of_examples(self, tiny_corpus):
        view = tiny_corpus.view()
        examples = gather(view)
        params = drawn(zeros(kernel=(len(view.words), len(view.tags)), bias=len(view.tags)))
        everybody = np.arange(len(examples))
        for size in (4096, 7, len(examples) - 1, 1):
            blocks = [everybody[at : at + size] for at in range(0, len(examples), size)]
            for inputs in ("tff", "unit-norm"):
                metrics = combined(evaluate_tags(params, examples, inputs, b) for b in blocks)
                expected = naive_metrics(params, examples, inputs)
                assert metrics.num_examples == len(examples)
                assert (metrics.get("accuracy"), metrics.get("recall_at_5")) == pytest.approx(
                    expected[:2]
                )
                assert metrics.get("loss") == pytest.approx(expected[2], rel=1e-5)
        assert evaluate_tags(params, examples.take(np.zeros(0, np.int64)), "tff") is None
        share = np.bincount(examples.labels).max() / len(examples)
        assert majority_share(np.bincount(examples.labels)) == pytest.approx(share)
