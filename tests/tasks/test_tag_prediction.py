"""Tag prediction: its params are those of the softmax regression that it is."""

import numpy as np

from fedpriv.models.linear import SoftmaxRegression
from fedpriv.rng import Key
from fedpriv.tasks.tag_prediction import TagPrediction
from fedpriv.training.local.module import module_params


def test_the_initial_params_are_the_models(tiny_corpus):
    view = tiny_corpus.view()
    found = TagPrediction(view).init_params(Key.simulation(0))
    expected = module_params(SoftmaxRegression(len(view.words), len(view.tags)))
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        np.testing.assert_array_equal(found[name], tensor)
