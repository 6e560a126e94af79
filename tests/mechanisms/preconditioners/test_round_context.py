"""What a preconditioner says of a round, and the bound that is made of it."""

import math

import numpy as np
import pytest

from fedpriv import tree
from fedpriv.mechanisms import Clip, Normalise, Preconditioned, Rounded, Unbounded
from fedpriv.mechanisms.bounds import Mixture
from fedpriv.mechanisms.preconditioners import NoPreconditioner, RoundContext
from tests.mechanisms.preconditioners.rounds_begun import KEY, PARAMS, close

MULTIPLIER = {"w": np.array([0.5, 4.0], np.float32)}


class TestRoundContext:
    def test_nothing_leaves_the_bound_alone(self):
        for bound in (Clip(l2_clip_norm=1.0), Rounded(bound=Clip(l2_clip_norm=1.0)), Unbounded()):
            assert RoundContext().bound(bound) is bound
        context, state = NoPreconditioner().begin(PARAMS, NoPreconditioner().init(PARAMS), 1, KEY)
        assert context.bound(Unbounded()) == Unbounded() and state == {}

    def test_the_preconditioner_goes_inside_the_grid(self):
        context = RoundContext(multiplier=MULTIPLIER)
        bound = context.bound(Rounded(bound=Normalise(l2_clip_norm=2.0)))
        assert isinstance(bound, Rounded) and isinstance(bound.bound, Preconditioned)
        assert bound.bound.bound == Normalise(l2_clip_norm=2.0)
        assert bound.l2_bound == 2.0 and bound.granularity == 2.0 * 2.0**-24
        out = bound.apply({"w": np.array([1.0, 1.0], np.float32)})["w"]
        assert np.array_equal(out, np.rint(out / bound.granularity) * bound.granularity)
        close(out / np.linalg.norm(out), np.array([0.5, 4.0]) / math.hypot(0.5, 4.0), 1e-5)

    def test_multiplier_comes_before_the_bound(self):
        """algorithms.md 1.9; the other order has norm up to C · max(1/A)."""
        bound = RoundContext(multiplier={"w": np.array([100, 0.01], np.float32)}).bound(
            Clip(l2_clip_norm=1.0)
        )
        out = bound.apply({"w": np.array([3.0, 3.0], np.float32)})
        assert tree.l2_norm(out) <= 1.0

    def test_twice_is_refused(self):
        context = RoundContext(multiplier=MULTIPLIER)
        bound = context.bound(Clip(l2_clip_norm=1.0))
        for twice in (bound, Rounded(bound=bound)):
            with pytest.raises(ValueError, match="preconditions"):
                context.bound(twice)

    def test_refusals(self):
        for blend in (-0.1, 1.1, math.nan):
            with pytest.raises(ValueError, match="blend"):
                RoundContext(blend=blend, public=MULTIPLIER)
        with pytest.raises(ValueError, match="public update"):
            RoundContext(blend=0.5)
        for own in (0.0, 1.5, math.nan):
            with pytest.raises(ValueError, match="own"):
                Mixture(own=own, offset={})
