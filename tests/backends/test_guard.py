"""A user that hangs, dies or takes all memory is its own zero, and nobody else's."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from fedpriv import tree
from fedpriv.backends.backend import Order
from fedpriv.backends.guard import Guard, can_fork, decode_sum, encode_sum
from fedpriv.deploy.processes import children
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.work import as_works
from fedpriv.tree import RowSparse

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="no child can be forked here"
)
PARAMS = {"w": np.zeros((5, 2), np.float32), "b": np.zeros(3, np.float32)}
BOUND = Clip(l2_clip_norm=1.0)
USERS = [f"user-{number}" for number in range(10)]


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
class Trainer:
    """Each user's update is of its own numbers; an odd user does what its oddity says."""

    def train(self, params, examples, key):
        _, odd = examples
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
        elif odd == "starts others":
            if os.fork() == 0:
                time.sleep(3600)
            time.sleep(3600)
        return {name: key.generator().normal(size=array.shape) for name, array in params.items()}


def total(odd, *, users=USERS, guard=None, bound=BOUND, seconds=None, trainer=None):
    order = Order(params=PARAMS, bound=bound, key=Key.simulation(3))
    ask = as_works(trainer or Trainer()), Behaved(odd=odd), users
    return order.sum_of(*ask) if guard is None else guard.summed(order, *ask, seconds)


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
    poison, guard = USERS[0], Guard(user_seconds=1.0)
    found = total({poison: kind}, guard=guard, bound=bound)
    expected = total({}, users=[user for user in USERS if user != poison], bound=bound)
    assert (found.num_users, found.num_failed) == (10, 1)
    assert found.granularity == bound.granularity
    if bound.granularity is None:
        difference = {name: found.total[name] - expected.total[name] for name in PARAMS}
        assert tree.l2_norm(difference) < 1e-12
    else:
        assert equal(found.total, expected.total)


@pytest.mark.timeout(300)
def test_a_user_of_too_much_memory_changes_its_own_contribution_alone():
    poison, guard = USERS[4], Guard(user_memory_mb=512)
    found = total({poison: "hoards"}, guard=guard)
    expected = total({}, users=[user for user in USERS if user != poison])
    assert found.num_failed == 1
    assert all(np.allclose(found.total[name], expected.total[name]) for name in PARAMS)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_without_a_limit_of_its_own_a_user_leaves_the_others_time():
    """A quarter of what is left: two that hang, of ten users."""
    odd = {USERS[2]: "hangs", USERS[7]: "hangs"}
    found = total(odd, guard=Guard(), seconds=8.0)
    expected = total({}, users=[user for user in USERS if user not in odd])
    assert found.num_failed == 2
    assert all(np.allclose(found.total[name], expected.total[name]) for name in PARAMS)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_answer_is_there_in_time_with_what_was_computed():
    users = [f"user-{number}" for number in range(200)]  # more than three blocks
    odd = dict.fromkeys(users[130:], "hangs")
    start = time.monotonic()
    found = total(odd, users=users, guard=Guard(), seconds=4.0)
    assert time.monotonic() - start < 60  # a hang, and not a slow machine
    assert 70 <= found.num_failed <= 72  # the third block of 64 begins with two that do not hang
    assert found.num_users == 200
    expected = total({}, users=users[: 200 - found.num_failed])
    assert all(np.allclose(found.total[name], expected.total[name]) for name in PARAMS)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_of_one_user_has_all_of_its_time_and_no_more():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Slow:
        def train(self, params, examples, key):
            time.sleep(1.5)
            return Trainer().train(params, examples, key)

    one = USERS[:1]
    assert total({}, users=one, guard=Guard(), seconds=3.0, trainer=Slow()).num_failed == 0
    assert total({USERS[0]: "hangs"}, users=one, guard=Guard(), seconds=1.0).num_failed == 1


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
