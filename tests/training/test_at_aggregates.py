"""Training over aggregates: who is asked where, what stays untouched, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedpriv.checkpoints.aggregates import (
    Aggregate,
    Average,
    MajorityVote,
    OfLast,
    ParamsAggregate,
    Uniform,
)
from fedpriv.mechanisms import AdaptiveClip
from fedpriv.mechanisms.bounds import WITHIN
from fedpriv.mechanisms.preconditioners import Preconditioning
from fedpriv.optimizers import Ftrl, Momentum, Sgd
from fedpriv.rng import Key
from fedpriv.training.federated_averaging import FederatedAveraging
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import zeros


@dataclass
class Quadratic:
    """A door to ½(w - 1)² without noise: the update at w is 1 - w."""

    asked: list

    def key(self, stream):
        return Key.simulation(0).fold(stream)

    def ask(self, request):
        at = request.params["w"]
        self.asked.append(float(at[0]))
        return {"w": 1 - at}


def trained(algorithm, steps=6):
    """(θ_t, A_t) of every step, where the updates were made, and the last state."""
    door, found = Quadratic([]), []
    state = algorithm.init(zeros(w=1))
    for _ in range(steps):
        state = algorithm.step(state, door)
        found.append((float(state.params["w"][0]), float(algorithm.asked_at(state)["w"][0])))
    return found, door.asked, state


HALF = Sgd(learning_rate=0.5)


def averaging(optimizer=HALF, aggregate=None, **at):
    return FederatedAveraging(
        optimizer=optimizer, aggregate=replace(aggregate or Uniform(k=2), **at)
    )


READINGS = ("replace", "gradient-only")


@pytest.mark.parametrize("reading", READINGS)
class TestLaws:
    def test_an_aggregate_of_one_checkpoint_changes_nothing(self, reading):
        alone = [theta for theta, _ in trained(averaging())[0]]
        for aggregate in (Uniform(k=1), OfLast(k=3, function=lambda past: past[-1])):
            found, _, _ = trained(averaging(aggregate=aggregate, training=reading))
            assert [theta for theta, _ in found] == alone

    def test_the_preconditioner_is_asked_where_updates_are_made(self, reading):
        seen = []

        class Looks:
            def init(self, params):
                return {}

            def begin(self, params, state, round_num, key):
                seen.append(float(params["w"][0]))
                return Preconditioning(), state

            def end(self, mean, state):
                return state

        algorithm = FederatedAveraging(
            optimizer=HALF,
            aggregate=Uniform(k=2, start=1, training=reading),
            preconditioner=Looks(),
        )
        _, asked, _ = trained(algorithm)
        assert seen == asked

    def test_a_clip_norm_that_follows_is_asked_there_too(self, reading):
        asked = []

        class Door(Quadratic):
            def ask(self, request):
                asked.append(float(request.params["w"][0]))
                update = {"w": 1 - request.params["w"], WITHIN: np.zeros(1, np.float32)}
                return update

        algorithm = FederatedAveraging(
            optimizer=HALF,
            aggregate=Uniform(k=2, start=1, training=reading),
            bound=AdaptiveClip(l2_clip_norm=1.0, least=0.1, most=10.0),
        )
        state, expected = algorithm.init(zeros(w=1)), []
        for _ in range(4):
            expected.append(float(algorithm.asked_at(state)["w"][0]))
            state = algorithm.step(state, Door([]))
        assert asked == expected and asked[2] != float(state.params["w"][0])

    def test_a_state_goes_on_as_if_never_stored(self, reading):
        algorithm = averaging(start=2, training=reading)
        whole, _, _ = trained(algorithm, 6)
        for steps in range(6):
            _, _, state = trained(algorithm, steps)
            first = algorithm.init(zeros(w=1))
            state = first.load(steps, *state.save(), state.numbers)
            for theta, _ in whole[steps:]:
                state = algorithm.step(state, Quadratic([]))
                assert float(state.params["w"][0]) == theta


class TestOptimisersWithASumOfAllUpdates:
    """gradient-only leaves their state alone: the iterate is theirs, not where updates are made."""

    @pytest.mark.parametrize("decay", [0.0, 0.9])
    def test_the_iterate_is_that_of_the_sum_of_its_gradients(self, decay):
        ftrl = Ftrl(learning_rate=0.25, momentum=decay)
        found, asked, _ = trained(averaging(ftrl, start=2, training="gradient-only"), 8)
        total = velocity = 0.0
        for place, (theta, _) in zip(asked, found, strict=True):
            total += -(1 - place)
            velocity = decay * velocity + total
            assert theta == pytest.approx(0.0 - 0.25 * velocity, abs=2e-6)

    @pytest.mark.parametrize(
        "optimizer", [Momentum(learning_rate=0.5), Ftrl(learning_rate=0.5, restart=3)]
    )
    def test_its_state_holds_nothing_of_the_aggregate(self, optimizer):
        """Fed the same answers, its state is the same under any aggregate and none."""
        answers = [{"w": np.array([a], np.float32)} for a in (1.0, -0.5, 0.25, 2.0)]
        states, iterates = [], []
        for algorithm in (
            averaging(optimizer),
            averaging(optimizer, Average(ema_decay=0.5), training="gradient-only"),
        ):
            state = algorithm.init(zeros(w=1))
            for answer in answers:
                mean = {"w": answer["w"].copy()}
                state = algorithm.next(state, mean)
            states.append(state.memory["optimizer"]["velocity"]["w"].copy())
            iterates.append(state.params["w"].copy())
        assert np.array_equal(*states) and np.array_equal(*iterates)


class TestRefused:
    def test_there_must_be_an_aggregate(self):
        class Nothing(ParamsAggregate):
            def next(self, update, state):
                return update, state

        with pytest.raises(ValueError):
            averaging(aggregate=Nothing(), training="replace").init(zeros(w=1))

    def test_it_must_start_within_the_plan(self):
        late = averaging(start=6, training="replace")
        with refuses(ValueError, 6):
            late.check_plan(SimpleNamespace(planned_rounds=6))
        late.check_plan(SimpleNamespace(planned_rounds=7))
        late.check_plan(SimpleNamespace(planned_rounds=None))

    @pytest.mark.parametrize(
        ("start", "change"),
        [({}, lambda a: a / 2), ({"count": {"t": np.zeros((), np.int64)}}, lambda a: a + 1)],
        ids=["stateless", "with a state"],
    )
    def test_a_model_that_no_resumed_run_could_have(self, start, change):
        class Elsewhere(Aggregate):
            def init(self, params):
                return start

            def next(self, update, state):
                return {n: change(a) for n, a in update.items()}, state

        with refuses(ValueError, "OfLast"):
            FederatedAveraging(optimizer=HALF, aggregate=Elsewhere()).init(zeros(w=1))


def test_outputs_are_measured_by_all_models_and_released_as_the_last():
    algorithm = FederatedAveraging(optimizer=HALF, aggregate=MajorityVote(k=3))
    found, _, state = trained(algorithm, 4)
    thetas = [theta for theta, _ in found]
    assert float(algorithm.result(state)["w"][0]) == thetas[-1]
    measured = algorithm.measured(state)
    assert {name: float(a[0]) for name, a in measured.items()} == {
        f"omv/{i}/w": theta for i, theta in enumerate(thetas[-3:])
    }
    _, _, first = trained(algorithm, 1)  # fewer at the start
    assert set(algorithm.measured(first)) == {"omv/0/w", "omv/1/w"}
