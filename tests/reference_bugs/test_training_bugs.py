"""Bugs 7 to 10 of the published reference code: data, momentum, measures and batches."""

import math

import numpy as np
import pytest

from fedpriv import tree
from fedpriv.backends import SerialBackend
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.mechanisms import Clip
from fedpriv.rng import Key
from fedpriv.runs.loop import rounds
from fedpriv.tasks.tag_prediction import evaluate_tags, majority_share
from fedpriv.training.evaluate import combined
from fedpriv.training.local.schedule import Schedule
from fedpriv.training.local.softmax import CompiledSoftmaxTrainer
from fedpriv.training.work import as_work
from tests.datasets.corpus.sentences import said, write
from tests.reference_bugs.small_runs import experiment, states


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

            def __len__(self):
                return len(self.inner)

            def take(self, index):
                seen.append(tuple(index.tolist()))
                return self.inner.take(index)

        class Data:
            def examples(self, user_id):
                return Examples()

        class One(SerialBackend):
            def partial_sum(self, *, cohort, **arguments):
                return super().partial_sum(cohort=["u00"], **arguments)

        components = build(experiment(local_batch_size=3), tiny_corpus)
        list(
            rounds(
                components,
                One(trainer=components.trainer, data=Data(), measure=components.task.evaluate),
                Key.simulation(0),
            )
        )
        assert len(seen) == len(set(seen)) == 6
        assert all(sorted(order) == list(range(len(Examples.inner))) for order in seen)

    def test_7_users_above_the_cap_use_a_fresh_random_subset_not_their_last_posts(self):
        schedule = Schedule(learning_rate=1.0, max_examples=10)
        root = Key.simulation(0)
        counts = np.zeros(40)
        for round_num in range(1, 201):
            chosen = schedule.choose(40, root.fold(round_num).generator())
            assert len(set(chosen.tolist())) == 10
            counts[chosen] += 1
        # Binomial(200, 1/4): outside 15..90 once in 1e9 for each of 40.
        assert counts.min() > 15 and counts.max() < 90


class TestMomentum8:
    @pytest.mark.slow
    @pytest.mark.parametrize("noise", [{}, {"noise": "none"}])
    @pytest.mark.parametrize(("optimizer", "gain"), [("momentum", 1.0), ("ema-momentum", 0.1)])
    def test_8_it_starts_from_zero_and_applies_to_private_runs_too(
        self, tiny_corpus, noise, optimizer, gain
    ):
        plain = states(experiment(**noise), tiny_corpus)[1]
        found = states(experiment(server=optimizer, **noise), tiny_corpus)[1]
        assert all(set(params) == {"kernel", "bias"} for _, params in found)
        first = {n: gain * t for n, t in plain[0][1].items()}
        for name, expected in first.items():
            np.testing.assert_allclose(found[0][1][name], expected, rtol=1e-5, atol=1e-8)
            # The second round carries the first one on.
            assert not np.allclose(found[1][1][name], gain * plain[1][1][name], rtol=1e-3)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["adadps-tags", "dp-fedavg-tags"])
    def test_8_it_is_an_option_of_every_method(self, tiny_corpus, name):
        made = load_experiment(name).with_options(
            {"roster": None, "server": "ema-momentum", "rounds": 2, "delta": 1e-2}
        )
        velocity = (
            build(made, tiny_corpus)
            .algorithm.init(
                {"kernel": np.zeros((72, 10), np.float32), "bias": np.zeros(10, np.float32)}
            )
            .optimizer["velocity"]
        )
        assert {n: t.shape for n, t in velocity.items()} == {"kernel": (72, 10), "bias": (10,)}


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
        rng = np.random.default_rng(0)
        params = {
            "kernel": rng.normal(size=(len(view.words), len(view.tags))).astype(np.float32),
            "bias": rng.normal(size=len(view.tags)).astype(np.float32),
        }
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
        zero = {
            "kernel": np.zeros((len(view.words), len(view.tags)), np.float32),
            "bias": np.zeros(len(view.tags), np.float32),
        }
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

    def test_9_the_bias_is_in_the_norm_that_is_clipped(self):
        update = {"kernel": np.zeros((3, 2), np.float32), "bias": np.full(2, 3.0, np.float32)}
        clipped = Clip(l2_clip_norm=1.0).apply(update)
        assert tree.l2_norm(clipped) == pytest.approx(1.0, rel=1e-6)
        both = {**update, "kernel": np.full((3, 2), 3.0, np.float32)}
        assert tree.l2_norm({"bias": Clip(l2_clip_norm=1.0).apply(both)["bias"]}) == (
            pytest.approx(0.5, rel=1e-6)
        )  # two of eight equal coordinates


class TestBatches10:
    def test_10_incomplete_batches_are_trained_on(self, tiny_corpus):
        view = tiny_corpus.view()
        examples = view.examples("u00")  # 14 of them
        params = {
            "kernel": np.zeros((len(view.words), len(view.tags)), np.float32),
            "bias": np.zeros(len(view.tags), np.float32),
        }
        for batch_size in (4, 13, 100):
            schedule = Schedule(learning_rate=1.0, batch_size=batch_size)
            batches = schedule.batches(len(examples), np.random.default_rng(0))
            assert sum(map(len, batches)) == len(examples)
            update = CompiledSoftmaxTrainer(schedule=schedule).train(
                params, examples, Key.simulation(0)
            )
            rows = update["kernel"].rows[np.abs(update["kernel"].values).max(axis=1) > 0]
            assert set(rows.tolist()) == set(examples.indices.tolist())

    def test_10_a_user_with_fewer_examples_than_a_batch_takes_part(self, tiny_corpus):
        components = build(
            experiment(local_batch_size=1000, max_examples_per_user=5000), tiny_corpus
        )
        params = components.task.init_params(Key.simulation(0))
        for user in components.task.roster[:10]:
            total = as_work(components.trainer).partial_sum(
                params=params,
                bound=components.plan.live_mechanism.bound,
                data=components.task.data,
                user_ids=[user],
                key=Key.simulation(0),
            )
            assert total.num_failed == 0 and tree.l2_norm(total.real()) > 1e-3
