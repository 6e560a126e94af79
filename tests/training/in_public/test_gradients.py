"""Anything with gradients on public examples: who is kept back, and by which gradient it learns."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.rng import Key
from fedpriv.training.evaluate import Metrics
from fedpriv.training.local.module import module_params
from fedpriv.training.per_example.module import ModuleGradients
from fedpriv.training.public_learning import BATCH_SIZE, apart, choose, learn, learner_of
from tests.harness.toys_of_training import cross_entropy, labelled, zeros

KEY = Key.simulation(0)


@pytest.mark.parametrize(("number", "back"), [(2, 1), (4, 1), (5, 1), (10, 2), (101, 20)])
def test_a_fifth_is_kept_back_and_nobody_is_on_both_sides(number, back):
    learnt, seen = apart(number, KEY)
    assert len(seen) == back
    assert sorted([*learnt, *seen]) == list(range(number))
    again = apart(number, KEY)
    assert np.array_equal(learnt, again[0]) and np.array_equal(seen, again[1])
    if number > 20:
        assert not np.array_equal(seen, apart(number, Key.simulation(1))[1])


class Seen:
    """Records the positions that are asked for; minimises the distance to 3."""

    def __init__(self):
        self.learnt, self.measured = [], []

    def gradient(self, params, index, key):
        self.learnt.append(index)
        return {"w": (params["w"] - 3).astype(np.float32)}

    def measure(self, params, index):
        self.measured.append(index)
        return Metrics.of(len(index), loss=float(((params["w"] - 3) ** 2).sum()))

    def learner(self, number, *, choosing):
        return learner_of(
            number,
            choosing=choosing,
            key=KEY,
            begun=zeros(w=2),
            gradient=self.gradient,
            measure=self.measure,
        )


def test_settings_are_chosen_on_examples_that_were_not_learnt_from():
    seen = Seen()
    learner = seen.learner(100, choosing=True)
    assert learner.num_examples == 80
    found = choose(learner, None)
    learnt, measured = set(np.concatenate(seen.learnt)), set(np.concatenate(seen.measured))
    assert len(learnt) == 80 and len(measured) == 20 and not learnt & measured
    whole = Seen()
    learner = whole.learner(100, choosing=False)
    learn(learner, found.by_loss)
    assert set(np.concatenate(whole.learnt)) == set(range(100)) and whole.measured == []
    assert learner.num_examples == 100


def test_every_pass_looks_at_every_example_once_in_an_order_of_its_own():
    seen = Seen()
    learner = seen.learner(100, choosing=False)
    assert learner.measure(learner.begun) is None
    for _ in itertools.islice(learner.passes(0.1), 2):
        pass
    batches = -(-100 // BATCH_SIZE)
    first, second = seen.learnt[:batches], seen.learnt[batches : 2 * batches]
    for one in (first, second):
        assert sorted(np.concatenate(one)) == list(range(100))
    assert not np.array_equal(first[0], second[0])


class Idle(nn.Module):
    """Draws a dropout, and has a parameter that its outputs do not use."""

    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(3, 2), nn.Linear(2, 2)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(self.used(x))


def test_what_a_module_draws_it_draws_from_the_key():
    examples = labelled(9, (3,))
    gradient = ModuleGradients(Idle(), cross_entropy, examples.x, examples.y).gradient
    params, index = module_params(Idle()), np.arange(9)
    torch.manual_seed(5)
    one = gradient(params, index, KEY)
    assert not one["idle.weight"].any() and one["used.weight"].any()
    state = torch.random.get_rng_state()
    torch.manual_seed(6)
    again, other = gradient(params, index, KEY), gradient(params, index, KEY.fold(1))
    assert np.array_equal(one["used.weight"], again["used.weight"])
    assert not np.array_equal(one["used.weight"], other["used.weight"])
    torch.manual_seed(5)
    assert torch.equal(state, torch.random.get_rng_state())  # the process's own is left alone
