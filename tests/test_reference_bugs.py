"""One test, at least, for each bug of the published reference code that could be ours.

Number 4 (micro-batches that are averaged before they are clipped) has no counterpart: what is
bounded is a user's whole update, however many batches went into it; the test says so. Number 6
(a toy's accounting) is covered by what the ledger counts, and number 11 (scripts that do not run)
by `test_experiment.py`, which runs every experiment there is.
"""

import itertools
import math

import numpy as np
import pytest
import torch

from fedpriv import tree
from fedpriv.backends import SerialBackend
from fedpriv.data.corpus.rosters import RosterSpec
from fedpriv.data.corpus.writer import CorpusWriter, Sentence
from fedpriv.experiments.build import build
from fedpriv.experiments.catalogue import load_experiment
from fedpriv.experiments.experiment import Experiment
from fedpriv.mechanisms import Clip
from fedpriv.rng import Key
from fedpriv.running.loop import rounds
from fedpriv.sums import PartialSum
from fedpriv.tasks.tag_metrics import evaluate_tags, majority_share
from fedpriv.training.evaluate import combined
from fedpriv.training.local.trainer import Schedule, SparseSoftmaxTrainer
from fedpriv.training.work import as_work


def experiment(**options):
    made = Experiment(
        name="bugs",
        description="",
        noise_multiplier=1.0,
        cohort=6.0,
        rounds=6,
        delta=1e-3,
        l2_clip_norm=0.5,
        local_learning_rate=2.0,
        presets={"preconditioner-top": 10},
    )
    return made.with_options({name.replace("_", "-"): v for name, v in options.items()})


def states(made, corpus, backend=None, seed=0):
    components = build(made, corpus)
    backend = backend or SerialBackend(
        trainer=components.trainer, data=components.task.data, measure=components.task.evaluate
    )
    found = [
        (record, {n: t.copy() for n, t in state.params.items()})
        for record, state in rounds(
            components, backend, Key.simulation(seed), eval_every=made.eval_every
        )
    ]
    return components, found


def test_1_matrices_are_clipped_by_their_frobenius_norm(tiny_corpus):
    """Spectral clipping leaves M = 0.9 I₄ alone at C = 1; its norm as a vector is 1.8."""
    bound = build(experiment(l2_clip_norm=1.0), tiny_corpus).plan.live_mechanism.bound
    clipped = bound.apply({"kernel": np.eye(4, dtype=np.float32) * np.float32(0.9)})
    np.testing.assert_allclose(clipped["kernel"], 0.5 * np.eye(4), rtol=1e-6)
    # Rank 500 is where the spectral norm is wrong by the most, a factor of 22.4.
    worst = bound.apply({"kernel": np.eye(600, 500, dtype=np.float32)})
    assert np.sqrt((worst["kernel"].astype(np.float64) ** 2).sum()) <= 1.0


class SeedsLikeTheReference:
    """A backend whose clients seed NumPy's and torch's global generators, as the reference's do."""

    def __init__(self, seed=100):
        self.seed = seed

    def partial_sum(self, *, params, **_):
        np.random.seed(self.seed)
        torch.manual_seed(self.seed)
        np.random.permutation(300)  # the last client's batches
        return PartialSum(total=tree.zeros(params), num_users=1)

    def evaluate(self, params, *, public):
        return None

    def close(self):
        pass


class TestNoise2:
    def pure_noise(self, corpus, backend, seed=0):
        components, found = states(experiment(), corpus, backend, seed)
        before = {n: np.zeros_like(t) for n, t in found[0][1].items()}
        steps = []
        for _, params in found:
            steps.append(np.concatenate([(params[n] - before[n]).reshape(-1) for n in params]))
            before = params
        return components, np.stack(steps).astype(np.float64)

    def test_2_noise_of_two_rounds_has_nothing_in_common(self, tiny_corpus):
        """730 coordinates, 15 pairs of rounds: |r| above 0.2 once in 1e6 sets."""
        _, steps = self.pure_noise(tiny_corpus, SeedsLikeTheReference())
        for a, b in itertools.combinations(steps, 2):
            assert not np.array_equal(a, b)
            assert len(np.intersect1d(a, b)) < 5
            assert abs(np.corrcoef(a, b)[0, 1]) < 0.2

    def test_2_noise_does_not_depend_on_what_clients_did_to_global_generators(self, tiny_corpus):
        components, first = self.pure_noise(tiny_corpus, SeedsLikeTheReference(100))
        _, second = self.pure_noise(tiny_corpus, SeedsLikeTheReference(7))
        np.testing.assert_array_equal(first, second)  # a simulation: the seed decides alone
        _, other = self.pure_noise(tiny_corpus, SeedsLikeTheReference(100), seed=1)
        assert len(np.intersect1d(first, other)) < 20
        assert first.std() == pytest.approx(components.plan.live_mechanism.stddev / 6, rel=0.1)

    def test_2_cohorts_are_not_drawn_by_the_number_of_the_round(self, tiny_corpus):
        def cohorts(seed):
            drawn = []

            class Spy(SeedsLikeTheReference):
                def partial_sum(self, *, cohort, **arguments):
                    drawn.append(cohort)
                    return super().partial_sum(**arguments)

            states(experiment(), tiny_corpus, Spy(), seed)
            return drawn

        first, second = cohorts(0), cohorts(1)
        assert all(a != b for a, b in zip(first, second, strict=True))


class TestSampling3:
    def test_3_fixed_size_cohorts_are_not_accounted_as_poisson(self, tiny_corpus):
        with pytest.raises(ValueError, match="replace-one"):
            build(experiment(sampling="fixed"), tiny_corpus)
        fixed = build(experiment(sampling="fixed", relation="replace-one"), tiny_corpus).plan
        poisson = build(experiment(), tiny_corpus).plan
        assert fixed.epsilon(6).accountant == "RDP" and poisson.epsilon(6).accountant == "PLD"
        assert fixed.epsilon(6).value > 3 * poisson.epsilon(6).value

    def test_3_cohorts_are_drawn_as_they_are_accounted(self, tiny_corpus):
        def sizes(**options):
            _, found = states(
                experiment(rounds=30, **options), tiny_corpus, SeedsLikeTheReference()
            )
            return {record.diagnostics.cohort_size for record, _ in found}

        assert sizes(sampling="fixed", relation="replace-one") == {6}
        assert len(sizes()) > 5


def test_4_the_bounded_unit_is_the_whole_user(tiny_corpus):
    """Many small batches move the sum by no more than one: C, not C for each."""
    components = build(
        experiment(local_batch_size=1, local_epochs=5, l2_clip_norm=0.01), tiny_corpus
    )
    params = components.task.init_params(Key.simulation(0))
    total = as_work(components.trainer).partial_sum(
        params=params,
        bound=components.plan.live_mechanism.bound,
        data=components.task.data,
        user_ids=["u00"],
        key=Key.simulation(0),
    )
    assert total.num_failed == 0
    assert tree.l2_norm(total.real()) == pytest.approx(0.01, rel=1e-5)
    assert tree.l2_norm(total.real()) <= 0.01


class TestSideInformation5:
    def corpus(self, folder, published):
        writer = CorpusWriter(
            folder / f"published-{published}",
            name="synthetic-p",
            synthetic=True,
            source={"kind": "test"},
            licence="none",
            credit="nobody",
            max_words=8,
            max_tags=2,
        )
        with writer:
            for user in ("r0", "r1", "p0", "p1"):
                for i in range(8):
                    writer.add(
                        Sentence(
                            user_id=user,
                            tokens=[f"w{i}", "w0"],
                            title_tokens=[],
                            tags=[f"t{i % 2}"],
                        )
                    )
            counts = {}
            if published:
                counts = {
                    "published_word_counts": {f"w{i}": 9 - i for i in range(8)},
                    "published_tag_counts": {"t0": 5, "t1": 4},
                }
            return writer.finish(
                [RosterSpec(name="r", rule="declared", ids=["r0", "r1"])],
                default_roster="r",
                **counts,
            )

    @pytest.mark.parametrize("kind", ["rank", "frequency", "tf-idf"])
    def test_5_its_source_is_declared_and_true(self, tmp_path, kind):
        top = {"preconditioner_top": 2} if kind == "rank" else {}
        made = experiment(precondition="local", side_information=kind, cohort=1.0, **top)
        public = build(made, self.corpus(tmp_path, False)).side_information
        assert public.source == "public" and "outside the roster" in public.description
        # Counts published over everybody include the rostered users: no ε covers them.
        private = build(made, self.corpus(tmp_path, True)).side_information
        assert private.source == "private" and "rostered users" in private.description

    def test_5_public_and_rostered_users_do_not_overlap(self, tiny_corpus):
        view = tiny_corpus.view()
        assert view.public_users and not set(view.public_users) & set(view.roster)


class TestAccounting6And8:
    def test_6_every_round_that_is_run_is_paid_for(self, tiny_corpus):
        components, found = states(experiment(rounds=9, eval_every=1), tiny_corpus)
        assert len(found) == 9
        for number, (record, _) in enumerate(found, 1):
            assert record.released.round_num == number
            # Number 8's ε was that of the rounds before: here round i has paid for i rounds.
            assert record.released.epsilon == components.plan.epsilon(number).value
        epsilons = [record.released.epsilon for record, _ in found]
        assert epsilons == sorted(epsilons) and epsilons[0] > 0

    def test_8_delta_is_respected(self, tiny_corpus):
        found = {}
        for delta in (1e-2, 1e-4):
            components, records = states(experiment(delta=delta), tiny_corpus)
            assert components.plan.delta == records[-1][0].released.delta == delta
            found[delta] = records[-1][0].released.epsilon
        assert found[1e-4] > 1.3 * found[1e-2]
        # And by default it is not 1/n.
        assert build(experiment(delta=None), tiny_corpus).plan.delta < 1 / 60


class TestData7:
    def test_7_a_post_without_a_known_tag_is_left_out_and_counted(self, tmp_path):
        writer = CorpusWriter(
            tmp_path / "c",
            name="synthetic-tags",
            synthetic=True,
            source={"kind": "test"},
            licence="none",
            credit="nobody",
            max_words=8,
            max_tags=2,
        )
        with writer:
            for user in ("r", "p"):
                for i in range(12):
                    tags = [["common"], ["second"], ["rare-of-" + user]][i % 3]
                    writer.add(
                        Sentence(user_id=user, tokens=["a", f"w{i}"], title_tokens=[], tags=tags)
                    )
            for tag in ("common", "second"):
                writer.add(Sentence(user_id="q", tokens=["a"], title_tokens=[], tags=[tag]))
            view = writer.finish([RosterSpec(name="r", rule="declared", ids=["r"])], "r").view()
        assert set(view.tags) == {"common", "second"}
        labels = view.examples("r", split="all").labels
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
    @pytest.mark.parametrize("noise", [{}, {"noise": "none"}])
    @pytest.mark.parametrize(("optimizer", "gain"), [("momentum", 1.0), ("ema-momentum", 0.1)])
    def test_8_it_starts_from_zero_and_applies_to_private_runs_too(
        self, tiny_corpus, noise, optimizer, gain
    ):
        plain = states(experiment(**noise), tiny_corpus)[1]
        found = states(experiment(server_optimizer=optimizer, **noise), tiny_corpus)[1]
        assert all(set(params) == {"kernel", "bias"} for _, params in found)
        first = {n: gain * t for n, t in plain[0][1].items()}
        for name, expected in first.items():
            np.testing.assert_allclose(found[0][1][name], expected, rtol=1e-5, atol=1e-8)
            # The second round carries the first one on.
            assert not np.allclose(found[1][1][name], gain * plain[1][1][name], rtol=1e-3)

    @pytest.mark.parametrize("name", ["adadps-tags", "dp-fedavg-tags"])
    def test_8_it_is_an_option_of_every_method(self, tiny_corpus, name):
        made = load_experiment(name).with_options(
            {"roster": None, "server-optimizer": "ema-momentum", "rounds": 2, "delta": 1e-2}
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
            update = SparseSoftmaxTrainer(schedule=schedule).train(
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
