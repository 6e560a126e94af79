"""The attack on the last bits of a noised number.

Of f + z in floating point, some results cannot come from f = C: they have bits finer than any
number that adding to C leaves. Whoever sees one knows that f was 0 (Mironov 2012). 400,000 draws.
"""

import numpy as np

from fedpriv.mechanisms import Clip, Rounded
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.mechanisms.privatizer import noised_mean
from fedpriv.privacy.sampling import Everybody
from fedpriv.rng import Key
from fedpriv.sums import BITS, PartialSum
from tests.privacy.costing import mechanism

N = 400_000
C = 1.0
STEP = C * 2.0**-BITS


def key(number=0):
    return Key.from_bytes(Key.simulation(number).to_bytes(), "secure").fold("noise")


def released(steps, drawn):
    """Return what a mechanism of one user releases of a sum that many steps long, share 1."""
    total = PartialSum(total={"w": np.full(N, steps, np.int64)}, num_users=1, granularity=STEP)
    return noised_mean(total, drawn, 1.0)["w"].astype(np.float64)


def finer(values, spacing):
    """Return the share of values that are no multiple of a spacing."""
    return float(np.mean(np.rint(values / spacing) != values / spacing))


def test_no_release_has_a_bit_below_the_grid():
    made = mechanism(
        sampler=Everybody(num_users=1),
        bound=Rounded(bound=Clip(l2_clip_norm=C)),
        privatizer=Gaussian(noise_multiplier=1.0),
    )
    template = {"w": np.zeros(N, np.float32)}
    shares = []
    for number, steps in enumerate((0, 2**BITS)):
        nothing = PartialSum(total=template, num_users=1)
        drawn = made.draw(template, key(number)).take(nothing, made)
        assert drawn["w"].dtype == np.int64
        shares.append(finer(released(steps, drawn), STEP))
    assert shares == [0.0, 0.0]  # the advantage of whoever looks is 0.000


def test_a_plain_sum_of_floats_gives_a_quarter_away():
    """What the attack is worth where noise is added in floating point, whatever σ."""
    noise = key().normal((2, N), np.float64)
    spacing = np.spacing(C) / 2  # of numbers in [C/2, C): what C + z can leave near zero
    absent, present = finer(noise[0], spacing), finer(C + noise[1], spacing)
    assert present == 0.0 and 0.2 < absent < 0.6
