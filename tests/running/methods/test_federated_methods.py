"""What FL people compare, as whole runs under user-level DP: options, backends, laws."""

import json
import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedpriv as fp
from fedpriv.checkpoints.store import CheckpointStore
from fedpriv.experiments import FederatedExperiment
from fedpriv.experiments.build import build
from fedpriv.measures import Measure
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.rng import Key
from fedpriv.tasks.module_task import PersonalLayers
from fedpriv.tasks.task import Task, TaskDescription
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.evaluate import Metrics
from fedpriv.training.work import UserTrainer
from tests.harness import toy_users
from tests.harness.kills import Killed, Stop
from tests.harness.refusals import refuses
from tests.harness.threads import Shared
from tests.harness.toy_users import toy_experiment

USERS = 40


@dataclass(frozen=True, kw_only=True)
class Votes(UserTrainer):
    """A user's update is the learning rate at its own place: the mean says who contributed."""

    schedule: Any
    thread_safe = True
    takes = ("rate",)

    def train(self, params, context, examples, key):
        update = np.zeros(USERS, np.float32)
        update[examples] = self.schedule.learning_rate * context.rate
        return {"w": update}


class Places:
    def examples(self, user_id):
        return int(user_id[1:])

    def num_examples(self, user_id):
        return 1


@dataclass(frozen=True, kw_only=True)
class VotesTask(Task):
    roster = tuple(f"u{number:02d}" for number in range(USERS))
    data = Places()
    measures = (Measure(name="total", label="total", higher_is_better=True),)

    def init_params(self, key):
        return {"w": np.zeros(USERS, np.float32)}

    def trainer(self, schedule, multiplier, device="cpu"):
        return Votes(schedule=schedule)

    def evaluate(self, params, *, public, part=(0, 1)):
        return Metrics.of(1, total=float(params["w"].sum())) if public else None

    def describe(self):
        return TaskDescription(name="votes", synthetic=True, roster="all", num_users=USERS)


def votes(**options):
    made = FederatedExperiment(
        name="votes", description="", task=lambda experiment: VotesTask(), rounds=4, delta=0.01
    )
    usual = {"sampling": "fixed", "cohort": float(USERS), "noise": "none", "bound": "none"}
    return made.with_options({**usual, **options})


def moved(out, rounds=4):
    """The step of every round."""
    store = CheckpointStore(out / "checkpoints")
    at = [np.zeros(USERS)] + [store.load(n)[0]["w"].astype(float) for n in range(1, rounds + 1)]
    return [after - before for before, after in pairwise(at)]


class TestDropouts:
    @pytest.mark.slow
    def test_who_drops_out_contributes_zero_and_the_denominator_stays(self, tmp_path):
        out = tmp_path / "run"
        run = fp.run(votes(dropout_rate=0.4), out, progress=False)
        steps = moved(out)
        for step in steps:
            there = step > 0.5 / USERS
            np.testing.assert_allclose(step, there / USERS, atol=1e-6)
            assert 0.3 < there.mean() < 0.9
        assert any((a != b).any() for a, b in pairwise(steps))
        assert list(run.diagnostics(every=True)["cohort_size"]) == [USERS] * 4
        assert run.summary["users_failed"] == 0 and verify_run(out).ok

    def test_a_rate_of_zero_drops_nobody(self, tmp_path):
        for number, options in enumerate(({}, {"dropout_rate": 0.0})):
            out = tmp_path / str(number)
            fp.run(votes(**options), out, progress=False)
            for step in moved(out):
                np.testing.assert_allclose(step, 1 / USERS, atol=1e-6)

    @pytest.mark.slow
    def test_they_are_the_same_on_threads_and_after_a_crash(self, tmp_path, one_root, monkeypatch):
        grid = {"noise": "gaussian", "noise_multiplier": 0.01, "bound": "clip"}
        experiment = votes(dropout_rate=0.4, **grid)  # threads share sums on a grid alone
        one = fp.run(experiment, tmp_path / "serial", progress=False)
        with monkeypatch.context() as patched:
            patched.setattr("fedpriv.runs.backends.SerialBackend", Shared)
            two = fp.run(experiment, tmp_path / "threads", progress=False)
        with pytest.raises(Killed):
            fp.run(experiment, tmp_path / "cut", callbacks=[Stop(2)], progress=False)
        three = fp.resume(tmp_path / "cut", experiment=experiment, progress=False)
        for other in (two, three):
            np.testing.assert_array_equal(one.params["w"], other.params["w"])

    def test_a_secure_run_refuses_to_simulate_them(self, tmp_path):
        with refuses(ValueError, "dropout-rate 0.4"):
            fp.run(votes(dropout_rate=0.4), tmp_path / "run", secure=True, progress=False)
        assert not (tmp_path / "run").exists()


def test_a_resumed_run_goes_on_at_its_round(tmp_path):
    experiment = votes(rate_schedule="cosine")
    with pytest.raises(Killed):
        fp.run(experiment, tmp_path / "cut", callbacks=[Stop(3)], progress=False)
    cut = fp.resume(tmp_path / "cut", experiment=experiment, progress=False)
    whole = fp.run(experiment, progress=False)
    np.testing.assert_array_equal(cut.params["w"], whole.params["w"])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"local_steps": 3, "epochs": 2}, ["local-steps 3"]),  # both say how much work there is
        ({"warmup_rounds": 4}, ["warmup-rounds 4"]),  # of as many rounds
        # Nothing would depend on these: of one step each, or one round at the whole rate.
        ({"proximal_mu": 0.1, "local_steps": 1}, ["proximal-mu 0.1"]),
        (
            {"client_optimizer": "momentum", "max_examples_per_user": 9},
            ["momentum", "max-examples-per-user 9"],
        ),
        ({"rate_schedule": "cosine", "warmup_rounds": 3}, ["cosine", "warmup-rounds 3"]),
        # A trainer would ignore these.
        ({"proximal_mu": 0.1}, ["proximal-mu 0.1", "Votes"]),
        ({"client_optimizer": "adam"}, ["client-optimizer", "Votes"]),
    ],
)
def test_options_that_do_not_fit_are_refused(options, named):
    with refuses(ValueError, *named):
        fp.run(votes(**options), progress=False)


def test_fedprox_needs_the_loop_that_has_it(tiny_corpus):
    given = {"rounds": 2, "cohort": 6, "delta": 0.001, "noise_multiplier": 1, "proximal_mu": 0.5}
    with refuses(ValueError, "CompiledSoftmaxTrainer"):
        fp.run("dp-fedavg-tags", corpus=tiny_corpus.directory, progress=False, **given)


def person(number, examples=12):
    """Points whose labels every second user turns round."""
    x, y = toy_users.person(number, examples)
    return x, y ^ number % 2


def two_layers():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def small(task_options=None, **options):
    task = {
        "module": two_layers,
        "users": {f"user-{n:02d}": person(n) for n in range(20)},
        "public": person(100, 40),
        **(task_options or {}),
    }
    usual = {
        "rounds": 3, "eval_every": 3, "cohort": 10.0, "local_learning_rate": 0.5, "epochs": 2,
        "local_batch_size": 4, **({} if "noise" in options else {"noise_multiplier": 0.5}),
    }  # fmt: skip
    return toy_experiment(task, **usual | options)


def test_the_option_is_the_tasks_own_optimizer():
    """Local training is the same; the noise is another mechanism's."""
    key, params = Key.simulation(0), None
    updates = []
    for experiment in (
        small(client_optimizer="momentum"),
        small({"client_optimizer": partial(torch.optim.SGD, momentum=0.9)}),
    ):
        made = build(experiment, None)
        params = params or made.init_params(key)
        updates.append(
            made.trainer.train(params, NO_CONTEXT, made.task.data.examples("user-00"), key)
        )
    for name, array in updates[0].items():
        np.testing.assert_array_equal(array, updates[1][name])


def test_two_optimizers_are_refused():
    made = small({"client_optimizer": torch.optim.RMSprop}, client_optimizer="adam")
    with refuses(ValueError, "RMSprop", "client-optimizer"):
        fp.run(made, progress=False)


PERSONAL = ("2.weight", "2.bias")
TEST = {f"user-{n:02d}": person(n + 1000 * 2) for n in range(20)}


class TestPersonalLayers:
    def personal(self, test=TEST):
        layers = PersonalLayers(names=PERSONAL, test=test, learning_rate=0.5, steps=60)
        return small({"personal": layers}, noise="none", bound="none", rounds=10)

    @pytest.mark.slow
    def test_they_fit_each_user_and_are_nowhere_in_the_folder(self, tmp_path):
        out = tmp_path / "run"
        run = fp.run(self.personal(), out, progress=False)
        assert set(run.params) == {"0.weight", "0.bias"}
        shared = fp.run(small(noise="none", bound="none", rounds=10), progress=False)
        # Half of the users have labels that are the other half's turned round.
        one = two_layers()
        fp.load_params(one, shared.params)
        x, y = (np.concatenate(part) for part in zip(*TEST.values(), strict=True))
        right = one(torch.from_numpy(x)).argmax(1).numpy() == y
        assert run.summary["accuracy"] > 0.75 > 0.65 > right.mean()
        for file in out.rglob("*"):
            content = file.read_bytes() if file.is_file() else b""
            assert b"2.weight" not in content and b"2.bias" not in content, file
        assert verify_run(out).ok

    @pytest.mark.slow
    def test_a_diagnostic_is_of_the_users_own_training_examples(self):
        """A user whose held-out labels are turned round against its training ones does badly."""
        turned = {user: (x, 1 - y) for user, (x, y) in TEST.items()}
        run = fp.run(self.personal(turned), progress=False)
        assert run.summary["accuracy"] < 0.25
        task = self.personal().task(None)
        sizes, right = task.held_out_by_user(run.params)
        assert list(sizes) == [12] * 20
        (_, left) = self.personal(turned).task(None).held_out_by_user(run.params)
        np.testing.assert_array_equal(left, sizes - right)
        assert left.sum() / sizes.sum() == pytest.approx(run.summary["accuracy"])

    def test_a_secure_run_has_no_personal_figures(self, tmp_path):
        private = small({"personal": PersonalLayers(names=PERSONAL, test=TEST)})
        run = fp.run(private, tmp_path / "run", secure=True, progress=False)
        assert set(run.params) == {"0.weight", "0.bias"} and run.epsilon.value < math.inf
        assert "2.weight" not in json.dumps(dict(run.summary))
        assert run.summary.get("accuracy") is None

    @pytest.mark.parametrize(
        ("names", "given", "named"),
        [
            (("3.weight",), {}, ["3.weight"]),
            (("0.weight", "0.bias", *PERSONAL), {}, []),
            (PERSONAL, {"test": person(1)}, ["public_train"]),
            ("2.weight", {}, ["2.weight"]),
            ((), {}, ["()"]),
        ],
    )
    def test_what_does_not_fit_is_refused(self, names, given, named):
        with refuses(ValueError, *named):
            fp.run(small({"personal": PersonalLayers(names=names), **given}), progress=False)
