"""Laws of the exact sum: whole numbers, whoever adds them up and in whatever order.

Everything goes through the real `bounded_sum`; the oracle is Python's integers.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv import tree
from fedpriv.backends import SerialBackend
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.mechanisms.bounds import WITHIN, bounded_factors
from fedpriv.mechanisms.gaussian import gaussian
from fedpriv.mechanisms.preconditioners import Preconditioning
from fedpriv.rng import Key
from fedpriv.runs.loop import rounds
from fedpriv.sums import BITS, RunningSum, merged
from fedpriv.training.bounded_sum import _bounded, template_with
from fedpriv.tree import RowSparse
from tests.laws.bounds.bounded import BOUNDS as EVERY_BOUND
from tests.laws.bounds.bounded import COLUMNS, PARAMS, ROWS, adaptive, make_plan, released

BOUNDS = {name: make for name, make in EVERY_BOUND.items() if "rounded" in name}
every_bound = pytest.mark.parametrize("make", BOUNDS.values(), ids=BOUNDS)
norms = st.floats(-6, 6).map(lambda exponent: 10.0**exponent)


def update_of(number, scale=1.0):
    """A user's synthetic update, dense or row-sparse, float32 or float64."""
    rng = np.random.default_rng(number)
    size = scale * 10.0 ** rng.uniform(-3, 3)
    dtype = (np.float32, np.float64)[int(rng.integers(2))]
    index = np.sort(rng.choice(ROWS, int(rng.integers(0, ROWS // 3)), replace=False))
    kernel = RowSparse(
        rows=index, values=(size * rng.normal(size=(len(index), COLUMNS))).astype(dtype),
        num_rows=ROWS,
    )  # fmt: skip
    if rng.integers(3) == 0:
        kernel = (size * rng.normal(size=(ROWS, COLUMNS))).astype(dtype)
    return {"kernel": kernel, "bias": (size * rng.normal(size=COLUMNS)).astype(np.float32)}


def summed(make, c, *given):
    return make.summed(c, *given)[0]


def template_of(make, c):
    return template_with(PARAMS, make(c), make.context(c).clip_norm)


def mixed(mixture, update):
    """own · Δ + offset; stored rows are added to the offset, in its dtype."""
    own, found = np.float32(mixture.own), {}
    for name, tensor in update.items():
        if isinstance(tensor, RowSparse):
            found[name] = mixture.offset[name].copy()
            found[name][tensor.rows] += own * tensor.values
        else:
            found[name] = own * tensor + mixture.offset[name]
    return found


def integers(make, c, updates):
    """The oracle: Σ rint(float64(v) * factor / granularity) in Python's integers."""
    bound, said, template = make(c), make.context(c), template_of(make, c)
    longest = bound.longest(sum(t.size for t in template.values()))
    total = {name: [0] * t.size for name, t in template.items()}
    for update in updates:
        if said.mixture is not None:
            update = mixed(said.mixture, update)
        update = tree.multiply(update, said.multiplier)
        norm = np.array([tree.l2_norm(update)])
        [factor], besides = _bounded(bound, norm, longest, said.clip_norm)
        parts = [(name, tensor, factor) for name, tensor in tree.to_dense(update).items()]
        parts += [(name, rows[0], 1.0) for name, rows in besides.items()]
        for name, tensor, times in parts:
            whole = np.rint(tensor.astype(np.float64).reshape(-1) * (times / bound.granularity))
            total[name] = [a + int(b) for a, b in zip(total[name], whole, strict=True)]
    return total


def as_ints(done):
    assert all(tree.to_dense_tensor(t).dtype.kind == "i" for t in done.total.values())
    return {n: tree.to_dense_tensor(t).reshape(-1).tolist() for n, t in done.total.items()}


def squared(whole):
    return sum(x * x for tensor in whole.values() for x in tensor)


cohorts = st.lists(st.integers(0, 10**6), min_size=1, max_size=9, unique=True)


class TestOrder:
    @every_bound
    @given(cohort=cohorts, c=norms, data=st.data())
    def test_neither_order_nor_workers_change_a_bit(self, make, cohort, c, data):
        updates = {f"u{number}": update_of(number, c) for number in cohort}
        expected = integers(make, c, updates.values())
        assert as_ints(summed(make, c, updates)) == expected
        order = data.draw(st.permutations(list(updates)))
        assert as_ints(summed(make, c, updates, order)) == expected
        worker_of = [data.draw(st.integers(0, 3)) for _ in order]
        shards = [
            [u for u, w in zip(order, worker_of, strict=True) if w == number] for number in range(4)
        ]
        parts = [summed(make, c, updates, shard) for shard in shards]
        parts = [part.compact() if data.draw(st.booleans()) else part for part in parts]
        found = merged(template_of(make, c), data.draw(st.permutations(parts)))
        assert as_ints(found) == expected
        assert (found.num_users, found.num_failed) == (len(order), 0)
        assert found.granularity == make(c).granularity

    @pytest.mark.parametrize("num_workers", [1, 2, 3, 7])
    def test_three_hundred_users(self, num_workers):
        """Beyond what an int32 holds, dealt to any number of workers."""
        make = BOUNDS["rounded-clip"]
        push = {**PARAMS, "bias": np.array([-1e9, 0, -1e9], np.float32)}
        updates = {f"u{i}": push if i % 3 else update_of(i) for i in range(300)}
        names = list(updates)
        parts = [summed(make, 0.25, updates, names[w::num_workers]) for w in range(num_workers)]
        expected = integers(make, 0.25, updates.values())
        assert max(map(abs, expected["bias"])) > 2**31
        assert as_ints(merged(PARAMS, parts)) == expected

    def test_float_sums_do_depend_on_the_order(self):
        """What the exact sum is for; if this fails, nothing above tells anything."""
        updates = {f"u{i}": update_of(i) for i in range(40)}
        make = EVERY_BOUND["clip"]
        one = summed(make, 1.0, updates).total
        other = summed(make, 1.0, updates, list(updates)[::-1]).total
        assert any(not np.array_equal(one[name], other[name]) for name in one)


class TestBound:
    @every_bound
    @given(number=st.integers(0, 10**6), c=norms, size=st.floats(-30, 30))
    def test_a_user_is_at_most_two_to_the_24_units_long(self, make, number, c, size):
        done = summed(make, c, {"u": update_of(number, c * 10.0**size)})
        assert done.num_failed == 0 and squared(as_ints(done)) <= 2 ** (2 * BITS)

    @every_bound
    @given(cohort=cohorts, c=norms)
    def test_one_user_moves_the_sum_by_no_more(self, make, cohort, c):
        updates = {f"u{n}": update_of(n, 1e4 * c) for n in cohort}
        done = summed(make, c, updates)
        assert done.num_failed == 0  # a sum drops who is too long, which is not the bound's doing
        everyone = as_ints(done)
        for left_out in updates:
            others = as_ints(summed(make, c, updates, [u for u in updates if u != left_out]))
            moved = {
                name: [a - b for a, b in zip(everyone[name], others[name], strict=True)]
                for name in everyone
            }
            assert squared(moved) <= 2 ** (2 * BITS)
            assert moved == as_ints(summed(make, c, updates, [left_out]))

    @pytest.mark.parametrize("c", [1e-9, 0.3, 1.0, 1e6])
    @pytest.mark.parametrize("num", [1, 2, 3, 16, 1000, 99_991, 1_000_000])
    def test_equal_coordinates_all_round_the_same_way(self, c, num):
        """The worst case: every one of d coordinates is rounded away from zero by half a step."""
        for value in (1.0, 1e-3, 1e30, 7e-41):
            self.assert_bounded(Rounded(bound=Clip(l2_clip_norm=c)), np.full(num, value * c))

    @staticmethod
    def assert_bounded(bound, values):
        running = RunningSum({"x": values}, bound.granularity)
        norm = np.array([tree.l2_norm({"x": values})])
        [factor] = bounded_factors(bound, norm, bound.longest(len(values)))
        running.add({"x": values}, float(factor))
        whole = running.result()["x"].astype(np.int64)
        # At most 2^48 by law, so that these squares fit; twice as long would too.
        assert int((whole * whole).sum()) <= 2 ** (2 * BITS)
        return whole

    @pytest.mark.parametrize("seed", range(20))
    def test_coordinates_that_lie_half_way(self, seed):
        """Whole numbers and a half, as long as they may be: as much rounding as there can be."""
        rng = np.random.default_rng(seed)
        bound = Rounded(bound=Clip(l2_clip_norm=1.0))
        num = int(rng.integers(100, 300_000))
        largest = min(bound.longest(num), 1.0 - 2.0**-22)
        size = int(largest / bound.granularity / math.sqrt(num))
        values = (rng.integers(max(0, size // 2), size + 1, num) * 2 - 1).clip(1) / 2.0
        values = np.where(rng.random(num) < 0.5, values, values + 1.0) * bound.granularity
        norm = float(np.sqrt((values**2).sum()))
        for stretch in (0.5, 1.0, 1.0 + 1e-12, 1.0 + 1e-7, 10.0):
            self.assert_bounded(bound, values * stretch * min(1.0, largest / norm))

    def test_the_longest_equal_coordinates_there_are(self):
        """d and k with d k² just above 2^48: where k fits only if rounding is forgotten."""
        bound, tried = Rounded(bound=Clip(l2_clip_norm=1.0)), 0
        for k in range(9000, 60_000, 7):
            num = -(-(2 ** (2 * BITS)) // (k * k))
            over = num * k * k - 2 ** (2 * BITS)
            if over * 2.0**-48 > 3e-8:
                continue
            whole = self.assert_bounded(bound, np.full(num, 1e9))
            assert k - 1 <= whole[0] < k
            tried += 1
            if tried == 5:
                break
        assert tried == 5

    @pytest.mark.parametrize("num", [1, 65, 66, 100, 4097])
    def test_what_comes_besides_is_rounded_too(self, num):
        """Half a step each, all outwards: d coordinates of an update, and one of the count."""
        bound = Rounded(bound=adaptive(1.0))
        template = template_with({"x": np.zeros(num, np.float32)}, bound, 1.0)
        longest = bound.longest(sum(t.size for t in template.values()))
        norms = np.array([1e-3, 1.0, 1e9])
        factors, besides = _bounded(bound, norms, longest, 1.0)
        length = np.hypot(factors * norms, besides[WITHIN][:, 0])
        assert (length + 0.5 * bound.granularity * math.sqrt(num + 1) <= 1.0).all()


class TestRelease:
    KEY = Key.simulation(3).fold("noise").fold(1).fold(1)
    UNIT = 0.37 * 2.0**-BITS

    def total(self, num_users=20):
        assert BOUNDS["rounded-clip"](0.37).granularity == self.UNIT
        updates = {f"u{i}": update_of(i) for i in range(num_users)}
        return summed(BOUNDS["rounded-clip"], 0.37, updates)

    @pytest.mark.parametrize("share", [7, 2.5, 64])
    @pytest.mark.parametrize("num_users", [0, 1, 20])
    def test_sum_and_noise_are_whole_numbers_of_the_granularity(self, num_users, share):
        plan = make_plan(l2_bound=0.37, expected_cohort_size=share)
        total = self.total(num_users)
        found = released(plan, total, self.KEY).params
        noise = gaussian(self.KEY, PARAMS, plan.live_mechanism.stddev)
        for name, tensor in tree.to_dense(total.total).items():
            whole = tensor.astype(np.int64) + np.rint(noise[name].astype(np.float64) / self.UNIT)
            expected = (whole * self.UNIT * (1.0 / share)).astype(np.float32)
            np.testing.assert_array_equal(found[name], expected)

    def test_large_sums_keep_their_digits(self):
        """300 users at the bound beside small noise: sums beyond int32 are released right."""
        wide = {n: np.full(t.shape, 300 * 2**BITS, np.int64) for n, t in PARAMS.items()}
        total = replace(self.total(), total=wide, num_users=300)
        found = released(make_plan(l2_bound=0.37, noise_multiplier=0.01), total, self.KEY)
        for tensor in found.params.values():
            np.testing.assert_allclose(tensor, 300 * 0.37 / 7, rtol=1e-3)

    def test_the_norm_is_that_of_the_mean(self):
        plan = make_plan(l2_bound=0.37)
        for inverse in ({}, {"kernel": np.full((ROWS, 1), 3.0, np.float32)}):
            state = released(plan, self.total(), self.KEY, Preconditioning(inverse=inverse))
            assert state.numbers["update_norm"] == pytest.approx(
                tree.l2_norm(state.params), rel=1e-6
            )


class TestWholeRuns:
    """Exact and float sums of the same experiment, three rounds of it."""

    OPTIONS = {"rounds": 3, "cohort": 12, "noise-multiplier": 0.5, "eval-every": 3}  # noqa: RUF012

    def params(self, corpus, **changes):
        made = load_experiment("adadps-tags").with_options({**self.OPTIONS, **changes})
        components = build(made, corpus)
        backend = SerialBackend(trainer=components.trainer, data=components.task.data)
        # The root of a simulation's noise follows the mechanism; here both are given one.
        root, noise = Key.simulation(1), Key.simulation(2)
        *_, (_, state) = rounds(components, backend, root, noise=noise)
        return state.params

    @pytest.mark.parametrize("precondition", ["none", "local", "update", "scale-then-privatise"])
    def test_the_switch_changes_bits_and_no_digits(self, tiny_corpus, precondition):
        exact, real = (
            self.params(tiny_corpus, **{"exact-sum": exact, "precondition": precondition})
            for exact in (True, False)
        )
        gap = {name: exact[name] - real[name] for name in exact}
        off = tree.l2_norm(gap) / tree.l2_norm(real)
        assert 0 < off < 1e-6

    def test_it_is_the_default_with_noise_only(self, tiny_corpus):
        for noise, wanted in (("gaussian", True), ("none", False)):
            made = load_experiment("adadps-tags").with_options({"noise": noise})
            options = {} if noise == "none" else self.OPTIONS
            plan = build(made.with_options(options), tiny_corpus).plan
            assert (plan.live_mechanism.bound.granularity is not None) == wanted
