"""Running and partial sums against Python's own integers."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fedpriv import sums, tree
from fedpriv.sums import (
    BITS,
    BeyondBound,
    PartialSum,
    RunningSum,
    add_sum,
    merged,
)
from fedpriv.tree import RowSparse
from tests.harness.refusals import refuses

TOP = 2**BITS
TEMPLATE = {"w": np.zeros((6, 2), np.float32), "b": np.zeros(3, np.float32)}
UNIT = 2.0**-10


def only(value, at=(0, 0)):
    """An update of one coordinate, that many units long."""
    update = {name: np.zeros(t.shape) for name, t in TEMPLATE.items()}
    update["w"][at] = value * UNIT
    return update


def rows(index, values, num_rows=6):
    return RowSparse(rows=np.asarray(index, np.int64), values=np.asarray(values), num_rows=num_rows)


def part(num_users=1, granularity=UNIT, **total):
    return PartialSum(total=total, num_users=num_users, granularity=granularity)


def as_ints(tensor):
    return [int(x) for x in tree.to_dense_tensor(tensor).reshape(-1)]


class TestRunning:
    def test_users_at_the_bound_in_one_coordinate_do_not_overflow(self, subtests):
        for num_users in [1, 126, 127, 128, 129, 254, 255, 300]:
            for sign in [1, -1]:
                with subtests.test(num_users=num_users, sign=sign):
                    running = RunningSum(TEMPLATE, UNIT)
                    for _ in range(num_users):
                        running.add(only(sign * TOP), 1.0)
                    found = running.result()
                    assert as_ints(found["w"]) == [sign * num_users * TOP] + [0] * 11
                    wide = np.int32 if num_users <= 127 else np.int64
                    assert {t.dtype for t in found.values()} == {np.dtype(wide)}

    @pytest.mark.parametrize(
        ("w", "b", "fits"),
        [
            ((TOP, 0.0), 0.0, True),
            ((TOP, 1.0), 0.0, False),
            ((TOP - 1, 0.0), 5792.0, True),  # (2^24 - 1)² + 5792² <= 2^48 < ... + 5793²
            ((TOP - 1, 0.0), 5793.0, False),
            ((TOP + 1, 0.0), 0.0, False),
            ((2.0**40, 0.0), 0.0, False),
            ((np.inf, 0.0), 0.0, False),
            ((np.nan, 0.0), 0.0, False),
        ],
    )
    @pytest.mark.parametrize("sign", [1, -1])
    def test_what_is_longer_than_the_bound_is_not_added(self, w, b, fits, sign):
        """Squares of whole numbers, without tolerance; what was added before stays to the bit."""
        running, before = RunningSum(TEMPLATE, 1.0), only(7.0 / UNIT)
        running.add(before, 1.0)
        update = {
            "w": rows([2, 4], sign * np.array([w, (0.0, 0.0)])),
            "b": np.array([0.0, sign * b, 0.0]),
        }
        if fits:
            running.add(update, 1.0)
            assert as_ints(running.result()["b"]) == [0, sign * b, 0]
            return
        with refuses(BeyondBound, "2^24"):
            running.add(update, 1.0)
        assert as_ints(running.result()["b"]) == [0, 0, 0]
        assert running.result()["w"][2].tolist() == [0, 0]
        assert running.result()["w"].any()

    def test_signs_may_change_around_the_spill(self):
        running, expected = RunningSum(TEMPLATE, UNIT), 0
        signs = [1] * 127 + [-1] * 130 + [1] * 50 + [-1] * 200
        for number, sign in enumerate(signs):
            running.add(only(sign * (TOP - number), (5, 1)), 1.0)
            expected += sign * (TOP - number)
        assert as_ints(running.result()["w"]) == [0] * 11 + [expected]

    def test_threads_may_add_at_the_same_time(self):
        """Over the spill into int64, and with users who are taken away again."""
        size, users, threads = 400_000, 20, 4
        running = RunningSum({"w": np.zeros(size, np.float32)}, 1.0)
        update = {"w": np.stack([np.full(size, 3.0), np.full(size, 2.0**20)]).astype(np.float32)}

        def add(_):
            return [running.add_block(update, np.ones(2)).tolist() for _ in range(users)]

        with ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(add, range(threads)))
        assert found == [[[1]] * users] * threads  # too long: 2^20 √400,000 > 2^24
        assert (running.result()["w"] == 3 * users * threads).all()

    def test_more_users_than_the_integers_hold_are_refused(self, monkeypatch):
        assert sums._USERS_IN_INT32 * TOP < 2**31 <= (sums._USERS_IN_INT32 + 1) * TOP
        assert sums._USERS_IN_INT64 * TOP < 2**63 <= (sums._USERS_IN_INT64 + 1) * TOP
        monkeypatch.setattr(sums, "_USERS_IN_INT64", 2)
        running, floats = RunningSum(TEMPLATE, UNIT), RunningSum(TEMPLATE, None)
        for _ in range(2):
            running.add(only(1), 1.0)
        with refuses(ValueError, 3, "int64", 2, "exact-sum"):
            running.add(only(1), 1.0)
        assert as_ints(running.result()["w"]) == [2] + [0] * 11  # and nothing was added
        for _ in range(3):
            floats.add(only(1), 1.0)

    def test_the_guard_is_no_assertion(self, monkeypatch):
        """It must hold where Python runs with -O, which leaves assertions out."""
        path = Path(sums.__file__)
        code = path.read_text("utf-8") + "\nassert False, 'this line is not there'\n"
        optimised = ModuleType("optimised_sums")
        monkeypatch.setitem(sys.modules, optimised.__name__, optimised)
        exec(compile(code, str(path), "exec", optimize=1), vars(optimised))
        running = optimised.RunningSum({"x": np.zeros(1)}, 1.0)
        running.add({"x": np.ones(1)}, 1.0)
        monkeypatch.setattr(optimised, "_USERS_IN_INT64", 1)
        with refuses(ValueError, 2):
            running.add({"x": np.ones(1)}, 1.0)

    def test_it_is_rint_of_the_float64_product(self, subtests):
        for kind in [np.float16, np.float32, np.float64, np.longdouble]:
            for factor in [1.0, 0.3, 1e-3, -2.0]:
                with subtests.test(kind=kind, factor=factor):
                    rng = np.random.default_rng(1)
                    update = {
                        "w": rows([1, 4], rng.normal(size=(2, 2)).astype(kind)),
                        "b": rng.normal(size=3).astype(kind),
                    }
                    running = RunningSum(TEMPLATE, UNIT)
                    running.add(update, factor)
                    for name, tensor in tree.to_dense(update).items():
                        expected = np.rint(tensor.astype(np.float64) * (factor / UNIT)).astype(
                            np.int64
                        )
                        assert as_ints(running.result()[name]) == expected.reshape(-1).tolist()
                    assert any(as_ints(running.result()["b"]))

    def test_ties_go_to_even_and_signed_zero_is_zero(self):
        running = RunningSum({"x": np.zeros(8)}, 1.0)
        running.add({"x": np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -0.0, 0.49999999])}, 1.0)
        assert as_ints(running.result()["x"]) == [0, 2, 2, 0, -2, -2, 0, 0]

    def test_without_a_unit_it_is_float64(self):
        running = RunningSum(TEMPLATE, None)
        for value in (0.1, 0.2, 1e-12):
            running.add({"w": rows([2], np.full((1, 2), value)), "b": np.full(3, value)}, 2.0)
        found = running.result()
        assert found["w"].dtype == np.float64
        np.testing.assert_allclose(found["w"][2], 2 * (0.1 + 0.2 + 1e-12), rtol=1e-15)
        assert not found["w"][[0, 1, 3, 4, 5]].any()

    @pytest.mark.parametrize("granularity", [None, UNIT])
    @pytest.mark.parametrize("shape", [(), (0,), (4, 0), (0, 3), (5,), (2, 3, 4)])
    def test_tensors_of_any_shape(self, granularity, shape):
        template = {"x": np.zeros(shape, np.float32)}
        running = RunningSum(template, granularity)
        value = np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)
        running.add({"x": value}, 1.0)
        running.add({"x": value}, 1.0)
        done = PartialSum(total=running.result(), num_users=2, granularity=granularity)
        small, twice = done.compact(), merged(template, [done, done.compact()])
        for found, times in ((done, 2), (small, 2), (twice, 4), (twice.compact(), 4)):
            np.testing.assert_array_equal(tree.to_dense(found.real())["x"], times * value)
            assert found.real()["x"].shape == shape

    @pytest.mark.parametrize("granularity", [None, UNIT])
    def test_what_an_update_is_stored_in_does_not_matter(self, granularity):
        """Strides, alignment, byte order, read-only memory: compiled code must not care."""
        values = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
        index = np.array([0, 2, 5])

        def unaligned(array):
            return np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:].view(array.dtype)

        frozen = values.copy()
        frozen.flags.writeable = False
        stored = [
            rows(index, values),
            rows(np.repeat(index, 2)[::2], values),
            rows(index, np.asfortranarray(values)),
            rows(index, np.repeat(values, 2, axis=0)[::2]),
            rows(unaligned(index), unaligned(values).reshape(3, 2)),
            rows(index, frozen),
            rows(index, values.astype(">f4")),
            rows(index, values).to_dense(),
            np.asfortranarray(rows(index, values).to_dense()),
        ]
        found = []
        for tensor in stored:
            running = RunningSum(TEMPLATE, granularity)
            running.add({"w": tensor, "b": np.zeros(3)}, 0.7)
            found.append(running.result()["w"])
        assert found[0].any()
        for other in found[1:]:
            np.testing.assert_array_equal(other, found[0])

    @pytest.mark.parametrize("granularity", [None, UNIT])
    @pytest.mark.parametrize(
        ("form", "named"),
        [
            ({"w": (2, 6, 2)}, "b"),
            ({"w": (2, 6, 2), "b": (2, 3), "other": (2, 3)}, "other"),
            ({"w": (2, 6, 2), "b": (2, 2)}, "b"),
            ({"w": (2, 3, 2), "b": (2, 3)}, "w"),
        ],
    )
    def test_a_block_of_another_form_is_refused_whole(self, granularity, form, named):
        running = RunningSum(TEMPLATE, granularity)
        block = {name: np.ones(shape, np.float32) for name, shape in form.items()}
        with refuses(ValueError, named):
            running.add_block(block, np.ones(2))
        assert not any(t.any() for t in running.result().values())

    def test_the_update_is_not_changed(self):
        update = {"w": rows([1], [[1.0, 2.0]]), "b": np.ones(3)}
        RunningSum(TEMPLATE, UNIT).add(update, 0.5)
        assert update["w"].values.tolist() == [[1.0, 2.0]] and update["b"].tolist() == [1.0] * 3


FORMS = {
    "int32": lambda w: w.astype(np.int32),
    "int64": lambda w: w.astype(np.int64),
    "sparse int32": lambda w: rows([1, 3], w[[1, 3]].astype(np.int32)),
    "sparse int64": lambda w: rows([1, 3], w[[1, 3]].astype(np.int64)),
    "no rows": lambda w: rows(np.zeros(0), np.zeros((0, 2), np.int32)),
}


class TestMerged:
    W = np.array([[0, 0], [5, -7], [0, 0], [11, 2], [0, 0], [0, 0]])
    B = np.array([1, -2, 3], np.int32)

    def test_any_two_forms_add_up(self, subtests):
        for first in FORMS:
            for second in FORMS:
                for num_users in [1, 90]:
                    with subtests.test(first=first, second=second, num_users=num_users):
                        parts = [
                            part(num_users, w=FORMS[form](self.W), b=self.B)
                            for form in (first, second)
                        ]
                        expected = sum(
                            tree.to_dense_tensor(p.total["w"]).astype(np.int64) for p in parts
                        )
                        for order in (parts, parts[::-1]):
                            found = merged(TEMPLATE, order)
                            np.testing.assert_array_equal(found.total["w"], expected)
                            assert as_ints(found.total["b"]) == [2, -4, 6]
                            assert (found.num_users, found.granularity) == (2 * num_users, UNIT)
                            kind = np.int32 if 2 * num_users <= 127 else np.int64
                            assert {t.dtype for t in found.total.values()} == {np.dtype(kind)}

    def test_parts_at_the_bound_do_not_overflow(self):
        """Two int32 parts whose sum is none: 100 users at the bound each."""
        w = np.full((6, 2), 100 * TOP, np.int32)
        for forms in ((w, w), (rows(range(6), w), rows(range(6), w)), (w, rows(range(6), w))):
            found = merged(TEMPLATE, [part(100, w=form, b=self.B) for form in forms])
            assert as_ints(found.total["w"]) == [200 * TOP] * 12

    def test_more_users_than_the_integers_hold_are_refused(self, monkeypatch):
        monkeypatch.setattr(sums, "_USERS_IN_INT64", 8)
        parts = [part(number, w=self.W, b=self.B) for number in (4, 4)]
        assert merged(TEMPLATE, parts).num_users == 8
        with refuses(ValueError, 9):
            merged(TEMPLATE, [*parts, part(1, w=self.W, b=self.B)])

    def test_many_parts(self):
        parts = [part(1, w=np.full((6, 2), -TOP, np.int32), b=self.B) for _ in range(300)]
        assert as_ints(merged(TEMPLATE, parts).total["w"]) == [-300 * TOP] * 12

    def test_counts_add_up_and_parts_are_left_alone(self):
        w = self.W.astype(np.int32)
        one = PartialSum(total={"w": w, "b": self.B}, num_users=4, num_failed=1, granularity=UNIT)
        two = PartialSum(total={"w": rows([0], [[9, 9]]), "b": self.B}, num_users=3,
                         num_failed=2, granularity=UNIT)  # fmt: skip
        for array in (w, self.B):
            array.flags.writeable = False
        try:
            found = merged(TEMPLATE, [one, two])
        finally:
            self.B.flags.writeable = True
        assert (found.num_users, found.num_failed) == (7, 3)
        assert as_ints(w) == self.W.reshape(-1).tolist()
        assert found.total["w"] is not w and found.total["w"].flags.writeable

    def test_one_part_is_copied_too(self):
        w = self.W.astype(np.int32)
        found = merged(TEMPLATE, [part(1, w=w, b=self.B)])
        found.total["w"][0, 0] = 77
        assert w[0, 0] == 0

    @pytest.mark.parametrize("grids", [(UNIT, 2 * UNIT), (UNIT, None), (None, UNIT)])
    def test_other_grids_are_refused(self, grids):
        parts = [part(1, granularity, w=self.W.astype(np.int32), b=self.B) for granularity in grids]
        with pytest.raises(ValueError):
            merged(TEMPLATE, parts)

    @pytest.mark.parametrize("kind", [np.float32, np.float64])
    def test_floats_add_up_in_float64(self, kind):
        w = np.full((6, 2), 0.1, kind)
        parts = [part(1, None, w=form, b=np.ones(3, kind)) for form in (w, rows([2], w[:1]))]
        found = merged(TEMPLATE, parts)
        assert found.total["w"].dtype == np.float64
        assert found.total["w"][2, 0] == 2 * float(kind(0.1)) and found.total["b"][0] == 2.0


class TestPart:
    def test_real_is_the_number_of_units_times_the_granularity(self):
        total = {"w": np.full((6, 2), 2**52 + 1, np.int64), "b": rows([1], np.array([-3]), 3)}
        found = part(1, 2.0**-30, **total).real()
        assert found["w"].dtype == np.float64 and found["w"][0, 0] == (2**52 + 1) * 2.0**-30
        assert isinstance(found["b"], RowSparse) and found["b"].values[0] == -3 * 2.0**-30
        floats = part(1, None, w=np.full((6, 2), 0.1)).real()
        assert floats["w"][0, 0] == 0.1

    def test_compact_is_the_same_sum_and_never_larger(self, subtests):
        for kind in [np.int32, np.int64, np.float64]:
            for num_rows in range(7):
                for tail in [(), (1,), (2,), (9,), (2, 3)]:
                    with subtests.test(kind=kind, num_rows=num_rows, tail=tail):
                        dense = np.zeros((6, *tail), kind)
                        dense[:num_rows] = 3
                        done = part(5, x=dense)
                        small = done.compact()
                        np.testing.assert_array_equal(tree.to_dense_tensor(small.total["x"]), dense)
                        assert (small.num_users, small.granularity) == (5, UNIT)
                        assert tree.to_dense_tensor(small.total["x"]).dtype == kind
                        found = small.total["x"]
                        sparse = num_rows * (8 + int(np.prod(tail)) * dense.itemsize)
                        assert isinstance(found, RowSparse) == (sparse < dense.nbytes)

    def test_compact_keeps_what_is_sparse_and_reads_read_only_views(self):
        sparse = rows([1], np.array([[1, 2]], np.int32))
        frozen = np.zeros((600, 2), np.int32)
        frozen[7] = 1
        frozen.flags.writeable = False
        small = part(1, w=sparse, v=frozen, s=frozen[::2]).compact()
        assert small.total["w"] is sparse
        assert small.total["v"].rows.tolist() == [7] and small.total["s"].rows.tolist() == []

    def test_it_does_not_print_what_it_holds(self):
        text = repr(part(1, w=np.full((6, 2), 1234567, np.int32)))
        assert "1234567" not in text and "num_users=1" in text

    def test_add_sum_takes_what_is_not_aligned(self):
        """Arrays that lie anywhere in a message."""
        data = b"\0" + np.arange(4, dtype=np.int32).tobytes()
        values = np.frombuffer(data, np.uint8)[1:].view(np.int32).reshape(2, 2)
        total = {"w": np.zeros((6, 2), np.int64)}
        add_sum(total, {"w": rows([0, 5], values)})
        assert as_ints(total["w"]) == [0, 1, *[0] * 8, 2, 3]
