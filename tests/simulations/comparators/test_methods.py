"""The comparators: what each is charged, how much noise it adds, and how far it moves."""

import math

import numpy as np
import pytest
from scipy import sparse

from fedpriv.backends import SerialBackend
from fedpriv.mechanisms import Clip
from fedpriv.mechanisms.event import Event, Relation
from fedpriv.mechanisms.gaussian import Gaussian, Unprotected
from fedpriv.mechanisms.perturbation import Sphere
from fedpriv.privacy.accounting import rho_of
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import FilterPlan, Plan
from fedpriv.privacy.sampling import Everybody, Partition, PoissonSampler
from fedpriv.rng import Key
from fedpriv.runs.loop import rounds
from fedpriv.training.convex_losses import Constants
from fedpriv.training.per_example.example_sum import CentralSum
from fedpriv.training.per_example.linear import LogisticGradients
from fedpriv.training.permutation_sgd import loss_constants
from simulations.linear_models.comparators import (
    NoisyDescent,
    bst14,
    dp_sgd,
    fixed_steps,
    full_descent,
    scs13,
    strong_composition_sigma,
)
from simulations.linear_models.perturbation import SphereRows
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import linear_sgd
from tests.running.by_hand import charges_noted, components
from tests.training.per_example.linear.case import logistic_residual

NUMBER, CLIP = 200, Clip(l2_clip_norm=1.0)


def run(method, seed=0, number=NUMBER):
    """Through the door; returns the charges and the states."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(number, 3)).astype(np.float32)
    gradients = LogisticGradients(sparse.csr_matrix(x), (x[:, 0] > 0).astype(int))
    trainer = CentralSum(gradients=gradients, num_examples=number)
    built = components(method.plan, method.algorithm, trainer, number=number)
    backend = SerialBackend(trainer=trainer, data=None)
    with charges_noted() as charges:
        states = [s for _, s in rounds(built, backend, Key.simulation(seed), eval_every=10**6)]
    return [event for _, event in charges], states


def test_all_steps_cost_rho():
    made = fixed_steps(num_examples=NUMBER, rho=0.3, delta=1e-5, bound=CLIP, steps=7, rate=1.0)
    charges, states = run(made)
    assert len(charges) == 7 == states[-1].round_num
    cost = math.fsum(rho_of(c, Relation.ADD_REMOVE) for c in charges)
    assert cost == pytest.approx(0.3, rel=1e-9)
    assert charges[0].noise_multiplier == pytest.approx(math.sqrt(7 / 0.6))


def test_too_many_steps_are_refused():
    made = fixed_steps(num_examples=NUMBER, rho=0.3, delta=1e-5, bound=CLIP, steps=7, rate=1.0)
    longer = NoisyDescent(steps=8, rate=1.0, mechanism=made.algorithm.mechanism)
    with refuses(ValueError, 8):
        longer.check_plan(made.plan)
    with pytest.raises(ValueError):
        NoisyDescent(steps=7, rate=1.0).check_plan(made.plan)
    made.algorithm.check_plan(made.plan)
    assert isinstance(made.plan, FilterPlan)


def test_one_charge_pays_for_all_batches():
    made = scs13(num_examples=NUMBER, epsilon=2.0, bound=CLIP, batch_size=30, rate=1.0)
    charges, states = run(made)
    assert charges == [Event(kind="pure", epsilon=2.0)] and states[-1].round_num == 6
    total = made.plan.total()
    assert (total.value, total.delta, total.accountant) == (2.0, 0.0, "composition")


def test_only_disjoint_batches_are_so_cheap():
    rows, disjoint = SphereRows(epsilon=1.0), Partition(num_users=40, size=4)
    for sampler, privatizer in (
        (Everybody(num_users=40), rows),
        (PoissonSampler(num_users=40, expected_cohort_size=4), rows),
        (Partition(num_users=40, size=4, passes=2), rows),
        (disjoint, Gaussian(noise_multiplier=1.0)),
        (disjoint, Sphere(epsilon=1.0)),
    ):
        with pytest.raises(ValueError):
            Mechanism(sampler=sampler, bound=CLIP, privatizer=privatizer)
    bare = Mechanism(sampler=disjoint, bound=CLIP, privatizer=Unprotected(stddev=1.0))
    assert not bare.is_private


class TestBst14:
    @pytest.mark.slow
    def test_its_steps_and_its_epsilon(self):
        made = bst14(
            num_examples=NUMBER, epsilon=1.0, delta=1e-4, bound=Clip(l2_clip_norm=2.0),
            batch_size=20, passes=2, dimension=4, radius=3.0,
        )  # fmt: skip
        plan, algorithm = made.plan, made.algorithm
        assert isinstance(plan, Plan) and plan.num_rounds == 20
        assert 0.999 < plan.total().value <= 1.0
        sigma = plan.noise_multiplier
        steep = math.sqrt(4.0 + 4 * (2.0 * sigma / 20) ** 2)
        assert algorithm.rate == pytest.approx(2 * 3.0 / steep)
        assert (algorithm.schedule, algorithm.radius) == ("inverse-root", 3.0)
        charges, states = run(made)
        assert len(charges) == 20 and {c.kind for c in charges} == {"poisson-gaussian"}
        for state in states:
            norm = math.sqrt(sum(float(np.vdot(a, a)) for a in state.params.values()))
            assert norm <= 3.0 * (1 + 1e-6)

    def test_the_published_noise_spends_its_epsilon_by_strong_composition(self):
        sigma = strong_composition_sigma(epsilon=1.0, delta=1e-4, sampling_prob=0.1, steps=20)
        each = 1e-4 / 20
        amplified = math.sqrt(2 * math.log(1.25 / each)) / sigma
        own = 2 * 0.1 * amplified
        spent = 20 * own * math.expm1(own) + math.sqrt(40 * math.log(1 / each)) * own
        assert amplified < 1 and spent == pytest.approx(1.0, rel=1e-6)
        # An answer of ε₂ above 1 is not what the classic Gaussian mechanism is proved for.
        least = strong_composition_sigma(epsilon=1.0, delta=1e-4, sampling_prob=0.001, steps=20)
        assert least == pytest.approx(math.sqrt(2 * math.log(1.25 / each)))

    @pytest.mark.slow
    @pytest.mark.parametrize("target", [0.1, 1.0, 4.0])
    @pytest.mark.parametrize("batch_size", [2, 20])
    def test_the_published_noise_truly_costs_less(self, target, batch_size):
        fields = {
            "num_examples": NUMBER, "epsilon": target, "delta": 1e-4, "bound": CLIP,
            "batch_size": batch_size, "passes": 2, "dimension": 4, "radius": 3.0,
        }  # fmt: skip
        published, least = bst14(composition="strong", **fields), bst14(**fields)
        sigma = strong_composition_sigma(
            epsilon=target, delta=1e-4, sampling_prob=batch_size / NUMBER,
            steps=published.plan.num_rounds,
        )  # fmt: skip
        assert published.plan.noise_multiplier == sigma > least.plan.noise_multiplier
        assert published.plan.total().value < target
        assert published.algorithm.rate < least.algorithm.rate


@pytest.mark.slow
def test_dp_sgd_of_a_given_noise_states_what_it_truly_costs():
    fields = {"num_examples": NUMBER, "delta": 1e-4, "bound": CLIP, "batch_size": 20, "steps": 5}
    calibrated = dp_sgd(epsilon=1.0, rate=0.5, **fields)
    assert calibrated.plan.total().value <= 1.0
    given = dp_sgd(epsilon=1.0, rate=0.5, noise_multiplier=4.0, **fields)
    assert given.plan.noise_multiplier == 4.0 and given.plan.total().value < 0.5
    assert calibrated.algorithm.schedule == "constant"


def test_how_far_full_descent_moves():
    convex = Constants(name="toy", lipschitz=1.0, smoothness=0.25)
    passes = full_descent(num_examples=50, steps=8, rate=0.5)
    assert passes.displacement(convex, 50) == pytest.approx(8 * 0.5 / 50)
    strongly = Constants(name="toy", lipschitz=1.0, smoothness=0.5, convexity=0.1)
    found = passes.displacement(strongly, 50)
    assert found == pytest.approx((1 - (1 - 0.5 * 0.1) ** 8) / (0.1 * 50))


def test_full_descent_measured():
    """An example that is always wrong reaches it; random neighbours stay within."""
    number, constants = 40, loss_constants("logistic")
    passes = full_descent(num_examples=number, steps=6, rate=2.0)
    bound, rng = passes.displacement(constants, number), np.random.default_rng(2)
    furthest = 0.0
    for trial in range(30):
        x = rng.normal(size=(number, 2)).astype(np.float32) * rng.choice([0.1, 1, 10])
        y, ends = rng.integers(0, 2, number), []
        start = {"w": np.zeros(2, np.float32), "bias": np.zeros(1, np.float32)}
        if trial == 0:  # alone, and so far on the wrong side that its gradient stays as long
            x, y = np.full_like(x, 100.0), np.ones(number, np.int64)
            start["w"] -= 50.0
        for present in (np.ones(number, bool), np.arange(number) != 3):
            if trial == 0:
                present = present & (np.arange(number) == 3)
            sgd = linear_sgd(x, y, there=present, name="w", residual=logistic_residual,
                             constants=constants, passes=passes)  # fmt: skip
            end = sgd.trained(start, Key.simulation(trial))
            ends.append(np.concatenate([end["w"], end["bias"]]))
        far = float(np.linalg.norm(ends[0] - ends[1]))
        assert far <= bound
        furthest = max(furthest, far)
    assert furthest > 0.99 * bound
