"""Laws of every transform: server optimisers, the checkpoint aggregates, and chains of them."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.checkpoints.aggregates import ema
from fedpriv.checkpoints.store import CheckpointStore
from fedpriv.optimizers import (
    adagrad,
    adam,
    cyclic,
    inverse_root,
    momentum,
    rmsprop,
    scheduled,
    sgd,
    stepwise,
    yogi,
)
from fedpriv.privacy.plans.cohort_plan import cohort_plan
from fedpriv.running.folder import RunFolder
from fedpriv.training.federated_averaging import ServerState
from fedpriv.transform import Transform, chain, identity

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
    "chain": lambda: chain(momentum(1.0, 0.9, ema=True), adam(0.01), sgd(0.5)),
    "chain-of-chains": lambda: chain(chain(adam(0.1), adam(0.2)), identity(), yogi()),
}
every = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
SHAPES = {"kernel": (4, 3), "bias": (3,), "layer.0/weight": (2, 1, 2)}


def trees(seed, number):
    rng = np.random.default_rng(seed)
    return [
        {n: rng.normal(size=s).astype(np.float32) for n, s in SHAPES.items()} for _ in range(number)
    ]


def copied(value):
    if isinstance(value, dict):
        return {name: copied(inner) for name, inner in value.items()}
    return np.array(value)


def run(transform: Transform, params, updates, copies=True):
    """All outputs and the last state; arguments are given up, as in a real run, or copied."""
    state = transform.init(copied(params))
    outputs = []
    for update in updates:
        given = (copied(update), copied(state) if copies else state)
        out, state = transform.next(*given)
        outputs.append(copied(out))
    return outputs, state


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

    has_release = reached

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
        params = trees(5, 1)[0]
        before = copied(params)
        transform = make()
        state = transform.init(params)
        for update in trees(6, 3):
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
        kept = ServerState(
            round_num=steps,
            params=params,
            optimizer=state,
            aggregate=run(average, params, updates[:2])[1],
            update_norm=0.1 + 0.2,
        )
        first = ServerState(
            round_num=0,
            params=trees(15, 1)[0],
            optimizer=transform.init(copied(params)),
            aggregate=average.init(params),
        )
        RunFolder(tmp_path, StubLedger(), CheckpointStore(tmp_path / "c"), {}).keep(kept)
        again = RunFolder(tmp_path, StubLedger(), CheckpointStore(tmp_path / "c"), {})
        found = again.resume(first)
        assert same(found.params, kept.params) and same(found.optimizer, kept.optimizer)
        assert same(found.aggregate, kept.aggregate)
        assert (found.round_num, found.update_norm) == (steps, 0.1 + 0.2)
        for update in updates[steps:]:
            a, state = transform.next(copied(update), copied(state))
            b, again = transform.next(copied(update), found.optimizer)
            found = ServerState(round_num=0, params=params, optimizer=again, aggregate={})
            assert same(copied(a), copied(b))


class TestGolden:
    """Vectors of the design notes, recomputed by hand in float64 there."""

    def sequence(self, transform, values):
        updates = [{"w": np.array(v, np.float32)} for v in values]
        return [
            out["w"]
            for out in run(transform, {"w": np.zeros(len(values[0]), np.float32)}, updates)[0]
        ]

    def test_dp_adam(self):
        # g = -update: gradients [.2, -.4], [.1, .3]; α = .01, ε_s = 1e-5 outside the root.
        steps = self.sequence(adam(0.01, 1e-5), [[-0.2, 0.4], [-0.1, -0.3]])
        np.testing.assert_allclose(steps[0], [-0.0099995, 0.00999975], rtol=1e-5)
        np.testing.assert_allclose(steps[0] / -0.01, [0.99995, -0.999975], rtol=1e-5)
        np.testing.assert_allclose(steps[1] / -0.01, [0.932121, -0.089322], rtol=2e-5)
        np.testing.assert_allclose(sum(steps), [-0.019321, 0.010893], rtol=5e-5)

    def test_adam_state(self):
        params = {"w": np.zeros(2, np.float32)}
        _, state = run(
            adam(0.01, 1e-5),
            params,
            [{"w": np.array(g, np.float32)} for g in ([0.2, -0.4], [0.1, 0.3])],
        )
        np.testing.assert_allclose(state["first"]["w"], [0.028, -0.006], rtol=1e-5)
        np.testing.assert_allclose(
            state["second"]["w"] / (1 - 0.999**2), [0.024992, 0.124982], rtol=1e-4
        )

    def test_server_momentum_as_moving_average(self):
        steps = self.sequence(momentum(1.0, 0.9, ema=True), [[1.0], [1.0], [-1.0], [2.0]])
        np.testing.assert_allclose(np.ravel(steps), [0.1, 0.19, 0.071, 0.2639], rtol=1e-6)
        np.testing.assert_allclose(np.cumsum(steps), [0.1, 0.29, 0.361, 0.6249], rtol=1e-6)

    def test_server_momentum_classic(self):
        steps = self.sequence(momentum(0.5, 0.9, ema=False), [[1.0], [1.0], [-1.0], [2.0]])
        np.testing.assert_allclose(np.ravel(steps), [0.5, 0.95, 0.355, 1.3195], rtol=1e-6)

    def test_adagrad(self):
        # A after the public gradients [1,.1], [2,0], [0,.2] is √v = [1,.1], [2.236068,.1], ...
        steps = self.sequence(adagrad(1.0, 1e-9), [[1.0, 0.1], [2.0, 0.0], [0.0, 0.2]])
        np.testing.assert_allclose(
            steps, [[1, 1], [2 / 2.236068, 0], [0, 0.2 / 0.223607]], rtol=1e-5, atol=1e-12
        )

    def test_dp_rmsprop(self):
        # The same gradients as DP-Adam's, α = .01, ε_s = 1e-5: u = g/(√v + ε_s), w = -α Σ u.
        steps = self.sequence(rmsprop(0.01, 1e-5), [[-0.2, 0.4], [-0.1, -0.3]])
        np.testing.assert_allclose(steps[0] / -0.01, [3.161778, -3.162028], rtol=2e-6)
        np.testing.assert_allclose(steps[1] / -0.01, [1.474202, 1.961033], rtol=2e-6)
        np.testing.assert_allclose(sum(steps), [-0.04636, 0.01201], rtol=1e-4)

    def test_rmsprop_state(self):
        _, state = run(
            rmsprop(0.01, 1e-5),
            {"w": np.zeros(2, np.float32)},
            [{"w": np.array(g, np.float32)} for g in ([0.2, -0.4], [0.1, 0.3])],
        )
        np.testing.assert_allclose(state["second"]["w"], [0.0046, 0.0234], rtol=1e-6)

    def test_yogi(self):
        steps = self.sequence(yogi(1.0, 0.1, beta1=0.5, beta2=0.5), [[1.0], [0.5], [-2.0]])
        m = v = 0.0
        for found, g in zip(steps, [1.0, 0.5, -2.0], strict=True):
            m = 0.5 * m + 0.5 * g
            v = v - 0.5 * g * g * np.sign(v - g * g)
            np.testing.assert_allclose(found, [m / (np.sqrt(v) + 0.1)], rtol=1e-6)

    def test_ema_of_checkpoints(self):
        out, state = None, ema(0.9).init({"w": np.zeros(1, np.float32)})
        for value, expected in ((1.0, 0.1), (1.0, 0.19), (-1.0, 0.071), (2.0, 0.2639)):
            out, state = ema(0.9).next({"w": np.array([value], np.float32)}, state)
            np.testing.assert_allclose(out["w"], [expected], rtol=1e-6)

    @pytest.mark.parametrize(
        ("make", "reference"),
        [
            (lambda: adam(0.3, 1e-4, 0.8, 0.95), "adam"),
            (lambda: adagrad(0.3, 1e-2), "adagrad"),
            (lambda: rmsprop(0.3, 1e-2, 0.8), "rmsprop"),
            (lambda: yogi(0.3, 1e-2, 0.8, 0.95), "yogi"),
        ],
    )
    def test_equals_a_plain_float64_loop(self, make, reference):
        params, *updates = trees(11, 12)
        outputs, _ = run(make(), params, updates)
        for name in SHAPES:
            m, v = np.zeros(SHAPES[name]), np.zeros(SHAPES[name])
            for t, (out, update) in enumerate(zip(outputs, updates, strict=True), 1):
                g = update[name].astype(np.float64)
                if reference == "adam":
                    m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2
                    step = 0.3 * m / (1 - 0.8**t) / (np.sqrt(v / (1 - 0.95**t)) + 1e-4)
                elif reference == "adagrad":
                    v = v + g**2
                    step = 0.3 * g / (np.sqrt(v) + 1e-2)
                elif reference == "rmsprop":
                    v = 0.8 * v + 0.2 * g**2
                    step = 0.3 * g / (np.sqrt(v) + 1e-2)
                else:
                    m = 0.8 * m + 0.2 * g
                    v = v - 0.05 * g**2 * np.sign(v - g**2)
                    step = 0.3 * m / (np.sqrt(v) + 1e-2)
                np.testing.assert_allclose(out[name], step, rtol=2e-4, atol=1e-6)


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

    def test_chains_apply_in_order(self):
        params, *updates = trees(12, 5)
        found = run(chain(adam(0.1), momentum(1.0, 0.5, ema=False)), params, updates)[0]
        inner = run(adam(0.1), params, updates)[0]
        outer = run(momentum(1.0, 0.5, ema=False), params, inner)[0]
        assert all(same(a, b) for a, b in zip(found, outer, strict=True))
        other = run(chain(momentum(1.0, 0.5, ema=False), adam(0.1)), params, updates)[0]
        assert not all(same(a, b) for a, b in zip(found, other, strict=True))

    def test_an_empty_chain_is_the_identity(self):
        assert self.same_runs(chain(), identity())

    def test_a_schedule_of_one_is_the_identity(self):
        assert self.same_runs(scheduled(lambda step: 1.0), identity())
        assert not self.same_runs(scheduled(lambda step: 0.999), identity())

    def test_ema_of_zero_is_the_newest(self):
        params, *others = trees(13, 4)
        outputs, _ = run(ema(0.0), params, others)
        for out, newest in zip(outputs, others, strict=True):
            for name in SHAPES:
                np.testing.assert_allclose(out[name], newest[name], rtol=1e-6, atol=1e-7)

    @given(st.floats(0.01, 100))
    def test_adaptive_steps_ignore_the_scale_of_the_gradient(self, factor):
        params, *updates = trees(14, 4)
        scaled = [{n: t * np.float32(factor) for n, t in u.items()} for u in updates]
        a, b = (run(adam(1.0, 1e-12), params, u)[0] for u in (updates, scaled))
        for x, y in zip(a, b, strict=True):
            for name in SHAPES:
                np.testing.assert_allclose(x[name], y[name], rtol=1e-4)


class TestSchedules:
    """Factors are of the step's number, from 1, whatever the step is."""

    def factors(self, factor, number):
        params, *_ = trees(0, 1)
        ones = [{n: np.ones_like(t) for n, t in params.items()} for _ in range(number)]
        return [float(out["bias"][0]) for out in run(scheduled(factor), params, ones)[0]]

    def test_the_first_step_is_number_one(self):
        asked = []
        self.factors(lambda step: asked.append(step) or 1.0, 3)
        assert asked == [1, 2, 3]

    def test_all_tensors_of_a_step_get_its_factor(self):
        params, *updates = trees(1, 3)
        for t, out in enumerate(run(scheduled(inverse_root()), params, updates)[0], 1):
            for name, update in updates[t - 1].items():
                np.testing.assert_allclose(out[name], update / np.sqrt(t), rtol=1e-6)

    def test_a_factor_scales_the_step_of_the_optimiser_before_it(self):
        params, *updates = trees(2, 5)
        plain = run(adam(0.1), params, updates)[0]
        found = run(chain(adam(0.1), scheduled(stepwise(4))), params, updates)[0]
        for t, (one, other) in enumerate(zip(plain, found, strict=True), 1):
            by = stepwise(4)(t)
            np.testing.assert_allclose(other["bias"], one["bias"] * by, rtol=1e-6)

    def test_stepwise(self):
        found = self.factors(stepwise(8), 10)
        np.testing.assert_allclose(found, [1] * 4 + [0.1] * 2 + [0.01] * 4, rtol=1e-6)
        found = self.factors(stepwise(3, share=0.5, at=(1 / 3,)), 3)
        np.testing.assert_allclose(found, [1, 0.5, 0.5])

    def test_cyclic_is_one_triangle(self):
        found = self.factors(cyclic(9, lowest=0.2), 9)
        np.testing.assert_allclose(found, [0.2, 0.4, 0.6, 0.8, 1, 0.8, 0.6, 0.4, 0.2], rtol=1e-6)
        assert self.factors(cyclic(1, lowest=0.2), 1) == [pytest.approx(0.2)]
        assert max(self.factors(cyclic(10), 10)) <= 1 and min(self.factors(cyclic(10), 10)) > 0

    def test_inverse_root(self):
        np.testing.assert_allclose(
            self.factors(inverse_root(), 4), [1, 1 / np.sqrt(2), 1 / np.sqrt(3), 0.5], rtol=1e-6
        )

    def test_its_number_counts_exactly_up_to_many_steps(self):
        """The count is kept as float32, which is exact up to 2^24 steps."""
        state = {"count": {"steps": np.array(1_000_000, np.float32)}}
        asked = []
        scheduled(lambda step: asked.append(step) or 1.0).next({}, state)
        assert asked == [1_000_001]


class TestRefusals:
    @pytest.mark.parametrize("rate", [0.0, -1.0, np.nan, np.inf])
    @pytest.mark.parametrize(
        "make", [sgd, adam, yogi, adagrad, rmsprop, lambda r: momentum(r, 0.9, ema=True)]
    )
    def test_learning_rates(self, make, rate):
        with pytest.raises(ValueError, match="server learning rate"):
            make(rate)

    @pytest.mark.parametrize("decay", [-0.1, 1.0, 1.5, np.nan])
    def test_weights_of_the_past(self, decay):
        for make in (
            lambda: momentum(1.0, decay, ema=True),
            lambda: adam(1.0, 1e-8, beta1=decay),
            lambda: adam(1.0, 1e-8, beta2=decay),
            lambda: yogi(1.0, 1e-3, beta1=decay),
            lambda: yogi(1.0, 1e-3, beta2=decay),
            lambda: adagrad(1.0, 1e-3, beta1=decay),
            lambda: rmsprop(1.0, 1e-3, decay=decay),
            lambda: ema(decay),
        ):
            with pytest.raises(ValueError, match="must be at least 0 and below 1"):
                make()

    @pytest.mark.parametrize("adaptivity", [0.0, -1e-8, np.nan, np.inf])
    def test_adaptivity(self, adaptivity):
        for make in (adam, yogi, adagrad, rmsprop):
            with pytest.raises(ValueError, match="adaptivity"):
                make(1.0, adaptivity)
