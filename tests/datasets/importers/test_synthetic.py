"""The synthetic StackOverflow: its shape, its label, its seed, and that something is learnable."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from fedpriv.datasets.importers.synthetic import NAME, Shape, _sentence_counts, synthesize
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.splits import BY_SENTENCE
from fedpriv.rng import Key
from fedpriv.tasks.tag_prediction import evaluate_tags
from fedpriv.training.public_learning import tag_learner
from tests.harness.refusals import refuses

SMALL = Shape(
    num_users=40, num_sentences=8_000, public_users=20, num_words=1_500, num_tags=30, num_topics=5
)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Corpus:
    return synthesize(
        tmp_path_factory.mktemp("synthetic") / "c", shape=SMALL, max_words=1_000, max_tags=25
    )


@pytest.mark.slow
def test_it_says_that_it_is_synthetic(small, tmp_path):
    assert "synthetic" in small.name == NAME
    assert small.synthetic and small.manifest["source"]["kind"] == "synthetic"
    assert "synthetic" in small.default_roster
    with refuses(ValueError, "'stackoverflow'", "'synthetic'"):
        synthesize(tmp_path / "c", shape=SMALL, name="stackoverflow")
    assert not (tmp_path / "c").exists()


def test_its_shape_is_what_was_asked_for(small):
    view = small.view(split=BY_SENTENCE)
    assert (len(view.roster), len(view.public_users)) == (40, 20)
    assert (len(view.words), len(view.tags)) == (1_000, 25)
    assert all(word[0] == "w" and len(word) == 6 for word in view.words)
    entry = small.manifest["rosters"][small.default_roster]
    unlabelled = entry["sentences_without_label"]["rostered"]
    assert entry["num_examples"] + unlabelled == 8_000
    assert unlabelled < 400
    assert not entry["looks_at_data"]
    assert 0.5 < entry["foreign_titles"]["share"] < 0.9
    examples = view.columns.take(view.all_rows(view.roster, "all"))
    assert 20 < examples.num_tokens.mean() < 30


def test_without_spread_all_users_are_equal():
    rng = Key.simulation(0).generator()
    assert _sentence_counts(342_477, 5 * 342_477, 1.0, rng).tolist() == [5] * 342_477
    assert set(_sentence_counts(400, 8 * 400, 0.0, rng).tolist()) == {8}
    assert sorted(_sentence_counts(4, 33, 0.0, rng).tolist()) == [8, 8, 8, 9]


@pytest.mark.slow
def test_the_same_seed_is_the_same_corpus_and_another_is_not(small, tmp_path):
    same = synthesize(tmp_path / "a", shape=SMALL, max_words=1_000, max_tags=25)
    other = synthesize(tmp_path / "b", shape=SMALL, max_words=1_000, max_tags=25, seed=1)
    assert same.manifest["files"] == small.manifest["files"]
    assert other.manifest["files"] != small.manifest["files"]


@pytest.mark.slow
def test_tags_are_harder_to_tell_where_a_shape_says_so(tmp_path):
    def best(**change):
        """Return the accuracy of softmax regression on held-out threads of the same users."""
        name = "-".join([NAME, *change])
        shape = replace(SMALL, num_sentences=4_000, **change)
        view = synthesize(tmp_path / name, shape=shape, name=name).view()
        train, test = (np.concatenate(list(view.rows(view.roster, s))) for s in ("train", "test"))
        learner = tag_learner(
            view.columns.take(train),
            "unit-norm",
            Key.simulation(0),
            lambda params: evaluate_tags(params, view.columns, "unit-norm", test),
        )
        params = next(itertools.islice(learner.passes(0.3), 3, None))
        found = learner.measure(params)
        return 0.0 if found is None else found.totals["accuracy"].value

    easy, few_words, other_tags = best(), best(informative=0.3), best(off_topic=0.6)
    assert few_words < easy - 0.1
    assert other_tags < easy - 0.2


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"num_users": 0}, []),
        ({"num_sentences": 10}, [10]),
        ({"num_words": 5}, [5]),
        ({"num_topics": 31}, [31]),
        ({"spread": float("nan")}, ["nan"]),
        ({"informative": 1.1}, ["informative"]),
    ],
)
def test_shapes_that_make_no_corpus_are_refused(change, names):
    with refuses(ValueError, *names):
        replace(SMALL, **change)
