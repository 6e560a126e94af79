"""Sums that are held: one cohort's sum earns the amplification of its sampling once."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from fedpriv.backends import SerialBackend
from fedpriv.mechanisms import Clip
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.privacy.ledger.ledger import BudgetSpentError
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import Everybody, FixedSizeSampler, PoissonSampler
from fedpriv.rng import Key
from fedpriv.runs.loop import rounds
from fedpriv.training.algorithm import Algorithm, Query

ROSTER = tuple(f"u{number:02d}" for number in range(12))
NOISE = Gaussian(noise_multiplier=1.0)


class Users:
    def examples(self, user_id):
        return np.full(3, int(user_id[1:]), np.float32)

    def train(self, params, examples, key):
        return {"w": examples}


class Twice(Algorithm):
    """Answers one held sum so many times more."""

    def __init__(self, times=1):
        self.times, self.answers = times, []

    def step(self, state, door):
        with door.hold(Query(params=state.params)) as held:
            self.answers.append(held.answer.update["w"])
            for _ in range(self.times):
                self.answers.append(held.release(NOISE).update["w"])
        return state.after(state.params)


def play(sampler, algorithm, *, num_rounds=4, relation="add-remove"):
    users = Users()
    components = SimpleNamespace(
        dropout_rate=0.0,
        task=SimpleNamespace(roster=ROSTER, measures=()),
        plan_sha256="",
        init_params=lambda key: {"w": np.zeros(3, np.float32)},
        plan=Plan(
            mechanism=Mechanism(sampler=sampler, bound=Clip(l2_clip_norm=8.0), privatizer=NOISE),
            num_rounds=num_rounds,
            delta=1e-3,
            relation=relation,
        ),
        algorithm=algorithm,
        trainer=users,
    )
    backend = SerialBackend(trainer=users, data=users)
    key = Key.simulation(1)
    played = rounds(components, backend, key, eval_every=1, noise=key)
    return [record for record, _ in played]


@pytest.mark.parametrize(
    ("sampler", "relation"),
    [
        pytest.param(
            PoissonSampler(num_users=12, expected_cohort_size=1.0), "add-remove", id="poisson"
        ),
        pytest.param(
            PoissonSampler(num_users=12, expected_cohort_size=1.0, cap=6),
            "add-remove",
            id="capped",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            FixedSizeSampler(num_users=12, size=3),
            "replace-one",
            id="fixed",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_sum_over_a_drawn_cohort_is_answered_once(sampler, relation):
    """Four answers of one cohort at σ = 1 cost one at σ = 1/2: ε = 3.40, and 4 charges say 0.91."""
    algorithm = Twice(3)
    with pytest.raises(ValueError, match="drawn cohort"):
        play(sampler, algorithm, relation=relation)
    assert len(algorithm.answers) <= 1


def test_where_everybody_takes_part_each_answer_is_a_charge():
    algorithm = Twice(1)
    played = play(Everybody(num_users=12), algorithm)
    assert len(played) == 2 and len(algorithm.answers) == 4
    assert all(not np.array_equal(a, b) for a, b in pairwise(algorithm.answers))
    assert played[-1].released.epsilon > played[0].released.epsilon


def test_the_budget_ends_in_the_middle_of_a_held_sum():
    algorithm = Twice(5)
    with pytest.raises(BudgetSpentError, match="all 4 charges are spent"):
        play(Everybody(num_users=12), algorithm)
    assert len(algorithm.answers) == 4


def test_a_privatizer_that_uses_a_sum_up_leaves_the_held_one_whole():
    """Red without the copy: the second answer is of what the first one left."""

    class Greedy(Gaussian):
        def release(self, total, drawn, share):
            answer = Gaussian.release(self, total, drawn, share)
            for tensor in total.total.values():
                tensor[...] = 0
            return answer

    class Again(Twice):
        def step(self, state, door):
            query = Query(params=state.params, mechanism=replace(everybody, privatizer=greedy))
            with door.hold(query) as held:
                self.answers.append(held.answer.update["w"])
                self.answers.append(held.release(greedy).update["w"])
            return state.after(state.params)

    greedy = Greedy(noise_multiplier=NOISE.noise_multiplier)
    everybody = Mechanism(
        sampler=Everybody(num_users=12), bound=Clip(l2_clip_norm=8.0), privatizer=NOISE
    )
    used, kept = Again(), Twice()
    play(Everybody(num_users=12), used)
    play(Everybody(num_users=12), kept)
    for one, other in zip(used.answers, kept.answers, strict=True):
        np.testing.assert_array_equal(one, other)
