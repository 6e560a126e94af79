"""Cohort, rounds and clip norm that follow from the data's size, and nothing else of the roster."""

import json

import numpy as np
import pytest

from fedpriv.experiments.build import build, make_task
from fedpriv.experiments.load import load_experiment
from fedpriv.experiments.settings import _CHOSEN, MOST_ROUNDS, choose_settings, public_update_norms
from fedpriv.mechanisms.event import Relation
from fedpriv.privacy.accounting import calibrate
from fedpriv.privacy.epsilon import default_delta
from fedpriv.rng import Key
from fedpriv.runs.backends import named_backends
from fedpriv.runs.noise_root import noise_digest
from fedpriv.runs.prepared import resume_run, start_run
from tests.harness.refusals import refuses
from tests.privacy.costing import cohort_event
from tests.running.selected import topical

NAME = "adadps-tags"
CHOSEN = ("cohort", "rounds", "bound.l2_clip_norm", "start.factor")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return topical.make(tmp_path_factory.mktemp("topical") / "c")


def automatic(**changes):
    given = {name.replace("_", "-"): value for name, value in changes.items()}
    return load_experiment(NAME).with_options(given)


def settings_of(num_users, epsilon, **changes):
    return choose_settings(
        num_users=num_users,
        epsilon=epsilon,
        delta=default_delta(num_users),
        relation=Relation.ADD_REMOVE,
        **{"update_norm": 82.52, "num_params": 2_714_400, "num_public_examples": 7_665, **changes},
    )


@pytest.mark.parametrize("epsilon", [2.0, 8.0])
def test_cohorts_have_little_more_noise_than_everybody(epsilon):
    found = settings_of(6_716, epsilon)
    assert found.cohort < 6_716
    sigma = calibrate(
        lambda multiplier: cohort_event(
            num_users=6_716, expected_cohort_size=found.cohort, noise_multiplier=multiplier
        ),
        found.rounds,
        target_epsilon=epsilon,
        delta=default_delta(6_716),
        relation=Relation.ADD_REMOVE,
    )
    assert 1.0 < sigma / found.cohort / (found.noise_on_mean * found.rounds**0.5) < 1.1


def test_a_wrong_norm_trades_rounds_for_clip_norm_and_nothing_else():
    right, wrong = settings_of(3_000, 2.0), settings_of(3_000, 2.0, update_norm=165.0)
    assert wrong.rounds < right.rounds
    assert wrong.noise_on_logit == pytest.approx(right.noise_on_logit)


def test_long_noise_shortens_the_way_and_long_enough_noise_says_that_nothing_is_gained():
    single = settings_of(300, 1.0).noise_on_mean
    found = settings_of(300, 1.0, num_params=round(4.0 / single**2))
    assert found.noise_on_logit == pytest.approx(0.35, rel=1e-3)
    assert not found.expects_gain and "no gain" in found.caution(selects=False)
    short = settings_of(300, 1.0, num_params=round(1.0 / single**2))
    assert short.expects_gain and not short.caution(selects=True)


def test_too_few_public_examples_to_show_a_gain_are_said_where_they_select():
    few = settings_of(6_716, 1.0, num_public_examples=20)
    assert few.expects_gain and "20 public examples are hardly enough" in few.caution(selects=True)
    assert not few.caution(selects=False)
    little = settings_of(6_716, 8.0, num_public_examples=20)  # noise, so that none has to be shown
    assert little.expects_clear_gain and not little.caution(selects=True)


def test_the_less_noise_the_less_of_the_public_start_is_kept():
    factors = [settings_of(6_716, epsilon).start_factor for epsilon in (8, 4, 2, 1)]
    assert factors == [0.25, 0.5, 0.5, None]


@pytest.mark.parametrize(("epsilon", "rounds"), [(1, 49), (2, 91), (4, 165), (8, 250)])
def test_settings_of_answers_on_startups(epsilon, rounds):
    assert settings_of(6716, epsilon).rounds == rounds


def test_more_users_and_a_larger_epsilon_give_no_fewer_rounds():
    sizes, budgets = (50, 1000, 50_000), (0.5, 2, 8)
    rounds = [[settings_of(users, epsilon).rounds for epsilon in budgets] for users in sizes]
    assert all(row == sorted(row) for row in rounds)
    assert all(list(column) == sorted(column) for column in zip(*rounds, strict=True))
    for users in sizes:
        for epsilon in budgets:
            found = settings_of(users, epsilon)
            assert 1 <= found.cohort <= users
            assert 0.0 < found.l2_clip_norm <= found.update_norm
            reached = found.noise_on_mean * found.rounds * found.l2_clip_norm
            assert found.noise_on_logit == pytest.approx(reached)


def test_what_is_given_stays():
    given = settings_of(1000, 8, cohort=77.0, rounds=13, l2_clip_norm=2.5, update_norm=None)
    assert (given.cohort, given.rounds, given.l2_clip_norm) == (77.0, 13, 2.5)
    fewer = settings_of(1000, 8, rounds=13)
    assert fewer.rounds == 13 and fewer.l2_clip_norm > settings_of(1000, 8).l2_clip_norm
    assert settings_of(10**6, 8, l2_clip_norm=0.1).rounds == MOST_ROUNDS
    with refuses(ValueError, "l2-clip-norm"):
        settings_of(1000, 8, update_norm=None)


@pytest.mark.parametrize("given", [{}, {"rounds": 7}, {"bound.l2_clip_norm": 2.0, "cohort": 9.0}])
def test_an_experiment_gets_what_is_not_given(corpus, given):
    experiment = load_experiment(NAME).with_options(given)
    left = set(CHOSEN) - set(given)
    assert set(experiment.automatic) == left
    components = build(experiment, corpus)
    settled, settings = components.experiment, components.settings
    assert settled.automatic == ()
    options = settled.options()
    assert {name: options[name] for name in given} == given
    for name in CHOSEN:
        assert options[name] == getattr(settings, _CHOSEN[name])
    assert components.plan.planned_rounds == options["rounds"]


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_multiplier": 2.0},
        {"noise_multiplier": 2.0, "target_epsilon": 8.0},
        {"noise": "tree", "sampling": "separated", "cohort": 3.0},
    ],
)
def test_where_nothing_can_be_chosen_the_experiments_own_values_hold(corpus, changes):
    experiment = automatic(**changes)
    components = build(experiment, corpus)
    assert components.settings is None and components.experiment.automatic == ()
    assert components.experiment.options() == experiment.options()


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"bound": "adaptive"}, {"bound.l2_clip_norm": 30.0}),
        ({"start": "fresh"}, {}),
        ({"start.factor": 0.75}, {"start.factor": 0.75}),
    ],
)
def test_what_was_not_chosen_is_not_said_to_be(corpus, given, kept):
    components = build(load_experiment(NAME).with_options(given), corpus)
    options, settings = components.experiment.options(), components.settings
    missing = {*kept, *(("start.factor",) if "start" in given else ())}
    assert settings.chosen == tuple(name for name in CHOSEN if name not in missing)
    for name, value in kept.items():
        assert options[name] == getattr(settings, _CHOSEN[name]) == value
    if "start" in given:
        assert settings.start_factor is None and "start kept" not in str(settings)


def test_update_norms_are_of_users_whom_the_start_does_not_know(corpus):
    experiment = load_experiment(NAME).with_options({"local-learning-rate": 1.0})
    task = make_task(experiment, corpus)
    norms, _ = public_update_norms(experiment, task)

    class Trained:
        """The task, whose folds learn from everybody."""

        def __getattr__(self, name):
            return getattr(task, name)

        def public_users_held_out(self):
            whole = task.public_learner(Key.simulation(0), choosing=False)
            return [(whole, users) for _, users in task.public_users_held_out()]

    known, _ = public_update_norms(experiment, Trained())
    assert np.median(known) < np.median(norms)


def test_what_an_experiment_gives_is_not_automatic():
    whole, update = (load_experiment(name) for name in (NAME, "adadps-update-tags"))
    assert whole.automatic == CHOSEN and update.automatic == ()
    assert update.options()["bound.l2_clip_norm"] == 60.0
    assert whole.with_options({"rounds": 5}).automatic == tuple(n for n in CHOSEN if n != "rounds")
    assert whole.options()["bound.l2_clip_norm"] == 30.0


def test_without_a_rostered_users_records_the_settings_are_the_same(corpus, tmp_path):
    rest = topical.make(tmp_path / "c", without=[topical.ALONE, "r21"])
    one, other = (build(automatic(), made).settings for made in (corpus, rest))
    assert one == other and one.update_norm is not None


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({}, "others"),
        ({}, "none"),
        ({"split": "by-time"}, "others"),
        ({"select": "last"}, "others"),
        ({"start": "fresh"}, "none"),
        ({"split": "by-sentence"}, "others"),
        ({"split": "by-sentence"}, "none"),
        ({"public_text": "all-posts"}, "others"),
        ({"public_text": "all-posts", "start": "fresh"}, "others"),
        ({"public_text": "all-posts", "start": "fresh"}, "none"),
    ],
    ids=str,
)
def test_no_rostered_askers_titles_and_tags_move_a_setting(corpus, tmp_path, changes, asked):
    """They stand in public users' answers, of which public users' updates are not made.

    By sentence and of all posts a setting would follow from them: the experiment's own values hold.
    """
    other = topical.make(tmp_path / "c", asked=asked)
    found = [build(automatic(**changes), made) for made in (corpus, other)]
    options = [one.experiment.options() for one in found]
    assert options[0] == options[1] and found[0].settings == found[1].settings


def test_public_users_records_are_what_the_clip_norm_follows_from(corpus, tmp_path):
    """Else the law above would hold of a number that looks at nothing."""
    fewer = topical.make(tmp_path / "c", without=["p00", "p05"])
    one, other = (build(automatic(), made).settings for made in (corpus, fewer))
    assert one.update_norm != other.update_norm


class Stop(Exception):
    pass


def stop(record):
    if record.released.round_num == 2:
        raise Stop


def chosen_of(folder):
    options = json.loads((folder / "experiment.json").read_text())["experiment"]
    return {name: options[name] for name in CHOSEN}


def begin(corpus, out, **changes):
    return start_run(automatic(select="last", **changes), NAME, corpus, out)


def test_a_resumed_run_reads_its_settings(corpus, tmp_path, monkeypatch):
    with pytest.raises(Stop):
        begin(corpus, tmp_path / "r", rounds=4).run(stop)
    before = chosen_of(tmp_path / "r")

    def again(*args):
        raise AssertionError("chosen anew")

    monkeypatch.setattr("fedpriv.experiments.settings.public_update_norms", again)
    monkeypatch.setattr("fedpriv.experiments.settings.choose_settings", again)
    resumed = resume_run(tmp_path / "r")
    assert {name: resumed.experiment.options()[name] for name in CHOSEN} == before
    assert resumed.run()["rounds"] == 4


@pytest.mark.slow
def test_workers_get_the_same_settings(corpus, tmp_path):
    begin(corpus, tmp_path / "serial", rounds=2).run()
    experiment = automatic(select="last", rounds=2)
    with named_backends("ray", workers=2) as factories:
        make = factories(NAME, str(corpus.directory.resolve()))
        start_run(
            experiment, NAME, corpus, tmp_path / "ray", backend="ray", make_backend=make
        ).run()
    assert chosen_of(tmp_path / "ray") == chosen_of(tmp_path / "serial")


def test_a_run_folder_says_what_was_chosen_and_why(corpus, tmp_path):
    prepared = begin(corpus, tmp_path / "r", rounds=2)
    prepared.folder.close()
    found = json.loads((tmp_path / "r" / "experiment.json").read_text())["settings"]
    assert found == prepared.components.settings.to_json()
    assert (
        found["chosen"] == ["cohort", "bound.l2_clip_norm", "start.factor"]
        and found["update_norm"] > 0.0
    )
    # The options have the values; their reasons do not distinguish the noise once more.
    document = dict(prepared.folder.document)
    digest = noise_digest(prepared.experiment, document)
    assert digest == noise_digest(prepared.experiment, document | {"settings": None})
