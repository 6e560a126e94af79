"""Laws of every transform: server optimisers, the checkpoint aggregates, and chains of them."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.checkpoints.aggregates import Average, MeanOutputs, OfLast, Uniform
from fedpriv.optimizers import (
    Adagrad,
    Adam,
    EmaMomentum,
    Ftrl,
    Momentum,
    Rmsprop,
    Scheduled,
    Sgd,
    Yogi,
    cyclic,
    inverse_root,
    stepwise,
)
from fedpriv.runs.folder import RunFolder
from fedpriv.training.algorithm import ArrayState
from fedpriv.transform import Chain, Identity
from tests.harness.refusals import refuses
from tests.laws.transforms.stepping import SHAPES, copied, run, trees
from tests.privacy.costing import cohort_plan


def median(past):
    return {name: np.median([one[name] for one in past], axis=0) for name in past[0]}


ADAM, EMA = Adam(learning_rate=0.1), Average(ema_decay=0.9)
EMA_MOMENTUM = EmaMomentum(learning_rate=1.0, momentum=0.9)
HALF = Sgd(learning_rate=0.5)


class AdagradMomentum(Adagrad):
    first_decay = 0.9


def chain(*transforms):
    return Chain(transforms=transforms)


EVERY = {
    "identity": Identity(),
    "sgd": Sgd(learning_rate=1.0),
    "sgd-half": HALF,
    "momentum": Momentum(learning_rate=0.7, momentum=0.9),
    "ema-momentum": EMA_MOMENTUM,
    "ftrl": Ftrl(learning_rate=0.7, restart=2),
    "adam": Adam(learning_rate=0.01, adaptivity=1e-5),
    "yogi": Yogi(adaptivity=1e-3),
    "adagrad": Adagrad(adaptivity=1e-3),
    "adagrad-momentum": AdagradMomentum(adaptivity=1e-3),
    "rmsprop": Rmsprop(adaptivity=1e-3),
    "scheduled-step": Scheduled(factor=stepwise(4)),
    "scheduled-cyclic": chain(ADAM, Scheduled(factor=cyclic(6))),
    "scheduled-root": chain(HALF, Scheduled(factor=inverse_root())),
    "ema": EMA,
    "ema-warm": Average(ema_decay=0.99, ema_warmup=True),
    "upa": Uniform(k=3),
    "upa-one": Uniform(k=1),
    "own": OfLast(k=4, function=median),
    "keeping": MeanOutputs(k=2),
    "chain": chain(EMA_MOMENTUM, Adam(learning_rate=0.01), HALF),
    "chain-of-chains": chain(
        chain(ADAM, Adam(learning_rate=0.2)), Identity(), Yogi(adaptivity=1e-3)
    ),
}
AGGREGATES = ("ema", "ema-warm", "upa", "upa-one", "own", "keeping")
every = pytest.mark.parametrize("transform", EVERY.values(), ids=EVERY)


def same(left, right):
    if isinstance(left, dict):
        return set(left) == set(right) and all(same(left[n], right[n]) for n in left)
    return left.dtype == right.dtype and left.shape == right.shape and np.array_equal(left, right)


class StubLedger:
    """A ledger that has everything that is asked for."""

    head = "0" * 64
    last_attempt, charges = 1, 9
    plan = cohort_plan(num_users=5, expected_cohort_size=1, num_rounds=9)
    state = SimpleNamespace(charged_before=(1,), releases=())

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
    def test_the_same_arguments_give_the_same_results(self, transform):
        params, *updates = trees(0, 5)
        first, second = run(transform, params, updates), run(transform, params, updates)
        assert all(same(a, b) for a, b in zip(first[0], second[0], strict=True))
        assert same(first[1], second[1])

    @every
    def test_one_transform_may_run_twice_at_once(self, transform):
        """No state hides inside: interleaved runs do not hear of each other."""
        (p1, *u1), (p2, *u2) = trees(1, 4), trees(2, 4)
        alone = run(transform, p1, u1), run(transform, p2, u2)
        states = [transform.init(copied(p1)), transform.init(copied(p2))]
        for step in range(3):
            for i, updates in enumerate((u1, u2)):
                out, states[i] = transform.next(copied(updates[step]), states[i])
                assert same(copied(out), alone[i][0][step])

    @every
    def test_giving_arrays_up_changes_no_result(self, transform):
        params, *updates = trees(3, 6)
        kept, given = (run(transform, params, updates, copies) for copies in (True, False))
        assert all(same(a, b) for a, b in zip(kept[0], given[0], strict=True))
        assert same(kept[1], given[1])

    @every
    def test_float32_names_and_shapes_are_kept(self, transform):
        params, *updates = trees(4, 4)
        outputs, _ = run(transform, params, updates)
        for out in outputs:
            assert {n: (t.shape, t.dtype) for n, t in out.items()} == {
                n: (s, np.dtype(np.float32)) for n, s in SHAPES.items()
            }

    @every
    def test_init_only_reads_the_params(self, transform):
        params, *updates = trees(5, 4)
        before = copied(params)
        state = transform.init(params)
        for update in updates:
            _, state = transform.next(update, state)
        assert same(params, before)

    @every
    def test_zero_updates_and_extremes_stay_finite(self, transform):
        params = trees(7, 1)[0]
        for size in (0.0, 1e-30, 1e-20, 1e15):
            updates = [{n: t * np.float32(size) for n, t in u.items()} for u in trees(8, 4)]
            outputs, _ = run(transform, params, updates)
            assert all(np.isfinite(t).all() for out in outputs for t in out.values())

    @every
    @pytest.mark.parametrize("steps", [0, 1, 3])
    def test_state_survives_the_run_folder_and_goes_on_as_if_never_stored(
        self, transform, steps, tmp_path
    ):
        average = Average(ema_decay=0.5)
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
        sgd, momentum = Sgd(learning_rate=rate), EmaMomentum if moving else Momentum
        assert self.same_runs(momentum(learning_rate=rate, momentum=0.0), sgd)
        assert not self.same_runs(momentum(learning_rate=rate, momentum=0.1), sgd)

    def test_rate_one_is_the_identity(self):
        assert self.same_runs(Sgd(learning_rate=1.0), Identity())
        assert not self.same_runs(Sgd(learning_rate=0.999), Identity())

    @every
    def test_a_chain_with_identities_is_itself(self, transform):
        for wrapped in (
            chain(transform), chain(Identity(), transform), chain(transform, Identity())
        ):  # fmt: skip
            assert self.same_runs(wrapped, transform)
        assert self.same_runs(chain(), Identity())

    def test_chains_apply_in_order(self):
        params, *updates = trees(12, 5)
        momentum = Momentum(learning_rate=1.0, momentum=0.5)
        found = run(chain(ADAM, momentum), params, updates)[0]
        inner = run(ADAM, params, updates)[0]
        outer = run(momentum, params, inner)[0]
        assert all(same(a, b) for a, b in zip(found, outer, strict=True))
        other = run(chain(momentum, ADAM), params, updates)[0]
        assert not all(same(a, b) for a, b in zip(found, other, strict=True))

    def test_a_schedule_of_one_is_the_identity(self):
        assert self.same_runs(Scheduled(factor=lambda step: 1.0), Identity())
        assert not self.same_runs(Scheduled(factor=lambda step: 0.999), Identity())

    @given(st.floats(0.01, 100))
    def test_adaptive_steps_ignore_the_scale_of_the_gradient(self, factor):
        params, *updates = trees(14, 4)
        scaled = [{n: t * np.float32(factor) for n, t in u.items()} for u in updates]
        adam = Adam(learning_rate=1.0, adaptivity=1e-12)
        a, b = (run(adam, params, u)[0] for u in (updates, scaled))
        for x, y in zip(a, b, strict=True):
            for name in SHAPES:
                np.testing.assert_allclose(x[name], y[name], rtol=1e-4)


class TestAggregates:
    """Guarantees beyond those of transforms: they only read, and nothing of theirs changes."""

    @pytest.mark.parametrize("name", AGGREGATES)
    def test_params_are_read_and_what_was_returned_stays(self, name):
        aggregate = EVERY[name]
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
        aggregate = EVERY[name]
        params, *others = trees(17, 9)
        state = aggregate.init(params)
        form = _form(state)
        for newest in others:
            _, state = aggregate.next(newest, state)
            assert _form(state) == form

    @pytest.mark.parametrize("name", [name for name in AGGREGATES if name != "keeping"])
    def test_the_state_holds_what_is_returned(self, name):
        params, *others = trees(18, 5)
        outputs, state = run(EVERY[name], params, others)
        assert same(state["average"], outputs[-1])

    @pytest.mark.parametrize("name", AGGREGATES)
    def test_params_that_do_not_move_are_their_own_aggregate(self, name):
        params = trees(19, 1)[0]
        outputs, _ = run(EVERY[name], params, [params] * 6)
        assert all(same(out, params) for out in outputs)

    @pytest.mark.parametrize("name", AGGREGATES)
    def test_an_average_lies_between_the_params(self, name):
        params, *others = trees(20, 8)
        outputs, _ = run(EVERY[name], params, others)
        for number, out in enumerate(outputs, start=1):
            for tensor, array in out.items():
                seen = np.stack([tree[tensor] for tree in [params, *others[:number]]])
                assert (array >= seen.min(axis=0) - 1e-6).all()
                assert (array <= seen.max(axis=0) + 1e-6).all()


def _form(state):
    return {(n, t): (a.shape, a.dtype) for n, tree in state.items() for t, a in tree.items()}


#: Settings that are refused: of each the parts that take it, and its values.
REFUSED = {
    "learning_rate": (
        [Sgd, Adam, Yogi, Adagrad, Rmsprop, Momentum, EmaMomentum, Ftrl],
        [0.0, -1.0, np.nan, np.inf],
    ),
    "momentum": ([Momentum, EmaMomentum, Ftrl, Adam, Yogi], [-0.1, 1.0, 1.5, np.nan]),
    "ema_decay": ([Average], [-0.1, 1.0, 1.5, np.nan]),
    "adaptivity": ([Adam, Yogi, Adagrad, Rmsprop], [0.0, -1e-8, np.nan, np.inf]),
    "restart": ([Ftrl], [0, -1, 1.5]),
}


@pytest.mark.parametrize(("name", "parts", "values"), [(n, *of) for n, of in REFUSED.items()])
def test_settings_out_of_range_are_named(name, parts, values):
    for part, value in product(parts, values):
        with refuses(ValueError, value):
            part(**{name: value})


@pytest.mark.parametrize(
    "transform", [Adam(), Yogi(), Adagrad(), Rmsprop(), Scheduled(factor=inverse_root())]
)
def test_steps_are_counted_beyond_what_float32_holds(transform):
    params = {"w": np.zeros(2, np.float32)}
    state = transform.init(params)
    state = state | {"count": {"steps": np.array(2**24, state["count"]["steps"].dtype)}}
    for _ in range(2):
        _, state = transform.next({"w": np.ones(2, np.float32)}, state)
    assert state["count"]["steps"] == 2**24 + 2
