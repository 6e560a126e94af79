"""The fused training of one user, against the same SGD written with dense NumPy arrays."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv import tree
from fedpriv.datasets.stackexchange.tag_view import TagExamples
from fedpriv.kernels.sparse_softmax import softmax_residual, train
from fedpriv.rng import Key
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.softmax import CompiledSoftmaxTrainer

WORDS, CLASSES = 40, 6
_rng = np.random.default_rng(0)
KERNEL = _rng.normal(size=(WORDS, CLASSES)).astype(np.float32)
BIAS = _rng.normal(size=CLASSES).astype(np.float32)
MULTIPLIER = (10.0 ** _rng.uniform(-1, 1.3, WORDS)).astype(np.float32)
NONE = np.empty(0, np.float32)


def arrays(number, seed=0, widest=5, dtype=np.uint16):
    """The arrays of a random user; about a fifth of its examples have no word."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, widest, number)
    words = [np.sort(rng.choice(WORDS // 2, size, replace=False)) for size in sizes]
    return {
        "indptr": np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        "indices": np.concatenate([*words, []]).astype(np.int32),
        "counts": rng.integers(1, 5, int(sizes.sum())).astype(dtype),
        "labels": rng.integers(0, CLASSES, number).astype(np.int32),
    }


def trained(user, order, starts, **changes):
    """Call the kernel by names, of a block of one user."""
    arguments = {
        "order": np.asarray(order, np.int64), "ends": np.array([0, len(order)]),
        "steps": np.asarray(starts, np.int64), "step_ends": np.array([0, len(starts)]),
        "unit_norm": False, "kernel": KERNEL, "bias": BIAS,
        "multiplier": NONE, "learning_rate": 0.7,
    }  # fmt: skip
    return train(*(user | arguments | changes).values())


def dense(found, num_words=WORDS):
    rows, _, change, [moved] = found
    assert not np.isnan(moved).any()
    kernel = np.zeros((num_words, change.shape[1]), np.float32)
    kernel[rows] = change
    return kernel, moved


def oracle(user, order, starts, *, unit_norm=False, multiplier=None, rate=0.7):
    """Plain SGD in float64 on dense arrays: the definition."""
    x = np.zeros((len(user["labels"]), WORDS))
    for row in range(len(x)):
        for at in range(user["indptr"][row], user["indptr"][row + 1]):
            x[row, user["indices"][at]] = user["counts"][at]
        length = np.sqrt((x[row] ** 2).sum()) if unit_norm else x[row].sum()
        x[row] /= length or 1.0
    kernel, bias = KERNEL.astype(np.float64), BIAS.astype(np.float64)
    factor = np.ones(WORDS) if multiplier is None else multiplier.astype(np.float64)
    for first, last in itertools.pairwise(starts):
        batch = np.asarray(order)[first:last]
        logits = x[batch] @ kernel + bias
        probs = np.exp(logits - logits.max(axis=1, keepdims=True))
        probs /= probs.sum(axis=1, keepdims=True)
        probs[np.arange(len(batch)), user["labels"][batch]] -= 1.0
        kernel = kernel - rate * factor[:, None] * (x[batch].T @ probs) / len(batch)
        bias = bias - rate * probs.mean(axis=0)
    return kernel - KERNEL, bias - BIAS


def assert_close(found, expected, tolerance=2e-6):
    for left, right in zip(found, expected, strict=True):
        scale = max(1.0, np.abs(right).max(initial=0.0))
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=tolerance * scale)


def tag_examples(user):
    number = len(user["labels"])
    return TagExamples(
        **user,
        num_tokens=np.ones(number, np.int32),
        tag_indptr=np.arange(number + 1, dtype=np.int64),
        tag_indices=user["labels"],
        num_words=WORDS,
        num_tags=CLASSES,
    )


class TestOracle:
    @given(
        number=st.integers(1, 25),
        seed=st.integers(0, 9999),
        batch=st.integers(1, 30),
        epochs=st.integers(1, 3),
        unit_norm=st.booleans(),
        preconditioned=st.booleans(),
        dtype=st.sampled_from([np.uint16, np.float32]),
    )
    def test_fused_is_dense(self, number, seed, batch, epochs, unit_norm, preconditioned, dtype):
        user = arrays(number, seed, dtype=dtype)
        rng = np.random.default_rng(seed)
        order = np.concatenate([rng.permutation(number) for _ in range(epochs)])
        starts = [e * number + at for e in range(epochs) for at in range(0, number, batch)]
        starts.append(epochs * number)
        multiplier = MULTIPLIER if preconditioned else None
        found = trained(
            user, order, starts, unit_norm=unit_norm,
            multiplier=NONE if multiplier is None else multiplier,
        )  # fmt: skip
        expected = oracle(user, order, starts, unit_norm=unit_norm, multiplier=multiplier)
        assert_close(dense(found), expected)
        rows, ends, change, moved = found
        assert np.abs(moved).max() > 0
        assert ends.tolist() == [0, len(rows)]
        assert rows.tolist() == sorted(set(user["indices"].tolist()))
        assert (rows.dtype, change.dtype, moved.dtype) == (np.int64, np.float32, np.float32)

    def test_a_count_of_zero_is_no_division_by_zero(self):
        user = arrays(4, 1) | {"counts": np.zeros(len(arrays(4, 1)["indices"]), np.uint16)}
        _, _, change, moved = trained(user, range(4), [0, 4])
        assert not change.any() and moved.any() and np.isfinite(moved).all()

    @pytest.mark.parametrize("spread", [0.0, 1.0, 30.0, 80.0, 90.0, 1e4, 1e30])
    def test_the_residual_is_softmax(self, spread):
        logits = (np.random.default_rng(1).uniform(-1, 1, 11) * spread).astype(np.float32)
        wanted = np.exp(logits.astype(np.float64) - logits.max())
        wanted /= wanted.sum()
        wanted[3] -= 1.0
        found = logits.copy()
        assert softmax_residual(found, 3, np.float32(-0.5)) == 0.0
        np.testing.assert_allclose(found, -0.5 * wanted, rtol=3e-7, atol=1e-7)
        assert abs(float(found.sum(dtype=np.float64))) < 1e-6

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("place", [0, 5, 10])
    def test_a_logit_that_is_not_finite_is_told(self, bad, place):
        logits = np.linspace(-1, 1, 11).astype(np.float32)
        logits[place] = bad
        assert softmax_residual(logits, 3, np.float32(-0.5)) != 0.0


class TestPaths:
    """The trainer reads some users in place and copies the chosen examples of others."""

    @pytest.mark.parametrize("inputs", ["tff", "unit-norm"])
    @pytest.mark.parametrize("multiplier", [None, MULTIPLIER], ids=["plain", "preconditioned"])
    @pytest.mark.parametrize("cap", [1, 7, 100])
    def test_every_dtype_of_counts_gives_the_same_bits(self, inputs, multiplier, cap):
        schedule = LocalSgd(learning_rate=0.9, batch_size=4, epochs=3, max_examples_per_user=cap)
        trainer = CompiledSoftmaxTrainer(schedule=schedule, inputs=inputs, multiplier=multiplier)
        params, user = {"kernel": KERNEL, "bias": BIAS}, arrays(30, 4)
        updates = []
        for dtype in (np.uint16, np.float32, np.uint8, np.int64, np.float64):
            made = tag_examples(user | {"counts": user["counts"].astype(dtype)})
            updates.append(trainer.train(params, NO_CONTEXT, made, Key.simulation(2)))
        for update in updates:
            np.testing.assert_array_equal(update["kernel"].rows, updates[0]["kernel"].rows)
            assert update["kernel"].values.tobytes() == updates[0]["kernel"].values.tobytes()
            assert update["bias"].tobytes() == updates[0]["bias"].tobytes()
        assert np.abs(updates[0]["bias"]).max() > 0

    @given(seed=st.integers(0, 9999), epochs=st.integers(1, 3))
    def test_only_chosen_examples_are_looked_at(self, seed, epochs):
        """The others may hold anything at all, in place and in a copy: work follows the cap."""
        schedule = LocalSgd(learning_rate=0.9, batch_size=3, epochs=epochs, max_examples_per_user=5)
        trainer, params = (
            CompiledSoftmaxTrainer(schedule=schedule),
            {"kernel": KERNEL, "bias": BIAS},
        )
        key, user = Key.simulation(seed), arrays(60, seed, dtype=np.float32)
        chosen = schedule.choose(60, key.generator())
        poisoned = {name: array.copy() for name, array in user.items()}
        for example in set(range(60)) - set(chosen.tolist()):
            words = slice(*user["indptr"][example : example + 2])
            poisoned["indices"][words] = -(10**9)
            poisoned["counts"][words] = np.nan
            poisoned["labels"][example] = 10**9
        assert not np.array_equal(poisoned["labels"], user["labels"])
        for dtype in (np.float32, np.float64):
            clean, found = (
                trainer.train(
                    params, NO_CONTEXT, tag_examples(u | {"counts": u["counts"].astype(dtype)}), key
                )
                for u in (user, poisoned)
            )
            for name in params:
                left, right = (tree.to_dense(update)[name] for update in (clean, found))
                assert left.tobytes() == right.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["kernel", "bias", "counts"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])  # read in place, and copied
def test_what_is_not_finite_is_refused(bad, name, dtype):
    user = {key: array.copy() for key, array in arrays(8, 5, dtype=dtype).items()}
    params = {"kernel": KERNEL.copy(), "bias": BIAS.copy()}
    at = (int(user["indices"][0]), 1) if name == "kernel" else (1,)
    (user | params)[name][at] = bad
    trainer = CompiledSoftmaxTrainer(schedule=LocalSgd(learning_rate=0.5))
    with pytest.raises(ValueError):
        trainer.train(params, NO_CONTEXT, tag_examples(user), Key.simulation(0))
