"""Examples of several owners as units: blanking one owner's moves at most k of them, kC in all."""

import dataclasses

import numpy as np
import pytest

from fedpriv.datasets.stackexchange.splits import Split
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.build import build
from fedpriv.mechanisms import Clip
from fedpriv.rng import Key
from fedpriv.tasks.central import OwnedExamples
from fedpriv.training.per_example.example_sum import CentralSum
from simulations.threads.owner_tags import task_of
from tests.datasets.corpus.threaded import ROSTERED, make, sentences
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import answered
from tests.laws.owners.test_by_example import apart, mixture
from tests.tasks.sixty import sixty

PERSONS = ROSTERED[:4]
MOST, CLIP = 3, 0.5


def blanked(person):
    """The same sentences by the same users in the same threads; a person's have neither tags."""
    nothing = {"tokens": ["nothing"], "title_tokens": (), "tags": ()}
    for sentence in sentences():
        is_owned = person in (sentence.user_id, sentence.title_user_id)
        yield dataclasses.replace(sentence, **nothing) if is_owned else sentence


def task(directory, rows=None, most=MOST):
    corpus = make(directory, rows, knows_askers=True)
    split = Split(owners="all", examples_per_owner=most)
    return task_of(corpus.view(split=split))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("owned")


@pytest.fixture(scope="module")
def whole(folder):
    return task(folder / "whole")


def contributions(found):
    """Each listed example's bounded contribution, and the sum over all of them."""
    sums = CentralSum(gradients=found.train, num_examples=found.num_train, blank=found.owned.blank)
    rng = np.random.default_rng(0)
    params = {
        name: rng.normal(size=array.shape).astype(np.float32)
        for name, array in found.init_params(Key.simulation(0)).items()
    }

    def over(ids):
        bound, key = Clip(l2_clip_norm=CLIP), Key.simulation(1)
        return answered(sums, params=params, bound=bound, user_ids=ids, key=key).total

    return [over([number]) for number in found.roster], over(found.roster)


def compared(before, after):
    """How many examples' contributions changed, and how far the sum moved."""
    (mine, total), (theirs, other) = before, after
    assert len(mine) == len(theirs)  # the list and its length are those of ids
    changed = sum(apart(a, b) > 0.0 for a, b in zip(mine, theirs, strict=True))
    return changed, apart(total, other)


@pytest.mark.parametrize("person", PERSONS)
def test_at_most_k_examples_change_and_the_sum_by_kc(folder, whole, person):
    after = task(folder / person, blanked(person))
    assert after.owned.blank.sum() > whole.owned.blank.sum()
    changed, moved = compared(contributions(whole), contributions(after))
    assert 0 < changed <= MOST
    assert 0.0 < moved <= MOST * CLIP


def test_without_the_bound_more_do(folder):
    """What the tests above would see: of 1000 examples an owner all that it owns change."""
    before = contributions(task(folder / "unbounded", most=1000))
    found = [
        compared(before, contributions(task(folder / f"{person} unbounded", blanked(person), 1000)))
        for person in PERSONS
    ]
    assert all(changed > MOST for changed, _ in found)
    assert all(moved > MOST * CLIP for _, moved in found)


def test_the_list_is_of_ids_and_who_asked(folder, whole):
    """Other words, titles and tags, and the same examples are chosen."""
    reworded = [
        dataclasses.replace(one, tokens=["other", "words"], title_tokens=("of", "all"))
        for one in sentences()
    ]
    listed = task(folder / "reworded", reworded)
    assert listed.num_train == whole.num_train
    assert (listed.owned.blank == whole.owned.blank).all()


def experiment(**options):
    return CentralExperiment(
        name="owned",
        description="Examples of which an owner has several.",
        task=lambda chosen: owned(MOST),
        batch_size=6,
        steps=20,
    ).with_options({"noise_multiplier": 2.0, "delta": 1e-5, **options})


def owned(most, blank=None):
    blank = np.zeros(60, bool) if blank is None else blank
    return sixty(owned=OwnedExamples(blank=blank, most=most))


@pytest.mark.parametrize("most", [1, 3])
def test_epsilon_is_the_mixture_s_and_not_below_it(most):
    plan = build(experiment(), task=owned(most)).plan
    assert (plan.unit, plan.relation.value, plan.num_users) == ("owner", "add-remove", 60)
    stated = plan.total().value
    low, high = (mixture(most, 0.1, 20, 1e-5, rounded_up=up, interval=1e-2) for up in (False, True))
    assert low <= stated <= 1.01 * high
    assert "per owner" in str(plan.total())


def test_of_one_example_an_owner_it_is_poisson_s():
    one, two = (build(experiment(), task=owned(most)).plan.total().value for most in (1, 2))
    alone = build(experiment(), task=sixty()).plan
    assert (alone.unit, alone.total().value) == ("example", one)
    assert two > 1.5 * one


def test_more_noise_is_calibrated_for_more_examples_an_owner():
    chosen = experiment(noise_multiplier=None, target_epsilon=1.0)
    sigmas = [build(chosen, task=owned(most)).plan.noise_multiplier for most in (1, 2, 4)]
    assert sigmas == sorted(sigmas) and sigmas[2] > 2 * sigmas[0]


def test_a_blank_example_contributes_zero_and_counts():
    blank = np.arange(60) % 2 == 0
    made = build(experiment(), task=owned(MOST, blank))
    params = made.init_params(Key.simulation(0))
    ask = {"params": params, "bound": Clip(l2_clip_norm=1.0), "key": Key.simulation(1)}
    assert not answered(made.trainer, user_ids=["0", "4"], **ask).total["weight"].any()
    both = answered(made.trainer, user_ids=["0", "1"], **ask).total["weight"]
    assert (both == answered(made.trainer, user_ids=["1"], **ask).total["weight"]).all()
    assert made.plan.live_mechanism.denominator == 6


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"relation": "replace-one"}, ["replace-one", "add-remove"]),
        ({"sampling": "fixed"}, [3]),
        ({"micro_batch": 2}, [2]),
    ],
)
def test_what_is_not_accounted_for_owners_is_refused(options, named):
    with refuses(ValueError, *named):
        build(experiment(**options), task=owned(MOST))


def test_what_no_training_set_has_is_refused():
    with refuses(ValueError, 59, 60):
        owned(MOST, np.zeros(59, bool))
    with refuses(ValueError, 0):
        owned(0)
