"""Training many users at once on a device is the default training, for every task of the catalogue.

`--device cpu` takes the path of a GPU on the processor. What it adds up before rounding is what the
compiled kernels, and users one by one, add up; and its bounding and rounding are theirs to the bit.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpriv import tree
from fedpriv.backends import SerialBackend
from fedpriv.backends.ray.backend import shards_of
from fedpriv.datasets.stackexchange.tag_view import TagExamples
from fedpriv.experiments.build import make_task, takes_corpus
from fedpriv.experiments.load import find_experiments, load_experiment
from fedpriv.experiments.tasks import EncodedTagPredictionTask
from fedpriv.mechanisms import AdaptiveClip, Clip, Normalise, Rounded
from fedpriv.mechanisms.bounds import WITHIN, bounded_factors
from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.rng import Key
from fedpriv.runs.backends import open_worker
from fedpriv.sums import RunningSum, merged
from fedpriv.training.algorithm import NO_CONTEXT, TRAIN, Context
from fedpriv.training.device_sum import DeviceStack, DeviceSum
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.softmax import OwnWords, softmax_on_device
from fedpriv.training.local.vectorised import VectorisedTrainer
from fedpriv.training.work import as_works
from fedpriv.tree import RowSparse
from tests.harness.refusals import refuses
from tests.harness.tiny_bert import embed_tiny
from tests.harness.toys_of_training import answered, asked

OF_USERS = sorted(
    name
    for name in find_experiments()
    if (made := load_experiment(name)).unit == "user" and takes_corpus(made.task)
)
KEY = Key.simulation(5).fold("users").fold(1).fold(1)
BOUND = Clip(l2_clip_norm=0.3)
GRID = Rounded(bound=BOUND)


def made(name, corpus, **options):
    experiment = load_experiment(name).with_options({"delta": 1e-2, **options})
    if "task.roster" in experiment.options():
        experiment = experiment.with_options({"roster": None, "users": None})
    return experiment, make_task(experiment, corpus)


def trained_params(task, size=0.05):
    """Params away from the start, where every gradient and every row matters."""
    rng, start = np.random.default_rng(3), task.init_params(Key.simulation(0))
    return {n: a + size * rng.standard_normal(a.shape).astype(np.float32) for n, a in start.items()}


def total(trainer, task, params, bound, users=None, context=NO_CONTEXT):
    extra = {} if task.round_tensors is None else task.round_tensors(3)
    done = answered(
        as_works(trainer)[TRAIN],
        params=params,
        bound=bound,
        context=replace(context, extra=extra),
        user_ids=list(users or task.roster),
        key=KEY,
        data=task.data,
    )
    assert done.num_failed == 0
    return done


def inner_trainer(trainer):
    """Return what trains users."""
    return as_works(trainer)[TRAIN]


def difference(found, expected):
    """Return the l2 norm of a difference over that of what is expected."""
    found, expected = (tree.to_dense(sums.real()) for sums in (found, expected))
    apart = tree.l2_norm({name: found[name] - expected[name] for name in expected})
    return apart / tree.l2_norm(expected)


@pytest.fixture
def options(request, tiny_corpus, tmp_path, monkeypatch):
    """What an experiment needs on a tiny corpus: those on rows of an encoder, a tiny encoder."""
    experiment = load_experiment(request.getfixturevalue("name"))
    if not isinstance(experiment.task, EncodedTagPredictionTask):
        return {}
    pytest.importorskip("transformers", reason="the extra `pretrained` is not installed")
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    return embed_tiny(tiny_corpus, tmp_path / "tiny")


class TestEveryTask:
    @pytest.mark.parametrize(
        "name",
        # Next-word models take seconds each: of them one in the quick tests.
        [
            pytest.param(n, marks=pytest.mark.slow if n.endswith("fedavg-words") else ())
            for n in OF_USERS
        ],
    )
    def test_a_round_before_rounding(self, tiny_corpus, name, options):
        experiment, task = made(name, tiny_corpus, **options)
        params = trained_params(task)
        usual, batched = (experiment.make_trainer(task, device=each) for each in (None, "cpu"))
        expected = total(usual, task, params, BOUND)
        assert difference(total(batched, task, params, BOUND), expected) <= 1e-6

    @pytest.mark.parametrize("name", OF_USERS)
    def test_it_is_the_path_of_a_device(self, tiny_corpus, name, options):
        experiment, task = made(name, tiny_corpus, **options)
        inner = inner_trainer(experiment.make_trainer(task, device="cpu"))
        assert isinstance(inner, VectorisedTrainer)
        assert inner.device == torch.device("cpu")


KIND = (16, (64,), "float32", (), "int64")
TAGS = ["dp-fedavg-tags", "adadps-tags", "adadps-update-tags"]


class TestTags:
    @pytest.mark.parametrize("name", TAGS)
    def test_however_users_are_shared_out_the_exact_sum_is_the_same(self, tiny_corpus, name):
        experiment, task = made(name, tiny_corpus)
        trainer, params = experiment.make_trainer(task, device="cpu"), trained_params(task)
        whole = tree.to_dense(total(trainer, task, params, GRID).total)
        assert all(a.any() for a in whole.values())
        sizes = {user: task.data.num_examples(user) for user in task.roster}
        for number in (2, 3, 8):
            parts = [
                total(experiment.make_trainer(task, device="cpu"), task, params, GRID, shard)
                for shard in shards_of(sizes, number)
            ]
            found = merged(whole, parts).total
            for tensor in whole:
                np.testing.assert_array_equal(found[tensor], whole[tensor])

    def test_one_user_moves_the_exact_sum_by_its_own_contribution(self, tiny_corpus):
        """The smallest, the largest, one without known words and one without a record."""
        experiment, task = made("adadps-tags", tiny_corpus)
        trainer, params = experiment.make_trainer(task, device="cpu"), trained_params(task)
        by_size = sorted(task.roster, key=task.data.num_examples)
        whole = tree.to_dense(total(trainer, task, params, GRID).total)
        for user in (by_size[0], by_size[1], by_size[-1], "u58", "u59"):
            own = tree.to_dense(total(trainer, task, params, GRID, [user]).total)
            others = [each for each in task.roster if each != user]
            rest = tree.to_dense(total(trainer, task, params, GRID, others).total)
            for name in whole:
                np.testing.assert_array_equal(whole[name] - rest[name], own[name])

    def test_users_share_batches(self, tiny_corpus, monkeypatch):
        experiment, task = made("adadps-tags", tiny_corpus)
        trainer = experiment.make_trainer(task, device="cpu")
        sizes, kind = [], type(trainer)
        many = kind._many

        def counting(self, start, context, works):
            sizes.append(len(works))
            return many(self, start, context, works)

        monkeypatch.setattr(kind, "_many", counting)
        total(trainer, task, trained_params(task), GRID)
        assert set(trainer._batch_invariant.values()) == {True}
        assert sum(sizes) == sum(task.data.num_examples(user) > 0 for user in task.roster)
        assert sum(sizes) > 0.7 * sum(map(trainer.slots, [KIND] * len(sizes)))

    @pytest.mark.parametrize("kind", ["normalise", "mixed", "preconditioned"])
    def test_every_bound(self, tiny_corpus, kind):
        experiment, task = made("dp-fedavg-tags", tiny_corpus)
        usual, batched = (experiment.make_trainer(task, device=each) for each in (None, "cpu"))
        params = trained_params(task)
        rows = len(params["kernel"])
        multiplier = {"kernel": np.linspace(0.1, 3, rows, dtype=np.float32)[:, None]}
        offset = {name: np.full_like(array, 0.01) for name, array in params.items()}
        bound = Normalise(l2_clip_norm=0.3, regulariser=0.1) if kind == "normalise" else BOUND
        context = {
            "normalise": NO_CONTEXT,
            "mixed": Context(multiplier=multiplier, mixture=Mixture(own=0.75, offset=offset)),
            "preconditioned": Context(multiplier=multiplier),
        }[kind]
        expected = total(usual, task, params, bound, context=context)
        found = total(batched, task, params, bound, context=context)
        assert difference(found, expected) <= 1e-6

    def test_who_fails_contributes_zero_alone(self, tiny_corpus):
        experiment, task = made("dp-fedavg-tags", tiny_corpus)
        trainer, params = experiment.make_trainer(task, device="cpu"), trained_params(task)
        good, bad = task.roster[:12], task.roster[12:14]

        class Data:
            num_examples = task.data.num_examples

            def examples(self, user_id):
                found = task.data.examples(user_id)
                return found if user_id not in bad else found.take(np.array([10**6]))

        arguments = {"params": params, "bound": GRID, "key": KEY}
        found = answered(trainer, user_ids=[*good, *bad], data=Data(), **arguments)
        expected = answered(trainer, user_ids=list(good), data=task.data, **arguments)
        assert (found.num_users, found.num_failed) == (14, 2)
        for name in expected.total:
            np.testing.assert_array_equal(found.total[name], expected.total[name])
        params["bias"][0] = math.inf  # nobody's logits are finite
        empty = answered(trainer, user_ids=list(good), data=task.data, **arguments)
        assert empty.num_failed == sum(task.data.num_examples(user) > 0 for user in good)

    def test_a_user_at_its_end_is_not_undone_by_a_longer_neighbour(self):
        """One more step of it would not be finite; only its neighbour takes one."""

        def user(number, word, labels):
            labels = np.resize(np.asarray(labels, np.int32), number)
            return TagExamples(
                indptr=np.arange(number + 1),
                indices=np.full(number, word, np.int32),
                counts=np.ones(number, np.uint16),
                num_tokens=np.ones(number, np.int32),
                labels=labels,
                tag_indptr=np.arange(number + 1),
                tag_indices=labels,
                num_words=4,
                num_tags=2,
            )

        users = {"one step": user(3, 0, [1]), "two steps": user(4, 1, [0, 1])}

        class Data:
            def examples(self, user_id):
                return users[user_id]

            def num_examples(self, user_id):
                return len(users[user_id])

        schedule = LocalSgd(learning_rate=3.3e38, batch_size=3)
        trainer = softmax_on_device(OwnWords(shape=(4, 2)), schedule, torch.device("cpu"))
        kernel = np.zeros((4, 2), np.float32)
        kernel[0, 0] = 100
        asked = {"params": {"kernel": kernel, "bias": np.zeros(2, np.float32)}, "key": KEY}
        bound = Rounded(bound=Clip(l2_clip_norm=1.0))

        def sum_of(*user_ids):
            done = answered(trainer, user_ids=user_ids, bound=bound, data=Data(), **asked)
            return {name: array.astype(np.int64) for name, array in done.total.items()}

        own = sum_of("one step")
        assert any(array.any() for array in own.values())
        both, other = sum_of(*users), sum_of("two steps")
        for name, array in own.items():
            np.testing.assert_array_equal(both[name] - other[name], array)

    def test_a_clip_norm_that_adapts(self, tiny_corpus):
        experiment, task = made("dp-fedavg-tags", tiny_corpus, bound="adaptive")
        params, bound = trained_params(task), AdaptiveClip(l2_clip_norm=0.05, least=0.01, most=1.0)
        usual, batched = (experiment.make_trainer(task, device=each) for each in (None, "cpu"))
        assert isinstance(batched, VectorisedTrainer)
        norms = []
        for clip_norm in (0.05, 50.0):
            context = Context(clip_norm=clip_norm)
            found, expected = (
                total(each, task, params, bound, context=context) for each in (batched, usual)
            )
            assert difference(found, expected) <= 1e-6
            assert set(found.total) == {"kernel", "bias", WITHIN}
            np.testing.assert_allclose(found.total[WITHIN], expected.total[WITHIN], rtol=1e-6)
            norms.append(float(found.total[WITHIN][0]))
        assert norms[0] < norms[1]  # more users are within the larger one


class TestGivenTheSameUpdates:
    def test_bound_and_rounding_are_the_compiled_kernels_bit_for_bit(self):
        rng, rows = np.random.default_rng(0), 60
        template = {"kernel": np.zeros((rows, 7), np.float32), "bias": np.zeros(7, np.float32)}
        counts = [1, 17, 32, 5, 0]
        index, values = np.zeros((5, 32), np.int64), np.zeros((5, 32, 7), np.float32)
        bias = rng.normal(size=(5, 7)).astype(np.float32)
        for user, count in enumerate(counts):
            index[user, :count] = np.sort(rng.choice(rows, count, replace=False))
            values[user, :count] = rng.normal(size=(count, 7)) * 10.0**user
        kernel = np.zeros((5, rows, 7), np.float32)
        for user, count in enumerate(counts):
            kernel[user, index[user, :count]] = values[user, :count]
        stack = DeviceStack({"bias": torch.from_numpy(bias), "kernel": torch.from_numpy(kernel)})
        updates = [
            {
                "bias": bias[user],
                "kernel": RowSparse(
                    rows=index[user, :count], values=values[user, :count], num_rows=rows
                ),
            }
            for user, count in enumerate(counts)
        ]
        norms = np.array([tree.l2_norm(update) for update in updates])
        np.testing.assert_allclose(stack.norms(), norms, rtol=1e-14)
        for bound in (BOUND, GRID):
            zeros = {name: torch.from_numpy(array) for name, array in template.items()}
            found = DeviceSum(zeros, bound.granularity)
            expected = RunningSum(template, bound.granularity)
            longest = bound.longest(tree.num_elements(template))
            factors = bounded_factors(bound, norms, longest)
            assert stack.add_to(found, factors, {}).size == 0
            for update, factor in zip(updates, factors, strict=True):
                expected.add(update, float(factor))
            for name, array in expected.result().items():
                assert found.result()[name].dtype == array.dtype
                if bound is GRID:
                    np.testing.assert_array_equal(found.result()[name], array)
                else:
                    np.testing.assert_allclose(found.result()[name], array, rtol=1e-12, atol=1e-15)


def test_a_task_that_knows_no_devices_is_refused_before_the_run(tiny_corpus):
    experiment, task = made("dp-fedavg-tags", tiny_corpus)

    class Plain(type(task)):
        def trainer(self, schedule, multiplier):
            return super().trainer(schedule, multiplier)

    task.__class__ = Plain
    assert experiment.make_trainer(task) is not None
    with refuses(ValueError, "Plain"):
        experiment.make_trainer(task, device="cpu")


def test_steps_of_the_schedule_are_the_kernels(tiny_corpus):
    """Batches smaller and larger than a user, and several epochs."""
    _, task = made("dp-fedavg-tags", tiny_corpus)
    params = trained_params(task)
    for batch_size, epochs, most in [(1, 1, 8), (4, 3, 256), (100, 2, 10), (7, 1, 256)]:
        schedule = LocalSgd(
            learning_rate=0.5, batch_size=batch_size, epochs=epochs, max_examples_per_user=most
        )
        usual, batched = (task.trainer(schedule, {}, device=each) for each in (None, "cpu"))
        expected = total(usual, task, params, BOUND)
        assert difference(total(batched, task, params, BOUND), expected) <= 2e-6
    backend = SerialBackend(trainer=batched, data=task.data, device="cpu")
    assert backend.describe()["devices"] == ["cpu"]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("name", ["adadps-tags", "dp-fedavg-words"])
def test_every_logical_gpu_trains_and_the_exact_sum_is_one_workers(ray, tiny_corpus, name):
    """Also after a worker was killed in between. Ray's logical GPUs are the processor."""
    from fedpriv.backends.ray.backend import RayBackend

    experiment, task = made(name, tiny_corpus)
    params = trained_params(task)
    expected = total(experiment.make_trainer(task, device="cpu"), task, params, GRID)
    backend = RayBackend(
        share=replace(ray.share, num_workers=2, num_cpus=0.1, num_gpus=1.0),
        open_backend=functools.partial(
            open_worker, name, experiment.options(), str(tiny_corpus.directory)
        ),
        data=task.data,
        max_examples=256,
    )
    with contextlib.closing(backend):
        devices = backend.describe()["devices"]
        assert len(set(devices)) == 2 and all(d.startswith("logical device ") for d in devices)
        for victim in (None, *backend.processes()[:1]):
            if victim is not None:
                os.kill(victim, signal.SIGKILL)
            found = asked(backend, params=params, bound=GRID, cohort=task.roster, key=KEY)
            assert (found.num_users, found.num_failed) == (len(task.roster), 0)
            whole, one = tree.to_dense(found.total), tree.to_dense(expected.total)
            for tensor in one:
                np.testing.assert_array_equal(whole[tensor], one[tensor])
