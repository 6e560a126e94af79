"""Side information: edges of the formulas, and what is refused; values are in `tests/oracles`."""

from functools import partial

import numpy as np
import pytest

from fedpriv.mechanisms.side_information import (
    SideInformation,
    frequency_multiplier,
    magnitude_multiplier,
    rank_multiplier,
    tf_idf_mass_multiplier,
    tf_idf_multiplier,
)
from tests.harness.refusals import refuses

SUMS = np.array([574.0, 2, 3, 1])
TERM, CONTAINING = np.array([574, 2, 2, 2, 2, 7]) / 290, np.array([4, 4, 3, 2, 1, 0])


def test_frequencies_are_capped_and_divided():
    """min(cap, (max f / f)^power) / division with f = (count + 0.1) / N + 1e-10."""
    assert frequency_multiplier(SUMS, 2).dtype == np.float32
    capped = frequency_multiplier(SUMS, 2, cap=200.0, division=10.0)
    assert capped == pytest.approx([0.1, 20, 574.1 / 3.1 / 10, 20], rel=1e-6)
    never = frequency_multiplier(np.array([1e6, 0.0]), 10)
    assert never.tolist() == [1, 1e4]  # the cap, exactly
    halved = magnitude_multiplier(np.array([1.0, 2, 0]), cap=50.0, division=2.0)
    assert halved.tolist() == [1, 0.5, 25] and halved.dtype == np.float32


def test_tf_idf_is_relative_to_the_largest():
    """A word of every document is worth the floor."""
    found = tf_idf_multiplier(np.array([8.0, 4, 1, 0]), np.array([4, 2, 1, 0]), 4)
    assert found[0] == np.float32(1e-3) and found.max() == 1.0 and found.dtype == np.float32
    scaled = tf_idf_multiplier(np.array([8.0, 4, 1, 0]) / 290, np.array([4, 2, 1, 0]), 4)
    assert scaled == pytest.approx(found, rel=1e-6)


def test_tf_idf_mass_of_reserved_ids_and_of_words_of_every_document():
    found = tf_idf_mass_multiplier(TERM, CONTAINING, 4, reserved=3)
    assert found[:3].tolist() == pytest.approx([0.01] * 3) and found.dtype == np.float32
    plain = tf_idf_mass_multiplier(TERM, CONTAINING, 4)
    assert plain[0] == pytest.approx(1e-9)  # no mass, and not zero either
    assert plain[3:].tolist() == found[3:].tolist()
    assert tf_idf_mass_multiplier(TERM, CONTAINING, 4, times=100)[3:] == pytest.approx(
        100 * found[3:]
    )


@pytest.mark.parametrize(
    ("make", "given", "named"),
    [
        (partial(rank_multiplier, top=5), (4,), (5, 4)),
        (magnitude_multiplier, (np.zeros(2),), ()),
        (tf_idf_multiplier, (np.ones(2), np.array([4, 4]), 4), ("rank",)),
        (tf_idf_mass_multiplier, (TERM, CONTAINING + 1, 4), (4,)),
        (tf_idf_mass_multiplier, (TERM, CONTAINING[:3], 4), (6, "(3,)")),
    ],
)
def test_what_has_no_multiplier_is_refused(make, given, named):
    with refuses(ValueError, *named):
        make(*given)


@pytest.mark.parametrize("bad", [0, -1.0, np.nan])
def test_caps_and_divisions_are_positive(bad):
    for name in ("cap", "division"):
        with refuses(ValueError, name):
            frequency_multiplier(SUMS, 2, **{name: bad})
        with refuses(ValueError, name):
            magnitude_multiplier(SUMS, **{name: bad})


@pytest.mark.parametrize("bad", [0.0, -1.0, np.inf, np.nan])
def test_a_multiplier_is_positive_and_finite_everywhere(bad):
    with refuses(ValueError, "w"):
        SideInformation(multiplier={"w": np.array([1.0, bad])}, source="public", description="")
