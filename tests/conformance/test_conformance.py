"""This project's aggregation passes every check; aggregations with one known fault do not."""

from importlib.metadata import version

import numpy as np
import pytest

from tests.conformance.checks import CHECKS, judged
from tests.conformance.subjects import SUBJECTS, Fedpriv

FLOWER = [subject for subject in SUBJECTS if subject.name != "fedpriv"]


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_fedpriv_holds(check):
    found = judged(CHECKS[check], Fedpriv())
    assert found.ok, found.text


class Survivors(Fedpriv):
    """Divides by who came."""

    def release(self, sent, *, expected, **terms):
        came = max(1, sum(one.arrays is not None for one in sent))
        found = super().release(sent, expected=expected, **terms)
        return {name: array * expected / came for name, array in found.items()}


class HalfTheNoise(Fedpriv):
    """Adds half the noise."""

    def release(self, sent, *, noise_multiplier, **terms):
        return super().release(sent, noise_multiplier=noise_multiplier / 2, **terms)


class TwiceTheBound(Fedpriv):
    """Clips to 2C."""

    def release(self, sent, *, clip_norm, noise_multiplier, **terms):
        terms |= {"clip_norm": 2 * clip_norm, "noise_multiplier": noise_multiplier / 2}
        return super().release(sent, **terms)


class Vetoed(Fedpriv):
    """Gives a round up where one user fails."""

    def release(self, sent, **terms):
        if any(one.arrays is None for one in sent):
            return None
        return super().release(sent, **terms)


class Global(Fedpriv):
    """Draws noise from NumPy's global generator."""

    def release(self, sent, *, noise_multiplier, clip_norm, expected):
        plain = super().release(sent, noise_multiplier=0.0, clip_norm=clip_norm, expected=expected)
        scale = noise_multiplier * clip_norm / expected
        return {n: a + np.random.normal(0, scale, a.shape) for n, a in plain.items()}


class Silent(Fedpriv):
    """Releases nothing where nobody answers."""

    def release(self, sent, **terms):
        return super().release(sent, **terms) if sent else None


class Growing(Fedpriv):
    """Adapts its clip norm the wrong way."""

    def clip_norms(self, norms, rounds):
        return [1.1**number for number in range(rounds)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (Survivors, "one user more or less"),
        (Survivors, "half of the users drop out"),
        (HalfTheNoise, "noise: standard deviation"),
        (TwiceTheBound, "one user more or less"),
        (TwiceTheBound, "a user lies about its norm"),
        (TwiceTheBound, "malformed updates"),
        (Vetoed, "a user fails"),
        (Global, "noise: a seeded global generator"),
        (Silent, "nobody answers"),
        (Growing, "adaptive clipping"),
    ],
)
def test_a_known_fault_is_found(fault, check):
    assert not judged(CHECKS[check], fault()).ok


@pytest.mark.slow
@pytest.mark.skipif(version("flwr") != "1.41.0", reason="the page is of flwr 1.41.0")
@pytest.mark.parametrize("subject", FLOWER, ids=[subject.name for subject in FLOWER])
def test_the_page_says_what_is_measured(subject):
    """The facts of docs/results/conformance.md, row by row."""
    holds = {"noise: standard deviation", "noise: after dropouts"}
    if "Fixed" in subject.name:
        holds.add("adaptive clipping")
    assert {check for check, ask in CHECKS.items() if judged(ask, subject).ok} == holds
