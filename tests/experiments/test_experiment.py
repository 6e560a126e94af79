"""Experiments: options, and the parts that are built of them."""

import math
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from fedpriv.checkpoints.aggregates import Average
from fedpriv.experiments.averaging import CentralExperiment, FederatedExperiment
from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import classes
from fedpriv.experiments.load import find_experiments, load_experiment
from fedpriv.experiments.noise import BandedNoise, GaussianNoise
from fedpriv.experiments.options import _SUGGESTIONS, Entry, OptionIndex, entries
from fedpriv.experiments.tasks import TagPredictionTask
from fedpriv.mechanisms import AdaptiveClip, Clip, Normalise
from fedpriv.optimizers import Adam, Momentum, Sgd
from tests.experiments.small import base
from tests.harness.refusals import refuses

NUMBERS = ("bound.l2_clip_norm", "rounds", "cohort", "seed")


class TestOptions:
    @pytest.mark.parametrize(
        ("given", "length"),
        [
            ({"steps": 10}, (10, None)),
            ({"epochs": 2.0}, (None, 2.0)),
            ({"steps": 10, "epochs": None}, (10, None)),
        ],
    )
    def test_given_steps_replace_epochs_and_the_other_way_round(self, given, length):
        preset = load_experiment("dp-sgd-conversions")
        assert (preset.epochs, preset.steps) == (5.0, None)
        for before in (preset, preset.with_options({"steps": 7})):
            made = before.with_options(given)
            assert (made.steps, made.epochs) == length
        both = preset.with_options({"steps": 10, "epochs": 2.0})
        with refuses(ValueError, 10, 2.0):
            both.num_steps(100)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", [None, *sorted(find_experiments())])
    def test_they_round_trip(self, name):
        made = base() if name is None else load_experiment(name)
        options = made.options()
        assert made.with_options(options) == made
        bare = type(made)(name=made.name, description=made.description, task=made.task)
        assert bare.with_options(options) == made
        assert all("-" not in name for name in options)
        assert all(v is None or isinstance(v, (str, int, float, bool)) for v in options.values())

    @pytest.mark.parametrize(
        "name", ["noise.multiplier", "noise-multiplier", "multiplier", "noise_multiplier"]
    )
    def test_any_unambiguous_ending_of_a_path_is_a_name(self, name):
        assert base().with_options({name: 2}).noise.multiplier == 2.0

    @pytest.mark.parametrize("name", ["noise", "noise.kind"])
    def test_the_kind_of_a_part_is_set_by_its_place(self, name):
        assert base().with_options({name: "banded"}).options()["noise"] == "banded"

    def test_an_ambiguous_ending_is_refused_with_the_paths(self):
        with refuses(ValueError, "server.learning_rate"):
            base().with_options({"learning_rate": 1.0})

    def test_a_part_checks_its_options_in_python_too(self):
        with refuses(ValueError, -1.0):
            GaussianNoise(multiplier=-1.0)
        assert type(GaussianNoise(multiplier=np.float32(2)).multiplier) is float

    @pytest.mark.parametrize(
        ("option", "value", "said"),
        [
            ("ema-decay", 0.5, "ema"),
            ("server-adaptivity", 0.1, "yogi"),
            ("side-information", "rank", "local"),
            ("preconditioner-top", 3, "local"),
            ("decay", 0.5, "past-releases"),
            ("bound.regulariser", 0.1, "normalise"),
        ],
    )
    def test_an_option_of_a_part_that_is_not_chosen_is_refused_by_the_part(
        self, option, value, said
    ):
        with refuses(ValueError, option, said):
            base().with_options({option: value})
        assert base().with_options({option: None}) == base()

    def test_a_part_and_its_options_are_chosen_together(self):
        made = base().with_options({"aggregate": "ema", "ema-decay": 0.5})
        assert made.aggregate == Average(ema_decay=0.5)
        with pytest.raises(ValueError):
            made.with_options({"aggregate": "none", "ema-decay": 0.5})
        assert made.with_options({"aggregate": "none"}) == base()

    def test_what_was_set_stays_where_another_kind_has_the_option(self):
        made = base(noise_multiplier=3.0).with_options({"noise": "banded"})
        assert made.noise == BandedNoise(multiplier=3.0)
        assert base().with_options({"bound": "normalise"}).bound == Normalise(l2_clip_norm=0.5)

    def test_what_differs_from_its_class_stays_where_another_kind_has_the_option(self):
        """An optimiser's usual rate is its own; that of an experiment is the experiment's."""
        assert base().with_options({"server": "adam"}).server == Adam()
        assert base(server_learning_rate=0.5).with_options({"server": "adam"}).server == Adam(
            learning_rate=0.5
        )
        by_example = CentralExperiment(name="x", description="", task=lambda experiment: None)
        assert by_example.optimizer == Sgd(learning_rate=0.1)
        assert by_example.with_options({"optimizer": "momentum"}).optimizer == Momentum(
            learning_rate=0.1
        )
        at_one = replace(by_example, optimizer=Sgd())
        assert at_one.with_options({"seed": 1}).optimizer == Sgd()

    def test_a_document_with_an_unknown_option_is_refused(self):
        with refuses(ValueError, "emma"):
            base().with_options({**base().options(), "emma": 1})

    def test_values_take_the_options_type(self):
        made = base(l2_clip_norm=2, rounds=np.int64(7), cohort=np.float32(2.5), seed=3.0)
        options = made.options()
        assert tuple(options[n] for n in NUMBERS[:3]) == (2.0, 7, 2.5)
        assert [type(options[n]) for n in NUMBERS] == [float, int, float, int]

    def test_nothing_else_changes(self):
        made, changed = base(), base(l2_clip_norm=3.0)
        different = {n for n, v in made.options().items() if changed.options()[n] != v}
        assert different == {"bound.l2_clip_norm"}
        with pytest.raises(FrozenInstanceError):
            made.rounds = 5

    def test_given_noise_replaces_a_target_and_the_other_way_round(self):
        targeted = base(target_epsilon=2.0)
        assert (targeted.target_epsilon, targeted.noise) == (2.0, GaussianNoise())
        noised = targeted.with_options({"noise-multiplier": 3.0})
        assert (noised.target_epsilon, noised.noise) == (None, GaussianNoise(multiplier=3.0))
        both = base(noise_multiplier=3.0, target_epsilon=2.0)
        assert (both.target_epsilon, both.noise) == (2.0, GaussianNoise(multiplier=3.0))

    def test_there_is_no_target_without_noise(self):
        assert base(target_epsilon=2.0).with_options({"noise": "none"}).target_epsilon is None
        with refuses(ValueError, "target-epsilon 2", "noise 'none'"):
            base(noise="none", target_epsilon=2.0)

    def test_there_is_no_grid_without_a_bound(self):
        with refuses(ValueError, "exact-sum", "bound 'none'"):
            base(noise="none", bound="none", exact_sum=True)

    @pytest.mark.parametrize(
        ("typo", "meant"),
        [
            ("l2-clip-norms", "l2-clip-norm"),
            ("round", "rounds"),
            ("noise-multiplyer", "noise-multiplier"),
            ("epsilon", "target-epsilon"),
            ("server-optimiser", "server"),
            ("Cohort", "cohort"),
            ("lr", "local-learning-rate"),
            ("sigma", "noise-multiplier"),
            ("max-grad-norm", "l2-clip-norm"),
            ("clients-per-round", "cohort"),
            ("noise.multplier", "noise.multiplier"),
        ],
    )
    def test_a_typo_is_told_what_was_meant(self, typo, meant):
        with refuses(ValueError, typo, meant):
            base().with_options({typo: 1})

    @pytest.mark.parametrize("name", ["task", "name", "description", "backends", "zzz", ""])
    def test_what_is_no_option_is_refused(self, name):
        with pytest.raises(ValueError):
            base().with_options({name: "x"})


class TestBuilding:
    def test_the_plan_says_what_the_options_say(self, tiny_corpus):
        components = build(base(relation="replace-one", cohort_cap=20), tiny_corpus)
        plan, mechanism = components.plan, components.plan.live_mechanism
        sampler = mechanism.sampler
        assert (plan.num_users, sampler.expected_cohort_size, plan.num_rounds) == (60, 6.0, 4)
        assert mechanism.noise_multiplier == 1.0
        assert (mechanism.l2_bound, mechanism.stddev) == (0.5, 0.5)
        assert (plan.relation.value, sampler.cap, plan.delta) == ("replace-one", 20, 1e-3)
        assert plan.roster_sha256 == components.task.roster_sha256
        assert plan.max_examples_per_user == 256
        assert sampler.sampling_prob == pytest.approx(0.1)

    def test_defaults_follow_the_roster(self, tiny_corpus):
        plan = build(base(cohort=None, delta=None), tiny_corpus).plan
        assert plan.live_mechanism.expected_cohort_size == 3.0
        assert plan.delta == pytest.approx(60**-1.1)
        small = build(base(cohort=None, users=8), tiny_corpus)
        assert small.plan.live_mechanism.expected_cohort_size == 1.0
        assert len(small.task.roster) == 8

    @pytest.mark.parametrize("given", [{"noise_multiplier": 1.0}, {"target_epsilon": 2.0}])
    def test_noise_none_drops_the_noise_and_with_it_the_promise(self, tiny_corpus, given):
        plan = build(base(**given).with_options({"noise": "none"}), tiny_corpus).plan
        assert not plan.is_private and plan.target_epsilon is None
        assert plan.live_mechanism.stddev == 0.0
        assert math.isinf(plan.epsilon(1).value)

    @pytest.mark.parametrize("kind", ["rank", "frequency", "tf-idf"])
    def test_side_information_is_public_positive_and_by_word(self, tiny_corpus, kind):
        side = build(base(precondition="local", side_information=kind), tiny_corpus)
        multiplier = side.side_information.multiplier
        assert set(multiplier) == {"kernel"}
        assert multiplier["kernel"].shape == (len(tiny_corpus.view().words), 1)
        assert multiplier["kernel"].dtype == np.float32 and (multiplier["kernel"] > 0).all()
        assert multiplier["kernel"].max() <= 200.0 * (1 + 1e-6)
        assert len(np.unique(multiplier["kernel"])) > 1
        assert side.side_information.source == "public"


def test_a_plan_of_another_roster_makes_no_parts(tiny_corpus):
    """As when a task is exchanged by hand: the ε would be of other sampling than there is."""
    components = build(base(), tiny_corpus)
    other = build(base(users=59), tiny_corpus)
    with refuses(ValueError, 59, 60):
        replace(components, task=other.task)
    assert replace(other, algorithm=components.algorithm).task is other.task


class ClipAgain(Clip):
    """A bound derived from one of ours, of its kind."""


def test_a_part_of_another_class_is_refused_and_not_replaced_by_the_one_of_its_kind():
    with refuses(ValueError, "bound", "ClipAgain"):
        FederatedExperiment(name="x", description="", bound=ClipAgain())
    # Of examples nothing follows their norms.
    with refuses(ValueError, "bound", "clip"):
        CentralExperiment(name="x", description="", task=lambda e: None, bound=AdaptiveClip())


def test_a_word_in_the_place_of_a_part_is_refused_with_the_parts():
    with refuses(ValueError, "precondition", "local", "InSteps"):
        FederatedExperiment(name="x", description="", precondition="local")


def test_a_whole_number_of_another_method_is_one_where_only_such_are_taken():
    """Expected batches are of 200.0 examples, permuted ones of 200."""
    experiment = load_experiment("dp-sgd-cifar").with_options({"method": "bolt-on"})
    assert (experiment.batch_size, type(experiment.batch_size)) == (200, int)
    with pytest.raises(ValueError, match="batch"):
        load_experiment("dp-sgd-cifar").with_options({"batch-size": 200.5, "method": "bolt-on"})


@pytest.mark.parametrize("name", ["method", "method.kind"])
def test_the_method_is_chosen_by_either_of_its_names(name):
    chosen = load_experiment("dp-fedavg-tags").with_options({name: "agd", "target-epsilon": 2.0})
    assert chosen.method == "agd"


def test_whole_numbers_are_not_rounded_to_floats():
    whole = Entry(path="seed", hint=int, default=0, help="")
    assert whole.coerce("seed", 2**60 + 1) == 2**60 + 1
    assert type(whole.coerce("seed", 20.0)) is int


def test_a_number_that_no_float_holds_is_refused_like_an_infinite_one():
    with refuses(ValueError, "num_rounds"):
        Entry(path="num_rounds", hint=float, default=0.0, help="").coerce("num_rounds", 10**400)


def test_what_is_like_none_lists_all():
    with refuses(ValueError, "bound.l2_clip_norm"):
        load_experiment("dp-fedavg-tags").with_options({"zzz": 3})


@pytest.mark.parametrize(("given", "meant"), [("cohort", "batch-size"), ("rounds", "steps")])
def test_an_option_of_users_leads_to_that_of_examples(given, meant):
    with refuses(ValueError, given, meant):
        load_experiment("dp-sgd-cifar").with_options({given: 20})


def test_every_alias_leads_to_an_option():
    tags = entries(TagPredictionTask, prefix="task.")
    names = [OptionIndex((*tags, *entries(made))) for made in classes().values()]
    for alias, meant in _SUGGESTIONS.items():
        assert any(known.find(name) for known in names for name in meant), alias
