"""What user code draws from global generators: refused, or of the user's own key alone."""

import random
import threading
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from itertools import permutations
from random import gauss

import numpy as np
import pytest
import torch
from torch import nn

import fedpriv as fp
from fedpriv.mechanisms import Clip
from fedpriv.rng import Key
from fedpriv.runs.prepared import start_run
from fedpriv.tasks.module_task import ArrayUsers, ModuleTask
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.failures import KeepsStateError
from fedpriv.training.independence import refuse_dependence
from fedpriv.training.local.module import ArrayExamples, module_params
from fedpriv.training.streams import kept_generators, own_stream
from fedpriv.training.work import Attempt, Users, UserTrainer
from tests.harness.toys_of_training import answered, trainer_of
from tests.tasks.people import USERS, experiment, task

KEY = Key.simulation(0)
cross_entropy = nn.functional.cross_entropy


@contextmanager
def another_thread_draws():
    """Draw all the time, as a heartbeat does now and then."""
    ended = threading.Event()

    def draw():
        while not ended.wait(1e-5):
            _ = random.random(), np.random.random()

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def drawing(draw):
    return lambda outputs, targets: cross_entropy(outputs * (1 + draw()), targets)


DRAWS = {"Python's": random.random, "NumPy's": np.random.random, "by name": lambda: gauss(0, 1)}


def checked(make, loss):
    fp.check_task(ModuleTask(name="t", module=make, loss=loss, users=USERS))


class TestModules:
    def test_what_other_threads_draw_refuses_nothing(self):
        """A loss whose code names Python's generator, and does not draw from it here."""

        def loss(outputs, targets):
            return cross_entropy(outputs, targets) * (gauss(0, 1) if len(targets) < 0 else 1)

        with another_thread_draws():
            for _ in range(5):
                checked(lambda: nn.Linear(4, 2), loss)

    @pytest.mark.parametrize("others", [False, True], ids=["alone", "beside another thread"])
    @pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
    def test_what_it_draws_itself_is_refused(self, draw, others):
        with another_thread_draws() if others else nullcontext(), pytest.raises(KeepsStateError):
            checked(lambda: nn.Linear(4, 2), drawing(draw))

    def test_dropout_is_not(self):
        checked(lambda: nn.Sequential(nn.Dropout(), nn.Linear(4, 2)), cross_entropy)

    @pytest.mark.slow
    def test_a_whole_run(self, tmp_path):
        with another_thread_draws():
            for number in range(3):
                prepared = start_run(experiment(task()), "own:x", None, tmp_path / str(number))
                prepared.folder.close()


class Mean(UserTrainer):
    """A trainer of one's own that draws, and that one user has seed by its data."""

    def __init__(self, draw):
        self.draw = draw

    def train(self, params, context, examples, key):
        if len(examples) > 6:  # seen of no synthetic user
            random.seed(int(examples.x.sum()))
            np.random.seed(int(examples.x.sum()))
            torch.manual_seed(int(examples.x.sum()))
        return {name: np.full_like(array, self.draw()) for name, array in params.items()}


class Own(ModuleTask):
    def trainer(self, schedule, multiplier, device=None):
        return Mean(random.random)


PARAMS = {"w": np.zeros(3, np.float32)}


@pytest.mark.parametrize(
    "draw", [random.random, np.random.random, lambda: float(torch.rand(()))], ids=["py", "np", "pt"]
)
def test_in_a_round_what_a_user_draws_or_seeds_moves_no_other(draw):
    """Neighbours whose first user is there or not, and seeds all generators where it is."""
    users = {"ann": ArrayExamples(np.full((7, 4), 3.0), np.zeros(7, int)), **USERS}
    work, others = Mean(draw), list(USERS)

    def total(*user_ids):
        return answered(
            work,
            params=PARAMS,
            bound=Clip(l2_clip_norm=9.0),
            data=ArrayUsers(users),
            user_ids=user_ids,
            key=KEY,
        ).total["w"]

    alone = total("ann")
    np.testing.assert_allclose(total("ann", *others) - alone, total(*others), rtol=1e-6)
    assert len({float(total(user)[0]) for user in others}) == len(others)


class DrawnWhenRead(ArrayUsers):
    """Users whose examples are drawn by the global generators when they are read."""

    def examples(self, user_id):
        found = super().examples(user_id)
        noise = np.random.normal(size=found.x.shape) + torch.randn(found.x.shape).numpy()
        return ArrayExamples((found.x + noise).astype(np.float32), found.y)


@pytest.mark.parametrize("users_at_once", [None, 2])
def test_what_is_drawn_when_examples_are_read_is_of_the_users_own_key(users_at_once):
    data = DrawnWhenRead({**USERS, "ann": ArrayExamples(np.ones((7, 4)), np.zeros(7, int))})
    work = trainer_of(nn.Linear(4, 2), users_at_once)
    given = {"params": module_params(nn.Linear(4, 2)), "key": KEY, "data": data}
    given["bound"] = Clip(l2_clip_norm=9.0)

    def total(*user_ids):
        return answered(work, user_ids=user_ids, **given).total["weight"].astype(float)

    others = list(USERS)
    moved = total("ann", *others) - total(*others)
    np.testing.assert_allclose(moved, total("ann"), rtol=1e-4, atol=1e-5)


def test_a_trainer_that_draws_is_refused_before_a_run(tmp_path):
    own = Own(name="t", module=lambda: nn.Linear(4, 2), loss=cross_entropy, users=USERS)
    with another_thread_draws(), pytest.raises(KeepsStateError, match="Mean"):
        start_run(experiment(own), "own:x", None, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_generators_are_as_they_were():
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    with own_stream(KEY):
        drawn = random.random(), np.random.random(), float(torch.rand(()))
    with own_stream(KEY):
        assert drawn == (random.random(), np.random.random(), float(torch.rand(())))
    assert random.getstate() == before[0] and np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_a_sum_that_was_given_up_leaves_generators_to_be_restored():
    """Its iterator may end later, and in another context, than it was begun in."""
    request = SumRequest(params=PARAMS)
    attempt = Attempt(bound=Clip(l2_clip_norm=9.0), key=KEY)
    stacks = Mean(random.random).stacks(request, attempt, Users(list(USERS), ArrayUsers(USERS)))
    next(stacks)
    before = random.getstate()
    with kept_generators():
        random.seed(1)
    assert random.getstate() == before
    copy_context().run(stacks.close)


@pytest.mark.parametrize("pair", [*permutations("abc", 2)], ids="".join)
def test_a_user_who_changes_only_one_that_follows_is_refused(pair):
    """Whichever two of three they are: all follow each other in one of the orders."""

    def train(order):
        before = zip([None, *order], order, strict=False)
        return [{"w": np.full(2, 2.0 if found == pair else 1.0)} for found in before]

    with pytest.raises(KeepsStateError):
        refuse_dependence(train, "abc", of="it")
