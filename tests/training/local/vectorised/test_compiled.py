"""Steps that `torch.compile` compiled: the updates of those that are not, to rounding."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.training.local import vectorised
from fedpriv.training.local.module import module_params
from fedpriv.training.local.schedule import Schedule
from fedpriv.training.local.vectorised import VectorisedTrainer
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import KEY, assert_near, assert_same
from tests.tasks import people
from tests.training.local.vectorised.users import (
    built,
    cohort,
    examples_of,
    together,
    total_of,
    trainers,
)

# PyTorch's compiler imports what PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


def _by_itself(*given):
    raise AssertionError("a user is not trained by what was compiled")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "cnn", "partly_frozen"])
def test_updates_agree(name, monkeypatch):
    monkeypatch.setattr(VectorisedTrainer, "by_itself", _by_itself)
    module, shape = built(name)
    alone, plain = trainers(module)
    compiled = VectorisedTrainer(alone=alone, users_at_once=4, compiled=True)
    params, users = module_params(module), cohort(shape)
    calls = torch._dynamo.utils.counters["stats"]["calls_captured"]
    expected, found = (together(one, params, users) for one in (plain, compiled))
    assert torch._dynamo.utils.counters["stats"]["calls_captured"] > calls, "nothing was compiled"
    for one, other in zip(expected, found, strict=True):
        assert_near(other, one)


@pytest.mark.slow
def test_no_shape_is_left_out_whoever_came_first(monkeypatch):
    module, shape = built("mlp")
    alone, _ = trainers(module, batch_size=64, max_examples=500)
    many = VectorisedTrainer(alone=alone, users_at_once=2, compiled=True)
    monkeypatch.setattr(VectorisedTrainer, "by_itself", _by_itself)
    params = module_params(module)
    with torch._dynamo.config.patch(recompile_limit=1, accumulated_recompile_limit=2):
        for number in (1, 2, 4, 8):
            users = cohort(shape, sizes=(number, number))
            assert all(update is not None for update in together(many, params, users))


@pytest.mark.slow
@pytest.mark.parametrize("word", [-1, 20])
def test_a_word_beyond_an_embedding_is_found_before_a_compiled_step(word):
    users = {n: (np.full((4, 6), 3), np.arange(4) % 2) for n in ("a", "b")}
    users["bad"] = (np.full((4, 6), word), np.arange(4) % 2)
    words = people.task(
        users=users,
        public=None,
        compiled=True,
        module=lambda: nn.Sequential(nn.Embedding(20, 5), nn.Flatten(), nn.Linear(30, 2)),
    )
    many, params = words.trainer(SCHEDULE, {}, device="cpu"), words.init_params(KEY)
    beside, without = (total_of(many, params, words.data, ids) for ids in (users, ("a", "b")))
    assert (beside.num_failed, without.num_failed) == (1, 0)
    assert_same(beside.total, without.total)


def task(forward=None, **options):
    class Model(nn.Linear):
        def forward(self, x):
            return super().forward(x) if forward is None else forward(super().forward(x))

    users = {user: examples_of(6, (12,), seed=1) for user in "ab"}
    given = {"module": lambda: Model(12, 5), "users": users, "public": None, **options}
    return people.task(**given)


SCHEDULE = Schedule(learning_rate=0.1, batch_size=4)


def test_users_one_by_one_are_not_compiled():
    with refuses(ValueError, "users_at_once"):
        task(compiled=True).trainer(SCHEDULE, {})


@pytest.mark.slow
def test_a_run_says_that_its_first_steps_are_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(vectorised, "_compiled", lambda function, device: function)
    for compiled in (True, False):
        made = people.experiment(
            task(users_at_once=2, compiled=compiled), rounds=1, cohort=2.0, delta=0.01
        )
        said = []
        people.started(tmp_path / f"{compiled}", made).run(tell=said.append)
        assert len(said) == compiled


@pytest.mark.slow
def test_what_cannot_be_compiled_is_refused_beforehand():
    def leaving(outputs):
        print("a call that no compiler takes along", end="")
        return outputs

    given = task(leaving, compiled=True, users_at_once=2)
    with refuses(ValueError, "print", "compiled") as refused:
        given.trainer(SCHEDULE, {})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"module": lambda: nn.Sequential(nn.Linear(12, 5), nn.Dropout(0.5))}, "layer '1'"),
        ({"client_optimizer": torch.optim.Adam}, "Adam"),
    ],
)
def test_users_who_are_always_trained_one_by_one_are_not_compiled(options, why, caplog):
    given = task(compiled=True, users_at_once=2, **options)
    with refuses(ValueError, why, "compiled"):
        given.trainer(SCHEDULE, {})
    plain = task(users_at_once=2, **options)
    for _ in range(3):
        plain.trainer(SCHEDULE, {})
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and why in said[0], "once a run, which makes several trainers"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "cause"),
    [  # the first two are of the form of torch 2.13's
        ("Failed to trace\n  Explanation: unknown `open`\n  Hint: avoid it.", "unknown `open`"),
        (
            "Failed to run\n  Explanation: Dynamo failed: item(*(Tensor(value=\n    ),), **{}): "
            'got RuntimeError("vmap: a call of .item()")\n  Hint: none.\n\nfrom user code:\n',
            "vmap: a call of .item()",
        ),
        ("\nno C++ compiler\nmore", "no C++ compiler"),
        ("long" * 100, "long" * 75 + " …"),
        ("", ""),
    ],
)
def test_the_cause_is_one_line(text, cause, monkeypatch):
    def fails(self, start, context, works):
        raise RuntimeError(text)

    monkeypatch.setattr(VectorisedTrainer, "together", fails)
    with pytest.raises(ValueError, match=rf"\(RuntimeError: {re.escape(cause)}\)[^\n]*$"):
        task(compiled=True, users_at_once=2).trainer(SCHEDULE, {})
