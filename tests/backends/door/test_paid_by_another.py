"""What one charge pays for: its own question, its own mechanism, once a round.

Every attack here was answered before, without a charge or under noise that was used already.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedpriv.mechanisms import Clip
from fedpriv.mechanisms.event import Event
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.mechanisms.privatizer import Privatizer
from fedpriv.privacy.ledger.state import BudgetSpentError
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import FilterPlan, Plan
from fedpriv.privacy.sampling import Everybody
from fedpriv.training.algorithm import Algorithm, SumRequest
from tests.backends.door import toy_methods as methods
from tests.backends.door import toys
from tests.harness.kills import Killed
from tests.harness.refusals import refuses

STREAM = methods.Stream().plan


class Asking(Algorithm):
    """Does in each round what a test says."""

    def __init__(self, asks, plan):
        self.asks, self.plan, self.answers = asks, plan, []

    def step(self, state, door):
        for ask in self.asks:
            self.answers.append(ask(door, state.params))
        return state.after(state.params)


def play(asks, plan, folder, **rest):
    """Run until the plan is spent, or for some rounds; return the answers."""
    made = Asking(asks, plan)
    methods.play(made, folder, **rest)
    return made.answers


class Bare(Privatizer):
    """Noise of no weight that claims the price of the stream."""

    name, after_crash = "bare", "discard"
    event = STREAM.live_mechanism.privatizer.event
    participation = STREAM.live_mechanism.privatizer.participation

    def draws(self, *, template, sensitivity, key):
        yield None

    def release(self, total, drawn, share):
        return total.real()


BARE = replace(STREAM.live_mechanism, privatizer=Bare())
ONCE = Mechanism(  # of the same event, without a memory
    sampler=methods.ALL,
    bound=STREAM.live_mechanism.bound,
    privatizer=Gaussian(noise_multiplier=STREAM.event.noise_multiplier),
)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"mechanism": BARE}, ["update"]),
        ({"mechanism": ONCE}, ["update"]),
        ({"name": "more"}, ["update"]),  # which would begin participation anew
    ],
    ids=["bare noise", "another mechanism", "another name"],
)
def test_the_charge_of_a_whole_run_pays_for_its_own_rows_alone(more, named, tmp_path):
    assert ONCE.event == STREAM.event

    def ask(door, params):
        return door.ask(SumRequest(params=params, **(more if door.round_num > 1 else {})))

    with refuses(ValueError, *named):
        play([ask], STREAM, tmp_path)


def test_noise_of_a_whole_run_is_for_its_own_plan_only(tmp_path):
    plan = Plan(
        mechanism=Mechanism(
            sampler=methods.ALL,
            bound=Clip(l2_clip_norm=3.0),
            privatizer=Gaussian(noise_multiplier=2.0),
        ),
        num_rounds=6,
        delta=1e-3,
    )
    stream = replace(STREAM.live_mechanism)
    asks = [
        lambda door, params: door.ask(SumRequest(params=params)) and None,
        lambda door, params: door.ask(SumRequest(params=params, mechanism=stream, name="rows")),
    ]
    with refuses(ValueError, "banded"):
        play(asks, plan, tmp_path)


def shot(work, scale):
    """Ask for the one answer of a program over one pass."""

    def ask(door, params):
        def program(raw):
            total = raw.sum(SumRequest(params=params), bound=methods.OneShot.bound)
            return replace(total, total={"w": scale * total.real()["w"]}, granularity=None)

        return door.run(SumRequest(params=params), program)

    return ask


def test_a_replay_is_after_a_crash_only(tmp_path):
    """Two programs under one noise: the difference of their answers is that of the raw sums."""
    with refuses(ValueError, 1, "update"):
        play([shot("train", 1.0), shot("train", 1.0)], methods.OneShot.plan, tmp_path)


def test_a_replay_is_of_what_was_charged(tmp_path):
    """Charged at ε = 1 and cut off, it cannot come back as an answer at ε = 1000."""

    plan = replace(methods.OneShot.plan, num_rounds=2)
    methods.killed(Asking([shot("train", 1.0)], plan), tmp_path, 1)

    class Loud(methods.UniformSphere):
        event = Event(kind="pure", epsilon=1000.0)

    loud = replace(plan.live_mechanism, privatizer=Loud())
    program = lambda raw: raw.sum(SumRequest(params=toys.LIKE))  # noqa: E731
    ask = lambda door, p: door.run(SumRequest(params=p, mechanism=loud), program)  # noqa: E731
    with pytest.raises(ValueError):
        play([ask], plan, tmp_path)


def test_a_replayed_answer_is_charged_for_what_it_is(tmp_path):
    """At ε = 1000 under a plan of ε = 1: the plan's own event would be written down instead."""

    class Loud(methods.UniformSphere):
        event = Event(kind="pure", epsilon=1000.0)

    plan = methods.OneShot.plan
    loud = replace(plan.live_mechanism, privatizer=Loud())
    ask = lambda door, params: door.ask(SumRequest(params=params, mechanism=loud))  # noqa: E731
    with refuses(ValueError, "sphere"):
        play([ask], plan, tmp_path)
    once = replace(ONCE, privatizer=Gaussian(noise_multiplier=0.05))
    quiet = Plan(mechanism=ONCE, num_rounds=1, delta=1e-3)
    ask = lambda door, params: door.ask(SumRequest(params=params, mechanism=once))  # noqa: E731
    with refuses(BudgetSpentError, "round 1"):
        play([ask], quiet, tmp_path / "once")


FILTER = FilterPlan(num_users=methods.N, rho=2.0, delta=1e-3)


@pytest.mark.parametrize("mode", ["simulation", "secure"])
@pytest.mark.parametrize("plan", [methods.OneShot.plan, FILTER], ids=["fixed", "filter"])
@pytest.mark.parametrize("sampled", [False, True])
def test_noise_that_is_replayed_serves_one_bound_and_one_sampler(plan, mode, sampled, tmp_path):
    """Twice one answer less the other, at twice the bound, would be the raw sum."""
    mine = methods.OneShot.plan.live_mechanism
    changed = {"bound": Clip(l2_clip_norm=2.0)}
    if sampled:
        changed = {"sampler": Everybody(num_users=methods.N)}

    def asking(mechanism, *, dies):
        def ask(door, params):
            door.ask(SumRequest(params=params, mechanism=mechanism))
            if dies:
                raise Killed

        return ask

    with refuses(ValueError, "sphere"):
        play([asking(replace(mine, **changed), dies=True)], plan, tmp_path, mode=mode)
    if plan is not FILTER:
        with pytest.raises(Killed):
            play([asking(None, dies=True)], plan, tmp_path / "own", mode=mode)
        with refuses(ValueError, "sphere"):
            play([asking(replace(mine, **changed), dies=False)], plan, tmp_path / "own", mode=mode)


def test_the_next_round_asks_again(tmp_path):
    answers = play([shot("train", 1.0)], replace(methods.OneShot.plan, num_rounds=2), tmp_path)
    assert len(answers) == 2 and not np.array_equal(*answers)


def test_a_replay_on_another_sum_is_refused(tmp_path):

    def cut(door, params):
        shot("train", 1.0)(door, params)
        raise Killed

    with pytest.raises(Killed):
        play([cut], methods.OneShot.plan, tmp_path)
    with pytest.raises(ValueError):
        play([shot("train", 2.0)], methods.OneShot.plan, tmp_path)
    assert len(play([shot("train", 1.0)], methods.OneShot.plan, tmp_path)) == 1


@pytest.mark.parametrize("by", ["ask", "program"])
def test_each_of_two_replays_is_of_its_own_sum(by, tmp_path):
    """Cut off together, they come back as they were, and not each with the other's sum."""

    def asking(name, distance):
        def ask(door, params):
            query = SumRequest(params={"w": params["w"] + np.float32(distance)}, name=name)
            if by == "ask":
                return door.ask(query)
            return door.run(query, lambda raw: raw.sum(query))

        return ask

    def cut(door, params):
        raise Killed

    right, swapped = (
        [asking("one", first), asking("two", second)] for first, second in ((1, 5), (5, 1))
    )
    plan = replace(methods.OneShot.plan, num_rounds=2)
    whole = play(right, plan, tmp_path / "whole")
    with pytest.raises(Killed):
        play([*right, cut], plan, tmp_path / "cut")
    with refuses(ValueError, "one"):
        play(swapped, plan, tmp_path / "cut")
    for answer, before in zip(play(right, plan, tmp_path / "cut"), whole, strict=True):
        np.testing.assert_array_equal(answer, before)


def test_a_first_charge_takes_over_no_key_that_lies_there(tmp_path):
    """Two runs under one key would draw the same rows; a resume goes on with the run's own."""
    ask = lambda door, params: door.ask(SumRequest(params=params, name="rows"))  # noqa: E731
    keys = {}

    def ask_beside_a_foreign_key(door, params):
        secret = tmp_path / "b" / "secret"
        secret.mkdir()
        (secret / "stream.key").write_bytes(keys["a"])
        return ask(door, params)

    for name, asking in (("a", ask), ("b", ask_beside_a_foreign_key)):
        play([asking], STREAM, tmp_path / name, num_rounds=1, mode="secure")
        keys[name] = (tmp_path / name / "secret" / "stream.key").read_bytes()
    assert keys["a"] != keys["b"]
    play([ask], STREAM, tmp_path / "b", num_rounds=1, mode="secure")
    assert (tmp_path / "b" / "secret" / "stream.key").read_bytes() == keys["b"]
    (tmp_path / "c" / "secret").mkdir(parents=True)
    with refuses(ValueError, "ledger.jsonl"):
        play([ask], STREAM, tmp_path / "c", num_rounds=1, mode="secure")


def test_nothing_is_asked_from_within_a_program(tmp_path):
    def ask(door, params):
        def program(raw):
            total = raw.sum(SumRequest(params=params), bound=methods.CLIP)
            bare = {"w": total.real()["w"].astype(np.float32)}
            return door.ask(SumRequest(params=bare, name="more"))

        return door.run(SumRequest(params=params), program)

    mechanism = replace(
        methods.OneShot.plan.live_mechanism, privatizer=Gaussian(noise_multiplier=2)
    )
    with refuses(ValueError, "more"):
        play([ask], Plan(mechanism=mechanism, num_rounds=2, delta=1e-3), tmp_path)


def test_a_step_that_does_not_advance_is_refused(tmp_path):
    class Standing(Asking):
        def step(self, state, door):
            super().step(state, door)
            return state

    made = Standing([shot("train", 1.0)], methods.OneShot.plan)
    with refuses(ValueError, 0):
        methods.play(made, tmp_path)
    assert len(made.answers) == 1


def test_a_secure_run_of_real_arithmetic_answers_in_no_other(tmp_path):
    """A question with noise in floating point is refused there, and answered in a run of floats."""
    floats, grid = (
        Mechanism(sampler=methods.ALL, bound=bound, privatizer=Gaussian(noise_multiplier=2.0))
        for bound in (methods.CLIP, methods.Rounded(bound=methods.CLIP))
    )

    def asked(mechanism, folder):
        plan = Plan(mechanism=mechanism, num_rounds=1, delta=1e-3)
        ask = lambda door, params: door.ask(  # noqa: E731
            SumRequest(params=params, name="more", mechanism=floats)
        )
        return play([ask], plan, folder, mode="secure")

    with refuses(ValueError, "more", "ε"):
        asked(grid, tmp_path / "grid")
    (answer,) = asked(floats, tmp_path / "floats")
    assert all(np.isfinite(array).all() for array in answer.values())
