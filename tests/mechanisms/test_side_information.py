"""Side information: each formula against the paper's, by hand, and what is refused."""

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


def test_the_commonest_words_are_left_alone_by_rank():
    assert rank_multiplier(4, top=2, gain=20.0).tolist() == [1, 1, 20, 20]
    assert rank_multiplier(4, top=4).tolist() == [1, 1, 1, 1]
    with refuses(ValueError, 5, 4):
        rank_multiplier(4, top=5)


def test_frequency_is_the_papers():
    """f = (count + 0.1) / N + 1e-10, multiplier = min(cap, (max f / f)^power) / division."""
    f = (SUMS + 0.1) / 2 + 1e-10
    found = frequency_multiplier(SUMS, 2)
    assert found == pytest.approx(f[0] / f, rel=1e-6) and found.dtype == np.float32
    assert frequency_multiplier(SUMS.astype(np.int64), 2).tolist() == found.tolist()
    assert frequency_multiplier(SUMS, 2, power=0.5) == pytest.approx((f[0] / f) ** 0.5, rel=1e-6)
    capped = frequency_multiplier(SUMS, 2, cap=200.0, division=10.0)
    assert capped == pytest.approx([0.1, 20, 574.1 / 3.1 / 10, 20], rel=1e-6)
    never = frequency_multiplier(np.array([1e6, 0.0]), 10)
    assert never.tolist() == [1, 1e4]  # the cap, exactly


def test_magnitude_is_the_frequencys_rule_for_numbers_that_may_be_zero():
    assert magnitude_multiplier(np.array([1.0, 2, 0]), cap=50.0).tolist() == [2, 1, 50]
    halved = magnitude_multiplier(np.array([1.0, 2, 0]), cap=50.0, division=2.0)
    assert halved.tolist() == [1, 0.5, 25] and halved.dtype == np.float32
    with pytest.raises(ValueError):
        magnitude_multiplier(np.zeros(2))


def test_tf_idf_is_relative_to_the_largest():
    """tf log10(documents / df), df 0 as 0.1; a word of every document is worth the floor."""
    found = tf_idf_multiplier(np.array([8.0, 4, 1, 0]), np.array([4, 2, 1, 0]), 4)
    weight = [0, 4 * np.log10(2), np.log10(4), 0]
    assert found == pytest.approx(np.maximum(np.array(weight) / max(weight), 1e-3), rel=1e-6)
    assert found.dtype == np.float32
    scaled = tf_idf_multiplier(np.array([8.0, 4, 1, 0]) / 290, np.array([4, 2, 1, 0]), 4)
    assert scaled == pytest.approx(found, rel=1e-6)
    with refuses(ValueError, "rank"):
        tf_idf_multiplier(np.ones(2), np.array([4, 4]), 4)


def test_tf_idf_mass_is_the_papers():
    """10 (sum of count / 290 times log10(documents / df) + 1e-10), df 0 as 0.1, three ids 0.01."""
    term = np.array([574, 2, 2, 2, 2, 7]) / 290
    df = np.array([4, 4, 3, 2, 1, 0])
    found = tf_idf_mass_multiplier(term, df, 4, reserved=3)
    log10 = np.log10
    assert found[:3].tolist() == pytest.approx([0.01] * 3) and found.dtype == np.float32
    assert found[3:] == pytest.approx(
        [20 / 290 * log10(2), 20 / 290 * log10(4), 70 / 290 * log10(40)], rel=1e-6
    )
    plain = tf_idf_mass_multiplier(term, df, 4)
    assert plain[0] == pytest.approx(1e-9)  # in every document: no mass, and not zero either
    assert tf_idf_mass_multiplier(term, df, 4, times=100)[3:] == pytest.approx(100 * found[3:])
    with refuses(ValueError, 4):
        tf_idf_mass_multiplier(term, df + 1, 4)
    with refuses(ValueError, 6, "(3,)"):
        tf_idf_mass_multiplier(term, df[:3], 4)


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
