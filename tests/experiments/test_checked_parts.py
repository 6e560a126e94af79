"""Parts are checked before any data are read, as far as no size decides."""

import pytest

from fedpriv.experiments.averaging import FederatedExperiment
from tests.harness.refusals import refuses


def experiment(**options):
    made = FederatedExperiment(name="own", description="", task=lambda experiment: None)
    return made.with_options({"noise_multiplier": 1.0, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": "fixed", "cohort": 20},  # everybody, of twenty
        {"sampling": "fixed", "relation": "replace-one"},
        {"cohort-cap": 20},
        {"cohort": 5.0, "cohort-cap": 20},
    ],
)
def test_what_sizes_decide_is_left_to_the_data(options):
    experiment(**options).check()


def test_a_pair_that_no_size_mends_is_refused():
    with refuses(ValueError, "replace-one"):
        experiment(sampling="fixed").check()
