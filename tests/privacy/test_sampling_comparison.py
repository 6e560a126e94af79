"""Drawing users beside drawing examples: ε of a user in every row, noise per unit of signal."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import (
    from_gaussian_mechanism,
    from_mixture_gaussian_mechanism,
)
from scipy import stats

import fedpriv as fp
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy import gaussian_loss, sampling_comparison
from fedpriv.privacy.event import Relation, cohort_event
from fedpriv.privacy.sampling_comparison import compare_sampling
from fedpriv.rng import Key
from fedpriv.tasks.module_task import ArrayUsers
from tests.tasks.people import person, task

N, ROUNDS, EPSILON, DELTA = 500, 20, 2.0, 1e-4
COUNTS = [1, 2, 4, 9, 0]


def compared(counts=COUNTS, examples=100.0, **changes):
    given = {
        "num_users": N, "examples_a_round": examples, "rounds": ROUNDS, "target_epsilon": EPSILON,
        "delta": DELTA, "source": "five people",
    }  # fmt: skip
    return compare_sampling(counts, **{**given, **changes})


@pytest.fixture(scope="module")
def table():
    return compared(bounds=(1, 2, 8))


def of_a_user(row):
    """ε of a user by dp-accounting itself: of G slots each drawn with p, all pushing one way."""
    most = row.examples_per_user or 1
    counts = list(range(most + 1))
    probs = stats.binom.pmf(counts, most, row.sampling_prob).tolist()
    loss = from_mixture_gaussian_mechanism(
        row.noise_multiplier, counts, probs, value_discretization_interval=4e-3
    )
    return loss.self_compose(ROUNDS).get_epsilon_for_delta(DELTA)


@pytest.mark.slow
def test_every_row_has_the_epsilon_of_a_user(table):
    assert [row.examples_per_user for row in table.rows] == [None, 1, 2, 8]
    for row in table.rows:
        assert of_a_user(row) == pytest.approx(EPSILON, rel=1e-3)


@pytest.mark.slow
def test_the_figures_by_hand(table):
    """Means of 1, 2, 4, 9 and 0: 3.2; bounded by 1: 0.8, by 2: 1.4, by 8: 3.0."""
    users, one, two, eight = table.rows
    assert users.sampling_prob == pytest.approx(100 / (500 * 3.2))
    assert [r.sampling_prob for r in (one, two, eight)] == pytest.approx(
        [100 / 400, 100 / 700, 100 / 1500]
    )
    assert [row.kept for row in table.rows] == pytest.approx([1, 4 / 16, 7 / 16, 15 / 16])
    for row in (one, two, eight):
        assert row.noise_per_signal == pytest.approx(row.noise_multiplier / 100)
    # Four of five users have an example: 0.0625 · 500 · 0.8 = 25 of them take part with one.
    assert users.noise_per_signal_alike == pytest.approx(users.noise_multiplier / 25)
    shrunk = math.sqrt((1 + 1 / 2 + 1 / 4 + 1 / 9) / 4)
    assert users.noise_per_signal == pytest.approx(shrunk * users.noise_multiplier / 25)


@pytest.mark.slow
def test_users_are_the_cohort_of_calibrate(table):
    cohort = N * table.rows[0].sampling_prob
    alone = fp.Rounds(users=N, cohort=cohort, rounds=ROUNDS, delta=DELTA).calibrate(EPSILON)
    assert table.rows[0].noise_multiplier == pytest.approx(alone.noise_multiplier, rel=1e-9)


def test_of_one_example_each_both_are_dp_sgd():
    users, examples = compared([1, 1, 1], bounds=(1,)).rows
    assert users.noise_multiplier == examples.noise_multiplier
    assert users.noise_per_signal == users.noise_per_signal_alike == examples.noise_per_signal
    assert compared([1], bounds=(1,)).verdict.startswith("Either")


def test_of_all_examples_it_is_a_gaussian_of_g_bounds():
    """Every slot drawn: σ/G is that of a Gaussian of sensitivity 1."""
    row = compared([4] * 5, examples=1e9, bounds=(4,)).rows[1]
    assert row.sampling_prob == 1.0
    plain = from_gaussian_mechanism(
        row.noise_multiplier / 4 / math.sqrt(ROUNDS), value_discretization_interval=4e-3
    )
    assert plain.get_epsilon_for_delta(DELTA) == pytest.approx(EPSILON, rel=1e-3)


@pytest.mark.slow
def test_more_examples_a_user_need_more_noise_at_one_probability():
    """With G slots drawn each with p = 0.2, σ grows with G, and at most G times."""
    found = []
    for most in (1, 2, 4, 8):
        row = compared([most], examples=0.2 * N * most, bounds=(most,)).rows[1]
        assert row.sampling_prob == pytest.approx(0.2)
        found.append(row.noise_multiplier)
    assert found == sorted(found) and found[-1] <= 8 * found[0]


@pytest.mark.slow
def test_the_break_even_is_where_both_have_the_same_noise():
    found = compared([5] * 5, examples=200.0, rounds=100, target_epsilon=8.0, bounds=(2,))
    a, users = found.break_even, found.rows[0]
    assert a is not None and 0.0 < a < 1.0
    length = math.sqrt(a + (1 - a) / 5)
    assert users.noise_per_signal_alike * length == pytest.approx(found.best.noise_per_signal)
    assert f"correlate by more than {a:.2f}" in found.verdict
    for measured, said in ((a - 0.1, "Draw users"), (a + 0.1, "Draw single examples")):
        known = replace(found, correlation=measured)
        assert known.verdict.startswith(said) and f"{measured:.2f}, as measured" in known.verdict
        by_user = users.noise_per_signal_alike * math.sqrt(measured + (1 - measured) / 5)
        assert known.noise_by_user == pytest.approx(by_user)


@pytest.mark.slow
def test_a_forgotten_bound_would_be_seen(monkeypatch):
    """The noise of one example alone: a user of two has a far larger ε than is said."""
    monkeypatch.setattr(
        sampling_comparison, "cohort_event", lambda *, devices, **more: cohort_event(**more)
    )
    row = compared(bounds=(2,)).rows[1]
    assert of_a_user(row) > 1.5 * EPSILON


def test_counts_of_nobody_are_refused():
    for counts in ([], [0, 0], [-1, 2]):
        with pytest.raises(ValueError, match="counts of at least one example"):
            compared(counts)


@pytest.mark.slow
@pytest.mark.parametrize(("most", "prob"), [(64, 0.4165), (64, 0.42), (32, 0.7)])
def test_the_mixture_is_accounted_where_hardly_anybody_stays_away(most, prob):
    """(1 - p)^G is 1e-15 to 1e-17: the limit that this sets to a loss has no digits left.

    ε lies between those of the median number of examples and of more than are ever drawn.
    """
    found = gaussian_loss.devices_gaussian_loss(
        1.0, sampling_prob=prob, devices=most, interval=1e-2, relation=Relation.ADD_REMOVE
    ).get_epsilon_for_delta(1e-5)
    few, many = (
        gaussian_loss.gaussian_loss(
            1.0 / stats.binom.ppf(share, most, prob),
            sampling_prob=1.0,
            interval=1e-2,
            relation=Relation.ADD_REMOVE,
        ).get_epsilon_for_delta(1e-5)
        for share in (0.5, 1 - 1e-7)
    )
    assert few < found < many


def by_user():
    made = task(synthetic_batch=person(0))
    return FederatedExperiment(
        name="own", description="", task=lambda experiment: made, rounds=5
    ).with_options({"cohort": 6.0, "target_epsilon": 4.0})


@pytest.mark.slow
def test_rostered_users_are_not_counted(monkeypatch):
    """Without public counts nothing is said; with stated ones no user is looked at."""

    def counted(self, user_id):
        raise AssertionError(f"{user_id} was counted")

    monkeypatch.setattr(ArrayUsers, "num_examples", counted)
    asked = {"timed": False, "grid_cohorts": (6,), "grid_rounds": (5,), "samplers": True}
    unknown = fp.forecast(by_user(), **asked)
    assert unknown.samplers is None and "user_examples=" in unknown.samplers_reason
    assert "rostered users' are not counted" in str(unknown)
    found = fp.forecast(by_user(), user_examples=(1, 3), grid_examples=(1, 2), **asked)
    assert [row.examples_per_user for row in found.samplers.rows] == [None, 1, 2]
    assert found.samplers.verdict in str(found)
    assert found.to_json()["samplers"]["verdict"] == found.samplers.verdict
    assert "as stated (2 numbers)" in str(found)


@pytest.mark.slow
def test_tags_take_public_users_counts(tiny_corpus):
    asked = {"timed": False, "grid_cohorts": (6,), "grid_rounds": (5,), "grid_examples": (2,)}
    options = {"cohort": 6.0, "rounds": 5, "target_epsilon": 4.0}
    found = fp.forecast("dp-fedavg-tags", corpus=tiny_corpus.directory, **asked, **options)
    assert "of 12 users outside the roster" in found.samplers.source
    examples = fp.forecast(
        "example-sampling-tags", corpus=tiny_corpus.directory, timed=False, grid_examples=(2,),
        examples_per_user=2, batch_size=24.0, steps=5, target_epsilon=4.0,
    )  # fmt: skip
    row = examples.samplers.rows[1]
    assert row.sampling_prob == pytest.approx(0.2)  # 24 of 120 slots: the plan's own
    assert row.noise_multiplier == pytest.approx(examples.planned.noise_multiplier, rel=1e-6)
    assert np.isfinite(examples.samplers.rows[0].noise_multiplier)


@pytest.mark.slow
def test_the_correlation_is_of_public_users_gradients(tiny_corpus):
    """Against gradients that are written out, one by one.

    Red if answers to rostered users' questions are among them: their titles and tags are theirs.
    """
    users = build(load_experiment("dp-fedavg-tags"), tiny_corpus).task
    rng = np.random.default_rng(0)
    params = {
        name: rng.normal(size=array.shape).astype(np.float32)
        for name, array in users.init_params(Key.simulation(0)).items()
    }
    products, squares, public = [], [], users.view.public_rows("train")
    assert 0 < len(public) < len(users.view.all_rows(users.public_users, "train"))
    for user in users.public_users:
        rows = np.intersect1d(users.view.all_rows([user], "train"), public)
        gradients = []
        for row in rows:
            one = users.examples(np.array([row]))
            x = np.append(np.asarray(one.features(users.norm).todense())[0], 1.0)
            logits = x[:-1] @ params["kernel"] + params["bias"]
            residual = np.exp(logits) / np.exp(logits).sum()
            residual[one.labels[0]] -= 1.0
            gradients.append(np.outer(x, residual).reshape(-1))
        pairs = [float(g @ h) for g, h in itertools.combinations(gradients, 2)]
        if pairs:
            products.append(np.mean(pairs))
            squares.append(np.mean([float(g @ g) for g in gradients]))
    expected = np.sum(products) / np.sum(squares)
    assert users.public_gradient_correlation(params) == pytest.approx(expected, rel=1e-5)
