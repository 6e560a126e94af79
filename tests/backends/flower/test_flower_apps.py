"""A `bounded` function (docs/flower-apps.md) in place of the client of examples/flower-app."""

from __future__ import annotations

import importlib
import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

import fedpriv as fp
from fedpriv.backends import SerialBackend
from fedpriv.backends.flower.client import _FunctionTrainer, _GivenUsers
from fedpriv.checkpoints.store import CheckpointStore
from fedpriv.json_lines import read
from fedpriv.mechanisms import Clip
from fedpriv.rng import Key
from fedpriv.training.work import as_works
from tests.backends.flower import stub_grid as stub
from tests.harness.toys_of_training import answered

EXAMPLE = Path(__file__).parents[3] / "examples" / "flower-app"
PAGE = EXAMPLE.parents[1] / "docs" / "flower-apps.md"
FILES = ("task", "client_app", "server_app")
NUM_NODES, TOLD = 7, {"learning-rate": 0.2}


@pytest.fixture
def modules(monkeypatch):
    """From folders to the example's modules, each from the last folder that has it."""

    def load(*folders):
        for folder in folders:
            monkeypatch.syspath_prepend(str(folder))
        importlib.invalidate_caches()
        return SimpleNamespace(**{name: importlib.import_module(name) for name in FILES})

    yield load
    for name in FILES:
        sys.modules.pop(name, None)


@pytest.fixture
def pages(tmp_path, monkeypatch, modules):
    """The example's modules, the page's client among them."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "client_app.py").write_text(code, "utf-8")
    monkeypatch.chdir(tmp_path)
    return modules(EXAMPLE, tmp_path)


def deploy(pages, out, **grid):
    # What torch loads at its first training is there before nodes fork a child for each message.
    task = pages.task
    start, one = fp.module_params(task.model()), task.examples_of(task.ROSTER[:1])
    pages.client_app.train(start, one, np.random.default_rng(0), TOLD)
    nodes = {n + 1: stub.AppNode(pages.client_app.app, n, NUM_NODES) for n in range(NUM_NODES)}
    torch.manual_seed(0)
    pages.server_app.app(stub.StubGrid(nodes, **grid), stub.context(run_config={"out": str(out)}))


@pytest.mark.slow
def test_it_is_the_same_training_as_in_one_process(pages, tmp_path, capsys, draws_of):
    deploy(pages, tmp_path / "run")
    draws_of(tmp_path / "run")
    task, train = pages.task, partial(pages.client_app.train, config=TOLD)
    users = {user_id: task.examples_of([user_id]) for user_id in task.ROSTER}
    backend = SerialBackend(trainer=_FunctionTrainer(function=train), data=_GivenUsers(users=users))
    asked = fp.Rounds(users=len(task.ROSTER), cohort=20, rounds=3)
    plan = asked.plan(l2_clip_norm=0.5, target_epsilon=8.0)
    torch.manual_seed(0)
    start, seen = fp.module_params(task.model()), []
    alone = fp.averaging(
        plan,
        roster=task.ROSTER,
        params=start,
        on_round=lambda n, params: seen.append(n),
        stated={"train_config": TOLD},
    )(backend)
    assert seen == [1, 2, 3] and alone.path is None and alone.rounds_done == 3
    with fp.Ledger.open(tmp_path / "run" / "ledger.jsonl") as ledger:
        assert alone.epsilon == ledger.epsilon()
    own = fp.load_params(task.model(), alone.params)
    tensors, _ = CheckpointStore(tmp_path / "run" / "checkpoints").load(3)
    for name, array in fp.module_params(own).items():
        np.testing.assert_array_equal(array, tensors[name])
        assert (array != start[name]).any()


@pytest.mark.slow
def test_the_pages_metrics_are_measured(modules, tmp_path):
    example = modules(EXAMPLE)
    blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (public,) = [block for block in blocks if "def evaluate_fn" in block]
    (nodes,) = [block for block in blocks if "@app.evaluate()" in block]
    names = {
        **{name: getattr(example.task, name) for name in ("model", "users_of", "examples_of")},
        "torch": torch, "fp": fp, "MetricRecord": MetricRecord, "RecordDict": RecordDict,
        "Message": Message,
        "ROSTER": example.task.ROSTER, "out": tmp_path / "run",
        "plan": fp.Rounds(users=40, cohort=20, rounds=3).plan(
            l2_clip_norm=0.5, target_epsilon=8.0
        ),
    }  # fmt: skip
    exec(nodes, names)
    names["app"].train()(example.client_app.train)
    apps = {n + 1: stub.AppNode(names["app"], n, 2) for n in range(2)}
    start = ArrayRecord(example.task.model().state_dict())
    told = ConfigRecord({"learning-rate": 0.2})
    names |= {"grid": stub.StubGrid(apps), "initial_arrays": start, "told": told}
    exec(public.replace("num_rounds=3", "num_rounds=3, train_config=told"), names)
    result = names["result"]
    assert list(result.evaluate_metrics_serverapp) == [0, 1, 2, 3]
    seen = read(tmp_path / "run" / "diagnostics.jsonl")
    assert [0 < line["nodes_accuracy"] < 1 for line in seen] == [True] * 3


class TestBounded:
    params = {"w": np.zeros(3, np.float32)}  # noqa: RUF012
    users = {"a": [1.0, 0.0, 0.0], "b": [0.0, 30.0, 40.0]}  # noqa: RUF012

    def total(self, train, users=None):
        """Return the sum that the training function's work makes of all users."""
        data = _GivenUsers(users=users or self.users)
        return answered(
            as_works(_FunctionTrainer(function=train))["train"],
            params=self.params,
            bound=Clip(l2_clip_norm=0.5),
            data=data,
            user_ids=sorted(data.users),
            key=Key.simulation(0),
        )

    def test_whatever_it_returns_is_bounded_as_a_whole(self):
        done = self.total(lambda params, examples, rng: {"w": params["w"] + np.array(examples)})
        np.testing.assert_allclose(done.total["w"], [0.5, 0.3, 0.4], rtol=1e-6)

    @pytest.mark.parametrize(
        "odd",
        [
            {},
            {"w": np.zeros(4)},
            {"w": 0.0},
            {"w": np.full(3, np.nan)},
            {"w": "no numbers"},
            {"w": np.zeros(3), "more": np.zeros(3)},
            None,
        ],
        ids=str,
    )
    def test_what_is_no_params_contributes_zero_alone(self, odd):
        def train(params, examples, rng):
            return odd if examples == self.users["a"] else {"w": np.array([0.0, 0.1, 0.0])}

        done = self.total(train)
        np.testing.assert_allclose(done.total["w"], [0.0, 0.1, 0.0], rtol=1e-6)
        assert (done.num_users, done.num_failed) == (2, 1)

    def test_an_error_says_its_kind_and_not_its_text(self, caplog):
        def train(params, examples, rng):
            raise RuntimeError(f"my secret is {examples}")

        assert self.total(train).num_failed == 2
        assert "RuntimeError" in caplog.text and "secret" not in caplog.text
