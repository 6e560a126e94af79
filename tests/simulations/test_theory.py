"""Bounds of the papers' theorems against cases whose answer is known or computed by brute force.

An upper bound that only holds may be far too large, and a wrong constant would go unseen. So each
formula meets cases in which its terms are attained, exactly or to a factor that is stated: any of
its constants changed by a factor of two makes a test fail.
"""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq

from fedpriv.training.permutation_sgd import loss_constants
from simulations.reproduction.command import app
from simulations.theory import bounds as theory
from tests.docs.shell_blocks import commands
from tests.harness.command_line import CliRunner
from tests.harness.exact_gaussian import gaussian_delta
from tests.harness.refusals import refuses

ROOT = Path(__file__).parents[2]

CONVEX = {"rounds": 100, "learning_rate": 0.1, "distance": 1.0, "preconditioner_sum": 10.0}
SMOOTH = {"rounds": 100, "learning_rate": 0.1, "gap": 1.0, "smoothness": 1.0, "dimension": 5}
PASSES = {"examples": 100, "passes": 2, "distance": 1.0, "lipschitz": 1.0, "smoothness": 1.0}
PASSES |= {"dimension": 5, "epsilon": 1.0}
#: A setting of each formula.
SETTINGS = {
    "adadps-convex-public": CONVEX,
    "adadps-convex-fixed": CONVEX | {"preconditioner_max": 1.0},
    "adadps-smooth": SMOOTH | {"preconditioner_min": 0.5, "preconditioner_max": 1.0},
    "dp-nsgd": SMOOTH | {"deviation": 0.1, "regulariser": 1.0},
    "bias": {"regulariser": 0.01},
    "bolt-on-convex": PASSES | {"learning_rate": 0.1},
    "bolt-on-strongly-convex": PASSES | {"convexity": 0.1},
    "last-iterate": {"rounds": 100, "learning_rate": 0.1, "distance": 1.0, "dimension": 5},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["adadps-convex-public", "adadps-convex-fixed", "adadps-smooth", "dp-nsgd", "bolt-on-convex"],
)
def test_parts_add_up_and_no_rate_beats_the_best(name):
    def at(rate):
        return theory.FORMULAS[name][1](**SETTINGS[name] | {"learning_rate": rate})

    found = at(0.1)
    parts = [value for part, value in found.items() if part.startswith(("from_", "limit"))]
    assert sum(parts) == pytest.approx(found["bound"])
    best = found["best_learning_rate"]
    assert at(best)["bound"] == pytest.approx(found["bound_at_best"])
    for rate in (0.1, 0.7 * best, 0.9 * best, 1.1 * best):
        assert at(rate)["bound"] >= found["bound_at_best"] * (1 - 1e-9)


# AdaDPS, convex.


def test_one_round_from_the_edge_attains_theorem_3():
    """F = g|w| from w = D: the rate that goes to the optimum in one step has bound F(w) itself."""
    gradient, distance, divisor = 3.0, 2.0, 0.5
    one = {"rounds": 1, "learning_rate": distance * divisor / gradient, "distance": distance}
    one |= {"preconditioner_sum": divisor, "preconditioner_max": divisor}
    found = theory.adadps_convex_fixed(**one, gradient_energy=gradient**2 / divisor)
    assert found["bound"] == pytest.approx(gradient * distance)
    assert found["best_learning_rate"] == pytest.approx(one["learning_rate"])
    # By Assumption 2, of a preconditioned gradient no longer than C = g/A.
    usual = theory.adadps_convex_fixed(**one, clip_norm=gradient / divisor)
    assert usual["bound"] == pytest.approx(found["bound"])


# DP-NSGD.


def test_the_bias_of_two_gradients():
    """By hand: 1.3 in a third of cases, else -0.5."""
    normalised = theory.bias(regulariser=0.01)
    assert normalised["mean"] == pytest.approx(0.1)
    assert normalised["step"] == pytest.approx(1.3 / 1.31 / 3 - 2 * 0.5 / 0.51 / 3)
    assert normalised["along"] < 0 and normalised["worst"] <= normalised["step"]
    assert theory.bias(clip_norm=1.3)["step"] == pytest.approx(0.1)
    assert theory.bias(clip_norm=0.5)["step"] == pytest.approx(-1 / 6)
    for wrong in ({}, {"regulariser": 1.0, "clip_norm": 1.0}):
        with pytest.raises(ValueError):
            theory.bias(**wrong)


# Bolt-on.


def risks(w, centers, slope, curve, convexity):
    """Mean of Huber losses around centers, and a regulariser, at many points at once."""
    apart = np.abs(w[:, None] - centers)
    inside = 0.5 * curve * apart**2
    outside = slope * apart - 0.5 * slope**2 / curve
    losses = np.where(curve * apart <= slope, inside, outside)
    return losses.mean(axis=1) + 0.5 * convexity * w**2


def mean_excess(centers, orders, *, slope, curve, rates, start, convexity=0.0, batch=1):
    """E F(w̄) - F* over orders, each a sequence of positions, by enumeration; and the optimum."""
    centers = np.asarray(centers, float)
    grid = np.linspace(min(centers.min(), 0) - 0.1, max(centers.max(), 0) + 0.1, 20_001)
    values = risks(grid, centers, slope, curve, convexity)
    means = []
    for order in orders:
        w, iterates = start, []
        for rate, place in zip(rates, range(0, len(order), batch), strict=True):
            iterates.append(w)
            taken = [curve * (w - centers[i]) for i in order[place : place + batch]]
            gradient = sum(max(-slope, min(slope, each)) for each in taken) / batch
            w -= rate * (gradient + convexity * w)
        means.append(sum(iterates) / len(iterates))
    happens = risks(np.array(means), centers, slope, curve, convexity).mean()
    return float(happens - values.min()), float(grid[values.argmin()])


NO_NOISE = {"dimension": 1, "epsilon": 1e12}


@pytest.mark.slow
@pytest.mark.parametrize("strongly", [False, True])
@pytest.mark.parametrize(
    ("passes", "reshuffled", "batch"), [(1, False, 1), (2, False, 1), (2, True, 1), (2, False, 2)]
)
def test_no_four_losses_exceed_the_bound_of_bolt_on(passes, reshuffled, batch, strongly):
    """All orders of four losses, 40 random problems each."""
    rng, single = np.random.default_rng(6), list(itertools.permutations(range(4)))
    orders = [a + b for a in single for b in single] if reshuffled else [o * passes for o in single]
    for _ in range(40):
        slope, curve, centers = rng.uniform(0.5, 2), rng.uniform(0.5, 4), rng.normal(0, 2, 4)
        start, convexity = rng.uniform(-1, 1), strongly * rng.uniform(0.1, 1)
        updates, rate = 4 // batch * passes, rng.uniform(0.05, 1) * 2 / curve
        rates, more = [rate] * updates, {"learning_rate": rate}
        if strongly:
            smooth, more = curve + convexity, {"convexity": convexity}
            rates = [min(1 / smooth, 1 / (convexity * t)) for t in range(1, updates + 1)]
        happens, best = mean_excess(
            centers, orders, slope=slope, curve=curve, rates=rates, start=start, batch=batch,
            convexity=convexity,
        )  # fmt: skip
        # No iterate is beyond where the regulariser pulls as strongly as a loss.
        steepest = slope + max(convexity * abs(start), slope) * strongly
        found = theory.FORMULAS["bolt-on-strongly-convex" if strongly else "bolt-on-convex"][1](
            examples=4, passes=passes, distance=abs(start - best) + 1e-3, lipschitz=steepest,
            smoothness=curve + convexity, batch=batch, reshuffled=reshuffled, **more, **NO_NOISE,
        )  # fmt: skip
        assert happens <= found["bound"]


def test_one_example_nearly_attains_the_steps_of_bolt_on():
    """A Huber loss from R, η = R/L and β = 2/η: F is three quarters of the bound, LR."""
    slope, far = 2.0, 3.0
    curve = 2 * slope / far
    happens, _ = mean_excess([0.0], [(0,)], slope=slope, curve=curve, rates=[1.5], start=far)
    found = theory.bolt_on_convex(
        examples=1,
        passes=1,
        learning_rate=far / slope,
        distance=far,
        lipschitz=slope,
        smoothness=curve,
        **NO_NOISE,
    )
    assert found["bound"] == pytest.approx(slope * far) == pytest.approx(happens / 0.75)
    assert found["from_order"] == 0


def exchanged(losses, first, second, *, updates, rate) -> float:
    """How far two positions' exchange moves the iterate; a loss is (slope, curvature) at 0."""
    other = list(losses)
    other[first], other[second] = losses[second], losses[first]
    a = b = 0.0
    for n in range(updates):
        for_a, for_b = losses[n % len(losses)], other[n % len(losses)]
        a, b = a - rate * (for_a[0] + for_a[1] * a), b - rate * (for_b[0] + for_b[1] * b)
    return abs(a - b)


def test_the_order_part_of_bolt_on_is_the_mean_of_the_largest_moves():
    """Of one pass: 2Lη where the exchanged one was seen, by linear losses of ±L."""
    m, slope, rate = 7, 2.0, 0.1
    moves = np.zeros((m, m))
    for now, seen in itertools.permutations(range(m), 2):
        losses = [(0.0, 0.0)] * m
        losses[seen], losses[now] = (slope, 0.0), (-slope, 0.0)
        moves[now, seen] = exchanged(losses, seen, now, updates=now, rate=rate)
    problem = {"learning_rate": rate, "distance": 1.0, "lipschitz": slope, "smoothness": 1.0}
    found = theory.bolt_on_convex(examples=m, passes=1, **problem, **NO_NOISE)
    assert found["from_order"] == pytest.approx(slope * moves.mean())
    # Of a second pass of the same order three times as far, where steps in between turn the sign:
    # a curvature of 2/η does.
    losses = [(slope, 0.0), (0.0, 2 / rate), (-slope, 0.0), (0.0, 2 / rate)]
    assert exchanged(losses, 0, 2, updates=4 + 2, rate=rate) == pytest.approx(6 * slope * rate)
    one, three = (
        theory.bolt_on_convex(examples=10**9, passes=k, **problem, **NO_NOISE)["from_order"]
        for k in (1, 2)
    )
    # Seen in half of all cases: 1/2, and then the mean of it and 2 + 1/2.
    assert three / one == pytest.approx((0.5 + 2.5) / 2 / 0.5)


def test_the_parts_of_strongly_convex_bolt_on():
    """Written out: steps summed one by one, and moves of quadratics, which attain 2L/γn."""
    m, slope, curve, convexity, passes = 50, 2.0, 5.0, 0.3, 3
    problem = {"distance": 2.0, "lipschitz": slope, "smoothness": curve, "convexity": convexity}
    found = theory.bolt_on_strongly_convex(examples=m, passes=passes, **problem, **NO_NOISE)
    updates = m * passes
    rates = [min(1 / curve, 1 / (convexity * t)) for t in range(1, updates + 1)]
    steps = ((curve - convexity) * 2.0**2 / 2 + slope**2 / 2 * sum(rates)) / updates
    assert found["from_steps"] == pytest.approx(steps)
    # One pass of f = γw²/2 ± Lw, whose rates are 1/γt.
    mean = 0.0
    for now, seen in itertools.combinations(range(m), 2):
        first, second = sorted((now, seen))
        a = 0.0
        for n in range(second):
            a = (1 - 1 / (n + 1)) * a + (2 * slope / (convexity * (n + 1)) if n == first else 0.0)
        mean += slope * a / m**2
    flat = problem | {"smoothness": convexity}
    one = theory.bolt_on_strongly_convex(examples=m, passes=1, **flat, **NO_NOISE)
    assert mean == pytest.approx(one["from_order"] * (m - 1) / m)
    again = theory.bolt_on_strongly_convex(
        examples=m, passes=passes, reshuffled=True, **problem, **NO_NOISE
    )
    assert found["from_order"] == pytest.approx(one["from_order"] * (2 - 1 / 3))
    assert again["from_order"] == pytest.approx(one["from_order"] * (1 + 1 / 2 + 1 / 3) / 3)


@pytest.mark.parametrize("delta", [None, 1e-5])
def test_the_noise_part_of_bolt_on_is_attained(delta):
    """F = β‖w‖²/2 at its minimum, and L‖w‖: E F of the noise alone, of 40,000 draws.

    Lengths have a relative sd below 0.5 and squares below 1.2: within 0.03, five of the mean's.
    """
    rng = np.random.default_rng(8)
    wide, epsilon, draws = 6, 0.7, 40_000
    problem = {"examples": 100, "passes": 2, "learning_rate": 0.01, "distance": 1.0}
    problem |= {"dimension": wide, "epsilon": epsilon, "delta": delta}
    moved = 2 * 2 * 3.0 * 0.01
    if delta is None:
        lengths = rng.gamma(wide, moved / epsilon, draws)
    else:
        # The least Gaussian for ε and δ: by its own δ at ε.
        stddev = moved * brentq(lambda s: gaussian_delta(s, epsilon) - delta, 1e-2, 1e3)
        lengths = np.linalg.norm(stddev * rng.normal(size=(draws, wide)), axis=1)
    steep = theory.bolt_on_convex(lipschitz=3.0, smoothness=100.0, **problem)
    assert steep["from_noise"] == pytest.approx(
        3.0 * lengths.mean(), rel=0.03 if delta is None else 0.06
    )
    assert steep["from_noise"] >= 3.0 * lengths.mean() * 0.99
    gentle = theory.bolt_on_convex(lipschitz=3.0, smoothness=0.01, **problem)
    assert gentle["from_noise"] == pytest.approx(0.005 * (lengths**2).mean(), rel=0.03)


# Last iterate and averages.


def test_tails_stand_between_the_last_and_all():
    options = {"rounds": 999, "learning_rate": 0.1, "distance": 1.0, "dimension": 5}
    tails = [
        theory.last_iterate(last=k, noise_multiplier=1.0, **options)["average_of_last"]
        for k in (1, 1000)
    ]
    found = theory.last_iterate(noise_multiplier=1.0, **options)
    assert tails == [found["last"], found["average"]] and tails[0] > tails[1]
    harmonic = math.fsum(1 / i for i in range(1, 1000))
    assert found["ratio_at_best"] == pytest.approx(math.sqrt(1 + harmonic))


def test_harmonic_numbers_of_any_size():
    assert theory._harmonic(20_000) == pytest.approx(
        sum(1 / i for i in range(1, 20_001)), rel=1e-12
    )


# What is refused.


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("adadps-convex-public", {"decay": 2.0}, 2),
        ("adadps-convex-public", {"similarity": 0.0}, 0),
        ("adadps-convex-public", {"rounds": 0}, 0),
        ("adadps-convex-public", {"batch": 0}, 0),
        ("adadps-convex-fixed", {"preconditioner_max": 11.0}, 11),
        ("adadps-smooth", {"learning_rate": 1.0}, 1),
        ("adadps-smooth", {"preconditioner_min": 1.0, "preconditioner_max": 0.7}, 0.7),
        ("dp-nsgd", {"relative_smoothness": 1.0, "learning_rate": 10.0}, 10),
        ("bolt-on-convex", {"batch": 3}, 3),
        ("bolt-on-convex", {"learning_rate": 3.0}, 3),
        ("bolt-on-strongly-convex", {"convexity": 2.0}, 2),
        ("last-iterate", {"last": 102}, 102),
    ],
)
def test_refused_settings(name, given, value):
    theory.FORMULAS[name][1](**SETTINGS[name])
    with refuses(ValueError, value):
        theory.FORMULAS[name][1](**SETTINGS[name] | given)


# Commands.


def printed(*arguments):
    """Values that a command prints, by name."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.exception
    rows = (line.split("|")[1:3] for line in done.stdout.splitlines() if line.startswith("| "))
    return {name.strip(): value.strip() for name, value in [*rows][1:]}


@pytest.mark.parametrize("name", ["adadps-smooth", "bias", "last-iterate"])
def test_a_command_prints_what_its_function_returns(name):
    given = [f"{option.replace('_', '-')}={value}" for option, value in SETTINGS[name].items()]
    found = theory.FORMULAS[name][1](**SETTINGS[name])
    shown = printed(f"theory-{name}", *(part for one in given for part in ("-s", one)))
    assert shown == {value: f"{number:.6g}" for value, number in found.items()}


def test_the_page_has_the_numbers_of_its_example():
    page = (ROOT / "docs" / "theory.md").read_text("utf-8")
    example = [found.words for found in commands(page) if "reshuffled=true" in found.words]
    assert len(example) == 2
    for words in example:
        given = dict(word.split("=") for word in words if "=" in word)
        rate = given["learning-rate"]
        names = ("bound", "from_steps", "from_order", "from_noise", "sensitivity")
        found = printed(*words[3:])
        shown = [f"{float(found[name]):.3g}" for name in (*names, "best_learning_rate")]
        assert f"| {' | '.join([rate, *shown])} |" in page
    loss = loss_constants("softmax")
    assert float(given["lipschitz"]) == pytest.approx(loss.lipschitz)
    assert float(given["smoothness"]) == loss.smoothness
