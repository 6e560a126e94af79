"""An experiment of a derived class, whose components are changed."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from fedpriv.experiments.experiment import Components, Experiment


def with_components(
    experiment: Experiment, change: Callable[[Components], Components], **options: Any
) -> Experiment:
    """Return an experiment that runs other components than its fields say.

    Args:
        experiment: Whose fields it has.
        change: From the components of these to those that run.
        options: Fields with other values.
    """

    base: Any = type(experiment)

    class Derived(base):
        def make_components(self, task: Any) -> Components:
            return change(super().make_components(task))

    given = {item.name: getattr(experiment, item.name) for item in fields(experiment)}
    return Derived(**{**given, **options})
