"""Many users at once equal one by one; whoever fails, fails alone."""

import logging

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv import tree
from fedpriv.mechanisms.bound import Clip, Normalise, Preconditioned, Unbounded
from fedpriv.mechanisms.rounding import Rounded
from fedpriv.rng import Key
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.local.batch_invariance import is_batch_invariant
from fedpriv.training.local.module import ArrayExamples, ModuleTrainer, module_params
from fedpriv.training.local.trainer import Schedule
from fedpriv.training.local.users_at_once import random_layer, users_that_fit
from fedpriv.training.local.vectorised import VectorisedTrainer
from fedpriv.training.local.vectorised_sum import vectorised_partial_sum
from fedpriv.training.work import as_work

KEY = Key.simulation(3)
CLASSES = 5
# Ragged on purpose: nobody's, one, fewer than a batch, a batch, more than max_examples.
SIZES = (7, 0, 1, 4, 23, 2, 40, 0, 12, 5)


def difference(left, right):
    return {name: left[name] - right[name] for name in left}


def cross_entropy(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


def softmax_regression():
    return nn.Linear(12, CLASSES), (12,)


def mlp():
    return nn.Sequential(nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, CLASSES)), (12,)


def cnn():
    layers = [nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * 2 * 2, CLASSES)), (2, 6, 6)


class PartlyFrozen(nn.Module):
    """A frozen layer below, and a parameter that the loss never sees."""

    def __init__(self):
        super().__init__()
        self.below = nn.Linear(12, 6).requires_grad_(False)
        self.above = nn.Linear(6, CLASSES)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.above(torch.tanh(self.below(x)))


def partly_frozen():
    return PartlyFrozen(), (12,)


MODELS = {f.__name__: f for f in (softmax_regression, mlp, cnn, partly_frozen)}


def built(name):
    torch.manual_seed(11)
    return MODELS[name]()


def examples_of(number, shape, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(number, *shape)).astype(np.float32)
    return ArrayExamples(x, rng.integers(0, CLASSES, number))


def cohort(shape, sizes=SIZES):
    return {f"u{i}": examples_of(size, shape, seed=i) for i, size in enumerate(sizes)}


def trainers(module, users_at_once=4, multiplier=None, loss=cross_entropy, **changes):
    options = {"learning_rate": 0.3, "batch_size": 4, "epochs": 2, "max_examples": 30, **changes}
    alone = ModuleTrainer(
        module=module, loss=loss, schedule=Schedule(**options), multiplier=multiplier or {}
    )
    return alone, VectorisedTrainer(alone=alone, users_at_once=users_at_once)


def keys(users):
    return [KEY.fold(user) for user in users]


def together(trainer, params, users):
    """Every user's update by `train_many`, as numpy trees."""
    updates = trainer.train_many(
        trainer.alone.start(params), list(users.values()), keys(users), batch_invariant=False
    )
    return [
        None if user in updates.failed else {n: t[user].numpy() for n, t in updates.tensors.items()}
        for user in range(len(users))
    ]


def one_by_one(trainer, params, users):
    return [
        trainer.train(params, examples, key)
        for examples, key in zip(users.values(), keys(users), strict=True)
    ]


def assert_same_updates(found, expected, relative=1e-5):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        scale = tree.l2_norm(other)
        assert tree.l2_norm(difference(one, other)) <= relative * scale
        if scale == 0.0:
            assert tree.l2_norm(one) == 0.0


@pytest.fixture
def only_vectorised(monkeypatch):
    """Training alone is not to be reached: what comes out was made together."""

    def reached(self, *arguments):
        raise AssertionError("fell back to training one by one")

    def forbid():
        monkeypatch.setattr(ModuleTrainer, "train_from", reached)

    return forbid


def kinds():
    """Every model with every number of users at once; by default each with one kind of batches."""
    batches = [(4, 1), (4, 3), (100, 1), (1, 2)]
    for model, name in enumerate(MODELS):
        for row, users_at_once in enumerate((2, 4, 100)):
            for number, (batch_size, epochs) in enumerate(batches):
                usual = number == (model + row) % len(batches)
                marks = () if usual else pytest.mark.slow
                yield pytest.param(name, batch_size, epochs, users_at_once, marks=marks)


class TestEqualsOneByOne:
    @pytest.mark.parametrize(("name", "batch_size", "epochs", "users_at_once"), list(kinds()))
    def test_ragged_users(self, name, batch_size, epochs, users_at_once, only_vectorised):
        module, shape = built(name)
        params, users = module_params(module), cohort(shape)
        alone, many = trainers(module, users_at_once, batch_size=batch_size, epochs=epochs)
        expected = one_by_one(alone, params, users)
        assert max(map(tree.l2_norm, expected)) > 0.01
        only_vectorised()
        assert_same_updates(together(many, params, users), expected)

    @pytest.mark.parametrize("name", MODELS)
    def test_a_local_preconditioner(self, name, only_vectorised):
        module, shape = built(name)
        params, users = module_params(module), cohort(shape)
        rng = np.random.default_rng(2)
        # By its first axis, as the side information of a kernel's rows comes.
        multiplier = {
            n: rng.uniform(0.2, 2, p.shape[:1]).astype(np.float32) for n, p in params.items()
        }
        alone, many = trainers(module, multiplier=multiplier)
        plain, _ = trainers(built(name)[0])
        expected = one_by_one(alone, params, users)
        assert tree.l2_norm(
            difference(expected[0], plain.train(params, users["u0"], keys(users)[0]))
        )
        only_vectorised()
        assert_same_updates(together(many, params, users), expected)

    def test_the_key_and_nothing_else_chooses_the_batches(self, only_vectorised):
        module, shape = built("mlp")
        params, users = module_params(module), cohort(shape, sizes=(40, 40))
        users["u1"] = users["u0"]
        _, many = trainers(module)
        only_vectorised()
        first, second = together(many, params, users)
        assert tree.l2_norm(difference(first, second)) > 0

    def test_nobody_and_only_empty_users(self):
        module, shape = built("mlp")
        params = module_params(module)
        _, many = trainers(module)
        assert together(many, params, {}) == []
        assert all(tree.l2_norm(u) == 0 for u in together(many, params, cohort(shape, (0, 0))))

    def test_neither_params_nor_torchs_generator_change(self):
        module, shape = built("mlp")
        params = module_params(module)
        before = {n: a.copy() for n, a in params.items()}
        state = torch.random.get_rng_state()
        _, many = trainers(module)
        together(many, params, cohort(shape))
        assert all(np.array_equal(params[n], before[n]) for n in params)
        assert torch.equal(state, torch.random.get_rng_state())


def weighted(outputs, targets):
    weights = torch.arange(1.0, CLASSES + 1)
    return nn.functional.cross_entropy(outputs, targets, weight=weights)


def ignoring(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, ignore_index=2)


def summed(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="sum")


def across(outputs, targets):
    return nn.functional.cross_entropy(outputs - outputs.mean(dim=0), targets)


def numpy_in_between(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets) * float(targets.numpy().max() >= 0)


class Running(nn.Module):
    """Adds to a buffer in forward: what one user adds must not reach another."""

    def __init__(self, replaced):
        super().__init__()
        self.linear, self.replaced = nn.Linear(12, CLASSES), replaced
        self.register_buffer("running", torch.zeros(12))

    def forward(self, x):
        with torch.no_grad():
            if self.replaced:
                self.running = self.running + x.mean(dim=0)
            else:
                self.running += x.mean(dim=0)
        return self.linear(x + self.running)


class TestFallsBack:
    @pytest.mark.parametrize("loss", [weighted, ignoring, summed, across, numpy_in_between])
    def test_a_loss_that_is_not_a_mean_over_examples(self, loss):
        module, shape = built("mlp")
        params, users = module_params(module), cohort(shape)
        alone, many = trainers(module, loss=loss, learning_rate=0.05)
        assert_same_updates(together(many, params, users), one_by_one(alone, params, users))

    def test_dropout_has_every_users_own_stream(self, caplog):
        module = nn.Sequential(nn.Linear(12, 9), nn.Dropout(0.5), nn.Linear(9, CLASSES))
        params, users = module_params(module), cohort((12,))
        with caplog.at_level(logging.WARNING):
            alone, many = trainers(module)
        assert "layer '1' draws at random" in caplog.text
        expected = one_by_one(alone, params, users)
        assert_same_updates(together(many, params, users), expected, relative=0.0)

    def test_randomness_that_no_layer_shows(self):
        class Hidden(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(12, CLASSES)

            def forward(self, x):
                return nn.functional.dropout(self.linear(x), 0.5, self.training)

        module = Hidden()
        assert random_layer(module) is None
        params, users = module_params(module), cohort((12,))
        alone, many = trainers(module)
        expected = one_by_one(alone, params, users)
        assert_same_updates(together(many, params, users), expected, relative=0.0)

    @pytest.mark.parametrize("replaced", [False, True])
    def test_a_buffer_that_forward_changes(self, replaced):
        module = Running(replaced)
        params, users = module_params(module), cohort((12,))
        alone, many = trainers(module, learning_rate=0.05)
        expected = one_by_one(alone, params, users)
        assert not module.running.any()
        afresh, _ = trainers(Running(replaced), learning_rate=0.05)
        last = afresh.train(params, users["u9"], keys(users)[9])
        assert_same_updates([last], expected[9:], relative=0.0)
        assert_same_updates(together(many, params, users), expected)
        assert not module.running.any()

    @pytest.mark.parametrize(
        ("layer", "drawn"),
        [
            (nn.Dropout(0.1), True),
            (nn.Dropout2d(0.1), True),
            (nn.AlphaDropout(0.1), True),
            (nn.Dropout(0.0), False),
            (nn.LSTM(3, 3, num_layers=2, dropout=0.2), True),
            (nn.LSTM(3, 3), False),
            (nn.MultiheadAttention(4, 2, dropout=0.2), True),
            (nn.MultiheadAttention(4, 2), False),
            (nn.RReLU(), True),
            (nn.Linear(2, 2), False),
        ],
    )
    def test_random_layers_are_known(self, layer, drawn):
        assert (random_layer(nn.Sequential(layer)) is not None) == drawn


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


class Users:
    def __init__(self, users):
        self._users = users

    def examples(self, user_id):
        if user_id not in self._users:
            raise ValueError("not here")
        return self._users[user_id]

    def num_examples(self, user_id):
        return len(self.examples(user_id))


def sums(trainer, params, bound, users, ids=None):
    arguments = dict(
        params=params, bound=bound, data=Users(users), user_ids=list(ids or users), key=KEY
    )
    return (
        vectorised_partial_sum(trainer=trainer, **arguments),
        as_work(trainer.alone).partial_sum(**arguments),
    )


class TestPartialSum:
    @pytest.mark.parametrize(
        "bound",
        [
            Clip(l2_clip_norm=0.2),
            Clip(l2_clip_norm=100.0),
            Normalise(l2_clip_norm=0.5, regulariser=0.1),
            Unbounded(),
            Rounded(bound=Clip(l2_clip_norm=0.2)),
        ],
        ids=["clip", "clip-far", "normalise", "unbounded", "grid"],
    )
    @pytest.mark.parametrize("precondition", [False, True])
    def test_equals_one_by_one(self, bound, precondition):
        module, shape = built("mlp")
        params = module_params(module)
        if precondition:
            rng = np.random.default_rng(4)
            multiplier = {"0.weight": rng.uniform(0.1, 3, (9, 1)).astype(np.float32)}
            inner = bound.bound if isinstance(bound, Rounded) else bound
            wrapped = Preconditioned(multiplier=multiplier, bound=inner)
            bound = Rounded(bound=wrapped) if isinstance(bound, Rounded) else wrapped
        _, many = trainers(module)
        found, expected = sums(many, params, bound, cohort(shape))
        assert found.granularity == expected.granularity
        assert (found.num_users, found.num_failed) == (len(SIZES), 0)
        one, other = found.real(), expected.real()
        assert {a.dtype for a in found.total.values()} == {a.dtype for a in expected.total.values()}
        assert tree.l2_norm(other) > 0.05
        assert tree.l2_norm(difference(one, other)) <= 1e-5 * tree.l2_norm(other)

    def test_whoever_fails_contributes_zero_alone(self, caplog):
        module, shape = built("mlp")
        params = module_params(module)
        users, good = spoilt_cohort(shape)
        _, many = trainers(module, users_at_once=6)
        bound = Rounded(bound=Clip(l2_clip_norm=0.2))
        with caplog.at_level(logging.WARNING):
            found, expected = sums(many, params, bound, users, [*users, "nobody"])
        assert found.num_failed == expected.num_failed == 5
        assert found.num_users == 7
        assert "secret" not in caplog.text
        only_good, _ = sums(many, params, bound, users, good)
        one, other = found.real(), only_good.real()
        assert tree.l2_norm(difference(one, other)) <= 1e-5 * tree.l2_norm(other)

    def test_no_user_moves_the_sum_by_more_than_the_bound(self):
        module, shape = built("mlp")
        params = module_params(module)
        users = cohort(shape)
        users["u0"] = ArrayExamples(users["u0"].x * 1e6, users["u0"].y)
        _, many = trainers(module)
        for bound in (Clip(l2_clip_norm=0.2), Rounded(bound=Clip(l2_clip_norm=0.2))):
            for user in users:
                found, _ = sums(many, params, bound, users, [user])
                assert tree.l2_norm(found.real()) <= 0.2

    def test_dropout_on_the_grid_is_bit_equal_to_one_by_one(self):
        module = nn.Sequential(nn.Linear(12, 9), nn.Dropout(0.5), nn.Linear(9, CLASSES))
        _, many = trainers(module)
        bound = Rounded(bound=Clip(l2_clip_norm=0.2))
        found, expected = sums(many, module_params(module), bound, cohort((12,)))
        assert all(np.array_equal(found.total[n], expected.total[n]) for n in expected.total)

    def test_an_empty_cohort_is_zero(self):
        module, _ = built("mlp")
        params = module_params(module)
        _, many = trainers(module)
        total = vectorised_partial_sum(
            params=params,
            bound=Clip(l2_clip_norm=1.0),
            trainer=many,
            data=Users({}),
            user_ids=[],
            key=KEY,
        )
        assert total.num_users == 0 and tree.l2_norm(total.total) == 0


def steep(name, users_at_once=32, **changes):
    """A trainer whose local steps make much of little, on the grid, and its params."""
    module, shape = built(name)
    _, many = trainers(module, users_at_once, learning_rate=5.0, epochs=4, **changes)
    return many, module_params(module), cohort(shape)


class TestBatchInvariance:
    """What leaving a user out changes is what that user contributed, bit for bit."""

    BOUND = Rounded(bound=Clip(l2_clip_norm=0.2))

    def sum(self, trainer, params, users):
        total = vectorised_partial_sum(
            params=params,
            bound=self.BOUND,
            trainer=trainer,
            data=Users(users),
            user_ids=list(users),
            key=KEY,
        )
        return {n: np.asarray(a, np.int64) for n, a in total.total.items()}

    @pytest.mark.parametrize(
        ("users_at_once", "left_out"),
        [
            # One of every kind: u1 diverges, u9 raises, u7 has nothing, u6 more than it may use.
            (3, ("u0", "u1", "u6", "u7", "u9")),
            (32, ("u1", "u4", "u6", "u9")),
            pytest.param(32, None, marks=pytest.mark.slow),
            pytest.param(64, None, marks=pytest.mark.slow),
        ],
        ids=["3", "32", "32-everybody", "64-everybody"],
    )
    @pytest.mark.parametrize("name", MODELS)
    def test_the_sum_is_the_sum_of_single_users(self, name, users_at_once, left_out):
        many, params, users = steep(name, users_at_once)
        users["u1"] = ArrayExamples(users["u0"].x * 1e30, users["u0"].y)  # diverges
        users["u9"] = Hostile(users["u9"].x, users["u9"].y)  # raises
        whole = self.sum(many, params, users)
        for user in left_out or users:
            own = self.sum(many, params, {user: users[user]})
            rest = self.sum(many, params, {u: e for u, e in users.items() if u != user})
            for tensor in whole:
                np.testing.assert_array_equal(whole[tensor] - rest[tensor], own[tensor])
            assert tree.l2_norm(own) * self.BOUND.granularity <= 0.2

    @pytest.mark.parametrize("name", ["softmax_regression", "mlp"])
    def test_batch_invariant_users_are_trained_together(self, name, only_vectorised):
        many, params, users = steep(name)
        only_vectorised()
        assert any(np.any(tensor) for tensor in self.sum(many, params, users).values())
        assert set(many._batch_invariant.values()) == {True}

    def test_a_device_that_mixes_users_trains_them_one_by_one(self, monkeypatch, caplog):
        """Such a device is made up: the second half of a chunk is a last bit off."""
        together = VectorisedTrainer._together

        def mixing(self, start, works):
            local, well = together(self, start, works)
            for tensor in local.values():
                tensor[len(tensor) // 2 :] *= 1 + 2**-23
            return local, well

        monkeypatch.setattr(VectorisedTrainer, "_together", mixing)
        many, params, users = steep("mlp")
        with caplog.at_level(logging.WARNING):
            found = self.sum(many, params, users)
        assert (
            caplog.text.count("the batch moves a user's last bits")
            == len(many._batch_invariant)
            > 1
        )
        alone = as_work(many.alone).partial_sum(
            params=params,
            bound=self.BOUND,
            data=Users(users),
            user_ids=list(users),
            key=KEY,
        )
        for name, tensor in alone.total.items():
            np.testing.assert_array_equal(found[name], tensor)

    @pytest.mark.parametrize("slot", [0, 16, 31])
    def test_the_trial_sees_one_slot_that_is_off(self, slot):
        many, params, _ = steep("mlp")
        start = many.alone.start(params)

        def train(works):
            local = many._together(start, works)[0]
            local["0.bias"][slot, 0] *= 1 + 2**-22
            return local

        kind = (4, (12,), "float32", (), "int64")
        assert is_batch_invariant(lambda works: many._together(start, works)[0], kind, 32)
        assert not is_batch_invariant(train, kind, 32)

    def test_the_trial_sees_a_batch_that_leaks(self):
        many, params, _ = steep("mlp")
        start = many.alone.start(params)

        def train(works):
            local = many._together(start, works)[0]
            local["0.bias"] += 1e-6 * float(len({work.user for work in works}) > 1)
            return local

        assert not is_batch_invariant(train, (4, (12,), "float32", (), "int64"), 32)


class TestChoice:
    def task(self, module, **changes):
        return ModuleTask(
            name="t",
            module=lambda: module,
            loss=cross_entropy,
            users=cohort((12,), (3, 4)),
            **changes,
        )

    def trainer(self, task, **changes):
        return task.trainer(Schedule(learning_rate=0.1), {}, **changes)

    def test_the_cpu_trains_one_by_one_unless_asked(self):
        assert isinstance(self.trainer(self.task(mlp()[0])), ModuleTrainer)
        assert isinstance(self.trainer(self.task(mlp()[0], users_at_once=1)), ModuleTrainer)
        many = self.trainer(self.task(mlp()[0], users_at_once=16))
        assert isinstance(many, VectorisedTrainer) and many.users_at_once == 16

    @pytest.mark.parametrize("number", [0, -1, True])
    def test_a_senseless_number_is_refused(self, number):
        with pytest.raises(ValueError, match="users_at_once"):
            self.task(mlp()[0], users_at_once=number)
        alone, _ = trainers(mlp()[0])
        with pytest.raises(ValueError, match="users_at_once"):
            VectorisedTrainer(alone=alone, users_at_once=number)

    def test_memory_decides_how_many_fit(self):
        module, shape = built("cnn")
        alone, _ = trainers(module, batch_size=8)
        x = examples_of(3, shape, seed=0).x
        few, many = (users_that_fit(alone, x, num_bytes) for num_bytes in (1 << 17, 1 << 18))
        assert 1 < few < many < 32
        assert users_that_fit(alone, x, 0) == 1
        assert users_that_fit(alone, x, 1 << 40) == 32
        larger, _ = trainers(module, batch_size=32)
        assert users_that_fit(larger, x, 1 << 18) < many
