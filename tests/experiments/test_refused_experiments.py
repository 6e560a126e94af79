"""Values and parts of experiments that do not fit are refused by name."""

import math
from dataclasses import dataclass, make_dataclass
from typing import ClassVar

import pytest

from fedpriv.checkpoints.aggregates import Aggregate, Average, Last, ParamsAggregate
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import classes
from fedpriv.experiments.options import Part, entries, kebab
from fedpriv.transform import Transform
from tests.experiments.small import base
from tests.harness.refusals import refuses

BAD = {
    "inputs": ("TFF", None, 1),
    "precondition": ("server", "None", ""),
    "side-information": ("tfidf",),
    "bound": ("clipping", None),
    "noise": ("laplace", 1.0),
    "relation": ("add", "blank-out"),
    "sampling": ("uniform",),
    "server": ("sgdm",),
    "aggregate": ("mean",),
    "l2-clip-norm": (0.0, -1.0, math.nan, math.inf, "1.0", None, True),
    "noise-multiplier": (0.0, -1.0, math.nan, None),
    "target-epsilon": (0.0, -2.0, math.inf),
    "delta": (0.0, 1.0, -0.1, math.nan),
    "cohort": (0, -3, 61, math.inf),
    "cohort-cap": (0, 7, 1.5),
    "rounds": (0, -1, 2.5, None, True),
    "local-learning-rate": (0.0, math.inf),
    "local-batch-size": (0,),
    "local-epochs": (0, 1.5),
    "max-examples-per-user": (0,),
    "server-learning-rate": (0.0, -1.0),
    "seed": ("0", 0.5),
    "eval-every": (0, -1),
    "users": (0, 61, -1),
    "roster": ("nobody", 5),
    "bound.regulariser": (-1.0,),
    "server-momentum": (1.0, -0.1),
    "server-adaptivity": (0.0,),
    "ema-decay": (1.0, -0.5),
    "preconditioner-gain": (0.0, -1.0),
    "preconditioner-top": (-1,),
}
# Options that only act together with another.
NEEDS = {
    "bound.regulariser": {"bound": "normalise"},
    "server-momentum": {"server": "momentum"},
    "server-adaptivity": {"server": "adam"},
    "ema-decay": {"aggregate": "ema"},
    "preconditioner-top": {"precondition": "local"},
    "preconditioner-gain": {"precondition": "local", "preconditioner-top": 10},
    "side-information": {"precondition": "local"},
}


@pytest.mark.slow
def test_a_value_that_does_not_fit(tiny_corpus, subtests):
    recognised = {"regulariser", "adaptivity", "beta1", "multiplier", "top", "roster", "cohort"}
    for option, value in ((name, value) for name, tried in BAD.items() for value in tried):
        options = {**NEEDS.get(option, {}), option: value}
        with subtests.test(option=option, value=value):
            with pytest.raises(ValueError) as caught:
                build(base().with_options(options), tiny_corpus)
            message = str(caught.value)
            assert len(message) < 400 and "\n" not in message
            # It is about that option, under a name its user can recognise.
            words = {w for w in option.split("-") if w not in ("of", "per")} | recognised
            assert any(word in message.lower() for word in words)


@pytest.mark.parametrize(
    ("options", "about"),
    [
        ({"bound": "none"}, ()),
        ({"sampling": "fixed"}, ("replace-one",)),
        ({"sampling": "fixed", "relation": "replace-one", "cohort": 6.5}, ()),
        (
            {"sampling": "fixed", "relation": "replace-one", "cohort-cap": 20},
            ("cohort-cap",),
        ),
        ({"cohort-cap": 61}, ("cohort-cap",)),
    ],
)
def test_parts_that_do_not_fit_together(tiny_corpus, options, about):
    with refuses(ValueError, *about):
        build(base().with_options(options), tiny_corpus)


def test_noise_without_any_amount_is_asked_for(tiny_corpus):
    made = FederatedExperiment(name="n", description="")
    with refuses(ValueError, "noise-multiplier", "target-epsilon"):
        build(made, tiny_corpus)


def test_tag_prediction_needs_a_corpus():
    with pytest.raises(ValueError):
        build(base(), None)


@pytest.mark.slow
@pytest.mark.parametrize("made", classes().values(), ids=lambda made: made.__name__)
def test_every_option_is_taken_or_refused_by_name_with_every_method(made):
    """Those of parts within parts of another method too."""
    experiment = made(name="toy", description="A toy.", task=lambda experiment: None)
    for other in classes().values():
        if other.unit != made.unit:
            continue
        for entry in entries(other):
            value = entry.default if entry.default not in (None, "none") else 7
            try:
                experiment.with_options({entry.path: value})
            except ValueError as refused:
                assert kebab(entry.path) in kebab(str(refused))


def test_an_option_of_another_method_is_refused_with_the_method():
    descent = FederatedExperiment(name="toy", description="A toy.").with_options({"method": "agd"})
    with refuses(ValueError, "bound", "averaging", "agd"):  # fmt: skip
        descent.with_options({"bound": "adaptive"})


def test_a_part_within_a_part_that_is_not_there_is_refused_with_it():
    with refuses(ValueError, "preconditioner_top", "rank"):
        base().with_options(
            {"precondition": "local", "side-information": "tf-idf", "preconditioner_top": 5}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unnamed(Part):
    amounts: tuple = ()


def holder_of(parts, default):
    return make_dataclass("Holder", [("part", parts, default)], frozen=True)


def test_a_part_that_could_not_be_told_apart_is_refused(monkeypatch):
    monkeypatch.setattr(Transform, "kinds", dict(Transform.kinds))

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Second(ParamsAggregate):
        kind: ClassVar[str] = "ema"

        def next(self, update, state):
            return update, state

    with refuses(TypeError, "Average", "Second"):
        entries(holder_of(Aggregate, Last()))
    with refuses(TypeError, "Average", "Second"):
        entries(holder_of(Average | Second, Average()))


def test_a_part_without_a_kind_has_the_name_of_its_class():
    [choice, *rest] = entries(holder_of(Average | Unnamed, Average()))
    assert choice.choices == ("ema", "Unnamed")
    assert not any(entry.path == "part.amounts" for entry in rest)


def unread(**options):
    """An experiment whose data nobody has."""
    made = FederatedExperiment(name="own", description="", task=lambda experiment: None)
    return made.with_options({"noise_multiplier": 1.0, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": "fixed", "cohort": 20},  # everybody, of twenty
        {"sampling": "fixed", "relation": "replace-one"},
        {"cohort-cap": 20},
        {"cohort": 5.0, "cohort-cap": 20},
    ],
)
def test_what_sizes_decide_is_left_to_the_data(options):
    unread(**options).check()


def test_a_pair_that_no_size_mends_is_refused():
    with refuses(ValueError, "replace-one"):
        unread(sampling="fixed").check()
