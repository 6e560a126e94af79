"""An option by another library's name: the one that is meant is said, and not all there are."""

from fedpriv.experiments.experiment import classes
from fedpriv.experiments.load import load_experiment
from fedpriv.experiments.options import _SUGGESTIONS, OptionIndex, entries
from fedpriv.experiments.tasks import TagPredictionTask
from tests.harness.refusals import refuses


def test_what_is_like_none_lists_all():
    with refuses(ValueError, "bound.l2_clip_norm"):
        load_experiment("dp-fedavg-tags").with_options({"zzz": 3})


def test_every_alias_leads_to_an_option():
    tags = entries(TagPredictionTask, prefix="task.")
    names = [OptionIndex((*tags, *entries(made))) for made in classes().values()]
    for alias, meant in _SUGGESTIONS.items():
        assert any(known.find(name) for known in names for name in meant), alias
