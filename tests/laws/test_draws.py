"""A draw meets one sum, of its own shapes and bound, whatever a custom loop does."""

import copy
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import fedpriv as fp
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.mechanisms.correlated.noise import Correlated
from fedpriv.mechanisms.correlated.optimise import square_root_bands
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.mechanisms.perturbation import OutputGaussian, Sphere
from fedpriv.mechanisms.privatizer import DrawUsedError, Participation
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.sampling import Everybody
from tests.harness.refusals import refuses

USERS, SIZE = 5, 40
LIKE = {"w": np.zeros(SIZE, np.float32), "b": np.zeros((2, 3), np.float32)}
NOISES = {
    "gaussian": Gaussian(noise_multiplier=1.0),
    "sphere": Sphere(epsilon=1.0),
    "output-gaussian": OutputGaussian(noise_multiplier=1.0),
    "banded": Correlated(
        noise_multiplier=1.0,
        strategy=square_root_bands(3, 9),
        participation=Participation(most=9),
    ),
}
MODES = {"simulation": lambda: fp.Key.simulation(0), "secure": fp.Key.secure}


def mechanism(noise="gaussian", norm=1.0, whole=True):
    bound = Clip(l2_clip_norm=norm)
    return Mechanism(
        sampler=Everybody(num_users=USERS),
        bound=Rounded(bound=bound) if whole else bound,
        privatizer=NOISES[noise],
    )


def summed(made, like=LIKE):
    updates = ({name: np.ones(array.shape) for name, array in like.items()} for _ in range(USERS))
    return fp.bounded_sum(updates, made.bound, like=like)


def drawn(made, key, template=LIKE):
    return next(made.draws(template, key))


every_noise = pytest.mark.parametrize("noise", NOISES)
every_mode = pytest.mark.parametrize("mode", MODES)
whole_or_not = pytest.mark.parametrize("whole", [True, False])


@every_noise
@every_mode
@whole_or_not
def test_it_meets_one_sum(noise, mode, whole):
    made = mechanism(noise, whole=whole)
    draw = drawn(made, MODES[mode]())
    made.release(summed(made), draw)
    for _ in range(2):
        with pytest.raises(DrawUsedError):
            made.release(summed(made), draw)


def test_of_threads_that_share_one_a_single_one_gets_it():
    made = mechanism()
    draws = [drawn(made, fp.Key.simulation(number)) for number in range(200)]

    def release(draw):
        try:
            made.release(summed(made), draw)
        except DrawUsedError:
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(release, draws * 4)) == len(draws)


@every_mode
def test_a_process_that_is_forked_off_has_no_use_of_it(mode):
    made = mechanism()
    draw = drawn(made, MODES[mode]())
    child = os.fork()
    if not child:
        code = 1
        try:
            made.release(summed(made), draw)
        except DrawUsedError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    made.release(summed(made), draw)


@every_mode
def test_a_sum_on_another_grid_is_refused(mode):
    made = mechanism()
    total = summed(made)
    coarse = replace(total, granularity=64 * total.granularity)
    with refuses(ValueError, coarse.granularity):
        made.release(coarse, drawn(made, MODES[mode]()))


def test_it_neither_copies_nor_travels_nor_prints():
    draw = drawn(mechanism(), fp.Key.simulation(0))
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            duplicate(draw)
    assert repr(draw) == "Draw(hidden)"


SHAPES = {
    "shorter": {**LIKE, "w": np.zeros(SIZE - 7, np.float32)},
    "longer": {**LIKE, "w": np.zeros(SIZE + 7, np.float32)},
    "turned": {**LIKE, "b": np.zeros((3, 2), np.float32)},
    "flat": {**LIKE, "b": np.zeros(6, np.float32)},
    "one": {**LIKE, "w": np.zeros(1, np.float32)},
    "renamed": {"w": LIKE["w"], "c": LIKE["b"]},
    "less": {"w": LIKE["w"]},
    "more": {**LIKE, "c": LIKE["b"]},
}


@pytest.mark.parametrize("shape", SHAPES)
@every_noise
@every_mode
@whole_or_not
def test_noise_of_other_shapes_is_refused(shape, noise, mode, whole):
    made = mechanism(noise, whole=whole)
    for template, like in ((SHAPES[shape], LIKE), (LIKE, SHAPES[shape])):
        with pytest.raises(ValueError):
            made.release(summed(made, like), drawn(made, MODES[mode](), template))


@every_mode
@whole_or_not
def test_a_sum_bounded_by_another_plan_is_refused(mode, whole):
    made, wide = mechanism(whole=whole), mechanism(norm=100.0, whole=whole)
    for total, bound in ((summed(wide), 100.0), (replace(summed(made), l2_bound=np.inf), np.inf)):
        with refuses(ValueError, bound):
            made.release(total, drawn(made, MODES[mode]()))


def test_noise_of_another_mechanism_is_refused():
    """Its multiplier may be smaller than what the ledger was charged for."""
    made, less = mechanism(), replace(mechanism(), privatizer=Gaussian(noise_multiplier=0.1))
    with pytest.raises(ValueError):
        made.release(summed(made), drawn(less, fp.Key.simulation(0)))


def test_a_secure_key_is_drawn_from_once():
    """A loop that folds no round into its key would add the same noise in each."""
    made, key = mechanism(), fp.Key.secure()
    made.draw(LIKE, key.fold("noise").fold(1))
    made.draw(LIKE, key.fold("noise").fold(2))
    for again in (made, replace(made, privatizer=Gaussian(noise_multiplier=2.0))):
        with pytest.raises(ValueError):
            again.draw(LIKE, key.fold("noise").fold(1))
