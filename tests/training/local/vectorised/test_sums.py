"""Bounded sums of users trained at once: one by one's, bit for bit what each contributed."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv import tree
from fedpriv.mechanisms.bounds import WITHIN, AdaptiveClip, Clip, Normalise, Rounded, Unbounded
from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.rng import Key
from fedpriv.training.algorithm import NO_CONTEXT, Context
from fedpriv.training.failures import users_not_logged
from fedpriv.training.local.indices import IndicesWithin
from fedpriv.training.local.module import ArrayExamples, module_params
from fedpriv.training.local.vectorised import VectorisedTrainer
from tests.harness.combinations import each_once
from tests.harness.toys_of_training import assert_same, difference, drawn, gap
from tests.training.local.vectorised.users import (
    CLASSES,
    GRID,
    KEY,
    MODELS,
    SIZES,
    built,
    cohort,
    examples_of,
    total_of,
    trainers,
)

KIND = (4, (12,), "float32", (), "int64")
ADAPTIVE = AdaptiveClip(l2_clip_norm=0.6, least=0.1, most=10.0)


class Hostile(ArrayExamples):
    """Says it holds examples and then does not."""

    def take(self, index):
        raise RuntimeError("secret text")


def spoilt_cohort(shape):
    """Good users between bad ones, and what is wrong with each bad one."""
    users = cohort(shape, sizes=(7, 9, 8, 6, 5, 9))
    rng = np.random.default_rng(0)
    users["u1"] = Hostile(users["u1"].x, users["u1"].y)
    users["u2"] = ArrayExamples(users["u2"].x, np.full(8, CLASSES + 3))  # a label nobody knows
    users["u3"] = ArrayExamples(np.full_like(users["u3"].x, np.nan), users["u3"].y)
    users["u5"] = ArrayExamples(rng.normal(size=(9, 3)).astype(np.float32), users["u5"].y)
    return users, ("u0", "u4")


def sums(trainer, params, bound, users, ids=None, context=NO_CONTEXT):
    return [total_of(way, params, users, ids, bound, context) for way in (trainer, trainer.alone)]


class TestPartialSum:
    @pytest.mark.parametrize(
        ("bound", "precondition"),
        each_once(
            {
                "clip": Clip(l2_clip_norm=0.2),
                "clip-far": Clip(l2_clip_norm=100.0),
                "normalise": Normalise(l2_clip_norm=0.5, regulariser=0.1),
                "unbounded": Unbounded(),
                "grid": Rounded(bound=Clip(l2_clip_norm=0.2)),
                "adaptive": ADAPTIVE,
                "adaptive-grid": Rounded(bound=ADAPTIVE),
            },
            ["plain", "multiplied", "mixed"],
        ),
    )
    def test_equals_one_by_one(self, bound, precondition):
        module, shape = built("mlp")
        params, rng = module_params(module), np.random.default_rng(4)
        context = Context(clip_norm=0.6)
        if precondition != "plain":
            multiplier = {"0.weight": rng.uniform(0.1, 3, (9, 1)).astype(np.float32)}
            context = replace(context, multiplier=multiplier)
        if precondition == "mixed":
            mixture = Mixture(own=0.7, offset=drawn(params, 0.1))
            context = replace(context, mixture=mixture)
        _, many = trainers(module)
        found, expected = sums(many, params, bound, cohort(shape), context=context)
        assert found.granularity == expected.granularity
        assert (found.num_users, found.num_failed) == (len(SIZES), 0)
        one, other = found.real(), expected.real()
        assert {a.dtype for a in found.total.values()} == {a.dtype for a in expected.total.values()}
        assert tree.l2_norm(other) > 0.05
        assert gap(one, other) <= 1e-5
        if bound.start is not None:  # of so many users, to the grid's rounding
            assert gap({WITHIN: one[WITHIN]}, {WITHIN: other[WITHIN]}) <= 1e-6

    def test_whoever_fails_contributes_zero_alone(self, caplog):
        module, shape = built("mlp")
        params = module_params(module)
        users, good = spoilt_cohort(shape)
        _, many = trainers(module, users_at_once=6)
        with caplog.at_level(logging.WARNING):
            found, expected = sums(many, params, GRID, users, [*users, "nobody"])
        assert found.num_failed == expected.num_failed == 5
        assert found.num_users == 7
        assert "secret" not in caplog.text
        only_good, _ = sums(many, params, GRID, users, good)
        one, other = found.real(), only_good.real()
        assert gap(one, other) <= 1e-5

    def test_no_user_moves_the_sum_by_more_than_the_bound(self):
        module, shape = built("mlp")
        params = module_params(module)
        users = cohort(shape)
        users["u0"] = ArrayExamples(users["u0"].x * 1e6, users["u0"].y)
        _, many = trainers(module)
        for bound in (GRID.bound, GRID):
            for user in users:
                found, _ = sums(many, params, bound, users, [user])
                assert tree.l2_norm(found.real()) <= 0.2

    def test_dropout_on_the_grid_is_bit_equal_to_one_by_one(self):
        module = nn.Sequential(nn.Linear(12, 9), nn.Dropout(0.5), nn.Linear(9, CLASSES))
        _, many = trainers(module)
        found, expected = sums(many, module_params(module), GRID, cohort((12,)))
        assert_same(found.total, expected.total)


def steep(name, users_at_once=32, **changes):
    """A trainer whose local steps make much of little, on the grid, and its params."""
    module, shape = built(name)
    _, many = trainers(module, users_at_once, learning_rate=5.0, epochs=4, **changes)
    return many, module_params(module), cohort(shape)


class TestBatchInvariance:
    """What leaving a user out changes is what that user contributed, bit for bit."""

    def sum(self, trainer, params, users):
        total = total_of(trainer, params, users)
        return {n: np.asarray(a, np.int64) for n, a in total.total.items()}

    @pytest.mark.parametrize(
        ("name", "users_at_once", "left_out"),
        each_once(
            list(MODELS),
            [
                # Of every kind: u1 diverges, u9 raises, u7 has nothing, u6 more than it may use.
                pytest.param(32, ("u1", "u4", "u6", "u9"), id="32"),
                pytest.param(3, ("u0", "u1", "u6", "u7", "u9"), id="3"),
                pytest.param(32, None, marks=pytest.mark.slow, id="32-everybody"),
                pytest.param(64, None, marks=pytest.mark.slow, id="64-everybody"),
            ],
        ),
    )
    def test_the_sum_is_the_sum_of_single_users(self, name, users_at_once, left_out):
        many, params, users = steep(name, users_at_once)
        users["u1"] = ArrayExamples(users["u0"].x * 1e30, users["u0"].y)  # diverges
        users["u9"] = Hostile(users["u9"].x, users["u9"].y)  # raises
        whole = self.sum(many, params, users)
        for user in left_out or users:
            own = self.sum(many, params, {user: users[user]})
            rest = self.sum(many, params, {u: e for u, e in users.items() if u != user})
            assert_same(difference(whole, rest), own)
            assert tree.l2_norm(own) * GRID.granularity <= 0.2

    def test_examples_that_encode_drops_are_not_read_from_beside_others(self):
        """Padded to the longest of a batch they would be zeros, and alone an IndexError."""
        many, params, users = steep("mlp")
        few = {"u4": users["u4"], "odd": examples_of(len(users["u4"]), (12,), seed=77)}
        few["odd"].x[:2] = np.nan

        def encode(examples):
            kept = ~np.isnan(examples.x[:, 0])
            return examples.x[kept], examples.y[kept]

        many = replace(many, alone=replace(many.alone, encode=encode))
        whole, rest = self.sum(many, params, few), self.sum(many, params, {"u4": few["u4"]})
        own = self.sum(many, params, {"odd": few["odd"]})
        assert_same(difference(whole, rest), own)

    @pytest.mark.parametrize("name", ["softmax_regression", "mlp"])
    def test_batch_invariant_users_are_trained_together(self, name, only_vectorised):
        many, params, users = steep(name)
        only_vectorised()
        assert any(np.any(tensor) for tensor in self.sum(many, params, users).values())
        assert set(many._batch_invariant.values()) == {True}

    def test_a_device_that_mixes_users_trains_them_one_by_one(self, monkeypatch, caplog):
        """Such a device is made up: the second half of a chunk is a last bit off."""
        together = VectorisedTrainer.together

        def mixing(self, start, context, works):
            local, well = together(self, start, context, works)
            for tensor in local.updates.values():
                tensor[len(tensor) // 2 :] *= 1 + 2**-23
            return local, well

        monkeypatch.setattr(VectorisedTrainer, "together", mixing)
        many, params, users = steep("mlp")
        with caplog.at_level(logging.WARNING):
            found = self.sum(many, params, users)
        assert len(caplog.records) == len(many._batch_invariant) > 1
        assert_same(found, total_of(many.alone, params, users).total)

    def test_users_are_tried_at_the_rounds_own_rate(self, monkeypatch):
        """What is off at the full rate is not, at half of it."""
        together = VectorisedTrainer.together

        def mixing(self, start, context, works):
            local, well = together(self, start, context, works)
            for tensor in local.updates.values():
                tensor[len(tensor) // 2 :] *= 1 + 2**-23 * (context.rate == 1.0)
            return local, well

        monkeypatch.setattr(VectorisedTrainer, "together", mixing)
        many, params, users = steep("mlp")
        half = total_of(many, params, users, context=Context(rate=0.5))
        assert set(many._batch_invariant.values()) == {True} and half.num_failed == 0
        assert_same(total_of(many, params, users).total, total_of(many.alone, params, users).total)

    @pytest.mark.parametrize("off", ["slot 0", "slot 16", "slot 31", "among others"])
    def test_the_trial_sees_a_slot_that_is_off_and_a_batch_that_leaks(self, off, monkeypatch):
        many, params, _ = steep("mlp")
        start, together = many.alone.start(params), VectorisedTrainer.together

        def wrong(self, start, context, works):
            local, well = together(self, start, context, works)
            if off == "among others":
                local.updates["0.bias"].add_(1e-6 * float(len({id(work) for work in works}) > 1))
            else:
                local.updates["0.bias"][int(off.split()[1]), 0] *= 1 + 2**-22
            return local, well

        assert many._is_batch_invariant(start, NO_CONTEXT, KIND, 32)
        monkeypatch.setattr(VectorisedTrainer, "together", wrong)
        assert not many._has_same_bits(start, NO_CONTEXT, KIND, 32)

    @pytest.mark.parametrize(("key", "said"), [(KEY, True), (Key.secure(), False)])
    def test_of_a_secure_run_nothing_is_logged_of_trials(self, caplog, monkeypatch, key, said):
        """Which kinds of users are tried tells who was drawn."""

        def failing(self, start, context, works):
            raise RuntimeError("no rule")

        monkeypatch.setattr(VectorisedTrainer, "together", failing)
        many, params, _ = steep("mlp")
        with caplog.at_level(logging.DEBUG), users_not_logged(key):
            assert not many._is_batch_invariant(many.alone.start(params), NO_CONTEXT, KIND, 32)
        assert bool(caplog.records) == said


class _Looking(nn.Module):
    """Words by a layer, or by a plain parameter that is asked for the classes of floats."""

    def __init__(self, floats):
        super().__init__()
        self.table, self.floats = nn.Embedding(20, 5), floats
        self.above = nn.Linear(30, CLASSES)

    def forward(self, x):
        found = nn.functional.embedding(x.long(), self.table.weight) if self.floats else None
        return self.above((self.table(x) if found is None else found).flatten(1))


class _Blanking(nn.Module):
    """A table of which the rows that the data name are blanked, in the model or in the loss."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(20, CLASSES))

    def forward(self, x):
        table = self.table.index_fill(0, x.flatten(), 0.0)
        return x.float().mean(1, keepdim=True) @ table.sum(0, keepdim=True)


@pytest.mark.parametrize("kind", ["looked up", "looked up by floats", "blanked"])
@pytest.mark.parametrize("word", [-1, -21, 20, 37, 10**6])
def test_an_index_beyond_a_users_own_tensor_moves_no_other_user(kind, word):
    torch.manual_seed(2)
    floats = kind == "looked up by floats"
    module = _Blanking() if kind == "blanked" else _Looking(floats)
    _, many = trainers(module)
    params, users = module_params(module), {}
    for seed, user in enumerate(("before", "bad", "after")):
        rng = np.random.default_rng(seed)
        x = rng.integers(0, 20, (4, 6))
        if user == "bad":
            x[2, 3] = word
        x = x.astype(np.float32) if floats else x
        users[user] = ArrayExamples(x, rng.integers(0, CLASSES, 4))

    beside, without = (total_of(many, params, users, ids) for ids in (users, ("before", "after")))
    legal = kind == "blanked" and word == -1  # the last row of its own
    assert (beside.num_failed, without.num_failed) == (not legal, 0)
    assert floats or set(many._batch_invariant.values()) == {True}
    if legal:
        alone = total_of(many, params, users, ["bad"])
        beside.total.update(difference(beside.total, alone.total))
    assert_same(beside.total, without.total)


ROWS = 6


def _rows_of(index):
    return index[:, None].expand(-1, 3)


#: PyTorch's functions of a table and of indices into its rows, or into as many classes.
BY_INDEX = {
    "embedding": lambda w, i: nn.functional.embedding(i, w),
    "torch.embedding": lambda w, i: torch.embedding(w, i),
    "embedding_bag": lambda w, i: nn.functional.embedding_bag(i.unsqueeze(0), w, mode="sum"),
    "index": lambda w, i: w[i],
    "index_select": lambda w, i: w.index_select(0, i),
    "gather": lambda w, i: w.gather(0, _rows_of(i)),
    "take": lambda w, i: w.take(i * 3),
    "scatter": lambda w, i: w.scatter(0, _rows_of(i), 0.0),
    "scatter_add": lambda w, i: torch.zeros_like(w).scatter_add(0, _rows_of(i), w[:2]),
    "scatter_reduce": lambda w, i: torch.zeros_like(w).scatter_reduce(0, _rows_of(i), w[:2], "sum"),
    "index_add": lambda w, i: torch.zeros_like(w).index_add(0, i, w[:2]),
    "index_copy": lambda w, i: torch.zeros_like(w).index_copy(0, i, w[:2]),
    "index_reduce": lambda w, i: torch.zeros_like(w).index_reduce(0, i, w[:2], "mean"),
    "index_put": lambda w, i: torch.zeros_like(w).index_put((i,), w[:2], accumulate=True),
    "put": lambda w, i: torch.zeros_like(w).put(i * 3, w[:2, 0]),
    "index_fill": lambda w, i: w.index_fill(0, i, 0.0),
    "torch.index_fill": lambda w, i: torch.index_fill(w, 0, i, 0.0),
    "index_fill_": lambda w, i: (w * 1.0).index_fill_(0, i, 0.0),
    "index_fill of a tensor": lambda w, i: w.index_fill(0, i, torch.tensor(0.0)),
    "index_fill of columns": lambda w, i: w.T.index_fill(1, i, 0.0),
    "nll_loss": lambda w, i: nn.functional.nll_loss(w.T[:2], i),
    "cross_entropy": lambda w, i: nn.functional.cross_entropy(w.T[:2], i),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:index_reduce")
@pytest.mark.parametrize("name", BY_INDEX)
@pytest.mark.parametrize("bad", [-7, -1, ROWS, ROWS + 1, 100])
def test_no_index_reaches_a_neighbour(name, bad):
    """Of `embedding` and `index_fill` by `IndicesWithin` alone."""
    tables = torch.from_numpy(np.random.default_rng(0).normal(size=(4, ROWS, 3)))
    indices = torch.tensor([[0, 1]] * 4)

    def gradients(tables, indices):
        def loss(table, index):
            with IndicesWithin():
                return (BY_INDEX[name](table, index) ** 2).sum()

        return torch.func.vmap(torch.func.grad(loss))(tables, indices)

    wanted, others = gradients(tables, indices), [0, 2, 3]
    indices[1, 0] = bad
    try:
        found = gradients(tables, indices)
    except (IndexError, RuntimeError):  # refused: its user is trained by itself, and fails alone
        return
    torch.testing.assert_close(found[others], wanted[others], rtol=0, atol=0)
    tables[others] += 1.0
    torch.testing.assert_close(gradients(tables, indices)[1], found[1], rtol=0, atol=0)


def test_an_index_in_the_loss_moves_no_other_user():
    """All logits are zero: blanked or not, the loss is the same, and only its gradient differs."""
    module = nn.Linear(3, CLASSES)
    nn.init.zeros_(module.bias)
    _, many = trainers(module, epochs=1, loss=lambda o, y: o.index_fill(1, y, 0.0).mean())
    users = {
        user: ArrayExamples(np.zeros((4, 3), np.float32), np.full(4, label))
        for user, label in (("before", 0), ("bad", -1), ("after", 1))
    }

    beside, bad, without = (
        total_of(many, module_params(module), users, ids).total
        for ids in (users, ["bad"], ["before", "after"])
    )
    assert_same(difference(beside, bad), without)
