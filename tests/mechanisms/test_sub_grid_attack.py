"""The attack on the last bits of a noised number, and that every backend releases the same bits.

Of f + z in floating point, some results cannot come from f = C: they have bits finer than any
number that adding to C leaves. Whoever sees one knows that f was 0 (Mironov 2012). 400,000 draws.
"""

from dataclasses import replace

import numpy as np
import pytest

from fedpriv import tree
from fedpriv.backends import SerialBackend
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.mechanisms.privatizer import GridNoise, noised_mean
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.sampling import Everybody
from fedpriv.rng import Key
from fedpriv.sums import BITS, PartialSum

N = 400_000
C = 1.0
STEP = C * 2.0**-BITS


def key(number=0):
    return Key.from_bytes(Key.simulation(number).to_bytes(), "secure").fold("noise")


def released(steps, drawn):
    """Return what a mechanism of one user releases of a sum that many steps long, share 1."""
    total = {"w": np.full(N, steps, np.int64)}
    return (
        noised_mean(PartialSum(total=total, num_users=1, granularity=STEP), drawn, 1.0)
        .update["w"]
        .astype(np.float64)
    )


def finer(values, spacing):
    """Return the share of values that are no multiple of a spacing."""
    return float(np.mean(np.rint(values / spacing) != values / spacing))


def test_no_release_has_a_bit_below_the_grid():
    mechanism = Mechanism(
        sampler=Everybody(num_users=1),
        bound=Rounded(bound=Clip(l2_clip_norm=C)),
        privatizer=Gaussian(noise_multiplier=1.0),
    )
    template = {"w": np.zeros(N, np.float32)}
    shares = []
    for number, steps in enumerate((0, 2**BITS)):
        drawn = mechanism.draw(template, key(number)).take(
            PartialSum(total=template, num_users=1), mechanism
        )
        assert isinstance(drawn, GridNoise)
        shares.append(finer(released(steps, drawn), STEP))
    assert shares == [0.0, 0.0]  # the advantage of whoever looks is 0.000


def test_a_plain_sum_of_floats_gives_a_quarter_away():
    """What the attack is worth where noise is added in floating point, whatever σ."""
    noise = key().normal((2, N), np.float64)
    spacing = np.spacing(C) / 2  # of numbers in [C/2, C): what C + z can leave near zero
    absent, present = finer(noise[0], spacing), finer(C + noise[1], spacing)
    assert present == 0.0 and 0.2 < absent < 0.6


@pytest.mark.parametrize("num_nodes", [1, 3])
def test_secure_releases_are_the_same_bits_however_the_sum_is_made(num_nodes):
    """Serial, and split over nodes in another order: one key, one answer, to the bit."""
    rng = np.random.default_rng(0)
    users = {f"u{i}": {"w": rng.standard_normal(50).astype(np.float32)} for i in range(12)}

    class Sending:
        def train(self, params, examples, key):
            return examples

    class Users:
        def examples(self, user_id):
            return users[user_id]

    mechanism = Mechanism(
        sampler=Everybody(num_users=12),
        bound=Rounded(bound=Clip(l2_clip_norm=C)),
        privatizer=Gaussian(noise_multiplier=2.0),
    )
    params = {"w": np.zeros(50, np.float32)}
    backend = SerialBackend(trainer=Sending(), data=Users())

    def partial(ids):
        done = backend.partial_sum(
            params=params, bound=mechanism.bound, cohort=ids, key=key(), round_num=1, attempt=1
        )
        return replace(done, l2_bound=mechanism.l2_bound)

    from fedpriv.sums import merged

    whole = partial(tuple(users))
    names = list(users)[::-1]
    parts = [partial(tuple(names[i::num_nodes])) for i in range(num_nodes)]
    answers = []
    for total in (whole, merged(params, parts)):
        drawn = mechanism.draw(params, key(), once=False)
        answers.append(tree.to_dense(mechanism.release(total, drawn).update)["w"])
    assert answers[0].tobytes() == answers[1].tobytes()
