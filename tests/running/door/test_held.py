"""One charge: one cohort, one question at a time, and one answer of a sum that is held."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from threading import Barrier, Lock
from types import SimpleNamespace

import numpy as np
import pytest

from fedpriv.backends import SerialBackend
from fedpriv.mechanisms import Clip
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.state import BudgetSpentError
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import Everybody, FixedSizeSampler, PoissonSampler
from fedpriv.rng import Key
from fedpriv.runs.loop import rounds
from fedpriv.training.algorithm import Algorithm, SumRequest
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import Given

ROSTER = tuple(f"u{number:02d}" for number in range(12))
NOISE = Gaussian(noise_multiplier=1.0)
EVERYBODY = Everybody(num_users=12)


class Users:
    """Who was asked for an update is noted down."""

    def __init__(self):
        self.asked, self._one = [], Lock()

    def examples(self, user_id):
        with self._one:
            self.asked.append(user_id)
        return {"w": np.full(3, int(user_id[1:]), np.float32)}


@dataclass
class Does(Algorithm):
    """Notes the answers that a function of the door and the params yields."""

    asking: object
    named: tuple = ()

    def mechanisms(self):
        return self.named

    def __post_init__(self):
        self.answers = []

    def step(self, state, door):
        for answer in self.asking(door, state.params):
            self.answers.append(answer["w"])
        return state.after(state.params)


def twice(times=1):
    """Answers one held sum so many times more."""

    def asking(door, params):
        with door.hold(SumRequest(params=params)) as held:
            yield held.answer
            for _ in range(times):
                yield held.release(NOISE)

    return Does(asking)


def mechanism(sampler):
    return Mechanism(sampler=sampler, bound=Clip(l2_clip_norm=8.0), privatizer=NOISE)


def play(sampler, algorithm, *, num_rounds=4, relation="add-remove"):
    """Return the records of a run, and who was asked."""
    users, key = Users(), Key.simulation(1)
    components = SimpleNamespace(
        dropout_rate=0.0,
        task=SimpleNamespace(roster=ROSTER, measures=()),
        plan_sha256="",
        init_params=lambda key: {"w": np.zeros(3, np.float32)},
        plan=Plan(
            mechanism=mechanism(sampler), num_rounds=num_rounds, delta=1e-3, relation=relation
        ),
        algorithm=algorithm,
        trainer=Given(),
    )
    backend = SerialBackend(trainer=Given(), data=users)
    played = rounds(components, backend, key, eval_every=1, noise=key)
    return [record for record, _ in played], users.asked


@pytest.mark.parametrize(
    ("sampler", "relation"),
    [
        (PoissonSampler(num_users=12, expected_cohort_size=1.0), "add-remove"),
        (PoissonSampler(num_users=12, expected_cohort_size=1.0, cap=6), "add-remove"),
        (FixedSizeSampler(num_users=12, size=3), "replace-one"),
    ],
    ids=["poisson", "capped", "fixed"],
)
def test_a_sum_over_a_drawn_cohort_is_answered_once(sampler, relation):
    """Four answers of one cohort at σ = 1 cost one at σ = 1/2: ε = 3.40, and 4 charges say 0.91."""
    algorithm = twice(3)
    with pytest.raises(ValueError):
        play(sampler, algorithm, relation=relation)
    assert len(algorithm.answers) <= 1


def test_where_everybody_takes_part_each_answer_is_a_charge():
    algorithm = twice(1)
    played, _ = play(EVERYBODY, algorithm)
    assert len(played) == 2 and len(algorithm.answers) == 4
    assert all(not np.array_equal(a, b) for a, b in pairwise(algorithm.answers))
    assert played[-1].released.epsilon > played[0].released.epsilon


def test_the_budget_ends_in_the_middle_of_a_held_sum():
    algorithm = twice(5)
    with pytest.raises(BudgetSpentError):
        play(EVERYBODY, algorithm)
    assert len(algorithm.answers) == 4


def test_a_privatizer_that_uses_a_sum_up_leaves_the_held_one_whole():

    class Greedy(Gaussian):
        event = Gaussian.event

        def release(self, total, drawn, share):
            answer = Gaussian.release(self, total, drawn, share)
            for tensor in total.total.values():
                tensor[...] = 0
            return answer

    greedy = Greedy(noise_multiplier=NOISE.noise_multiplier)

    def again(door, params):
        asked = replace(mechanism(EVERYBODY), privatizer=greedy)
        with door.hold(SumRequest(params=params, mechanism=asked)) as held:
            yield held.answer
            yield held.release(greedy)

    named = (replace(mechanism(EVERYBODY), privatizer=greedy),)
    with refuses(ValueError, "Greedy", "mechanisms"):  # no statement would name it
        play(EVERYBODY, Does(again))
    used, kept = Does(again, named), twice()
    for algorithm in (used, kept):
        play(EVERYBODY, algorithm)
    np.testing.assert_array_equal(used.answers, kept.answers)


def test_all_passes_of_a_program_are_over_the_charges_one_cohort():
    """Amplification is earned once a cohort; three cohorts under one charge would be three."""

    def asking(door, params):
        def program(raw):
            return [raw.sum(SumRequest(params=params)) for _ in range(3)][-1]

        yield door.run(SumRequest(params=params), program)

    sampler = PoissonSampler(num_users=12, expected_cohort_size=4.0)
    _, asked = play(sampler, Does(asking), num_rounds=1)
    third = len(asked) // 3
    assert 0 < third < 12
    assert asked[:third] == asked[third : 2 * third] == asked[2 * third :]


@pytest.mark.slow
def test_of_threads_that_ask_at_once_one_is_charged_after_the_other(monkeypatch):
    """Two answers charged at once would both be the same attempt, drawn under the same numbers."""
    inside, most = 0, 0
    barrier, charge = Barrier(4), Ledger.charge

    def slow(self, *arguments, **named):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.05)  # whoever does not wait comes in meanwhile
        try:
            return charge(self, *arguments, **named)
        finally:
            inside -= 1

    monkeypatch.setattr(Ledger, "charge", slow)

    def asking(door, params):
        def ask(number):
            barrier.wait()
            return door.ask(SumRequest(params=params, name=f"number {number}"))

        with ThreadPoolExecutor(4) as threads:
            return list(threads.map(ask, range(4)))

    algorithm = Does(asking)
    play(PoissonSampler(num_users=12, expected_cohort_size=4.0), algorithm)
    assert len({answer.tobytes() for answer in algorithm.answers}) == 4
    assert most == 1
