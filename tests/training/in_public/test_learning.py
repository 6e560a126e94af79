"""The search on public examples, with a learner whose metrics are given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from fedpriv.measures import ACCURACY
from fedpriv.training.in_public.learning import choose, learn


@dataclass
class Learner:
    """Adds one to its weight in each pass; `metrics` are looked up by the weight."""

    metrics: dict[float, tuple[float, float]]
    num_examples: int = 3
    rates: tuple[float, ...] = (0.1,)

    def init(self):
        return {"weight": np.zeros(1, np.float32)}

    def passes(self, learning_rate):
        params = self.init()
        while True:
            params["weight"] += 1.0
            yield params

    def measure(self, params):
        loss, accuracy = self.metrics.get(float(params["weight"][0]), (9.0, 0.0))
        return {"loss": loss, "accuracy": accuracy}


def test_public_only_is_the_untrained_model_where_training_makes_it_worse():
    learner = Learner({0.0: (2.0, 0.3), 1.0: (1.0, 0.2), 2.0: (1.5, 0.25)})
    found = choose(learner, ACCURACY, factors=(1.0,), most_passes=3)
    assert (found.by_figure.passes, found.by_figure.figure) == (0, 0.3)
    assert found.by_loss.passes == 1  # private training still starts from a trained model
    assert learn(learner, found.by_figure).params["weight"] == 0.0


@pytest.mark.parametrize("loss", [1.0, float("nan")])
def test_public_only_is_a_trained_model_where_one_is_as_good(loss):
    learner = Learner({0.0: (loss, 0.2), 2.0: (0.5, 0.2)})
    found = choose(learner, ACCURACY, factors=(1.0,), most_passes=3)
    assert found.by_figure.passes == found.by_loss.passes == 2
    assert learn(learner, found.by_figure).params["weight"] == 2.0
