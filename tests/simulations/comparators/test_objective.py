"""Objective perturbation: its noise, its minimum, its loss, its guarantee, one release."""

import math
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, stats

from fedpriv.backends import SerialBackend
from fedpriv.mechanisms.bounds import OutputSensitivity
from fedpriv.mechanisms.event import Event, Relation
from fedpriv.privacy.accounting import calibrate, epsilon, epsilon_of, rho_of
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import Everybody
from fedpriv.privacy.statement.statement import privacy_statement
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.privacy.trials import Trials
from fedpriv.rng import Key
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.loop import rounds
from fedpriv.training.algorithm import Context, SumRequest
from fedpriv.training.per_example.example_sum import example_ids
from fedpriv.training.permutation_sgd import loss_constants
from simulations.linear_models import comparators
from simulations.linear_models.comparators import (
    PerturbedMinimum,
    full_descent,
    objective_perturbation,
)
from simulations.linear_models.perturbation import ObjectiveNoise
from tests.harness.exact_gaussian import gaussian_delta
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import answered, linear_sgd
from tests.running.by_hand import components
from tests.training.per_example.linear.case import huber_residual, logistic_residual

KEY = Key.simulation(4)
WIDTH = 0.1
LOSSES = {
    "logistic": (loss_constants("logistic"), logistic_residual),
    "huber": (loss_constants("huber-svm", width=WIDTH), huber_residual(WIDTH)),
}


def made(kind="logistic", number=1000, epsilon=1.0, delta=1e-5, num_params=4, **given):
    return objective_perturbation(
        num_examples=number,
        num_params=num_params,
        epsilon=epsilon,
        delta=delta,
        constants=LOSSES[kind][0],
        **given,
    )


def work(kind, x, y, method, present=None):
    constants, residual = LOSSES[kind]
    passes = full_descent(num_examples=len(y), steps=1, rate=0.01)
    sgd = linear_sgd(
        x, y, there=present, name="weight", residual=residual, constants=constants, passes=passes
    )
    algorithm = method.algorithm
    return PerturbedMinimum(sgd=sgd, strength=algorithm.strength, tolerance=algorithm.tolerance)


def data(number, seed=0, d=3):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(number, d))
    return x, (x[:, 0] + 0.3 * rng.normal(size=number) > 0).astype(int)


class TestNoise:
    def test_its_numbers(self):
        """m = 1000, λ = .01: Λ = 10, shift log(1 + .25/10) = .0246926, ε₂ = .01."""
        pure, gaussian = made(delta=None, regulariser=0.01), made(regulariser=0.01)
        for method in (pure, gaussian):
            assert method.algorithm.strength == pytest.approx(10.0)
            assert method.algorithm.noise.shift == pytest.approx(0.0246926, abs=1e-7)
            assert method.algorithm.noise.outside == pytest.approx(0.01)
            assert method.plan.live_mechanism.sensitivity == pytest.approx(2e-7, rel=1e-9)
        assert pure.algorithm.noise.inside == pytest.approx(0.9653074, abs=1e-7)
        total = pure.plan.total()
        assert total.value == pytest.approx(1.0, rel=1e-12)
        assert (total.delta, total.accountant) == (0.0, "composition")

        left = 1.0 - 0.0246926 - 0.01
        expected = optimize.brentq(lambda sigma: gaussian_delta(sigma, left) - 1e-5, 1.0, 20.0)
        assert expected == pytest.approx(3.852568, abs=1e-6)
        sigma = gaussian.algorithm.noise.inside
        assert expected <= sigma <= 1.001 * expected
        assert 0.999 < gaussian.plan.total().value <= 1.0
        assert gaussian.plan.event == Event(
            kind="objective-gaussian",
            noise_multiplier=sigma,
            shift=gaussian.algorithm.noise.shift + gaussian.algorithm.noise.outside,
        )

    def test_a_regulariser_that_is_too_small_is_raised(self):
        """log(1 + β/Λ) is at most half of ε: Λ >= .25/(exp(.05) - 1) = 4.876."""
        method = made(epsilon=0.1, regulariser=1e-5)
        assert method.algorithm.strength == pytest.approx(0.25 / math.expm1(0.05))
        assert method.algorithm.noise.shift <= 0.05 * (1 + 1e-9)
        small = made(epsilon=0.1, regulariser=1e-5, most_shift=0.2)
        assert small.algorithm.strength > 2 * method.algorithm.strength


class TestMinimum:
    @pytest.mark.parametrize("kind", LOSSES)
    def test_the_gradient_there_is_as_short_as_stated(self, kind):
        constants, residual = LOSSES[kind]
        for seed in range(8):
            x, y = data(300, seed)
            method = made(kind, 300, epsilon=10.0 ** (seed % 3 - 1))
            found = work(kind, x * 10.0 ** (seed % 4 - 1), y, method)
            term = 30.0 * KEY.fold(seed).normal((4,), np.float64)
            w = found.minimum(np.zeros(4), term)
            norms = np.sqrt(np.sum(np.square(x * 10.0 ** (seed % 4 - 1)), axis=1) + 1.0)
            rows = np.column_stack([x * 10.0 ** (seed % 4 - 1), np.ones(300)])
            rows *= np.minimum(1.0, constants.inputs / norms)[:, None]
            pulls = residual((rows @ w)[:, None], y)[:, 0]
            gradient = rows.T @ pulls + method.algorithm.strength * w + term
            assert np.linalg.norm(gradient) <= method.algorithm.tolerance
            # As near the exact minimum as strong convexity says.
            exact = replace(found, tolerance=1e-9).minimum(w, term)
            near = method.algorithm.tolerance / method.algorithm.strength
            assert np.linalg.norm(exact - w) <= near
            # From elsewhere it is the same one.
            other = found.minimum(np.full(4, 5.0), term)
            assert np.linalg.norm(other - w) <= 2 * near

    @pytest.mark.parametrize("kind", LOSSES)
    def test_neighbours(self, kind):
        """Of one b a row moves the minimum by at most L/Λ; a steep one by nearly as much."""
        method = made(kind, 60)
        bound = (1.0 + 2 * method.algorithm.tolerance) / method.algorithm.strength
        furthest = 0.0
        for seed in range(20):
            x, y = data(60, seed)
            term = 3.0 * KEY.fold(seed).normal((4,), np.float64)
            if seed == 0:  # far on the wrong side, and of full length
                x[7], y[7] = np.array([1e6, 0, 0]), 1
                term = np.array([300.0, 0, 0, 0])
            ends = [
                work(kind, x, y, method, present).minimum(np.zeros(4), term)
                for present in (None, np.arange(60) != 7)
            ]
            furthest = max(furthest, float(np.linalg.norm(ends[0] - ends[1])))
            assert furthest <= bound
        assert furthest >= 0.9 * bound

    @pytest.mark.slow
    def test_what_is_not_found_is_not_released(self, monkeypatch):
        x, y = data(60)
        monkeypatch.setattr(comparators, "_STEPS", 1)
        with refuses(ValueError, "1e-06", 1):
            work("logistic", x, y, made(number=60)).minimum(np.zeros(4), np.ones(4))
        monkeypatch.undo()
        found = replace(work("logistic", x, y, made(number=60)), tolerance=1e-16)
        with refuses(ValueError, "1e-16"):  # below what is rounded off
            found.minimum(np.zeros(4), np.ones(4))

    def test_all_rows_are_asked(self):
        x, y = data(60)
        with refuses(ValueError, 3):
            answered(
                work("logistic", x, y, made(number=60)),
                params={},
                bound=OutputSensitivity(l2_bound=1.0),
                user_ids=("0", "1", "2"),
                key=KEY,
            )


class TestThroughTheDoor:
    def components(self, method, trainer):
        return components(
            method.plan, method.algorithm, trainer, number=200,
            data_sha256=lambda: {"private": "200"},
        )  # fmt: skip

    def run(self, method, kind="logistic", seed=0):
        x, y = data(200)
        made = self.components(method, work(kind, x, y, method))
        backend = SerialBackend(trainer=made.trainer)
        states = [s for _, s in rounds(made, backend, Key.simulation(seed), eval_every=9)]
        assert len(states) == 1 and set(states[0].params) == {"weight", "bias"}
        return states[0].params, (x, y)

    @pytest.mark.parametrize("delta", [None, 1e-6])
    def test_it_learns(self, delta):
        params, (x, y) = self.run(made(number=200, epsilon=20.0, delta=delta))
        logits = x @ params["weight"] + params["bias"]
        assert np.mean((logits > 0) == y) > 0.75
        again, _ = self.run(made(number=200, epsilon=20.0, delta=delta))
        other, _ = self.run(made(number=200, epsilon=20.0, delta=delta), seed=1)
        assert np.array_equal(params["weight"], again["weight"])
        assert not np.array_equal(params["weight"], other["weight"])

    def test_a_release_that_was_cut_off_is_made_again_the_same(self, tmp_path, monkeypatch):
        """One charge; neither the term nor the bare minimum is anywhere in the folder."""
        method, (x, y) = made(number=200, epsilon=5.0), data(200)
        found, secrets, lost = work("logistic", x, y, method), [], []
        real, drawn = PerturbedMinimum.minimum, ObjectiveNoise.linear_term

        def minimum(self, start, term):
            secrets.append(real(self, start, term))
            return secrets[-1]

        def linear_term(self, **given):
            secrets.append(drawn(self, **given)["weight"])
            return {**drawn(self, **given)}

        monkeypatch.setattr(PerturbedMinimum, "minimum", minimum)
        monkeypatch.setattr(ObjectiveNoise, "linear_term", linear_term)

        def killed(self, state):
            lost.append(state)
            raise SystemExit

        def play(root):
            made = self.components(method, found)
            backend = SerialBackend(trainer=found)
            with closing(RunFolder.of_plan(tmp_path, method.plan, mode="secure")) as folder:
                told = rounds(made, backend, root, folder=folder, eval_every=9)
                return [state for _, state in told], folder.ledger.charges

        with monkeypatch.context() as patched, pytest.raises(SystemExit):
            patched.setattr(RunFolder, "keep", killed)
            play(Key.secure())
        (state,), charges = play(Key.secure())
        assert charges == 1 and verify_run(tmp_path).ok
        assert np.array_equal(state.params["weight"], lost[0].params["weight"])
        assert len(secrets) == 4 and np.array_equal(secrets[1], secrets[3])
        kept = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
        assert state.params["weight"].tobytes() in kept
        for secret in secrets:
            for dtype in (np.float32, np.float64):
                assert secret.astype(dtype)[:3].tobytes() not in kept

    @pytest.mark.parametrize("delta", [None, 1e-6])
    def test_the_statement_says_describe_charge(self, delta):
        plan = made(delta=delta).plan
        for read in (plan, Plan.from_json(plan.to_json())):
            statement = privacy_statement(read, {}, num_charges=1)
            said = " ".join(statement.paragraphs("How ε was counted"))
            assert "released by ObjectiveNoise" in said and "linear term was added" in said
            assert "normalised" not in said and "standard deviation" not in said

    def test_the_term_is_the_works(self):
        """What the work is handed beside the params is no part of what it returns."""
        made_work = work("logistic", *data(200), made(number=200))
        params = {"weight": np.zeros(3, np.float32), "bias": np.zeros(1, np.float32)}
        context = Context(extra={name: np.ones(a.shape) for name, a in params.items()})
        request = SumRequest(params=params, context=context)
        assert set(made_work.template(request)) == set(params)
        found = answered(
            made_work,
            params=params,
            bound=OutputSensitivity(l2_bound=1.0),
            context=context,
            user_ids=example_ids(200),
            key=KEY,
        )
        assert {name: a.shape for name, a in found.total.items()} == {"weight": (3,), "bias": (1,)}


@pytest.mark.slow
def test_a_minimum_far_away_is_found_too():
    """Red with τ = 1e-6: what the gradient is rounded by there may be more."""
    method = made(number=22_500, epsilon=0.2, delta=None, num_params=301, most_shift=0.9)
    algorithm = method.algorithm
    x, y = data(22_500, d=300)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    found = work("logistic", x, y, method)
    template = {"weight": np.zeros(300), "bias": np.zeros(1)}
    term = algorithm.noise.linear_term(template=template, lipschitz=1.0, key=KEY)
    assert algorithm.tolerance > 1e-6
    point = found.minimum(np.zeros(301), np.concatenate([term["weight"], term["bias"]]))
    assert np.linalg.norm(point) > 1e4


class TestRefusals:
    @pytest.mark.parametrize(
        "constants", [loss_constants("softmax"), loss_constants("one-vs-all", num_classes=3)]
    )
    def test_losses_of_more_than_one_line(self, constants):
        with pytest.raises(ValueError):
            objective_perturbation(
                num_examples=50, num_params=4, epsilon=1.0, delta=None, constants=constants
            )

    def test_numbers(self):
        with pytest.raises(ValueError):
            made(most_shift=0.995)
        with refuses(ValueError, 0.1):
            objective_perturbation(
                num_examples=50,
                num_params=4,
                epsilon=1.0,
                delta=None,
                constants=loss_constants("logistic", regulariser=0.1),
            )
        algorithm = made().algorithm
        with pytest.raises(ValueError):
            replace(algorithm, strength=algorithm.strength / 2)
        with refuses(ValueError, "laplace"):
            replace(algorithm.noise, form="laplace")

    def test_other_plans(self):
        method = made()
        method.algorithm.check_plan(method.plan)
        mechanism = method.plan.live_mechanism
        low = replace(mechanism, bound=OutputSensitivity(l2_bound=1e-8))
        other = replace(mechanism, privatizer=replace(mechanism.privatizer, inside=9.0))
        for changed in (
            replace(method.plan, num_rounds=2), replace(method.plan, mechanism=low),
            replace(method.plan, mechanism=other),
        ):  # fmt: skip
            with pytest.raises(ValueError):
                method.algorithm.check_plan(changed)

    def test_a_part_of_the_examples(self):
        from fedpriv.privacy.sampling import PoissonSampler

        noise = made().algorithm.noise
        with pytest.raises(ValueError):
            Mechanism(
                sampler=PoissonSampler(num_users=40, expected_cohort_size=4),
                bound=OutputSensitivity(l2_bound=1.0),
                privatizer=noise,
            )
        whole = Mechanism(
            sampler=Everybody(num_users=40), bound=OutputSensitivity(l2_bound=1.0), privatizer=noise
        )
        assert isinstance(Plan(mechanism=whole, num_rounds=1, delta=1e-5), Plan)


def event(sigma, shift):
    return Event(kind="objective-gaussian", noise_multiplier=sigma, shift=shift)


def told(made, count=1, delta=1e-5, relation="add-remove"):
    return epsilon(made, count, delta=delta, relation=relation)


@pytest.mark.parametrize(("sigma", "shift"), [(50.0, 0.02), (5.0, 0.1), (1.0, 0.5), (0.5, 2.0)])
def test_one_costs_what_a_gaussian_does_and_the_shift(sigma, shift):
    found = told(event(sigma, shift))
    assert gaussian_delta(sigma, found.value - shift) <= 1e-5
    assert gaussian_delta(sigma, found.value - shift - 3e-4) > 1e-5  # the grid rounds up
    assert (found.accountant, found.rdp) == ("PLD", None)
    bare = told(Event(kind="gaussian", noise_multiplier=sigma))
    assert bare.value < found.value <= bare.value + shift + 3e-4


def test_several_cost_the_law_of_their_sum():
    """σ = 2, shift .1, 3 answers, by 400,000 draws of Σ max(0, G) + .3: δ within 5 standard errors.

    A false alarm in 3,500,000; the largest δ is the least that ε is told for.
    """
    sigma, shift, count, draws = 2.0, 0.1, 3, 400_000
    rng = np.random.default_rng(11)
    mean = 0.5 / sigma**2
    losses = np.maximum(0.0, rng.normal(mean, 1.0 / sigma, (draws, count))).sum(axis=1)
    losses += count * shift
    for delta in (0.3, 0.1, 0.01):
        value = told(event(sigma, shift), count, delta=delta).value
        terms = np.maximum(0.0, -np.expm1(value - losses))
        error = terms.std() / math.sqrt(draws)
        assert terms.mean() <= delta + 5 * error
        assert terms.mean() >= 0.98 * delta - 5 * error
    # Sums of G itself, which may fall below 0, would be told for less: no bound on these answers.
    plain = told(Event(kind="gaussian", noise_multiplier=sigma), count, delta=0.01).value
    assert plain + count * shift < told(event(sigma, shift), count, delta=0.01).value


def test_beside_other_answers():
    both = epsilon_of(
        [(event(5.0, 0.1), 1), (Event(kind="gaussian", noise_multiplier=5.0), 2)],
        delta=1e-5,
        relation="add-remove",
    )
    alone = told(Event(kind="gaussian", noise_multiplier=5.0 / math.sqrt(3)))
    assert alone.value + 0.09 < both.value < alone.value + 0.4


def test_calibration_comes_back():
    sigma = calibrate(
        lambda s: event(s, 0.3), 1, target_epsilon=1.0, delta=1e-6, relation="add-remove"
    )
    assert 0.999 < told(event(sigma, 0.3), delta=1e-6).value <= 1.0
    assert gaussian_delta(sigma, 0.7) == pytest.approx(1e-6, rel=5e-3)


def test_refusals():
    with refuses(ValueError, "replace-one"):
        told(event(5.0, 0.1), relation="replace-one")
    with pytest.raises(ValueError):
        rho_of(event(5.0, 0.1), Relation.ADD_REMOVE)
    with pytest.raises(ValueError):
        epsilon(event(5.0, 0.1), 1, delta=1e-5, relation="add-remove", trials=Trials(mean=3))


def on_a_line(epsilon, delta):
    return objective_perturbation(
        num_examples=40,
        num_params=1,
        epsilon=epsilon,
        delta=delta,
        constants=loss_constants("huber-svm", width=WIDTH),
    )


def densities(noise, strength, beta, offsets, *, gradient, curvature):
    """Log-densities of the exact minimum on a line, of D and of D with one row more.

    Of D is Σ∇ℓ = offset, whatever w: rows whose loss is straight there. The row that is added has
    the given gradient and curvature. Returns (grid step, log p of D, log p of D and the row).
    """
    w = np.linspace(-6.0, 6.0, 400_001)
    for offset in offsets:
        terms = -(offset + strength * w), -(offset + gradient(w) + strength * w)
        if noise.form == "sphere":
            logs = [-noise.inside * np.abs(b) + math.log(noise.inside / 2) for b in terms]
        else:
            logs = [stats.norm.logpdf(b, scale=noise.inside) for b in terms]
        logs[0] += math.log(strength)
        logs[1] += np.log(strength + curvature(w))
        yield w[1] - w[0], logs[0], logs[1]


def huber(w):
    """Gradient of one row of the label 1 and of length 1."""
    return -np.clip((1.0 + WIDTH - w) / (2.0 * WIDTH), 0.0, 1.0)


def bend(w):
    return np.where(np.abs(1.0 - w) <= WIDTH, 1.0 / (2.0 * WIDTH), 0.0)


class TestGuarantee:
    """The divergence of neighbours by integrals on a line; a 1-D problem is part of every one."""

    def spent(self, noise, strength, epsilon):
        """Return the largest δ over data sets and both directions."""
        worst = 0.0
        centres = np.linspace(-1.5, 1.5, 25)
        for step, here, there in densities(
            noise, strength, 5.0, -strength * centres, gradient=huber, curvature=bend
        ):
            for p, q in ((here, there), (there, here)):
                over = np.exp(p) - np.exp(epsilon + q)
                worst = max(worst, float(np.maximum(over, 0.0).sum() * step))
        return worst

    @pytest.mark.slow
    @pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
    def test_gaussian(self, epsilon):
        delta = 1e-2
        method = on_a_line(epsilon, delta)
        noise, strength = method.algorithm.noise, method.algorithm.strength
        assert self.spent(noise, strength, epsilon - noise.outside) <= delta
        # Each of three errors spends more: half of the noise, no shift, and Λ that is too small.
        assert self.spent(replace(noise, inside=noise.inside / 2), strength, epsilon) > delta
        bare = optimize.brentq(lambda sigma: gaussian_delta(sigma, epsilon) - delta, 0.1, 50.0)
        assert self.spent(replace(noise, inside=bare), strength, epsilon) > delta
        assert self.spent(noise, strength / 30, epsilon) > delta

    def test_gaussian_without_a_bend_is_a_gaussian_mechanism(self):
        """Rows whose loss is straight spend all that the term pays for: the bound is not loose."""
        method = on_a_line(1.0, 1e-2)
        noise, strength = method.algorithm.noise, method.algorithm.strength
        left = 1.0 - noise.shift - noise.outside
        worst = 0.0
        for step, here, there in densities(
            noise, strength, 5.0, [0.0], gradient=lambda w: -1.0 + 0 * w, curvature=lambda w: 0 * w
        ):
            worst = float(np.maximum(np.exp(here) - np.exp(left + there), 0.0).sum() * step)
        assert 0.99e-2 <= worst <= 1e-2

    @pytest.mark.slow
    @pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
    def test_pure(self, epsilon):
        method = on_a_line(epsilon, None)
        noise, strength = method.algorithm.noise, method.algorithm.strength
        worst = 0.0
        for _, here, there in densities(
            noise, strength, 5.0, -strength * np.linspace(-3, 3, 13), gradient=huber, curvature=bend
        ):
            worst = max(worst, float(np.abs(here - there).max()))
        assert worst <= epsilon - noise.outside
        assert worst >= 0.97 * (epsilon - noise.outside)
        assert worst > noise.inside  # who forgets the change of volume guarantees too much
