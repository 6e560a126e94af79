"""Tag prediction whose users of every tenth id raise whenever they are drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.load import load_experiment
from fedpriv.experiments.tasks import TagPredictionTask
from fedpriv.tasks.tag_prediction import TagPrediction


@dataclass(frozen=True)
class _Users:
    view: Any

    def examples(self, user_id: str) -> Any:
        """Return a user's examples; raise for every tenth user."""
        if int(user_id.lstrip("u")) % 10 == 0:
            raise RuntimeError(f"{user_id} is broken{' and says so at length' * 50}")
        return self.view.examples(user_id)

    def num_examples(self, user_id: str) -> int:
        """Return how many examples a user has."""
        return self.view.num_examples(user_id)


@dataclass(frozen=True, kw_only=True)
class FailingTask(TagPredictionTask):
    """Makes the task of a corpus."""

    def __call__(self, experiment: object, corpus: Corpus | None) -> TagPrediction:
        """Return the task."""
        made = TagPredictionTask.__call__(self, experiment, corpus)
        made.data = _Users(made.data)
        return made


def experiment() -> Experiment:
    """AdaDPS on such users."""
    return replace(load_experiment("adadps-tags"), name="failing-tags", task=FailingTask())
