"""Noise that is accounted for one kind of contribution takes no other."""

import pytest

from fedpriv.mechanisms import Capped, Clip, NoisyMin, PrivateChoice, Rounded
from fedpriv.mechanisms.bounds import OutputSensitivity
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.sampling import Everybody
from tests.harness.refusals import refuses

CAPPED = Capped(cap=1.0, num_coordinates=3)
CLIPPED = Clip(l2_clip_norm=0.5)
TRAINED = OutputSensitivity(l2_bound=0.5)


@pytest.mark.parametrize(
    ("noise", "bound", "micro_batch"),
    [
        (NoisyMin(epsilon=0.1), CLIPPED, 1),
        (NoisyMin(epsilon=0.1), Rounded(bound=CLIPPED), 1),
        (NoisyMin(epsilon=0.1), CAPPED, 4),
        (PrivateChoice(epsilon=0.1), CLIPPED, 1),
        (PrivateChoice(epsilon=0.1), CAPPED, 1),
    ],
    ids=str,
)
def test_it_is_refused(noise, bound, micro_batch):
    """An index of sums that a user moves otherwise costs more; a choice would be the bare sum."""
    given = {"sampler": Everybody(num_users=21), "privatizer": noise}
    Mechanism(bound=CAPPED if isinstance(noise, NoisyMin) else TRAINED, **given)
    with refuses(ValueError, noise.name):
        Mechanism(bound=bound, micro_batch=micro_batch, **given)
