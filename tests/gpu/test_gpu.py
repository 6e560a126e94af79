"""Training on a device: what the processor computes, and each time the same bits.

    pytest -m gpu                  on the first GPU; an error where there is none
    pytest -m gpu --device cpu     the same path on the processor

A test fails where no tensor was trained on the device: falling back to the processor is no pass.
"""

import contextlib
import functools
import os
import signal

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from fedpriv import tree
from fedpriv.backends import SerialBackend
from fedpriv.backends.ray.backend import shards_of
from fedpriv.backends.ray.cluster import Cluster, Request
from fedpriv.datasets.importers.stackoverflow import import_stackoverflow
from fedpriv.experiments.build import make_task
from fedpriv.experiments.load import load_experiment
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.rng import Key
from fedpriv.runs.backends import open_worker, serial, serial_on
from fedpriv.runs.prepared import start_run
from fedpriv.sums import merged
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.devices import usable_device
from fedpriv.training.local.module import ArrayExamples
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.vectorised import VectorisedTrainer
from tests.harness.toys_of_training import answered, asked

pytestmark = pytest.mark.gpu
KEY = Key.simulation(5).fold("users")
BOUND = Clip(l2_clip_norm=0.3)
GRID = Rounded(bound=BOUND)
TAGS = ("dp-fedavg-tags", "adadps-tags", "adadps-tags-paper", "dp-fedavg-words", "adadps-words")


def _noting(together, seen):
    def noted(self, start, context, works, **more):
        local, well = together(self, start, context, works, **more)
        seen.update(each.device for each in (*start.values(), *local.updates.values(), well))
        return local, well

    return noted


@pytest.fixture(autouse=True)
def entered(monkeypatch, device):
    """Note the devices on which batches are trained; the test's own must be among them."""
    seen = set()
    monkeypatch.setattr(VectorisedTrainer, "together", _noting(VectorisedTrainer.together, seen))
    yield seen
    assert seen == {usable_device(device)}


def total(trainer, task, params, bound, users=None):
    done = answered(
        trainer,
        params=params,
        bound=bound,
        user_ids=list(users or task.roster),
        key=KEY,
        data=task.data,
    )
    assert done.num_failed == 0
    return done


def assert_near(found, expected, relative):
    found, expected = (tree.to_dense(sums.real()) for sums in (found, expected))
    apart = tree.l2_norm({name: found[name] - expected[name] for name in expected})
    assert apart <= relative * tree.l2_norm(expected)


def made(name, corpus, device):
    """An experiment, its task and its trainer on a device, and params to train from."""
    experiment = load_experiment(name).with_options({"delta": 1e-2})
    if "task.roster" in experiment.options():
        experiment = experiment.with_options({"roster": None, "users": None})
    task, rng = make_task(experiment, corpus), np.random.default_rng(3)
    start = task.init_params(Key.simulation(0)).items()
    params = {n: a + 0.05 * rng.standard_normal(a.shape).astype(np.float32) for n, a in start}
    return experiment, task, experiment.make_trainer(task, device=device), params


@pytest.mark.parametrize("name", TAGS)
def test_a_round_is_the_processors_before_rounding_and_exact_over_any_workers(
    tiny_corpus, device, name
):
    experiment, task, trainer, params = made(name, tiny_corpus, device)
    processor = SerialBackend(trainer=experiment.make_trainer(task), data=task.data)
    found = asked(processor, params=params, bound=BOUND, cohort=task.roster, key=KEY)
    assert_near(total(trainer, task, params, BOUND), found, 5e-6)
    whole = total(trainer, task, params, GRID).total
    again = total(experiment.make_trainer(task, device=device), task, params, GRID).total
    sizes = {user: task.data.num_examples(user) for user in task.roster}
    parts = [total(trainer, task, params, GRID, shard) for shard in shards_of(sizes, 3)]
    shared = merged(tree.to_dense(whole), parts).total
    for tensor, expected in tree.to_dense(whole).items():
        np.testing.assert_array_equal(again[tensor], expected)
        np.testing.assert_array_equal(shared[tensor], expected)


@pytest.mark.parametrize("name", ["dp-fedavg-tags", "dp-fedavg-words"])
def test_users_of_a_batch_do_not_meet(tiny_corpus, device, name):
    _, task, trainer, params = made(name, tiny_corpus, device)
    whole = total(trainer, task, params, GRID).total
    for user in (task.roster[0], task.roster[-1]):
        own = total(trainer, task, params, GRID, [user]).total
        rest = total(trainer, task, params, GRID, [u for u in task.roster if u != user]).total
        for tensor in whole:
            np.testing.assert_array_equal(whole[tensor] - rest[tensor], own[tensor])


@pytest.mark.parametrize("kind", ["linear", "convolutional"])
def test_modules(device, kind):
    rng = np.random.default_rng(0)
    layers = {
        "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 9), nn.Tanh(), nn.Linear(9, 3)),
        "convolutional": lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)
        ),
    }[kind]
    users = {
        f"u{n}": ArrayExamples(
            rng.normal(size=(n, 1, 6, 6)).astype(np.float32), rng.integers(0, 3, n)
        )
        for n in (1, 2, 3, 4, 5, 7, 12, 30)
    }
    task = ModuleTask(
        name="own", module=layers, loss=nn.functional.cross_entropy, users=users, synthetic=True
    )
    schedule, params = LocalSgd(learning_rate=0.1, batch_size=4), task.init_params(KEY)
    trainer = task.trainer(schedule, {}, device=device)
    expected = total(task.trainer(schedule, {}), task, params, BOUND)
    assert_near(total(trainer, task, params, BOUND), expected, 1e-5)
    first, second = (total(trainer, task, params, GRID).total for _ in range(2))
    for tensor in first:
        np.testing.assert_array_equal(first[tensor], second[tensor])


def test_a_run_on_the_device_is_the_processors_but_for_rounding(tiny_corpus, device, tmp_path):
    options = {"cohort": 8, "rounds": 3, "noise-multiplier": 1.0, "delta": 0.001}
    experiment = load_experiment("adadps-tags").with_options(options)
    ends = []
    for name, backend in (("processor", serial), ("device", serial_on(device))):
        out = tmp_path / name
        start_run(experiment, "adadps-tags", tiny_corpus, out, make_backend=backend).run()
        ends.append(load_file(out / "checkpoints" / "round-000003.safetensors"))
    assert f'"{device.split(":")[0]}' in (tmp_path / "device" / "backends.jsonl").read_text()
    for tensor, expected in ends[0].items():
        np.testing.assert_allclose(ends[1][tensor], expected, atol=1e-5)


@pytest.fixture(scope="module")
def tff_corpus(tmp_path_factory, tff_writer):
    """400 SYNTHETIC users, and 50 public ones, by way of a file in TFF's format."""
    rng = np.random.default_rng(0)

    def post(number):
        words, tags = rng.integers(0, 300, 12), np.unique(rng.integers(0, 20, 3))
        return tff_writer.stackoverflow_example(
            " ".join(f"w{word}" for word in words),
            f"title {number}",
            "|".join(f"t{tag}" for tag in tags),
            type="question",
        )

    clients = {str(user): [post(n) for n in range(rng.integers(2, 30))] for user in range(450)}
    folder = tmp_path_factory.mktemp("tff")
    file = tff_writer.write(folder / "stackoverflow.sqlite.lzma", clients)
    return import_stackoverflow(file, folder / "corpus")


@pytest.mark.ray
def test_400_users_of_tff_on_two_workers_are_one_workers_sum_also_after_one_died(
    no_ray, tff_corpus, device
):
    from fedpriv.backends.ray.backend import RayBackend

    experiment, task, trainer, params = made("adadps-tags", tff_corpus, device)
    assert len(task.roster) == 400
    expected = tree.to_dense(total(trainer, task, params, GRID).total)
    assert any(array.any() for array in expected.values())
    gpus = torch.cuda.device_count() if device.startswith("cuda") else 2
    request = Request(
        workers=2,
        gpus_per_worker=min(1.0, gpus / 2),
        logical_gpus=0 if device.startswith("cuda") else gpus,
    )
    with Cluster(request) as cluster:
        cluster.start(1 << 20)
        backend = RayBackend(
            share=cluster.share,
            open_backend=functools.partial(
                open_worker, "adadps-tags", experiment.options(), str(tff_corpus.directory)
            ),
            data=task.data,
            max_examples=256,
        )
        with contextlib.closing(backend):
            names = backend.describe()["devices"]
            assert all("cpu" not in name or request.logical_gpus for name in names)
            for dead in (None, backend.processes()[0]):
                if dead is not None:
                    os.kill(dead, signal.SIGKILL)
                found = asked(backend, params=params, bound=GRID, cohort=task.roster, key=KEY)
                assert (found.num_users, found.num_failed) == (400, 0)
                for tensor, array in expected.items():
                    np.testing.assert_array_equal(tree.to_dense(found.total)[tensor], array)
