"""Starts so long that their rounding alone moves two runs apart: room for it, or a refusal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedpriv as fp
from fedpriv import tree
from fedpriv.experiments.load import load_experiment
from fedpriv.mechanisms.bounds import CHECKED_EXCESS, Checked
from fedpriv.mechanisms.selection import PrivateChoice
from fedpriv.rng import Key
from fedpriv.runs.prepared import start_run
from fedpriv.sums import PartialSum
from fedpriv.training.bolt_on import BoltOn, BoltOnUsers, Tuned
from fedpriv.training.per_example.linear import LogisticGradients
from fedpriv.training.permutation_sgd import LONGEST_START, Passes, loss_constants
from fedpriv.training.step_schedules import ConstantStep, DecreasingStep
from fedpriv.training.wrapped_sgd import Wrapped
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import bounded, zeros
from tests.running.methods.test_guarantees import METHODS, of
from tests.running.methods.test_runs import BOLT_ON, central


@pytest.mark.parametrize("power", [40, 49, 51, 53])
def test_a_training_of_ones_own_has_room_for_where_it_starts(power, monkeypatch):
    """All rows but one are the same, and a step is half of the start's last bit."""
    number, ends, real = 100, [], Wrapped.answer

    def seen(self, *asked):
        total = real(self, *asked)
        ends.append(total.total["w"])
        return total

    monkeypatch.setattr(Wrapped, "answer", seen)
    start = 1.5 * 2.0**power
    rate = min(7.9, max(0.1, 0.5002 * np.spacing(start)))
    for there in (0.0, 1.0):
        rows = np.ones((number, 1))
        rows[7] = there

        def train(walk, rows=rows):
            w = walk.start["w"].copy()
            for positions, step in walk:
                w = w - step * walk.shortened(rows[positions]).sum(axis=0) / walk.batch_size
            return {"w": w}

        made = fp.bolt_on(
            train, fp.loss_constants("logistic"), 1, rate, num_rows=number, batch_size=number,
            params={"w": np.array([start])}, target_epsilon=1.0, relation="add-remove",
        )  # fmt: skip
    assert np.linalg.norm(ends[0] - ends[1]) <= made.moved.sensitivity


class Raw:
    """Fifty users of a logistic loss, of whom one is there or not."""

    num_users = 50

    def __init__(self, there):
        self.there = there

    def key(self, stream):
        return Key.simulation(0).fold(stream)

    def sum(self, request, *, bound=None, among=None):
        w, rate = request.params["w"].astype(float), request.context.rate
        total = np.zeros(1)
        for user in among:
            if user != 7 or self.there:
                total += np.float32([rate / (1 + np.exp(w[0]))])
        return PartialSum(total={"w": total}, num_users=len(among))


@pytest.mark.parametrize("share", [1.0, 0.01])
@pytest.mark.parametrize(
    ("start", "rate"),
    [(0.0, 0.1), (-12.0, 0.5), (-1.5 * 2**10, 2.0**-13 * 0.502), (-1.5 * 2**14, 2.0**-10 * 0.502)],
)
def test_so_do_users(start, rate, share):
    passes = Passes(passes=1, batch_size=50, schedule=ConstantStep(rate=min(rate / share, 7.9)))
    algorithm = BoltOnUsers(
        passes=passes, constants=loss_constants("logistic"), server_rate=share,
        longest_start=abs(start),
    )  # fmt: skip
    begun = algorithm.init({"w": np.float32([start])})
    here, gone = (algorithm._trained(begun.params, Raw(there)).total["w"] for there in (1, 0))
    assert abs(here - gone)[0] <= algorithm.sensitivity(50)
    with refuses(ValueError, "longest-start"):
        algorithm.check_params({"w": np.float32([abs(start) * 1.01 + 1e-30])})


class Longest:
    """One user sends the longest update that is let through, or is gone; all others zeros."""

    def __init__(self, num_users, there=True):
        self.num_users, self.there, self.first = num_users, there, None

    key = Raw.key

    def sum(self, request, *, bound=None, among=None):
        self.first = self.first or bound.l2_bound
        total, failed = np.zeros(1), 0
        if 0 in among and self.there:
            length = np.float32(bound.l2_bound * (1 + CHECKED_EXCESS) * (1 - 2**-23))
            if request.params["w"].any():  # later than at the start, where who fails is left out
                length = max(length, self.late(bound))
            try:
                total = bounded(bound, {"w": np.full(1, length)})["w"]
            except ValueError:
                failed = 1
        return PartialSum(total={"w": total}, num_users=len(among), num_failed=failed)

    def late(self, bound):
        return 0.0


class AsLongAsTheFirst(Longest):
    """Somebody who goes on with the longest step of the run while steps become shorter."""

    def late(self, bound):
        return np.float32(self.first)


def of_schedule(schedule, size, passes, **more):
    passes = Passes(passes=passes, batch_size=size, schedule=schedule, **more)
    return BoltOnUsers(passes=passes, constants=loss_constants("logistic"))


@pytest.mark.parametrize("more", [{}, {"radius": 1.5}])
@pytest.mark.parametrize(
    ("number", "size", "passes"), [(2, 2, 1), (1, 1, 4), (7, 3, 2), (90, 30, 1)]
)
def test_the_longest_update_that_is_let_through_is_within_the_sensitivity(
    number, size, passes, more
):
    algorithm = of_schedule(ConstantStep(rate=0.25), size, passes, **more)
    start = zeros(w=1)
    here, gone = (algorithm._trained(start, Longest(number, t)).total["w"] for t in (True, False))
    assert 0 < abs(here - gone)[0] <= algorithm.sensitivity(number)
    with pytest.raises(ValueError):
        bounded(Checked(l2_bound=1.0), {"w": np.float32([1 + 1.01 * CHECKED_EXCESS])})


def test_where_steps_become_shorter_an_early_one_is_not_let_through_late():
    algorithm = of_schedule(DecreasingStep(exponent=0.0), 2, 5)
    algorithm._trained(zeros(w=1), Longest(4))
    with pytest.raises(ValueError):
        algorithm._trained(zeros(w=1), AsLongAsTheFirst(4))


def test_the_room_is_what_it_says():
    passes = Passes(schedule=ConstantStep(rate=0.5), batch_size=2)
    made = loss_constants("logistic")
    step = 0.5 / 2
    for start in (0.0, 3.0, 1e6):
        room = 2 * 2.0**-10 * 5 * (5 * 0.5 + start)
        found = passes.sensitivity(made, 10, relative_rounding=2.0**-10, start=start)
        assert found == pytest.approx(step + room)
        ball = replace(passes, radius=1.0)
        room = 2 * 2.0**-10 * 5 * max(start, 1.0)
        found = ball.sensitivity(made, 10, relative_rounding=2.0**-10, start=start)
        assert found == pytest.approx(step + room)


def test_one_that_there_is_no_room_for_is_refused_before_anything_is_written(tiny_corpus, tmp_path):
    task = central(LogisticGradients)
    for length, fits in ((0.9 * LONGEST_START, True), (1.1 * LONGEST_START, False)):
        far = zeros(weight=5, bias=1)
        far["weight"][0] = length
        own = replace(task, init=lambda key, far=far: far)
        experiment = of(own, **METHODS["bolt-on"])
        out = tmp_path / f"{fits}"
        if fits:
            start_run(experiment, None, None, out).run()
            continue
        with refuses(ValueError, 1126.4, 1024) as raised:
            start_run(experiment, None, None, out)
        assert not getattr(raised.value, "__notes__", ()) and not out.exists()
    options = BOLT_ON | {"start": "public", "longest-start": 0.5}
    users = load_experiment("bolt-on-tags").with_options(options)
    with refuses(ValueError, 0.5, "longest-start"):
        start_run(users, "bolt-on-tags", tiny_corpus, tmp_path / "users")
    assert not (tmp_path / "users").exists()
    with pytest.raises(ValueError):
        BoltOn().init({"w": np.ones(2)})
    sgd = task.train.permutation_sgd(Passes(schedule=ConstantStep(rate=0.1)), regulariser=0.0)
    twice = replace(sgd, passes=replace(sgd.passes, passes=2))
    tuned = Tuned(choices=(sgd, twice), choice=PrivateChoice(epsilon=1.0))
    with pytest.raises(ValueError):
        tuned.init(zeros(weight=5, bias=1) | {"weight": np.full(5, 1e3, np.float32)})
    assert tree.l2_norm(tuned.init({"w": np.ones(4)}).params) == 2.0


def test_a_start_that_is_not_finite_is_refused():
    def never(walk):
        raise AssertionError

    for odd in (np.nan, np.inf, 1e300):
        with refuses(ValueError, "w"):
            fp.bolt_on(never, "logistic", 1, 0.1, num_rows=9, params={"w": np.full(2, odd)},
                       target_epsilon=1.0)  # fmt: skip
