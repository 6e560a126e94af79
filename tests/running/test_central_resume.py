"""Resumed centralised runs: every guide goes on as it was, and on the same data or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from types import ModuleType

import numpy as np
import pytest
from scipy import sparse

from fedpriv import json_lines
from fedpriv.backends import SerialBackend
from fedpriv.checkpoints.store import CheckpointStore
from fedpriv.data.features.dataset import Dataset
from fedpriv.experiments.experiment import SLOTS, Experiment
from fedpriv.mechanisms import SideInformation
from fedpriv.mechanisms.moments import Statistics
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.running.prepared import resume_run, start_run
from fedpriv.tasks.datasets import linear_task
from fedpriv.training.per_example.linear import LogisticGradients

NAME = "resumed_central:made_up"
STEPS, KEPT_EVERY, KILLS = 24, 3, (3, 9, 18)
DIM = 5
SIDE = SideInformation(
    multiplier={"weight": np.linspace(0.3, 3.0, DIM, dtype=np.float32)},
    source="public",
    description="given",
)


def data(seed=0, public_seed=1):
    def part(seed, size):
        x = np.random.default_rng(seed).normal(size=(size, DIM)).astype(np.float32)
        return sparse.csr_matrix(x), (x[:, 0] > 0).astype(np.int64)

    (x, y), (x_test, y_test), (x_public, y_public) = (
        part(seed, 60),
        part(2, 20),
        part(public_seed, 12),
    )
    return Dataset(
        name="sixty",
        x_train=x,
        y_train=y,
        x_test=x_test,
        y_test=y_test,
        x_public=x_public,
        y_public=y_public,
        provenance={},
        synthetic=True,
    )


class Seen(LogisticGradients):
    """Notes which examples a gradient was asked of."""

    looks: list[tuple[int, ...]] = []  # noqa: RUF012 - emptied by the fixture

    def gradient(self, params, index, key=None):
        Seen.looks.append(tuple(index.tolist()))
        return super().gradient(params, index, key)


class World:
    """What lies on the disk when the experiment is found again."""

    data = data()
    silent = False


def task(experiment, corpus):
    from dataclasses import replace

    side = {"given": lambda: SIDE}
    made = linear_task(World.data, Seen, {"weight": (DIM,), "bias": (1,)}, side)
    return replace(made, data_sha256=None) if World.silent else made


def made_up():
    return Experiment(
        unit="example",
        name="made-up",
        description="A test.",
        task=task,
        statistics=Statistics(second=lambda v, g: np.maximum(np.float32(0.9) * v, np.abs(g))),
        batch_size=6,
        steps=STEPS,
        noise_multiplier=1.0,
        learning_rate=0.5,
        optimizer="sgd",
        eval_every=KEPT_EVERY,
        delta=1e-3,
        presets={
            "public-batch": 4,
            "side-information": "given",
            "delay-plain": 5,  # of nine rounds: killed among the plain and the preconditioned
            "delay-preconditioned": 4,
        },
    )


@pytest.fixture(autouse=True)
def world(monkeypatch):
    module = ModuleType("resumed_central")
    module.made_up = made_up
    monkeypatch.setitem(sys.modules, "resumed_central", module)
    monkeypatch.setattr(World, "data", data())
    monkeypatch.setattr(World, "silent", False)
    monkeypatch.setattr(Seen, "looks", [])
    return monkeypatch


def killed_after(round_num):
    """The run dies between a step that was kept and the charge of the next."""

    def show(record):
        if record.released.round_num == round_num:
            raise KeyboardInterrupt

    return show


def params(folder, round_num):
    return CheckpointStore(folder / "checkpoints").load(round_num)[0]


KINDS = {
    "none": {},
    "none, momentum": {"optimizer": "momentum"},
    "warm start": {"warm-start-epochs": 2},
    "side-information": {},
    "public-rmsprop, step": {},
    "public-rmsprop, epoch": {"refresh": "epoch"},
    "public-adam, step": {},
    "public-adam, epoch": {"refresh": "epoch"},
    "public-adagrad, step": {},
    "public-adagrad, epoch": {"refresh": "epoch"},
    "public-own": {},
    "ideal": {},
    "r-pub": {},
    "r-pub, epoch": {"refresh": "epoch"},
    "adam-pub": {"optimizer": "ema-momentum"},
    "mirror-descent": {},
    "delayed": {},
    "past-releases": {"optimizer": "adam"},
}


def experiment(kind):
    guide = kind.partition(",")[0]
    guide = "none" if guide == "warm start" else guide
    return made_up().with_options({"guide": guide, **KINDS[kind]})


def test_every_kind_of_guide_is_here():
    [known] = [slot.choices for slot in SLOTS["example"] if slot.name == "guide"]
    assert {experiment(kind).guide for kind in KINDS} == set(known)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_three_times_is_the_run_that_was_not(kind, tmp_path):
    """Between steps nothing is lost: the guide's state, the optimiser's and the round go on."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    start_run(experiment(kind), NAME, None, whole, keep_last=None).run()
    prepared = start_run(experiment(kind), NAME, None, killed, keep_last=None)
    for round_num in KILLS:
        with pytest.raises(KeyboardInterrupt):
            prepared.run(killed_after(round_num))
        prepared = resume_run(killed, keep_last=None)
        assert prepared.state.round_num == round_num
    prepared.run()
    for round_num in range(KEPT_EVERY, STEPS + 1, KEPT_EVERY):
        expected, found = params(whole, round_num), params(killed, round_num)
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=str(round_num))
    assert not np.array_equal(params(whole, STEPS)["weight"], params(whole, 3)["weight"])
    verified = verify_run(killed)
    assert verified.ok and (verified.num_charges, verified.num_lost) == (STEPS, 0)


class Dying(SerialBackend):
    """Dies in the middle of a step, after its guide has looked."""

    def partial_sum(self, **given):
        if given["round_num"] == 8 and given["attempt"] == 1:
            raise KeyboardInterrupt
        return super().partial_sum(**given)


def test_another_attempt_at_a_step_looks_at_another_public_batch(tmp_path):
    def make(experiment, components):
        return Dying(trainer=components.trainer, measure=components.task.evaluate)

    with pytest.raises(KeyboardInterrupt):
        start_run(experiment("r-pub"), NAME, None, tmp_path / "r", make_backend=make).run()
    first = Seen.looks[1:]  # before all steps the task is tried on public examples
    assert len(first) == 8
    Seen.looks.clear()
    resume_run(tmp_path / "r").run()
    again = Seen.looks[1:3]  # steps 7 and 8, whose first attempts are lost
    assert all(len(look) == 4 for look in first + again)
    assert len(set(first[6:8] + again)) == 4


class TestOtherData:
    """A run goes on with the examples it was started with, by their digests."""

    @pytest.fixture(params=[False, True], ids=["simulation", "secure"])
    def folder(self, request, tmp_path):
        folder = tmp_path / "r"
        prepared = start_run(made_up(), NAME, None, folder, secure=request.param)
        with pytest.raises(KeyboardInterrupt):
            prepared.run(killed_after(9))
        return folder

    def test_the_same_made_again_go_on(self, folder, world):
        world.setattr(World, "data", data())
        assert resume_run(folder).run()["rounds"] == STEPS
        assert verify_run(folder).ok

    @pytest.mark.parametrize(
        ("other", "said"),
        [
            (data(seed=7), r"the private examples of sixty are not those .* another folder"),
            (data(public_seed=7), r"the public examples of sixty are not those"),
            (data(7, 8), r"the private and public examples of sixty"),
        ],
    )
    def test_others_of_the_same_number_are_refused_and_nothing_is_spent(
        self, folder, world, other, said
    ):
        charges = (folder / "ledger.jsonl").read_bytes()
        with world.context() as changed:
            changed.setattr(World, "data", other)
            with pytest.raises(ValueError, match=said):
                resume_run(folder)
        assert (folder / "ledger.jsonl").read_bytes() == charges
        assert resume_run(folder).run()["rounds"] == STEPS  # the ledger was let go of

    def test_a_task_that_falls_silent_is_refused(self, folder, world):
        world.setattr(World, "silent", True)
        with pytest.raises(ValueError, match="no longer says what its data are"):
            resume_run(folder)

    def test_the_digest_is_sealed(self, folder, world):
        file = folder / "experiment.json"
        document = json.loads(file.read_text())
        assert document["corpus"]["data_sha256"].keys() == {"private", "public"}
        document["corpus"]["data_sha256"]["private"] = "0" * 64
        file.write_text(json.dumps(document))
        with pytest.raises(ValueError, match="not the one the run was started with"):
            resume_run(folder)
        assert not verify_run(folder).ok


def test_a_task_without_digests_is_not_checked(tmp_path, world):
    world.setattr(World, "silent", True)
    with pytest.raises(KeyboardInterrupt):
        start_run(made_up(), NAME, None, tmp_path / "r").run(killed_after(9))
    document = json.loads((tmp_path / "r" / "experiment.json").read_text())
    assert document["corpus"]["data_sha256"] is None
    world.setattr(World, "data", data(seed=7))
    assert resume_run(tmp_path / "r").run()["rounds"] == STEPS


def test_a_secure_run_publishes_no_digest_of_private_examples(tmp_path):
    """Whoever has all examples but one could try the last; without the key nothing fits."""
    for folder, secure in ((tmp_path / "plain", False), (tmp_path / "secure", True)):
        start_run(made_up(), NAME, None, folder, secure=secure).run()
        known = World.data.sha256()
        written = {
            file.name: file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()
        }
        shown = {
            name
            for name, content in written.items()
            for value in known.values()
            if value.encode() in content
        }
        assert shown == (set() if secure else {"experiment.json"})
        assert ("data.key" in written) == secure
        if secure:
            assert (folder / "data.key").stat().st_mode & 0o777 == 0o600
            secret = written.pop("data.key")
            assert not any(secret in content for content in written.values())


def test_without_its_key_a_secure_run_cannot_be_checked(tmp_path):
    folder = tmp_path / "r"
    with pytest.raises(KeyboardInterrupt):
        start_run(made_up(), NAME, None, folder, secure=True).run(killed_after(9))
    (folder / "data.key").unlink()
    with pytest.raises(ValueError, match=r"data\.key is gone.*restore it, or start a new run"):
        resume_run(folder)


HELD = '''
import os, time
import numpy as np
from fedpriv.experiments.experiment import Experiment
from fedpriv.tasks.example_task import CentralTask, zeros
from fedpriv.training.evaluate import Metrics
from fedpriv.training.per_example.linear import LinearRegressionGradients

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3)).astype(np.float32)


class Held(LinearRegressionGradients):
    """Waits in the middle of a step to be killed, if it is told to."""

    sums = 0

    def bounded_sum(self, params, index, bound, key=None):
        self.sums += 1
        if self.sums == int(os.environ.get("HELD_AT", "0")):
            time.sleep(3600)
        return super().bounded_sum(params, index, bound, key)


def task(experiment, corpus):
    return CentralTask(
        name="sixty",
        train=Held(X, X[:, 0]),
        num_train=60,
        init=zeros({"weight": (3,)}),
        measure=lambda params: Metrics.of(60, accuracy=0.5, loss=1.0),
        public=LinearRegressionGradients(X[:10], X[:10, 0]),
        num_public=10,
        data_sha256=lambda: {"private": "ab" * 32},
        synthetic=True,
    )


def made_up():
    return Experiment(
        unit="example",
        name="held", description="", task=task, batch_size=6, steps=40, noise_multiplier=1.0,
        guide="public-rmsprop", eval_every=7, delta=1e-3,
    )
'''


@pytest.mark.slow
def test_kill_9_in_the_middle_of_a_step(tmp_path):
    """The process is killed, not asked: charges are the rounds and the lost attempts."""
    (tmp_path / "held_central.py").write_text(HELD, "utf-8")
    folder, at = tmp_path / "r", 25
    found = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, found))}
    command = [sys.executable, "-m", "fedpriv"]
    process = subprocess.Popen(
        [*command, "run", "held_central:made_up", "--out", str(folder), "--json"],
        env={**environment, "HELD_AT": str(at)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 1500  # a hang, and not a slow machine
        while charges(folder) != at:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()

    before = verify_run(folder)
    assert before.ok and before.num_charges == at
    done = subprocess.run(
        [*command, "run", "--resume", str(folder), "--json"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    summary, after = json.loads(done.stdout), verify_run(folder)
    # 22 to 25 were charged after the last step kept, 21, and are lost.
    assert after.ok and (after.num_charges, after.num_lost) == (40, 4)
    assert (summary["rounds"], summary["charges"]) == (36, 40)
    assert [line["round_num"] for line in json_lines.read(folder / "rounds.jsonl")] == [
        7,
        14,
        21,
        28,
        35,
        36,
    ]


def charges(folder):
    if not (folder / "experiment.json").exists():
        return 0
    with (folder / "ledger.jsonl").open("rb") as file:
        return sum(b'"charge"' in line for line in file if line.endswith(b"\n"))


def test_the_ledger_says_charge_as_this_test_reads_it(tmp_path):
    start_run(made_up().with_options({"steps": 4}), NAME, None, tmp_path / "r").run()
    with Ledger.open(tmp_path / "r" / "ledger.jsonl") as ledger:
        assert ledger.charges == charges(tmp_path / "r") == 4
