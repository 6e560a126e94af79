"""An option by another library's name: the one that is meant is said, and not all there are."""

import pytest

from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.experiment import classes
from fedpriv.experiments.load import load_experiment
from fedpriv.experiments.options import _SUGGESTIONS, OptionIndex, entries
from fedpriv.experiments.tasks import TagPredictionTask

MEANT = {
    "lr": "local-learning-rate",
    "epsilon": "target-epsilon",
    "sigma": "noise-multiplier",
    "max-grad-norm": "l2-clip-norm",
    "clients-per-round": "cohort",
    "local-learning-rat": "local-learning-rate",
    "noise.multplier": "noise.multiplier",
}


@pytest.mark.parametrize("name", MEANT)
def test_the_nearest_is_said(name):
    """Red before: of lr all forty names were listed, and of steps nothing near."""
    with pytest.raises(ValueError) as caught:
        load_experiment("dp-fedavg-tags").with_options({name: 3})
    assert str(caught.value).endswith(f"did you mean {MEANT[name]!r}?")


def test_of_single_examples_too():
    central = CentralExperiment(name="c", description="", task=lambda e: None)
    with pytest.raises(ValueError, match="did you mean 'learning-rate'"):
        central.with_options({"lr": 3})


def test_what_is_like_none_lists_all():
    with pytest.raises(ValueError, match=r"known: .*bound.l2_clip_norm"):
        load_experiment("dp-fedavg-tags").with_options({"zzz": 3})


def test_every_alias_leads_to_an_option():
    tags = entries(TagPredictionTask, prefix="task.")
    names = [OptionIndex((*tags, *entries(made))) for made in classes().values()]
    for alias, meant in _SUGGESTIONS.items():
        assert any(known.find(name) for known in names for name in meant), alias
