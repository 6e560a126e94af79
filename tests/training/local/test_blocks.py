"""Blocks of users in one compiled call: the sum over the same users one by one, to the bit."""

from dataclasses import replace

import numpy as np
import pytest

from fedpriv.backends.backend import SerialBackend
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.softmax import CompiledSoftmaxTrainer, InColumns
from tests.harness.threads import threads_of_sums
from tests.harness.toys_of_training import answered, asked
from tests.training.local.tag_examples import MULTIPLIER, PARAMS, make_examples

GRID = Rounded(bound=Clip(l2_clip_norm=0.5))
# More than two blocks; some users have nothing, and some more than the cap.
SIZES = [0, 1, 3, 7, 12, 30, 2, 5] * 5
ENDS = np.cumsum([0, *SIZES])
USERS = [str(user) for user in range(len(SIZES))]


class Columns:
    """Users' examples as runs of common columns."""

    def __init__(self, columns):
        self.columns = columns

    def span(self, user_id):
        return int(ENDS[int(user_id)]), int(ENDS[int(user_id) + 1])

    def examples(self, user_id):
        return self.columns.take(np.arange(*self.span(user_id)))

    def num_examples(self, user_id):
        return SIZES[int(user_id)]


class OneByOne:
    """The same users, whose columns nobody sees."""

    def __init__(self, columns):
        self.inner = Columns(columns)

    def examples(self, user_id):
        return self.inner.examples(user_id)

    def num_examples(self, user_id):
        return self.inner.num_examples(user_id)


def columns(kind=np.uint16):
    made = make_examples(sum(SIZES))
    return replace(made, counts=made.counts.astype(kind))


def spoilt(user, what):
    """The columns, in which one user's have a label or a word that the model lacks."""
    made, row = columns(), int(ENDS[user])
    if what == "label":
        labels = made.labels.copy()
        labels[row] = made.num_tags
        return replace(made, labels=labels)
    indices, place = made.indices.copy(), made.indptr[row:]
    first = int(place[np.flatnonzero(np.diff(place))[0]])
    assert first < made.indptr[ENDS[user + 1]]
    indices[first] = made.num_words
    return replace(made, indices=indices)


def same(found, expected):
    assert (found.num_users, found.num_failed) == (expected.num_users, expected.num_failed)
    for name, tensor in expected.total.items():
        np.testing.assert_array_equal(found.total[name], tensor)
        assert np.any(tensor)


def summed(trainer, data, users=USERS):
    return answered(trainer, params=PARAMS, bound=GRID, user_ids=users, data=data)


@pytest.mark.parametrize("kind", [np.uint16, np.float32, np.int32])
@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize(
    "given", [{"inputs": "tff"}, {"inputs": "unit-norm", "multiplier": MULTIPLIER}]
)
def test_a_block_is_its_users_one_by_one(given, batch_size, kind):
    own = {} if batch_size is None else {"batch_size": batch_size, "epochs": 2}
    schedule = LocalSgd(learning_rate=0.5, max_examples_per_user=20, **own)
    trainer, made = CompiledSoftmaxTrainer(schedule=schedule, **given), columns(kind)
    assert isinstance(Columns(made), InColumns) and not isinstance(OneByOne(made), InColumns)
    found, expected = summed(trainer, Columns(made)), summed(trainer, OneByOne(made))
    assert found.num_failed == 0
    same(found, expected)


@pytest.mark.parametrize("what", ["label", "word"])
@pytest.mark.parametrize("user", [4, 20, 39])
def test_a_bad_user_of_a_block_adds_zero_alone(user, what):
    schedule = LocalSgd(learning_rate=0.5, batch_size=32)
    trainer = CompiledSoftmaxTrainer(schedule=schedule)
    found = summed(trainer, Columns(spoilt(user, what)))
    others = summed(trainer, Columns(columns()), USERS[:user] + USERS[user + 1 :])
    assert (found.num_failed, others.num_failed) == (1, 0)
    same(replace(found, num_users=len(USERS) - 1, num_failed=0), others)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_of_this_process_sum_to_the_bits_of_one(threads):
    """40 users are as many as each thread takes at the least, and one of them fails."""
    trainer = CompiledSoftmaxTrainer(schedule=LocalSgd(learning_rate=0.5))
    data = Columns(spoilt(20, "label"))
    found = []
    for number in (1, threads):
        backend = SerialBackend(trainer=trainer, data=data, threads=number)
        with threads_of_sums() as noted:
            found.append(asked(backend, cohort=USERS, params=PARAMS, bound=GRID))
        assert noted == [number]
    assert found[0].num_failed == 1
    same(found[1], found[0])


def test_float_sums_stay_in_one_thread():
    """Their last bits depend on the order of users."""
    trainer = CompiledSoftmaxTrainer(schedule=LocalSgd(learning_rate=0.5))
    backend = SerialBackend(trainer=trainer, data=Columns(columns()), threads=3)
    with threads_of_sums() as noted:
        found = asked(backend, cohort=USERS, params=PARAMS, bound=GRID.bound)
    assert noted == [1]
    alone = answered(
        trainer, params=PARAMS, bound=GRID.bound, user_ids=USERS, data=Columns(columns())
    )
    same(found, alone)
