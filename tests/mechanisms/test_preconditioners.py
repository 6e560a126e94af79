"""The preconditioners: laws, and the bounds of their rounds; values are in `tests/oracles`."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedpriv import tree
from fedpriv.mechanisms import Clip, Normalise
from fedpriv.mechanisms.preconditioners import (
    Delayed,
    Fixed,
    MirrorDescent,
    Mixture,
    PastReleases,
    Preconditioner,
    Preconditioning,
    PublicMoments,
    Statistics,
    adagrad,
    adam,
    moving_average,
    moving_square,
    private_share,
    rmsprop,
)
from fedpriv.optimizers import Sgd
from fedpriv.rng import Key
from fedpriv.training.algorithm import Context
from fedpriv.training.federated_averaging import FederatedAveraging
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import bounded

KEY = Key.simulation(0)
PUBLIC = [np.array(g, np.float32) for g in ([1, 0.1], [2, 0], [0, 0.2])]
PARAMS = {"w": np.zeros(2, np.float32)}


def close(found, expected, rtol=3e-6):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-7)


def gradients(vectors):
    """Public gradients as written, whatever the params and key."""
    left = iter(vectors)
    return lambda params, key: {"w": next(left)}


def rounds(preconditioner, number, params=PARAMS, means=None):
    """The contexts of the first rounds, with released means of zero or as given."""
    state, out = preconditioner.init(params), []
    for round_num in range(1, number + 1):
        context, state = preconditioner.begin(params, state, round_num, KEY.fold(round_num))
        mean = means[round_num - 1] if means else {n: np.zeros_like(a) for n, a in params.items()}
        state = preconditioner.end(mean, state)
        out.append(context)
    return out


def users_part(public):
    """What users are told of a preconditioning, by the request that federated averaging makes."""
    server = FederatedAveraging(optimizer=Sgd())
    return server.request(server.init(PARAMS), public).context


def applied(public, bound, update):
    """One user's bounded contribution in a round so preconditioned."""
    return bounded(bound, {"w": np.array(update, np.float32)}, users_part(public))


MULTIPLIER = {"w": np.array([0.5, 4.0], np.float32)}


class TestPreconditioning:
    def test_users_get_multiplier_and_mixture_and_nothing_else(self):
        mixture = Mixture(own=0.5, offset=MULTIPLIER)
        public = Preconditioning(
            multiplier=MULTIPLIER,
            inverse=MULTIPLIER,
            mixture=mixture,
            blend=mixture,
            scale=MULTIPLIER,
        )
        found = users_part(public)
        assert found.mixture is mixture and set(found.multiplier) == set(MULTIPLIER)
        assert all(np.array_equal(found.multiplier[n], a) for n, a in MULTIPLIER.items())
        assert replace(found, mixture=None, multiplier={}) == Context()

    def test_refusals(self):
        for own in (0.0, 1.5, math.nan):
            with refuses(ValueError, own):
                Mixture(own=own, offset={})


class TestMoments:
    def test_a_regulariser_is_added_to_the_root_or_inside_it(self):
        v = np.array([0.1, 0.001], np.float32)
        close(rmsprop(regulariser=1e-3).denominator(v), np.sqrt(v) + 1e-3)
        close(rmsprop(regulariser=1e-3, inside=True).denominator(v), np.sqrt(v + 1e-3))

    @pytest.mark.parametrize("decay", [-0.1, 1.0, 1.5, math.nan])
    def test_a_decay_outside_is_refused(self, decay):
        for make in (moving_average, moving_square, rmsprop, adam):
            with refuses(ValueError, "decay", decay):
                make(decay)


SHAPED = {"kernel": np.zeros((4, 3), np.float32), "bias": np.zeros(3, np.float32)}


class TestFixed:
    @pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
    def test_what_is_not_positive_is_refused(self, value):
        bad = {"w": np.array([1.0, value], np.float32)}
        for preconditioner in (Fixed(multiplier=bad), Fixed(inverse=bad)):
            with refuses(ValueError, "w"):
                preconditioner.init(PARAMS)

    @pytest.mark.parametrize("shape", [(3, 3), (2,), (4, 3, 1), (5, 1)])
    def test_a_shape_that_does_not_fit_is_refused(self, shape):
        """It would fail in every user alone: rounds of zeros, and no error."""
        with refuses(ValueError, "kernel", shape):
            Fixed(multiplier={"kernel": np.ones(shape, np.float32)}).init(SHAPED)


class TestPublicMoments:
    @pytest.mark.parametrize(
        "statistics",
        [
            adagrad(),
            Statistics(second=lambda v, g: np.maximum(np.float32(0.9) * v, np.abs(g))),
            Statistics(second=lambda v, g: v + np.abs(g), first=moving_average(0.9), own=0.5),
        ],
        ids=["adagrad", "of one's own", "of one's own, with m"],
    )
    def test_a_look_of_several_batches_is_as_many_looks_of_one(self, statistics):
        """Every rule counts, also of users: no look is made of other statistics in silence."""
        given = [*PUBLIC, PUBLIC[2], PUBLIC[0], PUBLIC[1]]
        one, several = (
            PublicMoments(gradient=gradients(given), statistics=statistics, batches=batches)
            for batches in (1, 3)
        )
        by_one, by_three = rounds(one, 6)[2::3], rounds(several, 2)
        for expected, found in zip(by_one, by_three, strict=True):
            np.testing.assert_array_equal(found.multiplier["w"], expected.multiplier["w"])
            assert (found.mixture is None) == (expected.mixture is None)
            if found.mixture is not None:
                np.testing.assert_array_equal(
                    found.mixture.offset["w"], expected.mixture.offset["w"]
                )

    def test_batches_have_keys_of_their_own(self):
        keys = []

        def gradient(params, key):
            keys.append(key)
            return {"w": PUBLIC[0]}

        for statistics in (rmsprop(), adagrad()):
            keys.clear()
            rounds(PublicMoments(gradient=gradient, statistics=statistics, batches=3), 2)
            assert len({key.to_bytes() for key in keys}) == 6


def test_nothing_private_is_left_from_the_last_step_on():
    assert private_share(100, 100) == pytest.approx(0.0, abs=1e-15)
    assert private_share(250, 100) == 0.0


class TestDelayed:
    """Two plain rounds, then three preconditioned ones, twice."""

    means = tuple({"w": np.array([t, 0.1 * t * t], np.float32)} for t in range(1, 11))

    def test_ratios_are_a_wider_clip_and_another_rate(self):
        """clip_{κC}(g/A) = κ clip_C(g/(κA)), and the step is ρ times that."""
        ratios = Delayed(delay_plain=2, delay_preconditioned=3, clip_ratio=5.0, rate_ratio=0.1)
        plain = rounds(Delayed(delay_plain=2, delay_preconditioned=3), 3, means=self.means)[-1]
        seen = rounds(ratios, 3, means=self.means)
        assert not seen[0].multiplier and not seen[0].inverse
        for update in ([3, 0.4], [0.02, 0.001], [40, -9]):
            short = applied(seen[-1], Clip(l2_clip_norm=0.2), update)
            found = tree.multiply(short, seen[-1].inverse)
            expected = applied(plain, Clip(l2_clip_norm=1.0), update)
            close(found["w"], 0.1 * expected["w"], 1e-5)

    def test_refusals(self):
        for wrong in (
            {"delay_plain": 0},
            {"delay_preconditioned": 0},
            {"clip_ratio": 0.0},
            {"rate_ratio": math.inf},
            {"regulariser": -1.0},
            {"decay": 1.0},
        ):
            with refuses(ValueError, *wrong.values()):
                Delayed(**{"delay_plain": 1, "delay_preconditioned": 1, **wrong})


PRECONDITIONERS = {
    "none": Preconditioner(),
    "fixed": Fixed(multiplier={"w": np.array([0.5, 4.0], np.float32)}),
    "public": PublicMoments(gradient=lambda p, k: {"w": p["w"] + PUBLIC[0]}, statistics=adam()),
    "step": PublicMoments(
        gradient=lambda p, k: {"w": p["w"] + PUBLIC[0]}, statistics=rmsprop(), divide="step"
    ),
    "mirror": MirrorDescent(gradient=lambda p, k: {"w": p["w"] + PUBLIC[0]}, num_rounds=9),
    "past": PastReleases(),
    "delayed": Delayed(delay_plain=1, delay_preconditioned=2),
}


@pytest.mark.parametrize("preconditioner", PRECONDITIONERS.values(), ids=PRECONDITIONERS)
class TestEveryPreconditioner:
    def test_params_and_means_are_not_changed(self, preconditioner):
        params = {"w": np.array([0.3, -0.4], np.float32)}
        means = [{"w": np.array([t, -1.0], np.float32)} for t in range(4)]
        rounds(preconditioner, 4, params, means)
        assert np.array_equal(params["w"], np.array([0.3, -0.4], np.float32))
        assert all(np.array_equal(m["w"], [t, -1.0]) for t, m in enumerate(means))

    def test_whatever_it_says_the_bound_holds(self, preconditioner):
        means = [{"w": np.array([5.0, 1e-3], np.float32)}] * 6
        for context in rounds(preconditioner, 6, means=means):
            for inner in (Clip(l2_clip_norm=0.3), Normalise(l2_clip_norm=0.3)):
                for update in ([1e3, -1e3], [1e-6, 1e-6], [0, 7]):
                    assert tree.l2_norm(applied(context, inner, update)) <= 0.3

    def test_everything_said_is_float32(self, preconditioner):
        for context in rounds(preconditioner, 4, means=[{"w": np.ones(2, np.float32)}] * 4):
            said = [context.multiplier, context.inverse, context.scale]
            said += [one.offset for one in (context.mixture, context.blend) if one is not None]
            assert all(a.dtype == np.float32 for tensors in said for a in tensors.values())
