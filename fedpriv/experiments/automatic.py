"""Values of an experiment's automatic options, from the task's public facts; made once a run.

The rule is `fedpriv.experiments.settings`; a run folder keeps the values, and a resume reads them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fedpriv.experiments.experiment import AUTOMATIC, Experiment
from fedpriv.experiments.of_users import make_side_information, make_trainer
from fedpriv.experiments.parts.start import public_only
from fedpriv.experiments.settings import Settings, choose_settings
from fedpriv.privacy.epsilon import default_delta
from fedpriv.privacy.event import Relation
from fedpriv.rng import Key
from fedpriv.tasks.task import HoldsOutPublicUsers, Task
from fedpriv.training.in_public.learning import learn
from fedpriv.training.work import LocalTrainer
from fedpriv.tree import l2_norm


def settle(experiment: Experiment, task: Task) -> tuple[Experiment, Settings | None]:
    """Return an experiment with a value for each automatic option, and what was chosen.

    They keep the values that the experiment has where nothing can be chosen: no target ε, other
    noise than the Gaussian of every round's own, or no public users to measure updates of.
    """
    if not experiment.automatic:
        return experiment, None
    options = experiment.options()
    epsilon, measured = options.get("target-epsilon"), None
    independent = options.get("noise") == "gaussian" and options.get("sampling") == "poisson"
    if epsilon is None or not independent:
        return replace(experiment, automatic=()), None
    fixed: dict[str, Any] = {
        name.replace("-", "_"): options[name]
        for name in AUTOMATIC
        if name not in experiment.automatic
    }
    if "l2-clip-norm" in experiment.automatic:
        measured = public_update_norm(experiment, task)
        if measured is None:
            fixed["l2_clip_norm"] = options["l2-clip-norm"]
    num_users = len(task.roster)
    chosen = choose_settings(
        num_users=num_users,
        epsilon=float(epsilon),
        delta=default_delta(num_users) if experiment.delta is None else experiment.delta,
        relation=Relation.of(experiment.relation),
        update_norm=measured,
        **fixed,
    )
    values = {name: getattr(chosen, name.replace("-", "_")) for name in experiment.automatic}
    return experiment.with_options(values), chosen


def public_update_norm(experiment: Experiment, task: Task) -> float | None:
    """Return the median l2 norm of public users' updates; None without public users.

    Each is made at a start that was not trained on its user (a start that was would make it too
    short), with the settings that the public search chose for the start.
    """
    if not isinstance(task, HoldsOutPublicUsers):
        return None
    start, key = experiment.part("start"), Key.simulation(0).fold("update norms")
    found = public_only(task, key) if experiment.start == "public" else None
    trainer = make_trainer(experiment, task, make_side_information(experiment, task))
    if not isinstance(trainer, LocalTrainer):
        return None
    norms = []
    for learner, users in task.public_users_held_out():
        if found is None:
            params = start.make(task, key).params
        else:
            params = learn(learner, start.settings(found)).params
        norms += [l2_norm(trainer.train(params, examples, key)) for examples in users]
    norms = [norm for norm in norms if math.isfinite(norm) and norm > 0.0]
    return float(np.median(norms)) if norms else None
