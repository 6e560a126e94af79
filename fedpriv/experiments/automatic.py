"""Values of an experiment's automatic options, from the task's public facts; made once a run.

The rule is `fedpriv.experiments.settings`; a run folder keeps the values, and a resume reads them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.of_users import make_side_information, make_trainer
from fedpriv.experiments.parts.start import public_only
from fedpriv.experiments.settings import Settings, choose_settings
from fedpriv.privacy.epsilon import default_delta
from fedpriv.privacy.event import Relation
from fedpriv.privacy.statement.coverage import private_start
from fedpriv.rng import Key
from fedpriv.tasks.task import HoldsOutPublicUsers, Task
from fedpriv.training.public_learning import learn
from fedpriv.training.work import LocalTrainer
from fedpriv.tree import l2_norm, num_elements


def settle(experiment: Experiment, task: Task) -> tuple[Experiment, Settings | None]:
    """Return an experiment with a value for each automatic option, and what was chosen.

    They keep the values that the experiment has where nothing can be chosen: no target ε, a noise
    multiplier that is given, or other noise than the Gaussian of every round's own. The clip norm
    does, too, where it adapts or there are no public users to measure updates of.

    Where a rostered asker's title and tags would be in what is measured they keep them as well: by
    sentence, others' tags decide which of a public user's sentences train, and a public start of
    all posts learns from them.

    Guarantees:
        * Of a rostered user's records and questions, others' answers to these included, values
          follow from the roster's length alone.
    """
    if not experiment.automatic:
        return experiment, None
    options = experiment.options()
    if options.get("split") == "by-sentence" or private_start(options):
        return replace(experiment, automatic=()), None
    epsilon = options.get("target-epsilon")
    independent = options.get("noise") == "gaussian" and options.get("sampling") == "poisson"
    if epsilon is None or options.get("noise-multiplier") is not None or not independent:
        return replace(experiment, automatic=()), None
    fixed: dict[str, Any] = {
        name.replace("-", "_"): options[name]
        for name in ("cohort", "rounds", "l2-clip-norm")
        if name not in experiment.automatic
    }
    norms, num_public = public_update_norms(experiment, task)
    if not norms or options.get("clip-norm") == "adaptive":  # which begins from the norm given
        fixed["l2_clip_norm"] = options["l2-clip-norm"]
    num_users = len(task.roster)
    found = choose_settings(
        num_users=num_users,
        epsilon=float(epsilon),
        delta=default_delta(num_users) if experiment.delta is None else experiment.delta,
        relation=Relation.of(experiment.relation),
        update_norm=float(np.median(norms)) if norms else None,
        num_params=num_elements(task.init_params(Key.simulation(0))),
        num_public_examples=num_public,
        **fixed,
    )
    free = {*found.chosen, *(("start-factor",) if experiment.start == "public" else ())}
    names = tuple(name for name in experiment.automatic if name in free)
    if "start-factor" not in names:
        found = replace(found, start_factor=options.get("start-factor"))
    values = {name: getattr(found, name.replace("-", "_")) for name in names}
    # The bound goes to nodes with each question; no node needs these options.
    return experiment.with_options(values), replace(found, chosen=names)


def public_update_norms(experiment: Experiment, task: Task) -> tuple[list[float], int]:
    """Return the l2 norms of public users' updates, and how many examples they have.

    Each is made at a start that was not trained on its user (a start that was would make it too
    short), with the settings that the public search chose for the start.
    """
    trainer = make_trainer(experiment, task, make_side_information(experiment, task))
    if not isinstance(task, HoldsOutPublicUsers) or not isinstance(trainer, LocalTrainer):
        return [], 0
    start, key = experiment.part("start"), Key.simulation(0).fold("update norms")
    found = public_only(task, key) if experiment.start == "public" else None
    norms, num_examples = [], 0
    for learner, users in task.public_users_held_out():
        params = (
            start.make(task, key).params
            if found is None
            else (learn(learner, start.settings(found)).params)
        )
        norms += [l2_norm(trainer.train(params, examples, key)) for examples in users]
        num_examples += sum(len(examples) for examples in users)
    return [norm for norm in norms if math.isfinite(norm) and norm > 0.0], num_examples
