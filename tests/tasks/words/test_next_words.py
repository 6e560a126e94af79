"""The task on a synthetic corpus: whose words it knows, what it measures, and that it learns."""

from itertools import islice

import numpy as np
import pytest
import torch

from fedpriv.datasets.stackexchange.word_view import open_word_view
from fedpriv.models.text import WordLSTM
from fedpriv.rng import Key
from fedpriv.tasks.next_words import FULL, REDUCED, Encoding, NextWords, Size
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.local.schedule import LocalSgd
from tests.harness.toys_of_training import assert_same
from tests.tasks.words import phrases

TINY = Size(num_words=40, width=8, units=12, tied=True)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return phrases.write(tmp_path_factory.mktemp("corpora") / "phrases")


@pytest.fixture(scope="module")
def view(corpus):
    return open_word_view(corpus)


def said(view, user, subset="all"):
    own = view.examples(user, subset)
    numbers = np.split(own.words, own.starts[1:-1])
    return [" ".join(view.words[n] if n >= 0 else "?" for n in row) for row in numbers]


def test_a_view_holds_every_sentence_in_order_without_its_title(view):
    for user in (phrases.PUBLIC[1], phrases.ROSTERED[3]):
        known = set(view.words)
        given = [
            " ".join(word if word in known else "?" for word in sentence.tokens)
            for sentence in phrases.sentences()
            if sentence.user_id == user
        ]
        assert sorted(said(view, user)) == sorted(given)
    assert "titled" not in " ".join(said(view, phrases.ROSTERED[0])).split()


def test_no_thread_stands_on_both_sides(view):
    users = (*view.roster, *view.public_users)
    sides = [
        set(view.threads[view.all_rows(users, subset)].tolist()) for subset in ("train", "test")
    ]
    assert sides[0] and sides[1] and not sides[0] & sides[1]


@pytest.mark.slow
def test_the_published_network_has_the_published_number_of_parameters():
    for size, number in ((FULL, 4_050_748), (REDUCED, 158_532)):  # Reddi et al. 2021, C.3
        tokens = Encoding(num_words=size.num_words).num_tokens
        module = WordLSTM(tokens, width=size.width, units=size.units, tied=size.tied)
        assert sum(p.numel() for p in module.parameters()) == number


@pytest.mark.slow
def test_training_learns_the_phrases_better_than_a_unigram(view):
    task = NextWords(view, size=TINY, length=8)
    params = task.init_params(Key.simulation(0))
    trainer = task.trainer(LocalSgd(learning_rate=1.0, batch_size=2, epochs=40), {})
    key = Key.simulation(1)
    for number in range(4):
        for user in view.roster[:4]:
            update = trainer.train(params, NO_CONTEXT, task.data.examples(user), key.fold(number))
            params = {name: params[name] + update[name] for name in params}
    found = task.evaluate(params, public=False)
    trivial = task.trivial(public=False)
    assert found is not None
    assert found.get("accuracy") > trivial["unigram"].get("accuracy") + 0.1
    assert trivial["bigram"].get("accuracy") > trivial["unigram"].get("accuracy")
    assert found.get("perplexity") == pytest.approx(np.exp(found.get("loss")))
    assert task.describe().majority_class_accuracy == trivial["unigram"].get("accuracy")


def test_parts_of_an_evaluation_add_up(view):
    task = NextWords(view, size=TINY, measured=4)
    params = task.init_params(Key.simulation(0))
    whole = task.evaluate(params, public=True)
    assert whole is not None and whole.num_examples == 4
    parts = [task.evaluate(params, public=True, part=(n, 2)) for n in range(2)]
    assert sum(p.num_examples for p in parts if p) == 4


def test_what_is_learnt_in_public_is_measured_on_threads_kept_back(view):
    task = NextWords(view, size=TINY)
    choosing = task.public_learner(Key.simulation(0), choosing=True)
    whole = task.public_learner(Key.simulation(0), choosing=False)
    assert 0 < choosing.num_examples < whole.num_examples == len(view.public_rows("train"))
    before = choosing.measure(choosing.begun).get("loss")
    params = next(islice(choosing.passes(0.02), 3, None))
    assert choosing.measure(params).get("loss") < before


def test_multipliers_are_of_words_alone(view):
    task = NextWords(view, size=TINY, multipliers=lambda n: np.full(n, 3.0, np.float32))
    found = task.side_information()
    rows = found.multiplier["embedding.weight"]
    assert found.source == "public"
    assert rows[0] == 1 and (rows[1 : len(view.words) + 1] == 3).all() and (rows[-3:] == 1).all()
    with pytest.raises(ValueError):
        NextWords(view).side_information()


@pytest.mark.slow
def test_threads_of_a_pool_train_the_same_update(view):
    from concurrent.futures import ThreadPoolExecutor

    task = NextWords(view, size=TINY, length=8)
    params = task.init_params(Key.simulation(0))
    trainer = task.trainer(LocalSgd(learning_rate=1.0, batch_size=2, epochs=3), {})

    def train(user):
        return trainer.train(
            params, NO_CONTEXT, task.data.examples(user), Key.simulation(1).fold(user)
        )

    before = torch.get_num_threads()
    alone = [train(user) for user in view.roster]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(train, view.roster))
    assert torch.get_num_threads() == before
    for left, right in zip(alone, together, strict=True):
        assert_same(right, left)


@pytest.mark.parametrize("public", [True, False])
def test_probabilities_are_of_the_targets_that_count(view, public):
    """Ends and unknown words are no targets of it."""
    task = NextWords(view, size=TINY, length=5)
    params = task.init_params(Key.simulation(3))
    found = list(task.class_scores(params, public=public))
    probabilities, labels = (np.concatenate(part) for part in zip(*found, strict=True))
    measured = task.evaluate(params, public=public)
    assert len(labels) == measured.totals["accuracy"].count
    right = int((probabilities.argmax(axis=1) == labels).sum())
    assert right == measured.totals["accuracy"].sum
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-12)
    parts = [len(y) for part in ((0, 2), (1, 2)) for _, y in
             task.class_scores(params, public=public, part=part)]  # fmt: skip
    assert sum(parts) == len(labels)
