"""Examples of several owners as units: blanking one owner's moves at most k of them, kC in all."""

import dataclasses

import numpy as np
import pytest
from dp_accounting import PoissonSampledDpEvent
from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import from_mixture_gaussian_mechanism
from scipy import stats

from fedpriv import tree
from fedpriv.datasets.stackexchange.splits import Split
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.build import build
from fedpriv.mechanisms import Clip
from fedpriv.rng import Key
from fedpriv.tasks.central import OwnedExamples
from fedpriv.training.per_example.example_sum import CentralSum
from simulations.threads.owner_tags import task_of
from tests.datasets.corpus.threaded import ROSTERED, make, sentences
from tests.tasks.sixty import sixty

PERSONS = ROSTERED[:4]
MOST, CLIP = 3, 0.5


def owned_by(sentence, person):
    return person in (sentence.user_id, sentence.title_user_id)


def blanked(person):
    """The same sentences by the same users in the same threads; a person's have neither tags."""
    nothing = {"tokens": ["nothing"], "title_tokens": (), "tags": ()}
    for sentence in sentences():
        if owned_by(sentence, person):
            yield dataclasses.replace(sentence, **nothing)
        else:
            yield sentence


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
        return sums.partial_sum(params=params, bound=bound, user_ids=ids, key=key).total

    return [over([number]) for number in found.roster], over(found.roster)


def compared(before, after):
    """How many examples' contributions changed, and how far the sum moved."""
    (mine, total), (theirs, other) = before, after
    assert len(mine) == len(theirs)  # the list and its length are those of ids
    same = [
        all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in zip(mine, theirs, strict=True)
    ]
    return same.count(False), tree.l2_norm({name: total[name] - other[name] for name in total})


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


def mixture(most, *, rounded_up):
    """ε by dp-accounting itself, of 20 steps; each of an owner's examples is drawn alone."""
    counts = list(range(most + 1))
    loss = from_mixture_gaussian_mechanism(
        2.0,
        counts,
        stats.binom.pmf(counts, most, 0.1).tolist(),
        pessimistic_estimate=rounded_up,
        value_discretization_interval=1e-2,
    )
    return loss.self_compose(20).get_epsilon_for_delta(1e-5)


@pytest.mark.parametrize("most", [1, 3])
def test_epsilon_is_the_mixture_s_and_not_below_it(most):
    plan = build(experiment(), task=owned(most)).plan
    assert (plan.unit, plan.relation.value, plan.num_users) == ("owner", "add-remove", 60)
    stated = plan.total().value
    assert mixture(most, rounded_up=False) <= stated <= 1.01 * mixture(most, rounded_up=True)
    assert "per owner" in str(plan.total())


def test_of_one_example_an_owner_it_is_poisson_s():
    one, two = (build(experiment(), task=owned(most)).plan.total().value for most in (1, 2))
    alone = build(experiment(), task=sixty()).plan
    assert (alone.unit, alone.total().value) == ("example", one)
    accountant = PLDAccountant(value_discretization_interval=1e-2)
    accountant.compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)), 20)
    assert one == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-2)
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
    assert not made.trainer.partial_sum(user_ids=["0", "4"], **ask).total["weight"].any()
    both = made.trainer.partial_sum(user_ids=["0", "1"], **ask).total["weight"]
    assert (both == made.trainer.partial_sum(user_ids=["1"], **ask).total["weight"]).all()
    assert made.plan.live_mechanism.denominator == 6


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"relation": "replace-one"}, "neighbours have all of one owner's examples blanked"),
        ({"sampling": "fixed"}, "poisson"),
        ({"micro_batch": 2}, "micro.batch 2"),
    ],
)
def test_what_is_not_accounted_for_owners_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        build(experiment(**options), task=owned(MOST))


def test_what_no_training_set_has_is_refused():
    with pytest.raises(ValueError, match="59 examples are owned"):
        owned(MOST, np.zeros(59, bool))
    with pytest.raises(ValueError, match="at least 1"):
        owned(0)
