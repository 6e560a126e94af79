"""One charge: one cohort, however many passes, and one question at a time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from types import SimpleNamespace

import numpy as np
import pytest

from fedpriv.backends import SerialBackend
from fedpriv.mechanisms import Clip
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import PoissonSampler
from fedpriv.rng import Key
from fedpriv.runs.loop import rounds
from fedpriv.training.algorithm import Algorithm, Query

ROSTER = tuple(f"u{number:02d}" for number in range(40))
BOUND = Clip(l2_clip_norm=1.0)


class Users:
    """Who was asked for an update is noted down."""

    def __init__(self):
        self.asked, self._one = [], Lock()

    def examples(self, user_id):
        with self._one:
            self.asked.append(user_id)
        return np.ones(3, np.float32)

    def train(self, params, examples, key):
        return {"w": examples}


class Does(Algorithm):
    def __init__(self, step):
        self._step = step

    def step(self, state, door):
        self._step(door, state.params)
        return state.after(state.params)


def play(step, *, num_rounds):
    users = Users()
    plan = Plan(
        mechanism=Mechanism(
            sampler=PoissonSampler(num_users=40, expected_cohort_size=10.0),
            bound=BOUND,
            privatizer=Gaussian(noise_multiplier=1.0),
        ),
        num_rounds=num_rounds,
        delta=1e-3,
    )
    made = SimpleNamespace(
        dropout_rate=0.0,
        task=SimpleNamespace(roster=ROSTER, measures=()),
        plan_sha256="",
        init_params=lambda key: {"w": np.zeros(3, np.float32)},
        plan=plan,
        algorithm=Does(step),
        trainer=users,
    )
    list(rounds(made, SerialBackend(trainer=users, data=users), Key.simulation(1)))
    return users.asked


def test_all_passes_of_a_program_are_over_the_charges_one_cohort():
    """Amplification is earned once a cohort; three cohorts under one charge would be three."""
    cohorts = []

    def step(door, params):
        def program(raw):
            return [raw.sum(params, bound=BOUND) for _ in range(3)][-1]

        door.run(Query(params=params), program)

    asked = play(step, num_rounds=1)
    third = len(asked) // 3
    cohorts = [asked[i * third : (i + 1) * third] for i in range(3)]
    assert 0 < third < 40 and cohorts[0] == cohorts[1] == cohorts[2]


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

    def step(door, params):
        def ask(number):
            barrier.wait()
            return door.ask(Query(params=params, name=f"number {number}"))

        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(ask, range(4)))
        assert len({answer.update["w"].tobytes() for answer in answers}) == 4

    play(step, num_rounds=4)
    assert most == 1
