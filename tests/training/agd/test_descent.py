"""Adaptive descent: the reference's budget, what estimates cost, and that it learns."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

from fedpriv import tree
from fedpriv.backends import SerialBackend
from fedpriv.mechanisms import Capped, Clip
from fedpriv.mechanisms.event import Relation
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.privacy.accounting import rho_bs16, rho_of
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.plan import FilterPlan
from fedpriv.rng import Key
from fedpriv.runs.loop import rounds
from fedpriv.training.algorithm import Context, Line
from fedpriv.training.dp_agd import (
    LOSSES,
    REJECTIONS,
    RHO_GRADIENT,
    STEP_SIZE,
    AdaptiveDescent,
    CentralLosses,
    Prices,
    StepSizes,
)
from fedpriv.training.per_example.example_sum import CentralSum
from fedpriv.training.per_example.linear import HingeGradients, LogisticGradients
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import contributed, zeros
from tests.running.by_hand import charges_noted, components

X = np.array([[1, 0, 1], [1, 2, -1], [1, -4, 3]], np.float32)
Y = np.array([1, 0, 1])


class Scripted:
    """A door whose choices are written down, with a real ledger's arithmetic of charges."""

    def __init__(self, plan, choices):
        self.ledger, self.round_num = Ledger.in_memory(plan, mode="simulation"), 1
        self.plan, self.choices, self.asked, self.answers = plan, list(choices), [], []

    @property
    def rho_left(self):
        return self.plan.left(self.ledger.state.spent)

    def charge(self, mechanism, name):
        self.ledger.charge(self.round_num, 1, mechanism.event, query=name)
        self.asked.append((name, self.rho_left))

    def ask(self, query):
        self.charge(query.mechanism, query.name)
        return self.choices.pop(0)

    def hold(self, query):
        self.charge(query.mechanism, query.name)
        return Held(self, query.mechanism)


class Held:
    def __init__(self, door, mechanism):
        self.door, self.mechanism, self.number = door, mechanism, 1
        self.answer = self.answered()

    def answered(self):
        return self.door.answers.pop(0)

    def release(self, privatizer):
        assert isinstance(privatizer, Gaussian)
        self.number += 1
        event = self.mechanism.sampler.event(privatizer)
        self.door.charge(type("M", (), {"event": event}), f"gradient again {self.number}")
        return self.answered()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def descent(prices, **changes):
    settings = {
        "num_users": 3,
        "gradient": Clip(l2_clip_norm=1.0),
        "losses": Capped(cap=3.0, num_coordinates=21),
        "prices": prices,
        **changes,
    }
    return AdaptiveDescent(**settings)


def plan(rho, **changes):
    return FilterPlan(num_users=3, rho=rho, delta=1e-8, unit="example", **changes)


def test_budget_trace():
    """ε = 1.6, γ = 0.1: reject, reject, accept, accept; what is left of ρ after each charge."""
    whole = rho_bs16(1.6, 1e-8)
    door = Scripted(plan(whole), [0, 0, 7, 3])
    door.answers = [{"w": np.ones(2, np.float32)} for _ in range(4)]
    made = descent(Prices.of_paper(epsilon=1.6, delta=1e-8, splits=60))
    state = made.init(zeros(w=2))
    state = made.step(state, door)
    assert (state.numbers[REJECTIONS], state.numbers[STEP_SIZE]) == (2, pytest.approx(0.7))
    door.round_num = 2
    state = made.step(state, door)
    assert state.numbers[RHO_GRADIENT] == pytest.approx(2.884482e-6, rel=1e-6)
    left = [rest for _, rest in door.asked]
    assert whole == pytest.approx(0.033311901, abs=1e-9)
    assert left == pytest.approx(
        [
            0.033309517474,
            0.033220628585,
            0.033220390198,
            0.033131501309,
            0.033131239083,
            0.033042350194,
            0.033039465712,
            0.032950576823,
        ],
        abs=6e-10,
    )
    assert [name for name, _ in door.asked][:5] == [
        "gradient",
        "losses 1",
        "gradient again 2",
        "losses 2",
        "gradient again 3",
    ]


def test_estimates_are_averaged_by_their_prices():
    """ρ .01 then .001: Var 50 and 500 make 45.4545; [1, -2] and [4, 1] make [1.2727, -1.7273]."""
    made = descent(Prices(gradient=0.01, selection=0.001))
    door = Scripted(plan(10.0), [])
    door.answers = [{"w": np.array(v, np.float32)} for v in ([9, 9], [4, 1], [2, 0])]
    held = Held(door, made._noised(0.01))
    first = {"w": np.array([1.0, -2.0])}
    second = made._another(held, first, 0.01, 0.001)
    assert second["w"] == pytest.approx([1.272727, -1.727273], abs=1e-6)
    third = made._another(held, second, 0.011, 0.0011)  # with *all* so far, not with the first
    assert third["w"] == pytest.approx((0.011 * second["w"] + 0.0011 * np.array([2, 0])) / 0.0121)
    variances = [0.5 / rho for rho in (0.01, 0.001)]
    assert variances == pytest.approx([50, 500])
    assert 1 / sum(1 / v for v in variances) == pytest.approx(45.454545)
    events = [charge.event for charge in door.ledger.state.charges]
    assert [rho_of(e, Relation.ADD_REMOVE) for e in events] == pytest.approx([0.001, 0.0011])


def test_an_estimate_that_replaces_another_is_paid_in_full():
    """Reject, accept: prices .01 and then the whole of .011, whose noise is that of .011."""
    made = descent(Prices(gradient=0.01, selection=0.001), estimates="discard")
    door = Scripted(plan(10.0), [0, 5])
    door.answers = [{"w": np.array(v, np.float32)} for v in ([9, 9], [0, 4])]
    state = made.step(made.init(zeros(w=2)), door)
    assert state.params["w"] == pytest.approx([0.0, 0.5])
    events = [charge.event for charge in door.ledger.state.charges]
    prices = [rho_of(event, Relation.ADD_REMOVE) for event in events]
    assert prices == pytest.approx([0.01, 0.001, 0.011, 0.001])


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("form", ["permute-and-flip", "exponential"])
def test_prices_are_kept_under_either_relation(relation, form):
    """What is charged is the price that was decided, whatever noise that takes."""
    prices = Prices(gradient=0.004, selection=0.009)
    made = descent(prices, relation=relation, form=form)
    gradient = made._noised(0.004).event
    chosen = made._choice(
        zeros(weight=3, bias=1), zeros(weight=3, bias=1), np.zeros(21, np.float32), 0
    ).mechanism.event
    assert rho_of(gradient, relation) == pytest.approx(0.004)
    assert rho_of(chosen, relation) == pytest.approx(0.009)


def of_logistic(made, planned, kind=LogisticGradients, seed=0, number=300):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, (number, 4)).astype(np.float32)
    scores = x @ rng.normal(size=4)
    y = (scores > np.median(scores)).astype(int)
    gradients = kind(sparse.csr_matrix(x), y)
    works = {
        "train": CentralSum(gradients=gradients, num_examples=number),
        LOSSES: CentralLosses(losses=gradients),
    }
    return components(planned, made, works, number=number, inputs=4), gradients


def spent_by(made, rho, seed, number=300, **changes):
    planned = FilterPlan(num_users=number, rho=rho, delta=1e-6, unit="example", **changes)
    built, _ = of_logistic(made, planned, seed=seed % 7, number=number)
    backend = SerialBackend(trainer=built.trainer, data=None)
    with charges_noted() as charges:
        states = [s for _, s in rounds(built, backend, Key.simulation(seed), eval_every=1000)]
    return charges, states, planned


@pytest.mark.parametrize(
    "runs", [40, pytest.param(1000, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_no_run_spends_more_than_its_total(runs):
    """Budgets, splits, γ and relations drawn at random, runs that end within a rejection too."""
    rng, ended_within = np.random.default_rng(1), 0
    for seed in range(runs):
        rho = float(10 ** rng.uniform(-4, 1))
        relation = list(Relation)[int(rng.integers(2))]
        made = descent(
            Prices.split(
                rho=rho,
                iterations=float(rng.uniform(1, 6)),
                gradient_share=float(rng.uniform(0.05, 0.95)),
            ),
            num_users=40,
            growth=float(rng.uniform(0.05, 3.0)),
            estimates=["average", "discard"][int(rng.integers(2))],
            form=["permute-and-flip", "exponential"][int(rng.integers(2))],
            losses=Capped(cap=1.0, num_coordinates=3),
            step_sizes=StepSizes(num_positive=2, first=50.0),  # most steps are far too long
            relation=relation,
        )
        charges, states, planned = spent_by(made, rho, seed, number=40, relation=relation)
        total = math.fsum(rho_of(event, relation) for _, event in charges)
        assert 0 < total <= rho * (1 + 1e-9)
        assert planned.epsilon(len(charges)).value == planned.total().value
        last = states[-1].round_num if states else 0
        ended_within += any(round_num > last for round_num, _ in charges)
    assert ended_within > 0  # such runs there were


def test_it_learns_where_noise_is_little():
    made = descent(
        Prices.split(rho=50.0, iterations=12),
        num_users=300,
        losses=Capped(cap=2.0, num_coordinates=21),
        form="exponential",
    )
    planned = FilterPlan(num_users=300, rho=50.0, delta=1e-6, unit="example")
    for kind in (LogisticGradients, HingeGradients):
        built, gradients = of_logistic(made, planned, kind)
        backend = SerialBackend(trainer=built.trainer, data=None)
        states = [s for _, s in rounds(built, backend, Key.simulation(2), eval_every=1000)]
        index = np.arange(300)
        nowhere = tree.zeros(states[0].params)
        losses = [gradients.losses_along(s.params, nowhere, [0.0], index).mean() for s in states]
        fell = sum(b < a for a, b in pairwise(losses))
        assert fell >= 0.6 * (len(losses) - 1) and losses[-1] < losses[0]


def test_a_loss_that_is_not_finite_counts_as_none():
    """One example's inputs are infinite: its whole vector is zero, and the others' are there."""
    x = X.copy()
    x[2] = np.inf
    work = CentralLosses(losses=LogisticGradients(sparse.csr_matrix(x), Y))
    direction = {"weight": np.full(3, 1e38, np.float32), "bias": np.zeros(1, np.float32)}
    bound = Capped(cap=3.0, num_coordinates=2)
    params = zeros(weight=3, bias=1)
    context = Context(line=Line(direction=direction, sizes=np.array([0, 1e38], np.float32)))
    found = contributed(work, params, ids=range(3), bound=bound, context=context)
    assert found.num_failed == 1
    assert np.isfinite(found.real()[LOSSES]).all()
    others = contributed(work, params, ids=range(2), bound=bound, context=context)
    np.testing.assert_array_equal(found.total[LOSSES], others.total[LOSSES])
    assert others.total[LOSSES].all() and others.num_failed == 0
    with refuses(ValueError, "Clip"):
        contributed(work, params, ids=range(3), context=context)
    with refuses(ValueError, LOSSES):  # a request without a line
        contributed(work, params, ids=range(3), bound=bound)
