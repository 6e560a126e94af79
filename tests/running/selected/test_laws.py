"""Laws of selection: what it looks at, and that no example judges what it taught."""

from dataclasses import replace

import numpy as np
import pytest

from fedpriv.experiments.build import build, in_study
from fedpriv.experiments.start import public_only
from fedpriv.privacy.trials import Trials
from fedpriv.rng import Key
from fedpriv.runs import selection
from fedpriv.runs.selection import select
from fedpriv.training import public_selection as judging
from tests.datasets.corpus.sentences import write
from tests.running.selected import topical

KEY = Key.simulation(0)
GONE = topical.ALONE
ALL = ("cohort", "rounds", "bound.l2_clip_norm")  # settings that follow from the size
LONE = "4888"  # a training thread that a public user asked


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return topical.make(tmp_path_factory.mktemp("topical") / "c")


def chosen_among(corpus):
    """Fixed released models, the public start and moves away from it, and what judges them."""
    components = build(topical.experiment(), corpus)
    start = components.begin(KEY)
    rng = np.random.default_rng(7)
    released = {}
    for name in ("average", "last"):
        moved = {n: a.copy() for n, a in sorted(start.params.items())}
        for topic in range(4):  # towards what the topics' words say, and some noise
            column = components.task.view.tags.index(f"topic{topic}")
            for row, word in enumerate(components.task.view.words):
                moved["kernel"][row, column] += 2.0 * word.startswith(f"about{topic}")
        moved = {n: a + rng.normal(0, 0.1, a.shape).astype(np.float32) for n, a in moved.items()}
        released[name] = moved
    return components, start, public_only(components.task, KEY), released


def chosen(corpus):
    """The task, and the selection among those models."""
    components, start, _, released = chosen_among(corpus)
    return components.task, select(components, start, None, released)


def test_without_a_rostered_user_the_same_is_selected_of_the_same_models(corpus, tmp_path):
    whole, one = chosen(corpus)
    rest, other = chosen(topical.make(tmp_path / "c", without=[GONE]))
    left, right = (task.view.threads[task.view.public_rows("train")] for task in (whole, rest))
    assert len(left) == len(right) and np.all(left != right)
    assert one.to_json() == other.to_json()
    assert one.name in ("average", "last")
    assert whole.data.num_examples(GONE) > 0 == rest.data.num_examples(GONE)


@pytest.mark.parametrize("asked", ["others", "none"])
def test_no_rostered_askers_titles_and_tags_judge(corpus, tmp_path, asked):
    """They stand in public users' answers."""
    (_, one), (_, other) = chosen(corpus), chosen(topical.make(tmp_path / "c", asked=asked))
    assert one.to_json() == other.to_json() and one.judgement is not None


def test_the_choice_hangs_on_no_key_of_the_run(corpus, monkeypatch):
    monkeypatch.setattr(judging, "NUM_RESAMPLES", 100)
    components, start, public, released = chosen_among(corpus)
    found = [
        select(components, start, public, released, key=Key.simulation(seed)).to_json()
        for seed in range(1, 5)
    ]
    assert found[0]["judged"] and all(other == found[0] for other in found)


@pytest.mark.parametrize(("length", "expected"), [(None, None), (0.41, None), (0.4, "average")])
def test_short_noise_lets_expect_the_first_released_model(corpus, length, expected):
    """Only of settings that follow from the data's size."""
    components, start, public, released = chosen_among(corpus)
    chosen = components.settings
    assert chosen is not None
    settings = None if length is None else replace(chosen, noise_length=length, chosen=ALL)
    components = replace(components, settings=settings)
    found = select(components, start, public, released)
    assert found.expected == found.to_json()["expected"] == expected
    assert found.name == "average"
    if settings is not None:  # as soon as one of them is given by hand, nothing is expected
        components = replace(components, settings=replace(settings, chosen=ALL[1:]))
        assert select(components, start, public, released).expected is None


def test_a_trial_of_a_private_search_has_no_settings_of_a_single_run(corpus):
    """It has more noise at the same ε."""
    components = build(topical.experiment(), corpus)
    trial = in_study(components.experiment, components, Trials(mean=10.0, shape=1.0))
    assert components.settings is not None and trial.settings is None
    more = trial.plan.mechanism.privatizer.noise_multiplier
    assert more > components.plan.mechanism.privatizer.noise_multiplier


@pytest.mark.parametrize(("length", "name"), [(0.41, "public-only"), (0.4, "average")])
def test_with_too_few_public_threads_the_noise_decides(corpus, monkeypatch, length, name):
    monkeypatch.setattr(selection, "FEWEST_GROUPS", 10_000)
    components, start, public, released = chosen_among(corpus)
    assert components.settings is not None
    settings = replace(components.settings, noise_length=length, chosen=ALL)
    found = select(replace(components, settings=settings), start, public, released)
    assert (found.name, found.judgement) == (name, None) and found.reason


def threads_read(task, examples):
    """The threads that some examples are of, as far as a word of their own tells."""
    return threads_of(task, np.unique(examples.indices))


def threads_learnt(task, learner):
    """The threads that a learner learns from, as far as its model of their own words moves."""
    moved = np.flatnonzero(next(learner.passes(0.3))["kernel"].any(axis=1))
    return threads_of(task, moved[moved < len(task.view.words)])


def threads_of(task, rows):
    words = {task.view.words[row] for row in rows}
    return {int(word.removeprefix("only")) for word in words if word.startswith("only")}


def test_no_thread_judges_a_model_that_it_taught(corpus):
    task = build(topical.experiment(), corpus).task
    folds, seen = task.public_folds(), []
    assert len(folds) == 5
    for fold, (held, *others) in zip(folds, task.fold_rows(), strict=True):
        judged = set(np.unique(fold.groups).tolist())
        tuning, learning = (set(task.view.threads[rows].tolist()) for rows in others)
        assert not judged & (learning | tuning) and not learning & tuning
        own = threads_read(task, task.view.columns.take(held))
        for choosing in (True, False):
            learner = fold.public_learner(KEY, choosing=choosing)
            assert own and not own & threads_learnt(task, learner)
        seen += judged
        trained = [task.data.examples(user) for user in task.roster]
        assert not any(own & threads_read(task, examples) for examples in trained)
    assert len(seen) == len(set(seen))
    rows = np.sort(np.concatenate([held for held, *_ in task.fold_rows()]))
    assert np.array_equal(rows, np.sort(task.view.public_rows("train")))


def test_no_public_user_is_measured_at_a_start_that_its_threads_taught(corpus):
    """Of such a start its updates would be too short."""
    task = build(topical.experiment(), corpus).task
    held = 0
    for learner, users in task.public_users_held_out():
        learnt = threads_learnt(task, learner)
        own = set().union(*(threads_read(task, examples) for examples in users))
        assert own and learnt and not own & learnt
        held += len(users)
    assert held == len(topical.PUBLIC)


def test_words_of_one_fold_alone_do_not_help(corpus):
    """Of a test thread they would be unknown."""
    task = build(topical.experiment(), corpus).task
    for fold, (held, *_) in zip(task.public_folds(), task.fold_rows(), strict=True):
        params = fold.init_params(KEY)
        before = fold.values(params)
        for thread in threads_read(task, task.view.columns.take(held)):
            params["kernel"][task.view.words.index(f"only{thread}")] = [0.0, 50.0, 0.0, 0.0]
        assert np.array_equal(fold.values(params), before)


def test_labels_of_one_fold_alone_are_not_judged(tmp_path):
    lone = [
        replace(row, tags=["alone"]) if row.thread == LONE else row for row in topical.sentences()
    ]
    corpus = write(tmp_path / "c", lone, [topical.ROSTER], split_seed=3)
    task = build(topical.experiment(), corpus).task
    column, labels = task.view.tags.index("alone"), task.view.columns.labels
    assert column in labels[task.view.public_rows("train")]
    for held, *_ in task.fold_rows():
        assert column not in labels[held]
