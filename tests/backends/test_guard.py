"""A user that hangs, dies or takes all memory is its own zero, and nobody else's."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv import tree
from fedpriv.backends import guard as guards
from fedpriv.backends.backend import answered
from fedpriv.backends.guard import Guard, can_fork, decode_sum, encode_sum
from fedpriv.deploy.processes import children
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.algorithm import NO_CONTEXT, SumRequest
from fedpriv.training.work import Attempt, UserTrainer, as_works
from fedpriv.tree import RowSparse

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="no child can be forked here"
)
PARAMS = {"w": np.zeros((5, 2), np.float32), "b": np.zeros(3, np.float32)}
BOUND = Clip(l2_clip_norm=1.0)
USERS = [f"user-{number}" for number in range(10)]
LEFT_BEHIND: list[str] = []


@pytest.fixture(autouse=True)
def forks(monkeypatch):
    """Whatever else this process of tests has started: a user that hangs must not hang it."""
    monkeypatch.setattr("fedpriv.backends.guard.can_fork", lambda: True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaved:
    """Data that does to some users what their training would."""

    odd: dict[str, str] = field(default_factory=dict)

    def examples(self, user_id):
        return user_id, self.odd.get(user_id)

    def num_examples(self, user_id):
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer(UserTrainer):
    """Each user's update is of its own numbers; an odd user does what its oddity says."""

    seconds: float = 0.0

    def train(self, params, context, examples, key):
        _, odd = examples
        time.sleep(self.seconds)
        if odd == "hangs":
            time.sleep(3600)
        elif odd == "spins":
            while True:
                pass
        elif odd == "exits":
            os._exit(3)
        elif odd == "is killed":
            os.kill(os.getpid(), 9)
        elif odd == "raises":
            raise ValueError("no")
        elif odd == "hoards":
            return {"w": np.ones((1 << 31, 2)), "b": np.zeros(3)}
        elif odd == "holds descriptors":
            LEFT_BEHIND.append(odd)  # as if none were left
        elif LEFT_BEHIND:
            raise OSError("too many open files")
        elif odd == "starts others":
            if os.fork() == 0:
                time.sleep(3600)
            time.sleep(3600)
        return {name: key.generator().normal(size=array.shape) for name, array in params.items()}


def total(odd, *, users=USERS, guard=None, bound=BOUND, seconds=None, trainer=None):
    ask = (as_works(trainer or Trainer()), Behaved(odd=odd), *given_of(bound), users)
    return answered(*ask) if guard is None else guard.summed(*ask, seconds)


def given_of(bound):
    return SumRequest(params=PARAMS), Attempt(bound=bound, key=Key.simulation(3))


def equal(left, right):
    return all(np.array_equal(left[name], right[name]) for name in right)


ODD = ["hangs", "spins", "exits", "is killed", "raises", "starts others"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize(
    "bound",
    [
        pytest.param(BOUND, id="floats"),
        pytest.param(Rounded(bound=BOUND), id="grid"),
    ],
)
def test_a_poison_user_changes_its_own_contribution_alone(kind, bound):
    poison, guard = USERS[0], Guard(user_seconds=5.0)  # others need one on a busy machine
    found = total({poison: kind}, guard=guard, bound=bound)
    expected = total({}, users=[user for user in USERS if user != poison], bound=bound)
    assert (found.num_users, found.num_failed) == (10, 1)
    assert found.granularity == bound.granularity
    if bound.granularity is None:
        difference = {name: found.total[name] - expected.total[name] for name in PARAMS}
        assert tree.l2_norm(difference) < 1e-12
    else:
        assert equal(found.total, expected.total)


def test_who_fails_for_what_another_left_in_the_process_is_tried_again_alone():
    found = total({USERS[2]: "holds descriptors"}, guard=Guard(), seconds=60.0)
    assert found.num_failed == 0
    assert tree.l2_norm({n: found.total[n] - total({}).total[n] for n in PARAMS}) < 1e-12


@pytest.mark.timeout(300)
def test_a_user_of_too_much_memory_changes_its_own_contribution_alone():
    poison, guard = USERS[4], Guard(user_memory_mb=512)
    found = total({poison: "hoards"}, guard=guard)
    expected = total({}, users=[user for user in USERS if user != poison])
    assert found.num_failed == 1
    assert all(np.allclose(found.total[name], expected.total[name]) for name in PARAMS)


@dataclass(slots=True)
class Stopwatch:
    """Time that passes only when somebody takes some."""

    now: float = 0.0

    def monotonic(self):
        return self.now


@dataclass(slots=True, kw_only=True)
class Machine:
    """Children that compute in this process and take a stopwatch's time.

    Attributes:
        clock: The stopwatch.
        takes: Seconds by user; others take `usual`.
        usual: Seconds.
        loading: Seconds that each child takes besides, at its first user.
        memory: Of which so much is left behind by each user, where a child may take only 1.0.
    """

    takes: dict[str, float] = field(default_factory=dict)
    usual: float = 0.1
    loading: float = 0.0
    memory: float = 0.0
    clock: Stopwatch = field(default_factory=Stopwatch)
    forks: int = 0

    def child(self, work, memory):
        self.forks += 1
        return Simulated(machine=self, work=work)

    def sum(self, users, guard, seconds, trainer=None, odd=None):
        """Return the guard's sum, and when it is there."""
        self.clock.now, data = 0.0, Behaved(odd=odd or {})
        works = as_works(trainer or Training(machine=self))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(guards, "time", self.clock)
            patch.setattr(guards, "Child", self.child)
            return guard.summed(works, data, *given_of(Rounded(bound=BOUND)), users, seconds)


@dataclass(slots=True, kw_only=True)
class Simulated:
    """A child of a `Machine`."""

    machine: Machine
    work: object
    loaded: bool = False
    held: float = 0.0

    def ask(self, number, until):
        clock, self.machine.clock = self.machine.clock, Stopwatch(self.machine.clock.now)
        if not self.loaded:
            self.machine.clock.now += self.machine.loading
        self.loaded, RUNNING[:] = True, [self]
        answer, finished, self.machine.clock = self.work(number), self.machine.clock.now, clock
        clock.now = min(finished, until)
        return answer if finished <= until else None

    def close(self):
        pass


RUNNING: list[Simulated] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(UserTrainer):
    """As `Trainer`, in the time and memory that a machine's users take."""

    machine: Machine

    def train(self, params, context, examples, key):
        user_id, _ = examples
        self.machine.clock.now += self.machine.takes.get(user_id, self.machine.usual)
        RUNNING[0].held += self.machine.memory
        if RUNNING[0].held > 1.0:
            raise MemoryError
        return Trainer().train(params, NO_CONTEXT, examples, key)


def named(number):
    return [f"user-{index:03d}" for index in range(number)]


def is_sum_of(found, users):
    return equal(found.total, total({}, users=users, bound=Rounded(bound=BOUND)).total)


def others(users, *gone):
    return [user for user in users if user not in gone]


FOREVER = 1e9


@given(
    durations=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=150),
    loading=st.floats(0.0, 0.8),
    deadline=st.floats(1.0, 600.0),
)
@settings(max_examples=60)
def test_whether_a_user_contributes_depends_on_its_own_time_alone(durations, loading, deadline):
    """Durations are shares of what a user has; the law is of all users, and any of them."""
    users = named(len(durations))
    own, _ = Guard().times(len(users), deadline)
    takes = {user: share * own for user, share in zip(users, durations, strict=True)}
    machine = Machine(takes=takes, loading=loading * own)
    found = machine.sum(users, Guard(), deadline)
    assert machine.clock.now <= deadline
    assert is_sum_of(found, [user for user in users if takes[user] + machine.loading <= own])


@pytest.mark.parametrize("num_users", [2, 10, 64, 65, 500])
def test_the_last_user_has_its_time_when_all_others_use_up_theirs(num_users):
    users = named(num_users)
    machine = Machine(takes=dict.fromkeys(users[:-1], FOREVER))
    own, _ = Guard().times(num_users, 100.0)
    machine.takes[users[-1]] = 0.99 * own
    assert is_sum_of(machine.sum(users, Guard(), 100.0), users[-1:])
    assert machine.clock.now <= 100.0


def test_a_killed_user_of_a_full_block_costs_the_block_nothing():
    users = named(64 + 63)  # sums of 1, 2, 4 to 64 users: the last of a whole block
    machine = Machine(takes={users[100]: FOREVER}, usual=1e-4)
    assert is_sum_of(machine.sum(users, Guard(user_seconds=5.0), 600.0), others(users, users[100]))
    assert machine.clock.now < 7.0 and machine.forks == 4


def test_quick_users_share_one_process():
    machine = Machine(usual=1e-4)
    assert machine.sum(named(500), Guard(), 600.0).num_failed == 0
    assert machine.forks == 1


def test_memory_that_others_hold_is_not_counted_as_a_users_own():
    users = named(30)
    found = Machine(memory=0.15, usual=1e-4).sum(users, Guard(user_memory_mb=1), 600.0)
    assert found.num_failed == 0 and is_sum_of(found, users)
    assert Machine(memory=1.5).sum(users, Guard(user_memory_mb=1), 600.0).num_failed == 30


def test_a_limit_of_its_own_is_not_above_a_users_share():
    assert Guard(user_seconds=1.0).times(30, 600.0)[0] == 1.0
    assert Guard(user_seconds=900.0).times(30, 600.0) == Guard().times(30, 600.0)


def test_what_training_needs_is_loaded_before_anybodys_time_begins():
    machine, loaded = Machine(), []

    class Loading(Trainer):
        def load(self):
            machine.clock.now += 20.0
            loaded.append(True)

        def train(self, params, context, examples, key):
            assert loaded
            return Trainer().train(params, NO_CONTEXT, examples, key)

    found = machine.sum(USERS, Guard(), 60.0, trainer=Loading())
    assert found.num_failed == 0


def test_where_no_child_can_be_forked_this_process_computes(monkeypatch):
    monkeypatch.setattr("fedpriv.backends.guard.can_fork", lambda: False)
    monkeypatch.setattr("fedpriv.backends.guard.Child", None)
    found = total({USERS[4]: "raises"}, guard=Guard(user_seconds=1.0), seconds=9.0)
    assert found.num_failed == 1
    assert equal(found.total, total({USERS[4]: "raises"}).total)


def test_no_child_is_forked_within_a_worker_of_rays(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    assert not can_fork()


@pytest.mark.slow
def test_no_child_is_left():
    before = children()
    total({USERS[0]: "hangs"}, guard=Guard(user_seconds=0.2))
    assert children() <= before


@pytest.mark.parametrize("granularity", [None, 2.0**-24 / 3])
def test_a_sum_reads_back_to_the_bit(granularity):
    kind = np.float64 if granularity is None else np.int32
    done = PartialSum(
        total={
            "rows": RowSparse(rows=np.array([1, 4]), values=np.ones((2, 3), kind), num_rows=9),
            "dense": np.arange(12).reshape(3, 4).astype(kind), "none": np.zeros((0, 2), kind),
            "scalar": np.array(3, kind),
        },
        num_users=4, num_failed=1, granularity=granularity,
    )  # fmt: skip
    found = decode_sum(encode_sum(done))
    assert (found.num_users, found.num_failed, found.granularity) == (4, 1, granularity)
    assert equal(tree.to_dense(found.total), tree.to_dense(done.total))
    assert all(found.total[name].dtype == kind for name in ("dense", "none", "scalar"))
