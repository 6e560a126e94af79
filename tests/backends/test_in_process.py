"""Threads and sharding; their sums are held to the oracle in tests/oracles/test_backends.py."""

from __future__ import annotations

import itertools
import json
import threading
import traceback
from contextlib import closing
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from fedpriv.backends.backend import SerialBackend
from fedpriv.backends.ray.backend import shards_of
from fedpriv.backends.ray.cluster import Share
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.rng import Key
from fedpriv.runs.backends import CheckedFactory, on_ray, serial, serial_on
from fedpriv.runs.prepared import resume_run, start_run
from fedpriv.tasks.tag_prediction import TagPrediction
from fedpriv.training import devices
from fedpriv.training.algorithm import Context, Line
from fedpriv.training.work import UserTrainer
from tests.harness import toy_users
from tests.harness.refusals import refuses
from tests.harness.threads import on_two_threads
from tests.harness.toys_of_training import Users, asked

NAME = "adadps-tags"
CLIP = Clip(l2_clip_norm=4.0)
OPTIONS = {
    "cohort": 8,
    "cohort-cap": 30,
    "rounds": 3,
    "noise-multiplier": 1.0,
    "delta": 0.001,
    "eval-every": 2,
}


def run(corpus, out, backend):
    experiment = load_experiment(NAME).with_options(OPTIONS)
    prepared = start_run(experiment, NAME, corpus, out, make_backend=backend)
    return prepared.run(), load_file(out / "checkpoints" / "round-000003.safetensors")


@pytest.mark.slow
def test_a_run_on_threads_ends_with_the_bits_and_figures_of_one(tiny_corpus, tmp_path):
    told, expected = run(tiny_corpus, tmp_path / "serial", partial(serial, threads=1))
    found, params = run(tiny_corpus, tmp_path / "threads", on_two_threads)
    assert all(np.array_equal(params[name], expected[name]) for name in expected)
    for name in ("accuracy", "recall_at_5", "accuracy_public", "epsilon"):
        assert found[name] == told[name] is not None
    (backend,) = (tmp_path / "threads" / "backends.jsonl").read_text().splitlines()
    assert json.loads(backend) == {
        "first_round": 1,
        "name": "serial",
        "workers": 1,
        "devices": ["cpu"],
    }


class Resident(UserTrainer):
    """A trainer with a memory of its own, which notes the threads that it was called from."""

    def __init__(self, shared):
        self.thread_safe, self.seen = shared, set()

    def train(self, params, context, examples, key):
        self.seen.add(threading.current_thread().name)
        return {"w": np.full(3, examples, np.float32)}


@pytest.mark.parametrize(
    ("shared", "grid", "users", "apart"),
    [(True, True, 16, True), (False, True, 16, False), (True, False, 16, False),
     (True, True, 15, False)],
)  # fmt: skip
def test_threads_share_large_cohorts_of_a_trainer_that_allows_it_on_a_grid(
    shared, grid, users, apart
):
    trainer, clip = Resident(shared), Clip(l2_clip_norm=1.0)
    data = Users({f"u{number}": number for number in range(users)})
    given = {"cohort": tuple(data), "params": {"w": np.zeros(3, np.float32)}}
    with closing(SerialBackend(trainer=trainer, data=data, threads=2)) as backend:
        found = asked(backend, bound=Rounded(bound=clip) if grid else clip, **given)
    assert (found.num_users, found.num_failed) == (users, 0)
    here = threading.current_thread().name
    assert trainer.seen == {here} if not apart else here not in trainer.seen


class TestDefaultThreads:
    @pytest.fixture
    def cores(self, monkeypatch):
        monkeypatch.setattr(devices, "_on_one_thread", False)
        monkeypatch.setattr(devices, "usable_cores", lambda: 6)

    def test_they_are_the_cores_and_at_most_eight(self, cores, monkeypatch):
        assert devices.default_threads() == 6
        monkeypatch.setattr(devices, "usable_cores", lambda: 64)
        assert devices.default_threads() == 8

    def test_the_environment_does_not_decide_them(self, cores, monkeypatch):
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert devices.default_threads() == 6

    def test_a_process_beside_others_has_one(self, cores, monkeypatch):
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            monkeypatch.setenv(name, "1")  # as it was, afterwards
        devices.use_one_thread()
        assert devices.default_threads() == 1


@pytest.mark.slow
class WritesThere(UserTrainer):
    """A trainer that moves public tensors in place for some users."""

    def __init__(self, where):
        self.where = where

    def train(self, params, context, examples, key):
        if examples:
            self.where(params, context)["w"] -= examples
        return {"w": params["w"] + 1}


@pytest.mark.parametrize(
    "where",
    [
        lambda params, context: params,
        lambda params, context: context.extra,
        lambda params, context: context.multiplier,
        lambda params, context: context.line.direction,
    ],
    ids=["params", "extra", "multiplier", "direction"],
)
def test_who_writes_to_public_tensors_contributes_zero_alone(where):
    """Else the next user would start elsewhere, and an algorithm release what was written."""
    params, data = {"w": np.zeros(3, np.float32)}, Users(a=0, b=5, c=0)
    one = {"w": np.ones(3, np.float32)}
    context = Context(extra=one, multiplier=one, line=Line(direction=one, sizes=one["w"]))
    with closing(SerialBackend(trainer=WritesThere(where), data=data)) as backend:
        found = asked(backend, cohort="abc", params=params, bound=CLIP, context=context)
    assert found.num_failed == 1 and not params["w"].any() and (one["w"] == 1).all()
    np.testing.assert_array_equal(found.real()["w"], np.full(3, 2.0))


class Says(UserTrainer):
    """A trainer of which a user's value is in an error: outside of what is caught, or twice."""

    def stacks(self, request, attempt, users):
        if self.whole:
            raise IndexError(f"Target {users.data[users.ids[0]]} is out of bounds")
        yield from super().stacks(request, attempt, users)

    def train(self, params, context, examples, key):
        raise Unprintable(examples)


class Unprintable(Exception):
    def __str__(self):
        raise ValueError(f"secret {self.args[0]}")


@pytest.mark.parametrize("whole", [True, False])
def test_a_secure_run_that_ends_by_an_error_says_no_value(whole):
    params, data, trainer = {"w": np.zeros(3, np.float32)}, Users(a=424242), Says()
    trainer.whole = whole
    with closing(SerialBackend(trainer=trainer, data=data)) as backend:
        given = {"cohort": "a", "params": params, "bound": CLIP}
        if not whole:
            assert asked(backend, **given, key=Key.secure()).num_failed == 1
            return
        with refuses(RuntimeError, "IndexError") as caught:
            asked(backend, **given, key=Key.secure())
        assert "424242" not in "".join(traceback.format_exception(caught.value))
        with refuses(IndexError, 424242):
            asked(backend, **given)


def test_what_a_backend_cannot_run_is_refused_before_a_run_folder_is_made_or_opened(tmp_path):
    out = tmp_path / "run"
    arguments = (toy_users.experiment(), toy_users.NAME, None, out)

    def refused(experiment, components):
        raise ValueError("mine")

    unfit = CheckedFactory(make=serial, check=refused)
    with refuses(ValueError, "mine"):
        start_run(*arguments, make_backend=unfit)
    assert not out.exists()
    start_run(*arguments).folder.close()
    with (out / "rounds.jsonl").open("a") as file:
        file.write('{"torn')  # opening the folder would cut it
    with refuses(ValueError, "mine"):
        resume_run(out, experiment=arguments[1], make_backend=unfit)
    assert (out / "rounds.jsonl").read_text() == '{"torn'


def test_devices_for_a_task_that_takes_none_are_refused_before_a_run_folder_is_made(
    tiny_corpus, tmp_path, monkeypatch
):
    """The workers would refuse them too, one by one and with the folder there."""
    experiment, out = load_experiment(NAME).with_options(OPTIONS), tmp_path / "run"
    trainer = TagPrediction.trainer
    monkeypatch.setattr(
        TagPrediction, "trainer", lambda self, schedule, m: trainer(self, schedule, m)
    )

    def on_workers(**share):
        cluster = SimpleNamespace(share=Share(num_workers=2, **share))
        return on_ray(cluster, NAME, str(tiny_corpus.directory))

    for backend in (
        on_workers(num_gpus=0.5),
        on_workers(num_gpus=0.5, logical=True),
        on_workers(device="cpu"),
        serial_on("cpu"),
    ):
        with refuses(ValueError, "TagPrediction"):
            start_run(experiment, NAME, tiny_corpus, out, make_backend=backend)
        assert not out.exists()
    on_workers().check(experiment, build(experiment, tiny_corpus))


@pytest.mark.slow
def test_a_run_on_a_device_names_it_and_is_the_serial_one_but_for_rounding(tiny_corpus, tmp_path):
    _, expected = run(tiny_corpus, tmp_path / "serial", serial)
    _, found = run(tiny_corpus, tmp_path / "device", serial_on("cpu"))
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-5)
    (backend,) = (tmp_path / "device" / "backends.jsonl").read_text().splitlines()
    assert json.loads(backend)["devices"] == ["cpu"]


SIZES = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 50), max_size=8)


def longest(shards, sizes):
    return max(sum(max(sizes[user], 1) for user in shard) for shard in shards)


@pytest.mark.slow
@given(SIZES, st.integers(1, 4))
def test_everybody_is_dealt_once(sizes, num_workers):
    shards = shards_of(sizes, num_workers)
    assert len(shards) == num_workers
    assert sorted(itertools.chain(*shards)) == sorted(sizes)


@pytest.mark.slow
@given(SIZES.filter(bool), st.integers(1, 3))
def test_no_worker_has_more_than_four_thirds_of_the_best_sharding(sizes, num_workers):
    best = min(
        max(
            sum(max(sizes[u], 1) for u, worker in zip(sizes, choice, strict=True) if worker == w)
            for w in range(num_workers)
        )
        for choice in itertools.product(range(num_workers), repeat=len(sizes))
    )
    assert longest(shards_of(sizes, num_workers), sizes) <= best * 4 / 3


@pytest.mark.slow
@given(SIZES, st.integers(1, 4))
def test_the_longest_come_first(sizes, num_workers):
    for shard in shards_of(sizes, num_workers):
        assert [sizes[u] for u in shard] == sorted((sizes[u] for u in shard), reverse=True)
