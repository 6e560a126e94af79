"""From an experiment and data to the components that run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments import of_examples, of_users
from fedpriv.experiments.automatic import settle
from fedpriv.experiments.components import Components, refined
from fedpriv.experiments.composing.options import said_as_options
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.task_factory import check_heeded, make_task
from fedpriv.tasks.checks import check_central_task, check_task


def build(experiment: Experiment, corpus: Corpus | None = None, task: Any = None) -> Components:
    """Return the components of an experiment.

    Options that are automatic are chosen here (`fedpriv.experiments.settings`); `experiment` of the
    components has their values.

    Args:
        experiment: Says what is done.
        corpus: What its task is made on; None for a task that brings its own data.
        task: What is learnt, instead of the experiment's own.

    Raises:
        ValueError: If its options do not fit together or do not fit the data.
    """
    if experiment.unit == "example":
        if corpus is not None:
            raise ValueError(f"{experiment.name} brings its own data; leave the corpus out")
        given = make_task(experiment, None) if task is None else task
        check_central_task(given, experiment.name)
        with said_as_options(experiment.field_names() | of_examples.FIELD_NAMES):
            components = refined(experiment, of_examples.make_components(experiment, given))
            return _payable(replace(components, experiment=experiment))
    made = make_task(experiment, corpus) if task is None else task
    check_task(made, experiment.name)
    if task is None:
        check_heeded(experiment, made)
    with said_as_options(experiment.field_names() | of_users.FIELD_NAMES):
        settled, settings = settle(experiment, made)
        components = refined(settled, of_users.make_components(settled, made))
        return _payable(replace(components, experiment=settled, settings=settings))


def _payable(made: Components) -> Components:
    """Return components whose target pays for at least one round.

    Raises:
        ValueError: If it pays for none.
    """
    plan = made.plan
    if plan.is_private and plan.affordable_rounds == 0:
        raise ValueError(
            f"target_epsilon {plan.target_epsilon:g} pays for no round: "
            f"{plan.refusal(Counter(), plan.event)}; raise target_epsilon or noise_multiplier, "
            "lower the cohort, or leave noise_multiplier out (the target then chooses it)"
        )
    return made
