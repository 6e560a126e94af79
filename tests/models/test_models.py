"""The models have the sizes that they say."""

import pytest

from fedpriv.models import DigitClassifier, SoftmaxRegression
from fedpriv.training.local.module import check_module

SIZES = {
    DigitClassifier: 26_010,
    lambda: SoftmaxRegression(10_000, 500): 5_000_500,
}


@pytest.mark.parametrize(("make", "size"), SIZES.items())
def test_number_of_parameters(make, size):
    module = check_module(make())
    assert sum(p.numel() for p in module.parameters()) == size
