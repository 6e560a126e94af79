"""The fused steps of a user against PyTorch's own backward pass and `ModuleTrainer`."""

import numpy as np
import pytest
import torch

from fedpriv.models.text import IGNORED, WordLSTM, next_word_loss
from fedpriv.rng import Key
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.local.module import ArrayExamples, ModuleTrainer, module_params
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.words import WordTrainer, dense_gradients, token_scores
from tests.harness.toys_of_training import assert_near

VOCABULARY, TIME = 14, 6


def network(tied, dtype=torch.float32):
    torch.manual_seed(0)
    return WordLSTM(VOCABULARY, width=3, units=5, tied=tied).to(dtype)


def batch(n=9):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, VOCABULARY, (n, TIME)), rng.integers(0, VOCABULARY, (n, TIME))
    for row, length in enumerate(rng.integers(1, TIME + 1, n)):
        y[row, length:] = IGNORED
    return x, y


@pytest.mark.parametrize("tied", [False, True])
def test_gradients_are_those_of_the_loss(tied):
    module = network(tied, torch.float64)
    x, y = map(torch.from_numpy, batch())
    loss = next_word_loss(module(x), y)
    expected = torch.autograd.grad(loss, list(module.parameters()))
    params = {name: p.detach() for name, p in module.named_parameters()}
    found = dense_gradients(params, x, y)
    assert list(found) == list(params)
    for (name, own), gradient in zip(params.items(), expected, strict=True):
        assert found[name].shape == own.shape and gradient.abs().max() > 0
        torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-14)


def test_the_loss_is_a_mean_over_sentences_with_a_fixed_divisor():
    module = network(False)
    x, y = map(torch.from_numpy, batch(4))
    alone = [next_word_loss(module(x[n : n + 1]), y[n : n + 1]) for n in range(4)]
    torch.testing.assert_close(next_word_loss(module(x), y), torch.stack(alone).mean())
    scores, targets = token_scores(dict(module.named_parameters()), x, y)
    summed = torch.nn.functional.cross_entropy(scores, targets, reduction="sum")
    torch.testing.assert_close(next_word_loss(module(x), y), summed / (4 * TIME))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("multiplied", [False, True])
def test_a_user_trains_as_by_module_trainer(tied, multiplied):
    module = network(tied)
    schedule = LocalSgd(learning_rate=0.5, batch_size=4, epochs=3, max_examples_per_user=7)
    multiplier = {}
    if multiplied:
        rows = np.linspace(0.5, 4.0, VOCABULARY, dtype=np.float32)
        multiplier = {"embedding.weight": rows, "project.weight": np.full((3, 5), 2, np.float32)}
    params, key = module_params(module), Key.simulation(3).fold("user")
    examples = ArrayExamples(*batch())
    own = {"schedule": schedule, "multiplier": multiplier}
    alone = ModuleTrainer(module=network(tied), loss=next_word_loss, **own)
    fused = WordTrainer(encode=lambda chosen: (chosen.x, chosen.y), **own)
    expected, found = (t.train(params, NO_CONTEXT, examples, key) for t in (alone, fused))
    size = max(np.abs(array).max() for array in expected.values())
    assert {array.dtype for array in found.values()} == {np.dtype(np.float32)}
    assert_near(found, expected, rtol=1e-4, atol=1e-4 * size)
    if multiplied:  # the case could fail: without multipliers the update is another
        plain = WordTrainer(schedule=schedule, encode=fused.encode).train(
            params, NO_CONTEXT, examples, key
        )
        assert np.abs(plain["embedding.weight"] - found["embedding.weight"]).max() > 1e-3 * size
