"""On a small corpus: what is held out, rows that need no model of others, and central training."""

from collections import Counter

import numpy as np
import pytest

from fedpriv.datasets.stackexchange.splits import Split
from fedpriv.rng import Key
from fedpriv.tasks.tag_prediction import evaluate_tags, majority_share
from fedpriv.training.public_learning import tag_learner
from simulations.evaluation.evaluate import evaluate
from simulations.evaluation.held_out import (
    MAJORITY,
    OWN_MAJORITY,
    central,
    held_out,
    held_rows,
    local_only,
    majority,
    measure_fold,
    outcomes,
    own_majority,
    scored,
)
from tests.harness.refusals import refuses

KEY = Key.simulation(3)


@pytest.fixture(scope="module")
def view(tiny_corpus):
    return tiny_corpus.view()


@pytest.fixture(scope="module")
def of_users(tiny_corpus):
    """Users that are measured have no training text."""
    return tiny_corpus.view(split=Split(kind="by-user"))


def random_model(view, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "kernel": rng.normal(size=(len(view.words), len(view.tags))).astype(np.float32),
        "bias": rng.normal(size=len(view.tags)).astype(np.float32),
    }


def zeros(view):
    return {name: np.zeros_like(array) for name, array in random_model(view).items()}


class TestHeldOut:
    def test_each_example_is_its_users(self, view):
        held, rows = held_out(view), held_rows(view)
        first = 0
        for place, user in enumerate(view.roster):
            own = view.examples(user, "test")
            here = slice(first, first + len(own))
            assert (held.users[here] == place).all()
            assert (held.trained[here] == bool(view.num_examples(user))).all()
            np.testing.assert_array_equal(held.num_tags[here], np.diff(own.tag_indptr))
            first = here.stop
        assert first == len(held) == len(rows) > 100
        np.testing.assert_array_equal(held.threads, view.threads[rows])

    def test_of_users_that_are_held_out_none_is_trained(self, of_users):
        assert not held_out(of_users).trained.any()

    @pytest.mark.parametrize("inputs", ["tff", "unit-norm"])
    def test_outcomes_add_up_to_the_tasks_own_figures(self, view, inputs):
        params, rows = random_model(view), held_rows(view)
        found, totals = outcomes(params, view, inputs), evaluate_tags(
            params, view.columns, inputs, rows
        ).totals  # fmt: skip
        assert found.right.sum() == totals["accuracy"].sum > 0
        assert found.found.sum() == totals["recall_at_5"].sum
        assert held_out(view).num_tags.sum() == totals["recall_at_5"].count

    def test_models_that_cannot_be_measured(self, view):
        params = random_model(view)
        with pytest.raises(ValueError):
            outcomes({**params, "bias": np.full_like(params["bias"], np.nan)}, view, "tff")
        with pytest.raises(ValueError):
            outcomes({**params, "kernel": params["kernel"][1:]}, view, "tff")
        with refuses(ValueError, "bytes"):
            outcomes(params, view, "bytes")


def test_the_commonest_label_as_the_task_has_it(view):
    found = majority(view)
    share = majority_share(view.label_counts(view.roster, "test"))
    assert found.right.mean() == share


def test_a_users_own(view):
    overall = Counter()
    for user in view.roster:
        overall.update(view.examples(user).labels.tolist())
    wanted = []
    for user in view.roster:
        own = Counter(view.examples(user).labels.tolist())
        best = max(range(len(view.tags)), key=lambda tag: (own[tag], overall[tag], -tag))
        wanted += [label == best for label in view.examples(user, "test").labels]
    found = own_majority(view)
    np.testing.assert_array_equal(found.right, wanted)
    assert found.right.sum() > 0 and (found.right != majority(view).right).any()


def test_users_without_text_get_the_order_of_all(of_users):
    counts = of_users.label_counts(of_users.roster, "train")
    labels = of_users.columns.labels[held_rows(of_users)]
    np.testing.assert_array_equal(own_majority(of_users).right, labels == counts.argmax())


def test_it_is_training_on_ones_own_text_alone(view):
    """Against the same passes over the whole kernel, one user at a time."""
    found, first = local_only(view, zeros(view), "tff", key=KEY, passes=2), 0
    for user in view.roster:
        own, seen = view.examples(user), view.examples(user, "test")
        if not len(seen):
            continue
        learner = tag_learner(own, "tff", KEY.fold("user").fold(user), lambda params: None)
        passes = learner.passes(0.1)
        next(passes)
        wanted = scored(next(passes), seen, "tff", np.arange(len(seen)))
        here = slice(first, first + len(seen))
        np.testing.assert_array_equal(found.right[here], wanted.right)
        np.testing.assert_array_equal(found.ndcg[here], wanted.ndcg)
        first = here.stop
    assert first == len(found) and found.right.sum() > 0


def test_without_passes_or_text_it_is_the_start(view, of_users):
    for one, passes in ((view, 0), (of_users, 3)):
        start = random_model(one)
        before = {name: array.copy() for name, array in start.items()}
        found = local_only(one, start, "unit-norm", key=KEY, passes=passes)
        wanted = outcomes(start, one, "unit-norm")
        np.testing.assert_array_equal(found.right, wanted.right)
        np.testing.assert_array_equal(found.ndcg, wanted.ndcg)
        assert all((start[name] == before[name]).all() for name in start)


class TestCentral:
    @pytest.mark.parametrize("text", [None, "public-threads", "all-posts"])
    def test_it_is_the_learner_of_public_models_on_all_text(self, tiny_corpus, view, text):
        choosing = tiny_corpus.view(split=view.split.choosing())
        one, other = central(
            view, choosing, "tff", keys=[KEY, KEY.fold(1)], public_text=text, rates=[0.3],
            most_passes=1,
        )  # fmt: skip
        rows = np.concatenate(list(view.rows(view.roster, "train")))
        if text is not None:
            rows = np.concatenate([rows, view.public_rows("train", of=text)])
        learner = tag_learner(view.columns.take(rows), "tff", KEY, lambda params: None)
        np.testing.assert_array_equal(one["kernel"], next(learner.passes(0.3))["kernel"])
        assert (one["kernel"] != other["kernel"]).any()

    def test_what_is_refused(self, tiny_corpus, view):
        for other in (view, tiny_corpus.view(split=Split(fold=1, measured_on="validation"))):
            with refuses(ValueError, "by-thread-0-validation"):
                central(view, other, "tff", keys=[KEY])
        with pytest.raises(ValueError):
            central(view, tiny_corpus.view(split=view.split.choosing()), "tff", keys=[])


class TestFold:
    def test_models_and_what_is_beside_them(self, view):
        models = {"public-only": [random_model(view, 1)], "private": [random_model(view, 2)] * 2}
        beside = {"local": [local_only(view, random_model(view, 1), "tff", key=KEY)]}
        found = measure_fold(view, models, inputs="tff", measured_before=beside)
        assert set(found.outcomes) == {MAJORITY, OWN_MAJORITY, "local", "public-only", "private"}
        assert len(found.outcomes["private"]) == 2 and found.data["synthetic"]
        figures = evaluate(
            [found], public_only="public-only", generator=KEY.generator(), replicates=100
        )
        wanted = evaluate_tags(models["private"][0], view.columns, "tff", held_rows(view))
        values = figures.models["private"].values
        assert values["accuracy"].value == wanted.get("accuracy")
        assert values["recall_at_5"].value == wanted.get("recall_at_5")
        assert figures.num_threads == len(np.unique(view.threads[held_rows(view)]))

    def test_what_is_refused(self, view):
        with refuses(ValueError, "majority"):
            measure_fold(view, {MAJORITY: [random_model(view)]}, inputs="tff")
        params = random_model(view)
        params["bias"][0] = np.inf
        with refuses(ValueError, "private"):
            measure_fold(view, {"private": [params]}, inputs="tff")
        with pytest.raises(ValueError):
            measure_fold(view, {"private": []}, inputs="tff")
