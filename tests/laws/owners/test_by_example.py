"""Users' examples drawn one by one: a user moves a sum by at most G bounds, and ε is the user's."""

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_mixture_gaussian_mechanism
from scipy import stats

import fedpriv as fp
from fedpriv import tree
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.mechanisms import Clip
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.rng import Key
from fedpriv.tasks.central import OwnedExamples, kept_examples
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import answered
from tests.tasks.people import USERS, person, task
from tests.tasks.sixty import sixty

MOST, CLIP = 3, 0.5
NOBODY = tuple(array[:0] for array in person(0))
SOME = USERS | {"u03": tuple(array[:2] for array in person(3)), "u04": NOBODY}


def experiment(made, **options):
    own = CentralExperiment(name="own", description="", task=lambda experiment: made)
    usual = {"batch_size": 6, "steps": 10, "noise_multiplier": 2.0, "examples_per_user": 8}
    return own.with_options({**usual, **options})


def sums(users, most=MOST):
    """Each slot's bounded contribution, and the sum over all slots."""
    made = build(experiment(task(users=users), examples_per_user=most))
    params, key = made.init_params(Key.simulation(0)), Key.simulation(1)

    def over(ids):
        bound = Clip(l2_clip_norm=CLIP)
        return answered(made.trainer, params=params, bound=bound, user_ids=ids, key=key).total

    return [over([slot]) for slot in made.task.roster], over(made.task.roster)


def apart(one, other):
    return tree.l2_norm({name: one[name] - other[name] for name in one})


def moved(users, others, most=MOST):
    """Slots that change, and how far the sum moves."""
    (mine, total), (theirs, other) = sums(users, most), sums(others, most)
    assert len(mine) == len(theirs) == most * len(users)
    pairs = enumerate(zip(mine, theirs, strict=True))
    return [slot for slot, (a, b) in pairs if apart(a, b) > 0.0], apart(total, other)


@pytest.mark.parametrize(("user", "filled"), [("u00", 3), ("u03", 2)])
def test_without_a_user_its_slots_are_empty_and_nothing_else_changes(user, filled):
    changed, far = moved(SOME, SOME | {user: NOBODY})
    first = MOST * sorted(SOME).index(user)
    assert changed == list(range(first, first + filled))
    assert 0.0 < far <= filled * CLIP * (1 + 1e-6)


@pytest.mark.parametrize("label", [99, -3])
def test_a_label_that_is_no_class_contributes_zero_and_stops_nobody(label):
    x, y = person(3)
    changed, far = moved(SOME | {"u03": (x, np.full_like(y, label))}, SOME | {"u03": NOBODY})
    assert changed == [] and far < 1e-6


def test_that_is_tight():
    """Equal examples push the same way: three of them move the sum by three bounds."""
    x, y = person(0)
    same = SOME | {"u00": (50 * x[:1].repeat(6, 0), y[:1].repeat(6))}
    _, far = moved(same, same | {"u00": NOBODY})
    assert far == pytest.approx(MOST * CLIP, rel=1e-5)


def test_the_rule_is_frozen_and_of_the_user_alone():
    assert kept_examples("u1", 10, 3).tolist() == [0, 3, 7]
    assert kept_examples("u2", 10, 3).tolist() != [0, 3, 7]
    assert kept_examples("u1", 2, 3).tolist() == [0, 1]
    assert kept_examples("u1", 0, 3).tolist() == []


def test_it_keeps_each_example_as_often():
    """4,000 users, 3 of 10 kept: χ² of 9 degrees is above 33.7 once in 10,000 seeds."""
    counts = np.zeros(10)
    for number in range(4000):
        counts[kept_examples(f"user {number}", 10, 3)] += 1
    # Draws without replacement vary less than independent ones: by (1 - 3/10) / (1 - 1/10).
    assert ((counts - 1200) ** 2).sum() / 1200 / (0.7 / 0.9) < 33.7


def mixture(most, prob, steps, delta, *, rounded_up=True, interval=5e-3):
    """ε at σ = 2 by dp-accounting itself; each of an owner's examples is drawn alone."""
    counts = list(range(most + 1))
    loss = from_mixture_gaussian_mechanism(
        2.0,
        counts,
        stats.binom.pmf(counts, most, prob).tolist(),
        pessimistic_estimate=rounded_up,
        value_discretization_interval=interval,
    )
    return loss.self_compose(steps).get_epsilon_for_delta(delta)


@pytest.mark.slow
@pytest.mark.parametrize("most", [2, 6])
def test_epsilon_is_of_a_user(most):
    plan = build(experiment(task(), examples_per_user=most)).plan
    assert (plan.num_users, plan.num_protected) == (12 * most, 12)
    assert plan.delta == 12**-1.1
    spent = plan.total()
    assert "per user" in str(spent) and spent.unit == "user"
    assert spent.value == pytest.approx(mixture(most, 0.5 / most, 10, 12**-1.1), rel=1e-3)


def test_of_one_example_a_user_it_is_the_sampling_of_users():
    """Drawn with the same probability, 6 of 12 a round."""
    examples = build(experiment(task(), examples_per_user=1)).plan
    users = fp.Rounds(users=12, cohort=6, rounds=10).account(2.0)
    assert examples.total().value == users.epsilon.value


def test_of_everybody_it_is_a_gaussian_of_g_bounds():
    """Of 10 answers with σ = 2 · 3: that of one with σ / (G √10)."""
    plan = build(experiment(task(), examples_per_user=3, batch_size=36, noise_multiplier=6.0)).plan
    alone = fp.Rounds(users=12, cohort=12, rounds=10).account(2.0)
    assert plan.total().value == pytest.approx(alone.epsilon.value, rel=1e-6)


def test_a_user_s_epsilon_is_never_that_of_one_of_its_examples(monkeypatch):
    """With the bound forgotten a plan cannot be made."""
    monkeypatch.setattr(OwnedExamples, "sampler", lambda self, draws: draws)
    with refuses(ValueError, 3, 1):
        build(experiment(task(), examples_per_user=3))


AGD = {
    "method": "agd",
    "target_epsilon": 1.0,
    "examples_per_user": None,
    "batch_size": None,
    "noise_multiplier": None,
    "steps": None,
}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"relation": "replace-one"}, ["replace-one", "add-remove"]),
        ({"sampling": "fixed"}, [8]),
        ({"micro_batch": 2}, [2]),
        (AGD, []),
    ],
)
def test_what_is_not_accounted_is_refused(options, named):
    with refuses(ValueError, *named):
        build(experiment(task(), **options))


def test_a_task_of_the_other_kind_is_refused():
    for made in (experiment(task(), examples_per_user=None), experiment(sixty())):
        with pytest.raises(ValueError):
            build(made)


@pytest.mark.parametrize("user", ["u00", "u05"])
def test_a_user_whose_examples_have_another_shape_contributes_zero_alone(user):
    x, y = person(0)
    changed, far = moved(SOME | {user: (x[:, :3], y)}, SOME | {user: NOBODY})
    assert changed == [] and far == 0.0


@pytest.mark.parametrize("inputs", ["tff", "unit-norm", "tf-idf"])
def test_tags_are_the_examples_that_users_train_on(tiny_corpus, inputs):
    """A slot's contribution is the gradient that a user of that one example has."""
    chosen = load_experiment("example-sampling-tags").with_options(
        {"inputs": inputs, "examples_per_user": 2, "noise_multiplier": 1.0}
    )
    made = build(chosen, tiny_corpus)
    users = made.task.users
    assert made.task.num_train == 2 * len(users.roster)
    params = {name: np.zeros_like(a) for name, a in made.init_params(Key.simulation(0)).items()}
    place = users.roster.index("u07")
    ask = {"params": params, "bound": Clip(l2_clip_norm=100.0), "key": Key.simulation(1)}
    for slot, kept in enumerate(kept_examples("u07", users.data.num_examples("u07"), 2)):
        total = answered(made.trainer, user_ids=[str(2 * place + slot)], **ask).total
        rows = users.view.all_rows(["u07"], "train")[kept : kept + 1]
        one = users.examples(rows)
        residual = np.eye(10)[one.labels[0]] - 0.1
        row = np.asarray(one.features(users.norm).todense())[0]
        np.testing.assert_allclose(total["kernel"], np.outer(row, residual), atol=1e-6)
        np.testing.assert_allclose(total["bias"], residual, atol=1e-6)
    empty = users.roster.index("u59")
    nothing = answered(made.trainer, user_ids=[str(2 * empty)], **ask).total
    assert not nothing["kernel"].any()


def test_a_run_states_a_user_s_epsilon_and_verifies(tiny_corpus, tmp_path):
    result = fp.run(
        "example-sampling-tags", corpus=tiny_corpus.directory, out=tmp_path / "run", steps=4,
        examples_per_user=2, target_epsilon=4.0, eval_every=2,
    )  # fmt: skip
    assert result.epsilon.unit == "user" and 3.9 < result.epsilon.value <= 4.0
    assert verify_run(tmp_path / "run").ok
    statement = run_statement(tmp_path / "run")
    assert statement.protects["unit"] == "user" and statement.protects["examples_per_user"] == 2
    said = " ".join(str(statement).split())
    assert "all examples of one rostered user were blanked or not" in said
    assert "at most 2 are trained on" in said


def test_a_module_learns_from_single_examples(tmp_path):
    """Sixty users of six examples each and little noise: more are right than a coin's half."""
    users = {f"u{n:02d}": person(n) for n in range(60)}
    result = fp.run(
        experiment(
            task(users=users), batch_size=60, steps=30, noise_multiplier=1.0, learning_rate=1.0,
            l2_clip_norm=1.0, eval_every=30,
        ),
        out=tmp_path / "run",
    )  # fmt: skip
    assert result.epsilon.unit == "user"
    assert verify_run(tmp_path / "run").ok
    assert result.summary["accuracy_public"] > 0.6
