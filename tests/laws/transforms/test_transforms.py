"""Laws of every transform: server optimisers, the checkpoint aggregates, and chains of them."""

from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.checkpoints.aggregates import ema, keeping, of_last, upa
from fedpriv.optimizers import (
    adagrad,
    adam,
    cyclic,
    ftrl,
    inverse_root,
    momentum,
    rmsprop,
    scheduled,
    sgd,
    stepwise,
    yogi,
)
from fedpriv.runs.folder import RunFolder
from fedpriv.training.algorithm import ArrayState
from fedpriv.transform import chain, identity
from tests.harness.refusals import refuses
from tests.laws.transforms.stepping import SHAPES, copied, run, trees
from tests.privacy.costing import cohort_plan


def median(past):
    return {name: np.median([one[name] for one in past], axis=0) for name in past[0]}


EVERY = {
    "identity": identity,
    "sgd": lambda: sgd(1.0),
    "sgd-half": lambda: sgd(0.5),
    "momentum": lambda: momentum(0.7, 0.9, ema=False),
    "ema-momentum": lambda: momentum(1.0, 0.9, ema=True),
    "adam": lambda: adam(0.01, 1e-5),
    "yogi": lambda: yogi(0.1, 1e-3),
    "adagrad": lambda: adagrad(0.1, 1e-3),
    "adagrad-momentum": lambda: adagrad(0.1, 1e-3, 0.9),
    "rmsprop": lambda: rmsprop(0.1, 1e-3),
    "scheduled-step": lambda: scheduled(stepwise(4)),
    "scheduled-cyclic": lambda: chain(adam(0.1), scheduled(cyclic(6))),
    "scheduled-root": lambda: chain(sgd(0.5), scheduled(inverse_root())),
    "ema": lambda: ema(0.9),
    "ema-warm": lambda: ema(0.99, warmup=True),
    "upa": lambda: upa(3),
    "upa-one": lambda: upa(1),
    "own": lambda: of_last(4, median),
    "keeping": lambda: keeping(2),
    "chain": lambda: chain(momentum(1.0, 0.9, ema=True), adam(0.01), sgd(0.5)),
    "chain-of-chains": lambda: chain(chain(adam(0.1), adam(0.2)), identity(), yogi()),
}
AGGREGATES = ("ema", "ema-warm", "upa", "upa-one", "own", "keeping")
every = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)


def same(left, right):
    if isinstance(left, dict):
        return set(left) == set(right) and all(same(left[n], right[n]) for n in left)
    return left.dtype == right.dtype and left.shape == right.shape and np.array_equal(left, right)


class StubLedger:
    """A ledger that has everything that is asked for."""

    head = "0" * 64
    last_attempt, charges = 1, 9
    plan = cohort_plan(num_users=5, expected_cohort_size=1, num_rounds=9)
    state = SimpleNamespace(number_of=lambda round_num, attempt: round_num, releases=())

    def resume(self):
        pass

    def release(self, round_num, attempt, digest):
        assert len(digest) == 64

    def reached(self, round_num, attempt):
        return True

    def release_of(self, round_num, attempt):
        return None

    def knows(self, head):
        return True


class TestEvery:
    @every
    def test_the_same_arguments_give_the_same_results(self, make):
        params, *updates = trees(0, 5)
        first, second = run(make(), params, updates), run(make(), params, updates)
        assert all(same(a, b) for a, b in zip(first[0], second[0], strict=True))
        assert same(first[1], second[1])

    @every
    def test_one_transform_may_run_twice_at_once(self, make):
        """No state hides inside: interleaved runs do not hear of each other."""
        transform = make()
        (p1, *u1), (p2, *u2) = trees(1, 4), trees(2, 4)
        alone = run(transform, p1, u1), run(transform, p2, u2)
        states = [transform.init(copied(p1)), transform.init(copied(p2))]
        for step in range(3):
            for i, updates in enumerate((u1, u2)):
                out, states[i] = transform.next(copied(updates[step]), states[i])
                assert same(copied(out), alone[i][0][step])

    @every
    def test_giving_arrays_up_changes_no_result(self, make):
        params, *updates = trees(3, 6)
        kept, given = (run(make(), params, updates, copies) for copies in (True, False))
        assert all(same(a, b) for a, b in zip(kept[0], given[0], strict=True))
        assert same(kept[1], given[1])

    @every
    def test_float32_names_and_shapes_are_kept(self, make):
        params, *updates = trees(4, 4)
        outputs, _ = run(make(), params, updates)
        for out in outputs:
            assert {n: (t.shape, t.dtype) for n, t in out.items()} == {
                n: (s, np.dtype(np.float32)) for n, s in SHAPES.items()
            }

    @every
    def test_init_only_reads_the_params(self, make):
        params, *updates = trees(5, 4)
        before, transform = copied(params), make()
        state = transform.init(params)
        for update in updates:
            _, state = transform.next(update, state)
        assert same(params, before)

    @every
    def test_zero_updates_and_extremes_stay_finite(self, make):
        params = trees(7, 1)[0]
        for size in (0.0, 1e-30, 1e-20, 1e15):
            updates = [{n: t * np.float32(size) for n, t in u.items()} for u in trees(8, 4)]
            outputs, _ = run(make(), params, updates)
            assert all(np.isfinite(t).all() for out in outputs for t in out.values())

    @every
    @pytest.mark.parametrize("steps", [0, 1, 3])
    def test_state_survives_the_run_folder_and_goes_on_as_if_never_stored(
        self, make, steps, tmp_path
    ):
        transform, average = make(), ema(0.5)
        params, *updates = trees(9, steps + 3)
        _, state = run(transform, params, updates[:steps])
        averaged = run(average, params, updates[:2])[1]
        kept = ArrayState(
            round_num=steps,
            params=params,
            memory={"optimizer": state, "aggregate": averaged},
            numbers={"update_norm": 0.1 + 0.2},
        )
        first = ArrayState(
            params=trees(15, 1)[0],
            memory={"optimizer": transform.init(copied(params)), "aggregate": average.init(params)},
            numbers={"update_norm": 0.0},
        )
        RunFolder(tmp_path, StubLedger(), {}).keep(kept)
        again = RunFolder(tmp_path, StubLedger(), {})
        found = again.resume(first)
        assert same(found.params, kept.params) and same(found.memory["optimizer"], state)
        assert same(found.memory["aggregate"], averaged)
        assert (found.round_num, found.numbers) == (steps, kept.numbers)
        again = found.memory["optimizer"]
        for update in updates[steps:]:
            a, state = transform.next(copied(update), copied(state))
            b, again = transform.next(copied(update), again)
            assert same(copied(a), copied(b))


class TestDegenerate:
    """Settings under which one transform is another, exactly."""

    def same_runs(self, left, right, number=5):
        params, *updates = trees(10, number)
        a, b = run(left, params, updates)[0], run(right, params, updates)[0]
        return all(same(x, y) for x, y in zip(a, b, strict=True))

    @pytest.mark.parametrize("rate", [1.0, 0.5, 0.3])
    @pytest.mark.parametrize("moving", [True, False])
    def test_momentum_zero_is_sgd(self, rate, moving):
        assert self.same_runs(momentum(rate, 0.0, ema=moving), sgd(rate))
        assert not self.same_runs(momentum(rate, 0.1, ema=moving), sgd(rate))

    def test_rate_one_is_the_identity(self):
        assert self.same_runs(sgd(1.0), identity())
        assert not self.same_runs(sgd(0.999), identity())

    @every
    def test_a_chain_with_identities_is_itself(self, make):
        for wrapped in (chain(make()), chain(identity(), make()), chain(make(), identity())):
            assert self.same_runs(wrapped, make())
        assert self.same_runs(chain(), identity())

    def test_chains_apply_in_order(self):
        params, *updates = trees(12, 5)
        found = run(chain(adam(0.1), momentum(1.0, 0.5, ema=False)), params, updates)[0]
        inner = run(adam(0.1), params, updates)[0]
        outer = run(momentum(1.0, 0.5, ema=False), params, inner)[0]
        assert all(same(a, b) for a, b in zip(found, outer, strict=True))
        other = run(chain(momentum(1.0, 0.5, ema=False), adam(0.1)), params, updates)[0]
        assert not all(same(a, b) for a, b in zip(found, other, strict=True))

    def test_a_schedule_of_one_is_the_identity(self):
        assert self.same_runs(scheduled(lambda step: 1.0), identity())
        assert not self.same_runs(scheduled(lambda step: 0.999), identity())

    @given(st.floats(0.01, 100))
    def test_adaptive_steps_ignore_the_scale_of_the_gradient(self, factor):
        params, *updates = trees(14, 4)
        scaled = [{n: t * np.float32(factor) for n, t in u.items()} for u in updates]
        a, b = (run(adam(1.0, 1e-12), params, u)[0] for u in (updates, scaled))
        for x, y in zip(a, b, strict=True):
            for name in SHAPES:
                np.testing.assert_allclose(x[name], y[name], rtol=1e-4)


class TestAggregates:
    """Guarantees beyond those of transforms: they only read, and nothing of theirs changes."""

    @pytest.mark.parametrize("name", AGGREGATES)
    def test_params_are_read_and_what_was_returned_stays(self, name):
        aggregate = EVERY[name]()
        params, *others = trees(16, 6)
        state, kept = aggregate.init(params), []
        for newest in others:
            given = copied(newest)
            out, state = aggregate.next(newest, state)
            assert same(newest, given)
            kept.append((out, copied(out), state, copied(state)))
        for out, before, state, state_before in kept:
            assert same(out, before) and same(state, state_before)

    @pytest.mark.parametrize("name", AGGREGATES)
    def test_the_state_has_one_form_and_size_from_the_start(self, name):
        aggregate = EVERY[name]()
        params, *others = trees(17, 9)
        state = aggregate.init(params)
        form = _form(state)
        for newest in others:
            _, state = aggregate.next(newest, state)
            assert _form(state) == form

    @pytest.mark.parametrize("name", [name for name in AGGREGATES if name != "keeping"])
    def test_the_state_holds_what_is_returned(self, name):
        params, *others = trees(18, 5)
        outputs, state = run(EVERY[name](), params, others)
        assert same(state["average"], outputs[-1])

    @pytest.mark.parametrize("name", AGGREGATES)
    def test_params_that_do_not_move_are_their_own_aggregate(self, name):
        params = trees(19, 1)[0]
        outputs, _ = run(EVERY[name](), params, [params] * 6)
        assert all(same(out, params) for out in outputs)

    @pytest.mark.parametrize("name", AGGREGATES)
    def test_an_average_lies_between_the_params(self, name):
        params, *others = trees(20, 8)
        outputs, _ = run(EVERY[name](), params, others)
        for number, out in enumerate(outputs, start=1):
            for tensor, array in out.items():
                seen = np.stack([tree[tensor] for tree in [params, *others[:number]]])
                assert (array >= seen.min(axis=0) - 1e-6).all()
                assert (array <= seen.max(axis=0) + 1e-6).all()


def _form(state):
    return {(n, t): (a.shape, a.dtype) for n, tree in state.items() for t, a in tree.items()}


#: Settings that are refused: of each the makers that take it, and its values.
REFUSED = {
    "rate": (
        [sgd, adam, yogi, adagrad, rmsprop, lambda rate: momentum(rate, 0.9, ema=True)],
        [0.0, -1.0, np.nan, np.inf],
    ),
    "weight of the past": (
        [
            lambda decay: momentum(1.0, decay, ema=True),
            lambda decay: adam(1.0, 1e-8, beta1=decay),
            lambda decay: adam(1.0, 1e-8, beta2=decay),
            lambda decay: yogi(1.0, 1e-3, beta1=decay),
            lambda decay: yogi(1.0, 1e-3, beta2=decay),
            lambda decay: adagrad(1.0, 1e-3, beta1=decay),
            lambda decay: rmsprop(1.0, 1e-3, decay=decay),
            ema,
        ],
        [-0.1, 1.0, 1.5, np.nan],
    ),
    "adaptivity": (
        [partial(make, 1.0) for make in (adam, yogi, adagrad, rmsprop)],
        [0.0, -1e-8, np.nan, np.inf],
    ),
    "restart": ([lambda restart: ftrl(restart=restart)], [0, -1, 1.5]),
}


@pytest.mark.parametrize(("makers", "values"), REFUSED.values(), ids=REFUSED)
def test_settings_out_of_range_are_named(makers, values):
    for make, value in product(makers, values):
        with refuses(ValueError, value):
            make(value)


@pytest.mark.parametrize("make", [adam, yogi, adagrad, rmsprop, lambda: scheduled(inverse_root())])
def test_steps_are_counted_beyond_what_float32_holds(make):
    transform, params = make(), {"w": np.zeros(2, np.float32)}
    state = transform.init(params)
    state = state | {"count": {"steps": np.array(2**24, state["count"]["steps"].dtype)}}
    for _ in range(2):
        _, state = transform.next({"w": np.ones(2, np.float32)}, state)
    assert state["count"]["steps"] == 2**24 + 2
