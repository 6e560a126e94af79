"""Whatever a round's multiplier and mixture are, a contribution keeps its bound's norm.

Over every bound, and whatever engine made the update: dense or row-sparse, one by one, as rows of
many, on a device, or as the two factors of a single example's gradient.
"""

from __future__ import annotations

from inspect import isabstract

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpriv import tree
from fedpriv.mechanisms import Capped, bounds
from fedpriv.mechanisms.bounds import (
    CHECKED_EXCESS,
    WITHIN,
    Bound,
    CappedTogether,
    Checked,
    OutputSensitivity,
    Unbounded,
    bounded_factors,
)
from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.sums import Block
from fedpriv.training import bounded_sum as frame
from fedpriv.training.algorithm import Context
from fedpriv.training.bounded_sum import RowStack, Stack
from fedpriv.training.device_sum import DeviceStack, DeviceSum
from fedpriv.training.per_example.module import GradientStack
from fedpriv.training.work import Trainer
from fedpriv.tree import RowSparse
from tests.harness.toys_of_training import answered
from tests.laws.bounds.bounded import BOUNDS, COLUMNS, PARAMS, ROWS, Case, exact_norm

NUMBER = ROWS * COLUMNS + COLUMNS
EVERY = {
    **{name: case for name, case in BOUNDS.items() if not case.said.multiplier},
    "checked": Case(make=lambda c: Checked(l2_bound=c)),
    "capped": Case(make=lambda c: Capped(cap=c / np.sqrt(NUMBER), num_coordinates=NUMBER)),
    "capped-together": Case(
        make=lambda c: CappedTogether(cap=c / np.sqrt(NUMBER), num_coordinates=NUMBER)
    ),
}
every_bound = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)


def test_every_bound_and_every_stack_of_the_package_is_held():
    """A new one is red until it is among those above, or below."""
    made = [case(1.0) for case in EVERY.values()]
    held = {type(bound) for bound in made} | {type(getattr(b, "bound", b)) for b in made}
    held |= {Unbounded, OutputSensitivity}  # which leave contributions as they are
    kinds = {kind for kind in Bound.kinds.values() if kind.__module__.startswith("fedpriv.")}
    assert held == {kind for kind in kinds if not isabstract(kind)}
    found = [kind for kind in Stack.__subclasses__() if kind.__module__.startswith("fedpriv.")]
    # By name: dataclasses with slots are made twice.
    assert {kind.__qualname__ for kind in found} == {"RowStack", "DeviceStack", "GradientStack"}


class Engine(Trainer):
    """Users' updates, float32 and dense, in the stacks of one engine."""

    def __init__(self, updates, rows):
        self.updates, self.rows = updates, rows

    def dense(self, users):
        return {n: np.stack([self.updates[int(user)][n] for user in users]) for n in PARAMS}

    def sparse(self, update):
        """The same as stored rows, of which the others are zero."""
        values = np.ascontiguousarray(update["kernel"][self.rows])
        return {**update, "kernel": RowSparse(rows=self.rows, values=values, num_rows=ROWS)}


class Dense(Engine):
    def stacks(self, request, attempt, users):
        for user in users.ids:
            yield RowStack.of(dict(self.updates[int(user)]))


class Sparse(Engine):
    def stacks(self, request, attempt, users):
        for user in users.ids:
            yield RowStack.of(self.sparse(self.updates[int(user)]))


class Rows(Engine):
    def stacks(self, request, attempt, users):
        if users.ids:
            yield RowStack(self.dense(users.ids))


class SparseRows(Engine):
    """As a compiled kernel yields them."""

    def stacks(self, request, attempt, users):
        if users.ids:
            dense, number = self.dense(users.ids), len(self.rows)
            values = dense["kernel"][:, self.rows].reshape(-1, COLUMNS)
            block = Block(
                np.tile(self.rows, len(users.ids)),
                number * np.arange(len(users.ids) + 1),
                np.ascontiguousarray(values),
            )
            yield RowStack({"kernel": block, "bias": dense["bias"]})


class Device(Engine):
    def empty_sum(self, template, granularity):
        return DeviceSum({n: torch.tensor(a) for n, a in template.items()}, granularity)

    def stacks(self, request, attempt, users):
        if users.ids:
            yield DeviceStack({n: torch.from_numpy(a) for n, a in self.dense(users.ids).items()})


ENGINES = {
    "dense": Dense,
    "sparse": Sparse,
    "rows": Rows,
    "sparse rows": SparseRows,
    "device": Device,
}
every_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)


@st.composite
def worlds(draw):
    """Users' updates with zeros outside some rows, and what a round says."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = np.sort(rng.choice(ROWS, draw(st.integers(0, ROWS)), replace=False))
    updates = []
    for _ in range(draw(st.integers(1, 4))):
        size = 10.0 ** draw(st.floats(-12, 12))
        update = {
            n: (size * rng.normal(size=a.shape)).astype(np.float32) for n, a in PARAMS.items()
        }
        update["kernel"][np.setdiff1d(np.arange(ROWS), rows)] = 0.0
        updates.append(update)
    spread = draw(st.sampled_from([0.0, 4.0, 12.0]))
    shapes = draw(
        st.sampled_from(
            [
                {},
                {"kernel": (ROWS, 1)},
                {"kernel": (ROWS, COLUMNS), "bias": (COLUMNS,)},
                {"bias": (COLUMNS,)},
            ]
        )
    )
    multiplier = {
        name: (10.0 ** rng.uniform(-spread, spread, shape) * rng.choice([-1, 1], shape)).astype(
            np.float32
        )
        for name, shape in shapes.items()
    }
    mixture = None
    if draw(st.booleans()):
        size = 10.0 ** draw(st.floats(-6, 6))
        mixture = Mixture(
            own=draw(st.sampled_from([1e-3, 0.5, 1.0])),
            offset={n: (size * rng.normal(size=a.shape)).astype("f4") for n, a in PARAMS.items()},
        )
    return updates, rows, multiplier, mixture


def sums(engine, make, c, world, users=None):
    """The sum of users' contributions in one engine, dense, and how many failed."""
    updates, rows, multiplier, mixture = world
    context = Context(multiplier=multiplier, mixture=mixture, clip_norm=c if make.adapts else None)
    done = answered(
        engine(updates, rows),
        params=PARAMS,
        bound=make(c),
        user_ids=[str(i) for i in (range(len(updates)) if users is None else users)],
        context=context,
    )
    return tree.to_dense(done.real()), done.num_failed


def certified(bound):
    """What the bound says of a contribution: `Checked` has room for float32's rounding."""
    excess = CHECKED_EXCESS if isinstance(bound, Checked) else 0.0
    return bound.l2_bound * (1.0 + excess)


@every_engine
@every_bound
@given(world=worlds(), exponent=st.floats(-6, 6))
def test_a_contribution_keeps_the_bounds_norm(engine, make, world, exponent):
    c = 10.0**exponent
    most = certified(make(c))
    everybody = range(len(world[0]))
    whole, _ = sums(engine, make, c, world)
    for user in everybody:
        own, failed = sums(engine, make, c, world, [user])
        assert exact_norm(own) <= most * (0.0 if failed else 1.0)
        others, _ = sums(engine, make, c, world, [one for one in everybody if one != user])
        moved = exact_norm({name: whole[name] - others[name] for name in whole})
        assert moved <= most * (1 + 1e-12)


def outer_parts(updates):
    """Inputs and residuals of updates that are their outer products, and the residuals' own."""
    own = np.stack([update["bias"] for update in updates])
    return np.stack([update["kernel"][:, 0] / update["bias"][0] for update in updates]), own


class Factored(Engine):
    """Single examples of a module of linear layers, by two factors."""

    def stacks(self, request, attempt, users):
        if users.ids:
            parts = outer_parts([self.updates[int(user)] for user in users.ids])
            yield GradientStack(updates=self.parts(*map(torch.from_numpy, parts)))

    def parts(self, x, own):
        return {"kernel": (x, own), "bias": (own,)}


class Whole(Factored):
    """Single examples of any module, by whole gradients."""

    def parts(self, x, own):
        return {"kernel": (x[:, :, None] * own[:, None],), "bias": (own,)}


BY_EXAMPLE = (Factored, Whole)
SLACK = 1e-12  # their sums are float64
SUMMED_AS_FLOATS = ("clip", "normalise", "normalise-regularised", "adaptive")
float_bounds = pytest.mark.parametrize("name", SUMMED_AS_FLOATS)


every_engine_of_either = pytest.mark.parametrize("engine", [*ENGINES.values(), *BY_EXAMPLE])


@st.composite
def worlds_of_examples(draw):
    """As `worlds`, where updates are outer products that float32 holds exactly."""
    updates, rows, multiplier, mixture = draw(worlds())
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    for update in updates:
        inputs = np.zeros(ROWS, np.float32)
        inputs[rows] = rng.choice([-2.0, -0.5, 1.0, 4.0], len(rows))
        update["kernel"] = np.outer(inputs, update["bias"])
    return updates, rows, multiplier, mixture


@pytest.mark.parametrize("engine", BY_EXAMPLE)
@float_bounds
@given(world=worlds_of_examples(), exponent=st.floats(-6, 6))
def test_a_single_example_keeps_the_bounds_norm(engine, name, world, exponent):
    """And sends what the same update sends that is dense."""
    c, make = 10.0**exponent, EVERY[name]
    most, everybody = certified(make(c)), range(len(world[0]))
    whole, _ = sums(engine, make, c, world)
    for user in everybody:
        own, failed = sums(engine, make, c, world, [user])
        assert exact_norm(own) <= most * (1 + SLACK) and not failed
        others, _ = sums(engine, make, c, world, [one for one in everybody if one != user])
        moved = exact_norm({name: whole[name] - others[name] for name in whole})
        assert moved <= most * (1 + SLACK)
        expected, _ = sums(Dense, make, c, world, [user])
        for tensor, array in expected.items():
            np.testing.assert_allclose(own[tensor], array, rtol=0, atol=2e-6 * most)


@every_bound
@given(world=worlds(), exponent=st.floats(-6, 6))
def test_every_engine_sends_the_same(make, world, exponent):
    c, bound = 10.0**exponent, make(10.0**exponent)
    for user in range(len(world[0])):
        expected, failed = sums(Dense, make, c, world, [user])
        # A tie may be rounded to either side, and float32 products to their last bit.
        near = 1e-6 * bound.l2_bound + (bound.granularity or 0.0)
        for engine in ENGINES.values():
            found, number = sums(engine, make, c, world, [user])
            assert number == failed
            for name, array in expected.items():
                np.testing.assert_allclose(found[name], array, rtol=0, atol=near)


def test_no_bound_is_left_out():
    """But those that bound no contribution: of a result, and of a run without privacy."""
    kinds = {k for k in vars(bounds).values() if isinstance(k, type) and issubclass(k, Bound)}
    kinds = {kind for kind in kinds if not kind.__abstractmethods__ and kind.__name__[0] != "_"}
    assert {type(make(1.0)) for make in EVERY.values()} == kinds - {OutputSensitivity, Unbounded}


def test_every_bound_is_reached():
    """By some world, in each engine: else the laws above would let anything pass."""
    rng = np.random.default_rng(0)
    update = {n: rng.uniform(1e3, 1e4, a.shape).astype(np.float32) for n, a in PARAMS.items()}
    multiplier = {"kernel": np.full((ROWS, 1), 7.0, np.float32)}
    mixture = Mixture(own=0.5, offset={n: np.ones_like(a) for n, a in PARAMS.items()})
    for name, make in EVERY.items():
        if name == "checked":  # it refuses such an update, and shortens none
            continue
        for engine in ENGINES.values():
            world = ([update], np.arange(ROWS), multiplier, mixture)
            own, failed = sums(engine, make, 1.0, world)
            assert failed == 0
            assert exact_norm(own) == pytest.approx(make(1.0).l2_bound, rel=1e-5), name


def bounded_first(monkeypatch):
    """Plant the wrong order: the bound's factor is that of the update before it is multiplied."""
    for kind in (RowStack, DeviceStack, GradientStack):
        times = kind.times

        def late(self, multiplier, kind=kind, times=times):
            return Late(self, times(self, multiplier))

        monkeypatch.setattr(kind, "times", late)


@frame.Stack.register
class Late:
    """Claims the length from before, and adds the product."""

    def __init__(self, before, after):
        self.norms, self.add_to = before.norms, after.add_to
        self.rows = getattr(after, "rows", None)
        self.multiples_of = lambda spacing: Late(before, after.multiples_of(spacing))
        self.limited = lambda low, high: Late(before, after.limited(low, high))


@every_engine_of_either
def test_the_other_order_is_caught(engine, monkeypatch):
    bias = np.array([0.5, -1.0, 2.0], np.float32)
    update = {"kernel": np.outer(np.full(ROWS, 2.0, np.float32), bias), "bias": bias}
    world = ([update], np.arange(ROWS), {"kernel": np.full((ROWS, 1), 3.0, np.float32)}, None)
    bounded_first(monkeypatch)
    own, _ = sums(engine, EVERY["clip"], 1.0, world)
    assert exact_norm(own) > 2.5
    if engine in ENGINES.values():  # on the grid whole numbers have a limit of their own
        own, failed = sums(engine, EVERY["rounded-clip"], 1.0, world)
        assert failed == 1 and exact_norm(own) == 0.0


@every_engine_of_either
def test_a_factor_a_hundredth_too_large_is_refused(engine, monkeypatch):
    """As of a bound of one's own that does not bound."""

    def factors(bound, norms, longest, clip_norm=None):
        return 1.01 * bounded_factors(bound, norms, longest, clip_norm)

    monkeypatch.setattr(frame, "bounded_factors", factors)
    update = {n: np.ones_like(a) for n, a in PARAMS.items()}
    own, failed = sums(engine, EVERY["clip"], 1.0, ([update], np.arange(ROWS), {}, None))
    assert failed == 1 and exact_norm(own) == 0.0


@every_engine
def test_an_adapting_clip_counts_updates_as_they_were_multiplied(engine):
    """‖own Δ + offset, times 1/A‖ is what is compared with C, and what is bounded."""
    update = {n: np.full_like(a, 0.01) for n, a in PARAMS.items()}  # 0.11 long
    ones = {n: np.ones_like(a) for n, a in PARAMS.items()}
    for multiplier, within in (({}, 1), ({n: 20 * a for n, a in ones.items()}, -1)):
        own, _ = sums(engine, EVERY["adaptive"], 1.0, ([update], np.arange(ROWS), multiplier, None))
        np.testing.assert_allclose(own[WITHIN], [0.2 * within], rtol=1e-6)
