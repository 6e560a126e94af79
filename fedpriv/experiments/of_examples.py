"""Experiments whose unit is an example, centralised: DP-SGD, AdaDPS, DP-NSGD, baselines.

A method is a bound, a preconditioner (option `guide`) and an optimiser:

==================  ============================================================================
DP-SGD              bound clip, optimizer sgd
DP-Adam             bound clip, optimizer adam (likewise rmsprop, adagrad)
DP-NSGD, DP-NAdam   bound normalise, optimizer sgd or adam
AdaDPS              guide public-rmsprop, public-adam, public-adagrad, public-own (statistics of
                    one's own) or side-information
DP-R-Pub            guide r-pub
DP-Adam-Pub         guide adam-pub, optimizer ema-momentum
PDA-DPMD            guide mirror-descent
DP²                 guide delayed
scale-then-priv.    guide past-releases, optimizer adam or rmsprop
warm start          warm-start-epochs above 0; start public chooses epochs and rate itself
ideal               guide ideal: not private, whatever the noise
SGD, Adam, AdaS     noise none, bound none, with the guide or optimizer of that name
==================  ============================================================================
"""

from __future__ import annotations

from dataclasses import replace

from fedpriv.experiments.components import Components, make_plan, own_components, own_method
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.parts.guides import Surroundings
from fedpriv.mechanisms.gaussian import Unprotected
from fedpriv.mechanisms.preconditioners import NoPreconditioner
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.unit import Unit
from fedpriv.tasks.central import CentralTask
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.training.per_example.example_sum import CentralSum

#: What a plan and an optimiser call the options that set them; a plan speaks of users.
FIELD_NAMES = {
    "num_rounds": "steps",
    "expected_cohort_size": "batch-size",
    "cohort": "batch",
    "users": "examples",
    "beta1": "momentum",
    "server momentum": "momentum",
    "server learning rate": "learning-rate",
    "server adaptivity": "adaptivity",
}


def num_steps(experiment: Experiment, num_examples: int) -> int:
    """Return how many steps are planned.

    Raises:
        ValueError: If neither steps nor epochs are given, or both.
    """
    return experiment.part("length").num_steps(num_examples)


def make_components(experiment: Experiment, task: CentralTask) -> Components:
    """Return the components of an experiment on a task.

    Raises:
        ValueError: If the options do not fit together, or not the task.
    """
    own = own_method(experiment)
    if own is not None:
        if task.owned is not None:
            raise ValueError(
                f"method {experiment.method!r} bounds single examples, and of {task.name} an owner "
                f"has up to {task.owned.most}: its ε would be of one of them alone; use method "
                "'averaging', whose ε is of an owner, or a training set of one example an owner"
            )
        return own_components(experiment, task, own)
    task = experiment.part("warm start").warmed(task, experiment.part("start"))
    planned = num_steps(experiment, task.num_train)
    chosen = experiment.part("guide").choose(
        Surroundings(
            task=task,
            batch_size=experiment.batch_size,
            num_steps=planned,
            statistics=experiment.statistics,
        )
    )
    optimizer = experiment.part("optimizer").make()
    return Components(
        task=task,
        plan=_plan(experiment, task, planned, promises=chosen.promises),
        algorithm=FederatedAveraging(
            optimizer=experiment.part("schedule").scheduled(optimizer, planned),
            preconditioner=chosen.preconditioner or NoPreconditioner(),
            **experiment.part("aggregate").averaging(),
        ),
        trainer=CentralSum(
            gradients=task.train,
            num_examples=task.num_train,
            blank=None if task.owned is None else task.owned.blank,
            num_groups=experiment.part("length").num_groups(),
        ),
        side_information=chosen.side_information,
        start=experiment.part("start").make,
    )


def _plan(experiment: Experiment, task: CentralTask, planned: int, *, promises: bool) -> Plan:
    unit: Unit = "example"
    sampler = experiment.part("sampling").sampler(task.num_train, experiment.batch_size, planned)
    if task.owned is not None:
        unit, sampler = "owner", task.owned.sampler(sampler)
    bound = experiment.part("bound").make()
    if experiment.has_part("sum"):
        bound = experiment.part("sum").rounded(bound, task)
    plan = make_plan(
        experiment,
        promises=promises,
        sampler=sampler,
        bound=bound,
        micro_batch=experiment.micro_batch,
        num_rounds=planned,
        roster_sha256=task.roster_sha256,
        unit=unit,
    )
    if promises:
        return plan
    # The preconditioner sees clean gradients: there is no guarantee, whatever noise is added.
    mechanism = plan.live_mechanism
    unprotected = Unprotected(stddev=mechanism.stddev)
    return replace(plan, mechanism=replace(mechanism, privatizer=unprotected))
