"""Weighted words and pairs: one oracle for every backend, and nothing of a rostered user in them.

The backends, users and bounds are those of `test_backends.py`.
"""

import contextlib
import functools
from dataclasses import replace

import numpy as np
import pytest

from fedpriv import tree
from fedpriv.backends import SerialBackend
from fedpriv.backends.flower.strategy import connect
from fedpriv.backends.in_process import ThreadBackend
from fedpriv.checkpoints.vocabulary import WordFeatures
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.tasks.tag_prediction import TagPrediction
from tests.laws.test_backends import KEY, SCHEDULE, stub
from tests.laws.test_roster_independence import small_corpus, write

WEIGHTS = np.random.default_rng(6).uniform(0.1, 2, 30).astype(np.float32)
MADE = WordFeatures(num_words=30, weights=WEIGHTS, num_pairs=11, most_paired=3)
TASK = stub.TinyTags(word_features=MADE)
STEPS = {"kernel": np.linspace(1, 5, 41, dtype=np.float32).reshape(-1, 1)}
EXACT, COHORT = Rounded(bound=Clip(l2_clip_norm=0.3)), TASK.roster[1:9]


def on_threads(trainer, workers):
    return ThreadBackend(
        trainer=trainer,
        data=TASK.data,
        measure=lambda params, **_: None,
        num_workers=workers,
        max_examples=SCHEDULE.max_examples,
    )


def on_grid(trainer, nodes, shards=0):
    grid = stub.StubGrid(stub.nodes(TASK, trainer, nodes, shards))
    return connect(grid, TASK.roster)


def summed(backend):
    done = backend.partial_sum(
        params=TASK.params(), bound=EXACT, cohort=COHORT, key=KEY, round_num=4, attempt=2
    )
    assert (done.num_users, done.num_failed) == (len(COHORT), 0)
    return tree.to_dense(done.real())


def oracle(multiplier):
    trainer = TASK.trainer(SCHEDULE, multiplier)
    expected = summed(SerialBackend(trainer=trainer, data=TASK.data))
    assert expected["kernel"].shape == (41, 4) and expected["kernel"][30:].any()
    return trainer, expected


@pytest.mark.slow
@pytest.mark.parametrize("multiplier", [{}, STEPS], ids=["plain", "local"])
def test_every_backend_gives_the_very_sum(multiplier):
    trainer, expected = oracle(multiplier)
    for backend in (
        on_threads(trainer, 1),
        on_threads(trainer, 3),
        on_grid(trainer, 12),
        on_grid(trainer, 5),
        on_grid(trainer, 7, 2),
    ):
        found = summed(backend)
        assert all(np.array_equal(found[name], expected[name]) for name in expected)
    plain = summed(SerialBackend(trainer=replace(trainer, word_features=None), data=TASK.data))
    assert not np.array_equal(plain["kernel"], expected["kernel"])


@pytest.mark.slow
@pytest.mark.ray
def test_ray_gives_the_very_sum(ray):
    from fedpriv.backends.ray.backend import RayBackend

    _, expected = oracle({})
    backend = RayBackend(
        share=replace(ray.share, num_workers=2, num_cpus=0.1),
        open_backend=functools.partial(stub.open_worker, schedule=SCHEDULE, word_features=MADE),
        data=TASK.data,
        max_examples=SCHEDULE.max_examples,
    )
    with contextlib.closing(backend):
        found = summed(backend)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("seed", range(2))
def test_deleting_a_rostered_user_moves_no_weight(tmp_path, seed):
    sentences = small_corpus(seed)
    users = sorted({sentence.user_id for sentence in sentences})
    roster = [user for user in users if int(user[1:]) % 3]
    spec = RosterSpec(name="inside", rule="declared", ids=roster)

    def files(folder, deleted):
        left = [sentence for sentence in sentences if sentence.user_id != deleted]
        view = write(tmp_path / folder, left, spec).view()
        return TagPrediction(view, inputs="tf-idf", pairs=9).files()

    whole = files("whole", None)
    for deleted in np.random.default_rng(seed).choice(roster, 2, replace=False):
        assert files(str(deleted), str(deleted)) == whole
    outside = next(user for user in users if user not in roster)
    assert files("outside", outside) != whole  # the law could fail
