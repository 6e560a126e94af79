"""What one user does: row-sparse training is dense training, and its work is capped."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from fedpriv import tree
from fedpriv.data.corpus.examples import TagExamples
from fedpriv.mechanisms import Clip
from fedpriv.models import SoftmaxRegression
from fedpriv.rng import Key
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.local.module import ArrayExamples, ModuleTrainer, check_module, module_params
from fedpriv.training.local.trainer import Schedule, SparseSoftmaxTrainer
from fedpriv.training.work import as_work
from fedpriv.tree import RowSparse

WORDS, TAGS = 30, 5
PARAMS = {
    "kernel": np.random.default_rng(0).normal(size=(WORDS, TAGS)).astype(np.float32),
    "bias": np.random.default_rng(1).normal(size=TAGS).astype(np.float32),
}


def make_examples(number, seed=0, words_each=4, empty=0.2):
    """Random examples; a share of them has no word of the vocabulary."""
    rng = np.random.default_rng(seed)
    rows = [
        np.sort(
            rng.choice(
                WORDS // 2,
                0 if rng.random() < empty else rng.integers(1, words_each),
                replace=False,
            )
        )
        for _ in range(number)
    ]
    counts = [rng.integers(1, 4, len(row)) for row in rows]
    indptr = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    labels = rng.integers(0, TAGS, number).astype(np.int32)
    return TagExamples(
        indptr=indptr,
        indices=np.concatenate([*rows, []]).astype(np.int32),
        counts=np.concatenate([*counts, []]).astype(np.uint16),
        num_tokens=np.array([c.sum() + rng.integers(1, 3) for c in counts], np.int32),
        labels=labels,
        tag_indptr=np.arange(number + 1, dtype=np.int64),
        tag_indices=labels,
        num_words=WORDS,
        num_tags=TAGS,
    )


def dense_inputs(examples, inputs):
    """The inputs by definition, without sparse arithmetic."""
    x = np.zeros((len(examples), WORDS))
    for row in range(len(examples)):
        for at in range(examples.indptr[row], examples.indptr[row + 1]):
            x[row, examples.indices[at]] = examples.counts[at]
        if inputs == "tff":
            x[row] /= max(x[row].sum(), 1)
        elif x[row].any():
            x[row] /= np.sqrt((x[row] ** 2).sum())
    return x


def dense_update(params, examples, schedule, key, inputs, multiplier=None):
    """Plain dense SGD by torch's autograd, float64, on the same batches."""
    rng = key.generator()
    chosen = schedule.choose(len(examples), rng)
    x = torch.from_numpy(dense_inputs(examples, inputs)[chosen])
    y = torch.from_numpy(examples.labels[chosen].astype(np.int64))
    kernel, bias = (
        torch.from_numpy(params[n].astype(np.float64)).requires_grad_() for n in ("kernel", "bias")
    )
    factor = 1.0 if multiplier is None else torch.from_numpy(multiplier.astype(np.float64))[:, None]
    for batch in schedule.batches(len(chosen), rng):
        loss = nn.functional.cross_entropy(x[batch] @ kernel + bias, y[batch])
        dk, db = torch.autograd.grad(loss, [kernel, bias])
        with torch.no_grad():
            kernel -= schedule.learning_rate * dk * factor
            bias -= schedule.learning_rate * db
    return {
        "kernel": kernel.detach().numpy() - params["kernel"],
        "bias": bias.detach().numpy() - params["bias"],
    }


def assert_close(found, expected, rtol=1e-4, atol=2e-6):
    for name in expected:
        np.testing.assert_allclose(tree.to_dense(found)[name], expected[name], rtol=rtol, atol=atol)


MULTIPLIER = (10.0 ** np.random.default_rng(2).uniform(-1, 1.3, WORDS)).astype(np.float32)


class TestRowSparseIsDense:
    @pytest.mark.parametrize("inputs", ["tff", "unit-norm"])
    @pytest.mark.parametrize("multiplier", [None, MULTIPLIER], ids=["plain", "preconditioned"])
    @pytest.mark.parametrize("epochs", [1, 3])
    @pytest.mark.parametrize("batch_size", [1, 4, 100])
    @pytest.mark.parametrize("number", [1, 3, 17])
    def test_equals_dense_autograd(self, inputs, multiplier, epochs, batch_size, number):
        schedule = Schedule(learning_rate=0.5, batch_size=batch_size, epochs=epochs)
        trainer = SparseSoftmaxTrainer(schedule=schedule, inputs=inputs, multiplier=multiplier)
        key, examples = Key.simulation(number), make_examples(number, seed=number)
        found = trainer.train(PARAMS, examples, key)
        assert_close(found, dense_update(PARAMS, examples, schedule, key, inputs, multiplier))

    @given(
        number=st.integers(1, 12),
        seed=st.integers(0, 999),
        batch=st.integers(1, 6),
        epochs=st.integers(1, 3),
        cap=st.integers(1, 12),
    )
    def test_equals_dense_autograd_for_any_user(self, number, seed, batch, epochs, cap):
        schedule = Schedule(learning_rate=0.3, batch_size=batch, epochs=epochs, max_examples=cap)
        key, examples = Key.simulation(seed), make_examples(number, seed, empty=0.5)
        trainer = SparseSoftmaxTrainer(schedule=schedule, multiplier=MULTIPLIER)
        found = trainer.train(PARAMS, examples, key)
        assert_close(found, dense_update(PARAMS, examples, schedule, key, "tff", MULTIPLIER))

    def test_a_user_without_a_word_of_the_vocabulary_still_teaches_the_bias(self):
        examples = make_examples(6, empty=1.0)
        schedule = Schedule(learning_rate=0.5, batch_size=4, epochs=2)
        for inputs in ("tff", "unit-norm"):
            trainer = SparseSoftmaxTrainer(schedule=schedule, inputs=inputs)
            found = trainer.train(PARAMS, examples, Key.simulation(0))
            expected = dense_update(PARAMS, examples, schedule, Key.simulation(0), inputs)
            assert_close(found, expected)
            assert not expected["kernel"].any() and np.abs(expected["bias"]).max() > 1e-3
            assert len(found["kernel"].rows) == 0

    def test_an_empty_user_is_zero_and_does_not_fail(self):
        trainer = SparseSoftmaxTrainer(schedule=Schedule(learning_rate=0.5), multiplier=MULTIPLIER)

        class Data:
            def examples(self, user_id):
                return make_examples(0 if user_id == "none" else 5)

        update = trainer.train(PARAMS, make_examples(0), Key.simulation(0))
        tree.check_like(PARAMS, update)
        assert tree.l2_norm(update) == 0.0
        results = [
            as_work(trainer).partial_sum(
                params=PARAMS,
                bound=Clip(l2_clip_norm=1.0),
                data=Data(),
                user_ids=users,
                key=Key.simulation(0),
            )
            for users in (["some"], ["none", "some"])
        ]
        assert results[1].num_failed == 0
        assert_close(results[1].real(), tree.to_dense(results[0].real()), rtol=0, atol=0)

    def test_only_own_rows_are_stored_and_they_are_sorted(self):
        examples = make_examples(9)
        update = SparseSoftmaxTrainer(schedule=Schedule(learning_rate=0.5)).train(
            PARAMS, examples, Key.simulation(0)
        )
        kernel = update["kernel"]
        assert isinstance(kernel, RowSparse) and kernel.validate() is kernel
        assert kernel.rows.tolist() == sorted(set(examples.indices.tolist()))
        assert kernel.dtype == update["bias"].dtype == np.float32

    def test_the_params_are_not_changed(self):
        before = {n: t.copy() for n, t in PARAMS.items()}
        read_only = {n: t.copy() for n, t in PARAMS.items()}
        for array in read_only.values():
            array.flags.writeable = False
        trainer = SparseSoftmaxTrainer(schedule=Schedule(learning_rate=5.0, epochs=3))
        trainer.train(read_only, make_examples(9), Key.simulation(0))
        trainer.train(PARAMS, make_examples(9), Key.simulation(0))
        for name in PARAMS:
            np.testing.assert_array_equal(PARAMS[name], before[name])

    def test_large_logits_stay_finite(self):
        params = {n: t * np.float32(1e4) for n, t in PARAMS.items()}
        update = SparseSoftmaxTrainer(schedule=Schedule(learning_rate=1e3, epochs=3)).train(
            params, make_examples(9), Key.simulation(0)
        )
        assert all(np.isfinite(array).all() for array in tree.to_dense(update).values())

    def test_the_same_through_a_prepared_corpus(self, tiny_corpus):
        view = tiny_corpus.view()
        params = {
            "kernel": np.zeros((len(view.words), len(view.tags)), np.float32),
            "bias": np.zeros(len(view.tags), np.float32),
        }
        schedule = Schedule(learning_rate=0.5, batch_size=5, epochs=2)
        for user in ("u00", "u07", "u58"):
            examples = view.examples(user)
            x = examples.features("tff").toarray().astype(np.float64)
            rng = Key.simulation(1).generator()
            chosen = schedule.choose(len(examples), rng)
            kernel, bias = np.zeros(params["kernel"].shape), np.zeros(len(view.tags))
            for batch in schedule.batches(len(chosen), rng):
                rows = chosen[batch]
                p = np.exp(x[rows] @ kernel + bias)
                p /= p.sum(axis=1, keepdims=True)
                p[np.arange(len(rows)), examples.labels[rows]] -= 1
                kernel -= 0.5 * x[rows].T @ p / len(rows)
                bias -= 0.5 * p.mean(axis=0)
            found = SparseSoftmaxTrainer(schedule=schedule).train(
                params, examples, Key.simulation(1)
            )
            assert_close(found, {"kernel": kernel, "bias": bias})


class Counted:
    """Examples that remember who was asked for."""

    def __init__(self, number):
        self.number, self.taken = number, []
        self.inner = make_examples(min(number, 2000), seed=4)

    def __len__(self):
        return self.number

    @property
    def labels(self):
        return self.inner.labels

    def take(self, index):
        self.taken.append(np.asarray(index))
        return self.inner.take(index)


class TestCap:
    def test_work_does_not_follow_the_size_of_a_user(self):
        schedule = Schedule(learning_rate=0.1, batch_size=8, epochs=2, max_examples=20)
        trainer = SparseSoftmaxTrainer(schedule=schedule)
        for number, steps in ((5, 2), (20, 6), (21, 6), (2000, 6)):
            examples = Counted(number)
            trainer.train(PARAMS, examples, Key.simulation(0))
            (taken,) = examples.taken
            assert len(taken) == len(set(taken.tolist())) == min(number, 20)
            batches = schedule.batches(len(taken), np.random.default_rng(0))
            assert len(batches) == steps and max(map(len, batches)) <= 8

    def test_every_epoch_visits_every_chosen_example_once(self):
        schedule = Schedule(learning_rate=0.1, batch_size=8, epochs=3, max_examples=30)
        steps = schedule.batches(30, np.random.default_rng(0))
        for epoch in range(3):
            seen = np.concatenate(steps[4 * epoch : 4 * epoch + 4])
            assert sorted(seen.tolist()) == list(range(30))
        assert [len(step) for step in steps] == [8, 8, 8, 6] * 3
        assert steps[4].tolist() != steps[8].tolist()

    def test_the_subset_is_new_at_every_participation_and_reaches_everybody(self):
        """400 participations of 20 of 50: each example's count is Binomial(400, 0.4); α = 1e-6."""
        schedule = Schedule(learning_rate=0.1, max_examples=20)
        root = Key.simulation(0).fold("users")
        subsets, counts = set(), np.zeros(50)
        for round_num in range(1, 401):
            rng = root.fold(round_num).fold(1).fold("u").generator()
            chosen = schedule.choose(50, rng)
            subsets.add(tuple(sorted(chosen.tolist())))
            counts[chosen] += 1
        assert len(subsets) == 400
        deviation = np.abs(counts - 160) / np.sqrt(400 * 0.4 * 0.6)
        assert deviation.max() < stats.norm.isf(1e-6 / 2 / 50)

    def test_the_same_key_takes_the_same_subset(self):
        examples = [Counted(500), Counted(500), Counted(500)]
        trainer = SparseSoftmaxTrainer(schedule=Schedule(learning_rate=0.1, max_examples=20))
        for each, seed in zip(examples, (0, 0, 1), strict=True):
            trainer.train(PARAMS, each, Key.simulation(seed))
        first, again, other = (each.taken[0].tolist() for each in examples)
        assert first == again != other

    @pytest.mark.parametrize("name", ["batch_size", "epochs", "max_examples"])
    @pytest.mark.parametrize("value", [0, -1, 1.5, None, True, "3"])
    def test_unfit_counts(self, name, value):
        with pytest.raises(ValueError, match=r"^\w+ .* (is not a whole number|must be at least 1)"):
            Schedule(learning_rate=0.1, **{name: value})

    @pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
    def test_unfit_learning_rates(self, value):
        with pytest.raises(ValueError, match="learning rate"):
            Schedule(learning_rate=value)


def cross_entropy(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


def arrays(number, seed=0):
    rng = np.random.default_rng(seed)
    return ArrayExamples(
        rng.normal(size=(number, 4)).astype(np.float32), rng.integers(0, 3, number)
    )


def trainer_of(module, **changes):
    schedule = Schedule(**{"learning_rate": 0.1, "batch_size": 4, "epochs": 2, **changes})
    return ModuleTrainer(module=module, loss=cross_entropy, schedule=schedule)


class Scaled(nn.Module):
    """A linear model with a float buffer that forward changes: it would carry users over."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("running", torch.zeros(4))

    def forward(self, x):
        with torch.no_grad():
            self.running += x.mean(dim=0)
        return self.linear(x + self.running)


class TestModuleTrainer:
    def test_the_bits_do_not_depend_on_torchs_threads(self):
        module = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 10))
        params, rng = module_params(module), np.random.default_rng(0)
        x = rng.normal(size=(256, 512)).astype(np.float32)
        trainer = trainer_of(module, learning_rate=0.5, batch_size=128)
        before, found = torch.get_num_threads(), []
        try:
            for threads in (1, 2, 4):
                torch.set_num_threads(threads)
                examples = ArrayExamples(x, np.arange(256) % 10)
                found.append(trainer.train(params, examples, Key.simulation(3)))
                assert torch.get_num_threads() == threads  # and are left as they were
        finally:
            torch.set_num_threads(before)
        for other in found[1:]:
            assert all(np.array_equal(other[name], found[0][name]) for name in params)

    @pytest.mark.parametrize("multiplier", [None, MULTIPLIER], ids=["plain", "preconditioned"])
    @pytest.mark.parametrize(("batch_size", "epochs"), [(100, 1), (100, 3), (4, 1), (4, 3)])
    @pytest.mark.parametrize("inputs", ["tff", "unit-norm"])
    def test_equals_the_sparse_trainer(self, multiplier, batch_size, epochs, inputs):
        examples = make_examples(13, seed=5)
        schedule = Schedule(learning_rate=0.5, batch_size=batch_size, epochs=epochs)
        dense = ArrayExamples(
            dense_inputs(examples, inputs).astype(np.float32), examples.labels.astype(np.int64)
        )
        sparse = SparseSoftmaxTrainer(schedule=schedule, inputs=inputs, multiplier=multiplier)
        module = ModuleTrainer(
            module=SoftmaxRegression(WORDS, TAGS),
            loss=cross_entropy,
            schedule=schedule,
            multiplier={} if multiplier is None else {"kernel": multiplier},
        )
        found = module.train(PARAMS, dense, Key.simulation(8))
        expected = sparse.train(PARAMS, examples, Key.simulation(8))
        assert set(found) == set(PARAMS)
        assert_close(found, tree.to_dense(expected))

    def test_the_key_decides_and_torchs_own_generator_is_left_alone(self):
        module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        params = module_params(module)
        trainer = trainer_of(module)
        torch.manual_seed(1)
        state = torch.get_rng_state()
        first = trainer.train(params, arrays(9), Key.simulation(0))
        assert torch.equal(torch.get_rng_state(), state)
        torch.manual_seed(2)
        second = trainer.train(params, arrays(9), Key.simulation(0))
        other = trainer.train(params, arrays(9), Key.simulation(1))
        for name in params:
            np.testing.assert_array_equal(first[name], second[name])
        assert not np.array_equal(first["0.weight"], other["0.weight"])

    def test_a_task_initialises_by_its_key_and_leaves_torchs_generator_alone(self):
        task = ModuleTask(
            name="t", module=lambda: nn.Linear(4, 3), loss=cross_entropy, users={"a": arrays(3)}
        )
        state = torch.get_rng_state()
        first, second, other = (task.init_params(Key.simulation(s)) for s in (0, 0, 1))
        assert torch.equal(torch.get_rng_state(), state)
        np.testing.assert_array_equal(first["weight"], second["weight"])
        assert not np.array_equal(first["weight"], other["weight"])

    @pytest.mark.parametrize(
        "make",
        [
            lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)),
            lambda: nn.Sequential(nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3)),
            Scaled,
        ],
    )
    def test_nobody_leaves_anything_behind_for_the_next_user(self, make):
        """The update of a user is the same whoever was trained before it, poisoned or not."""
        torch.manual_seed(0)
        module = make()
        params, trainer = module_params(module), trainer_of(module)
        alone = trainer.train(params, arrays(9, seed=1), Key.simulation(0))
        poisoned = ArrayExamples(np.full((5, 4), np.nan, np.float32), np.zeros(5, np.int64))
        for before in (arrays(20, seed=2), poisoned):
            trainer.train(params, before, Key.simulation(1))
            after = trainer.train(params, arrays(9, seed=1), Key.simulation(0))
            for name in params:
                np.testing.assert_array_equal(alone[name], after[name])
        wrong = ArrayExamples(np.ones((5, 3), np.float32), np.zeros(5, np.int64))
        with pytest.raises(RuntimeError):
            trainer.train(params, wrong, Key.simulation(1))
        after = trainer.train(params, arrays(9, seed=1), Key.simulation(0))
        for name in params:
            np.testing.assert_array_equal(alone[name], after[name])

    def test_params_are_not_changed_and_may_be_read_only(self):
        module = nn.Linear(4, 3)
        params = module_params(module)
        for array in params.values():
            array.flags.writeable = False
        before = {n: t.copy() for n, t in params.items()}
        update = trainer_of(module).train(params, arrays(9), Key.simulation(0))
        for name in params:
            np.testing.assert_array_equal(params[name], before[name])
            assert np.abs(update[name]).max() > 0

    def test_an_empty_user_is_zero(self):
        module = nn.Linear(4, 3)
        params = module_params(module)
        empty = ArrayExamples(np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
        update = trainer_of(module).train(params, empty, Key.simulation(0))
        tree.check_like(params, update)
        assert tree.l2_norm(update) == 0.0

    def test_frozen_and_unused_parameters(self):
        class Partly(nn.Module):
            def __init__(self):
                super().__init__()
                self.frozen, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
                self.idle = nn.Linear(2, 2)
                self.frozen.requires_grad_(False)

            def forward(self, x):
                return self.head(self.frozen(x))

        module = Partly()
        params = module_params(module)
        assert set(params) == {"head.weight", "head.bias", "idle.weight", "idle.bias"}
        frozen = module.frozen.weight.detach().clone()
        update = trainer_of(module).train(params, arrays(9), Key.simulation(0))
        assert torch.equal(module.frozen.weight, frozen)
        assert np.abs(update["head.weight"]).max() > 0 and not update["idle.weight"].any()

    @pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.SyncBatchNorm(4)])
    def test_batch_norm_is_refused_with_the_way_out(self, layer):
        with pytest.raises(ValueError, match=r"GroupNorm|LayerNorm"):
            check_module(nn.Sequential(nn.Linear(4, 4), layer))

    def test_instance_norm_that_keeps_statistics_is_refused_too(self):
        with pytest.raises(ValueError):
            check_module(
                nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True), nn.Linear(4, 3))
            )

    def test_integer_buffers_are_refused_with_the_way_out(self):
        module = nn.Linear(4, 3)
        module.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        with pytest.raises(ValueError, match=r"'steps'.*plain attribute"):
            check_module(module)
        with pytest.raises(ValueError, match="steps"):
            trainer_of(module)
        with pytest.raises(ValueError, match="steps"):
            ModuleTask(name="t", module=lambda: module, loss=cross_entropy, users={"a": arrays(3)})

    def test_parameters_must_be_float32_trainable_and_have_an_axis(self):
        with pytest.raises(ValueError, match=r"float\(\)"):
            check_module(nn.Linear(4, 3).double())
        with pytest.raises(ValueError, match="requires_grad"):
            check_module(nn.Linear(4, 3).requires_grad_(False))
        scalar = nn.Linear(4, 3)
        scalar.scale = nn.Parameter(torch.tensor(1.0))
        with pytest.raises(ValueError, match=r"'scale'.*shape \(1,\)"):
            check_module(scalar)

    def test_array_examples_must_match(self):
        with pytest.raises(ValueError, match="targets"):
            ArrayExamples(np.zeros((3, 2)), np.zeros(2))

    def test_unknown_users(self):
        task = ModuleTask(
            name="t", module=lambda: nn.Linear(4, 3), loss=cross_entropy, users={"a": arrays(3)}
        )
        with pytest.raises(ValueError, match="'b'"):
            task.data.examples("b")
        with pytest.raises(ValueError, match="no users"):
            ModuleTask(name="t", module=lambda: nn.Linear(4, 3), loss=cross_entropy, users={})
