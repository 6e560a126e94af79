"""Bugs 7, 9 and 10 of the published reference code: data, measures and batches.

Momentum (8) is compared with plain NumPy in `tests/oracles/test_adadps.py`.

A fresh random subset of users above the cap is tested in `tests/training/local/test_trainer.py`,
and one norm of all tensors in `tests/laws/bounds/test_norm.py`.
"""

import math

import numpy as np
import pytest

from fedpriv.backends import SerialBackend
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.experiments.build import build
from fedpriv.runs.loop import rounds
from fedpriv.tasks.tag_prediction import evaluate_tags, majority_share
from fedpriv.training.evaluate import combined
from fedpriv.training.local.schedule import Schedule
from fedpriv.training.local.softmax import CompiledSoftmaxTrainer
from fedpriv.training.work import NO_CONTEXT
from tests.datasets.corpus.sentences import said, write
from tests.harness.toys_of_training import KEY, drawn, zeros
from tests.reference_bugs.small_runs import experiment


class TestData7:
    def test_7_a_post_without_a_known_tag_is_left_out_and_counted(self, tmp_path):
        rows = [
            said(user, f"a w{i}", ["common", "second", "rare-of-" + user][i % 3])
            for user in ("r", "p")
            for i in range(12)
        ]
        rows += [said("q", "a", tag) for tag in ("common", "second")]
        roster = RosterSpec(name="r", rule="declared", ids=["r"])
        view = write(tmp_path / "c", rows, [roster], max_words=8, max_tags=2).view()
        assert set(view.tags) == {"common", "second"}
        labels = view.examples("r", subset="all").labels
        assert sorted(labels.tolist()) == [0] * 4 + [1] * 4  # not eight of class 0
        assert view.provenance["sentences_without_label"]["rostered"] == 4

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

    def test_9_ties_go_to_the_lower_class_and_nobody_is_measured_as_none(self, tiny_corpus):
        view = tiny_corpus.view()
        examples = gather(view)
        zero = zeros(kernel=(len(view.words), len(view.tags)), bias=len(view.tags))
        metrics = evaluate_tags(zero, examples, "tff")
        assert metrics.get("accuracy") == pytest.approx((examples.labels == 0).mean())
        assert metrics.get("recall_at_5") == pytest.approx(
            (examples.tag_indices < 5).sum() / len(examples.tag_indices)
        )
        assert metrics.get("loss") == pytest.approx(math.log(len(view.tags)), rel=1e-6)
        assert evaluate_tags(zero, examples.take(np.zeros(0, np.int64)), "tff") is None
        assert majority_share(np.bincount(examples.labels)) == pytest.approx(
            np.bincount(examples.labels).max() / len(examples)
        )


class TestBatches10:
    def test_10_incomplete_batches_are_trained_on(self, tiny_corpus):
        view = tiny_corpus.view()
        examples = view.examples("u00")  # 14 of them
        params = zeros(kernel=(len(view.words), len(view.tags)), bias=len(view.tags))
        for batch_size in (4, 13, 100):
            schedule = Schedule(learning_rate=1.0, batch_size=batch_size)
            batches = schedule.batches(len(examples), np.random.default_rng(0))
            assert sum(map(len, batches)) == len(examples)
            update = CompiledSoftmaxTrainer(schedule=schedule).train(
                params, NO_CONTEXT, examples, KEY
            )
            rows = update["kernel"].rows[np.abs(update["kernel"].values).max(axis=1) > 0]
            assert set(rows.tolist()) == set(examples.indices.tolist())
