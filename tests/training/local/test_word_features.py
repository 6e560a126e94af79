"""Local SGD on weighted words and on pairs is dense SGD on those inputs, and stays capped."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.checkpoints.vocabulary import WordFeatures
from fedpriv.rng import Key
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.softmax import CompiledSoftmaxTrainer
from tests.harness.toys_of_training import assert_same, difference, drawn, zeros
from tests.training.local.tag_examples import PARAMS, TAGS, WORDS, assert_close, make_examples

WEIGHTS = np.random.default_rng(5).uniform(0.1, 2, WORDS).astype(np.float32)
MADE = {
    "tf-idf": WordFeatures(num_words=WORDS, weights=WEIGHTS),
    "pairs": WordFeatures(num_words=WORDS, num_pairs=9, pair_weight=0.7),
    "both": WordFeatures(num_words=WORDS, weights=WEIGHTS, num_pairs=9, most_paired=2),
}


def dense(made, examples):
    """The inputs as a matrix of unit rows, one example at a time."""
    x = np.zeros((len(examples), made.num_rows))
    for row in range(len(examples)):
        own = slice(examples.indptr[row], examples.indptr[row + 1])
        words, counts = examples.indices[own], examples.counts[own]
        _, rows, values = made.build(np.array([0, len(words)]), words, counts)
        x[row, rows] = values / (np.linalg.norm(values) or 1.0)
    return x


@pytest.mark.parametrize("preconditioned", [False, True])
@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_equals_dense_autograd(made, preconditioned):
    params = drawn(zeros(kernel=(made.num_rows, TAGS), bias=TAGS))
    rng = np.random.default_rng(8)
    multiplier = rng.uniform(0.5, 4, made.num_rows).astype(np.float32) if preconditioned else None
    schedule = LocalSgd(learning_rate=0.5, batch_size=4, epochs=2, max_examples_per_user=9)
    trainer = CompiledSoftmaxTrainer(
        schedule=schedule, inputs="unit-norm", multiplier=multiplier, word_features=made
    )
    examples, key = make_examples(13, seed=3), Key.simulation(4)
    found = trainer.train(params, NO_CONTEXT, examples, key)

    draws = key.generator()
    chosen = schedule.choose(len(examples), draws)
    x, y = dense(made, examples)[chosen], examples.labels[chosen].astype(np.int64)
    kernel, bias = (
        torch.from_numpy(params[n].astype(np.float64)).requires_grad_() for n in ("kernel", "bias")
    )
    factor = 1.0 if multiplier is None else torch.from_numpy(multiplier.astype(np.float64))[:, None]
    for batch in schedule.batches(len(chosen), draws):
        logits = torch.from_numpy(x[batch]) @ kernel + bias
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(y[batch]))
        dk, db = torch.autograd.grad(loss, [kernel, bias])
        with torch.no_grad():
            kernel -= 0.5 * dk * factor
            bias -= 0.5 * db
    ended = {"kernel": kernel.detach().numpy(), "bias": bias.detach().numpy()}
    expected = difference(ended, params)
    assert_close(found, expected)
    assert not made.num_pairs or np.abs(expected["kernel"][WORDS:]).max() > 1e-3
    assert found["kernel"].rows.tolist() == sorted(np.flatnonzero(x.any(axis=0)).tolist())


def test_a_power_of_zero_on_binary_counts_is_unit_norm_to_the_bit():
    examples = make_examples(12, seed=1)
    examples = replace(examples, counts=np.ones_like(examples.counts))
    schedule, key = LocalSgd(learning_rate=0.5, batch_size=4, epochs=3), Key.simulation(2)
    made = WordFeatures(num_words=WORDS, weights=np.ones(WORDS, np.float32))
    plain = CompiledSoftmaxTrainer(schedule=schedule, inputs="unit-norm")
    found = replace(plain, word_features=made).train(PARAMS, NO_CONTEXT, examples, key)
    expected = plain.train(PARAMS, NO_CONTEXT, examples, key)
    assert found["kernel"].rows.tolist() == expected["kernel"].rows.tolist()
    assert_same(found, expected)
    other = replace(plain, word_features=MADE["tf-idf"]).train(PARAMS, NO_CONTEXT, examples, key)
    assert other["kernel"].values.tobytes() != expected["kernel"].values.tobytes()


def test_only_the_chosen_examples_are_made(monkeypatch):
    seen, made = [], MADE["both"]
    real = WordFeatures.build
    monkeypatch.setattr(
        WordFeatures, "build", lambda self, *a: seen.append(len(a[0]) - 1) or real(self, *a)
    )
    trainer = CompiledSoftmaxTrainer(
        schedule=LocalSgd(learning_rate=0.5, max_examples_per_user=7),
        inputs="unit-norm",
        word_features=made,
    )
    params = zeros(kernel=(made.num_rows, TAGS), bias=TAGS)
    trainer.train(params, NO_CONTEXT, make_examples(500), Key.simulation(0))
    trainer.train(params, NO_CONTEXT, make_examples(0), Key.simulation(0))
    assert seen == [7, 0]
