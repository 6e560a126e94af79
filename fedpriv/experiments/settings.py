"""Settings chosen from the data's size: cohort, rounds and clip norm of user-level DP training.

Everything follows from s, the noise on the mean of one release of everybody's updates that spends
all of ε, for each unit of the clip norm: s = σ₁/n, where σ₁ is the noise multiplier of one Gaussian
release at (ε, δ). T rounds that share the ε have about s √T of noise each, and after T steps each
parameter has noise of standard deviation

    τ = s T C,

whatever the cohort, as long as it is not too small (`_cohort_share`). Rows of inputs have unit l2
norm, so τ is also the noise on a logit, for any number of words and classes. Signal and noise both
grow with T C, the furthest that training can move the model: τ says how far it may go.

The constants were fitted on synthetic corpora of 100 to 10,000 users and validation threads of one
site (`docs/results/tags.md`), never on what the results are measured on.

Guarantee: settings are a function of the length of the roster, ε, δ and public examples. Removing
any rostered user's records changes none of them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.experiment import Experiment, Settings
from fedpriv.experiments.noise import CorrelatedNoise, GaussianNoise
from fedpriv.experiments.sampling import PoissonSampling
from fedpriv.experiments.start import FromPublic, public_only
from fedpriv.mechanisms.event import Event, Relation
from fedpriv.privacy.epsilon import default_delta
from fedpriv.privacy.statement.coverage import private_start
from fedpriv.rng import Key
from fedpriv.tasks.task import Task
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.public_learning import learn
from fedpriv.training.work import UserTrainer
from fedpriv.tree import l2_norm, num_elements

TRAVEL = 0.7
"""τ aimed at, where noise is no longer than an update; less in proportion where it is."""
CLIP_SHARE, LONGEST_CLIP = 0.35, 0.5
"""C over the median norm of a public user's update that is aimed at, and the most it may be."""
FEWEST_ROUNDS, MOST_ROUNDS = 20, 250
EXCESS = 0.05
"""By how much the noise on the mean may exceed that of full cohorts."""
SMALL_RUN = 20_000
"""Local trainings that take seconds: up to so many, everybody takes part in each round."""
START_FACTORS = ((0.2, 0.25), (0.5, 0.5))
"""Factors of the public start by noise length; above the last, the public search decides."""


def choose_settings(
    *,
    num_users: int,
    epsilon: float,
    delta: float,
    relation: Relation,
    update_norm: float | None,
    num_params: int,
    num_public_examples: int,
    cohort: float | None = None,
    rounds: int | None = None,
    l2_clip_norm: float | None = None,
) -> Settings:
    """Return cohort, rounds and clip norm; those that are given stay.

    Args:
        num_users: Length of the roster.
        epsilon: Target.
        delta: δ.
        relation: Neighbouring relation.
        update_norm: Median l2 norm of a local update, of public users at starts that were not
            trained on them; None where the clip norm is given.
        num_params: d, of the model.
        num_public_examples: Of theirs.
        cohort: Expected cohort size; None to choose.
        rounds: T; None to choose.
        l2_clip_norm: C; None to choose.

    Raises:
        ValueError: If neither an update norm nor a clip norm is given.
    """
    from fedpriv.privacy.accounting import calibrate  # slow: it imports scipy

    if update_norm is None and l2_clip_norm is None:
        raise ValueError("give the norm of public users' updates, or l2-clip-norm")
    sigma = calibrate(
        lambda multiplier: Event(kind="gaussian", noise_multiplier=multiplier),
        1,
        target_epsilon=epsilon,
        delta=delta,
        relation=relation,
    )
    single = sigma / num_users
    length = single * math.sqrt(num_params)
    travel = TRAVEL / max(1.0, length)
    given = {"cohort": cohort, "rounds": rounds, "bound.l2_clip_norm": l2_clip_norm}
    norm = l2_clip_norm
    if norm is None:
        assert update_norm is not None
        norm = CLIP_SHARE * update_norm
    if rounds is None:
        rounds = min(max(round(travel / (single * norm)), FEWEST_ROUNDS), MOST_ROUNDS)
    if l2_clip_norm is None:
        assert update_norm is not None
        norm = min(travel / (single * rounds), LONGEST_CLIP * update_norm)
    if cohort is None:
        share = max(_cohort_share(sigma, rounds), SMALL_RUN / (num_users * rounds))
        cohort = float(max(1, round(min(1.0, share) * num_users)))
    return Settings(
        chosen=tuple(name for name, value in given.items() if value is None),
        cohort=cohort,
        rounds=rounds,
        l2_clip_norm=float(norm),
        start_factor=next((kept for most, kept in START_FACTORS if length <= most), None),
        update_norm=update_norm,
        noise_on_mean=single,
        noise_on_logit=single * rounds * norm,
        noise_length=length,
        num_public_examples=num_public_examples,
    )


def _cohort_share(sigma: float, rounds: int) -> float:
    """Return the share of the roster beyond which noise on the mean hardly falls.

    By the central limit of Poisson sampling (Dong, Roth and Su, "Gaussian differential privacy",
    2022), T rounds at rate q and noise σ are one release of μ = q √(T (exp(1/σ²) - 1)). With
    μ = 1/σ₁ noise on the mean is that of full cohorts times √(x/log(1 + x)), x = 1/(σ₁² q² T),
    about 1 + x/4. Only the cohort is chosen by it; ε is that of the plan.
    """
    return 1.0 / (sigma * math.sqrt(4.0 * EXCESS * rounds))


#: What `Settings` calls the options that it chooses.
_CHOSEN = {
    "cohort": "cohort",
    "rounds": "rounds",
    "bound.l2_clip_norm": "l2_clip_norm",
    "start.factor": "start_factor",
}


def settle(
    experiment: Experiment, task: Task, known: Settings | None = None
) -> tuple[Experiment, Settings | None]:
    """Return an experiment with a value for each automatic option, and what was chosen.

    They keep the values that the experiment has where nothing can be chosen: no target ε, a noise
    multiplier that is given, or other noise than the Gaussian of every round's own. The clip norm
    does, too, where it adapts or there are no public users to measure updates of.

    Where a rostered asker's title and tags would be in what is measured they keep them as well: by
    sentence, others' tags decide which of a public user's sentences train, and a public start of
    all posts learns from them.

    Args:
        experiment: Says what is done.
        task: Its task.
        known: What was chosen at another ε, which measured the public users' updates already.

    Guarantees:
        * Of a rostered user's records and questions, others' answers to these included, values
          follow from the roster's length alone.
    """
    if not experiment.automatic:
        return experiment, None
    as_given = replace(experiment, automatic=()), None
    if not isinstance(experiment, FederatedExperiment):
        return as_given
    if getattr(experiment.task, "split", None) == "by-sentence" or private_start(
        experiment.options()
    ):
        return as_given
    noise, bound = experiment.noise, experiment.bound
    if (
        not isinstance(noise, GaussianNoise)
        or isinstance(noise, CorrelatedNoise)
        or not isinstance(experiment.sampling, PoissonSampling)
        or experiment.target_epsilon is None
        or noise.multiplier is not None
    ):
        return as_given
    fixed: dict[str, Any] = {
        "cohort": experiment.cohort,
        "rounds": experiment.rounds,
        "l2_clip_norm": getattr(bound, "l2_clip_norm", None),
    }
    for path in experiment.automatic:
        fixed.pop(path.rpartition(".")[2], None)
    if known is None:
        norms, num_public = public_update_norms(experiment, task)
        norm = float(np.median(norms)) if norms else None
    else:
        norm, num_public = known.update_norm, known.num_public_examples
    # A clip norm that adapts begins from the one given.
    if norm is None or bound.start is not None:
        fixed["l2_clip_norm"] = getattr(bound, "l2_clip_norm", None)
    num_users = len(task.roster)
    found = choose_settings(
        num_users=num_users,
        epsilon=experiment.target_epsilon,
        delta=default_delta(num_users) if experiment.delta is None else experiment.delta,
        relation=experiment.neighbours(),
        update_norm=norm,
        num_params=num_elements(task.init_params(Key.simulation(0))),
        num_public_examples=num_public,
        **fixed,
    )
    start = experiment.start
    free = {*found.chosen, *(("start.factor",) if isinstance(start, FromPublic) else ())}
    names = tuple(name for name in experiment.automatic if name in free)
    if "start.factor" not in names:
        found = replace(found, start_factor=getattr(start, "factor", None))
    values = {name: getattr(found, _CHOSEN[name]) for name in names}
    # The bound goes to nodes with each question; no node needs these options.
    return experiment.with_options(values), replace(found, chosen=names)


def public_update_norms(experiment: Experiment, task: Task) -> tuple[list[float], int]:
    """Return the l2 norms of public users' updates, and how many examples they have.

    Each is made at a start that was not trained on its user (a start that was would make it too
    short), with the settings that the public search chose for the start.
    """
    trainer = experiment.make_trainer(task)
    trainer = getattr(trainer, "alone", trainer)  # of many users at once, what trains one
    if not isinstance(trainer, UserTrainer) or trainer.select is not None:
        return [], 0
    start, key = experiment.start, Key.simulation(0).fold("update norms")
    found = public_only(task, key) if isinstance(start, FromPublic) else None
    norms, num_examples = [], 0
    for learner, users in task.public_users_held_out():
        params = (
            start.make(task, key).params
            if found is None or not isinstance(start, FromPublic)
            else learn(learner, start.settings(found))
        )
        norms += [l2_norm(trainer.train(params, NO_CONTEXT, examples, key)) for examples in users]
        num_examples += sum(len(examples) for examples in users)
    return [norm for norm in norms if math.isfinite(norm) and norm > 0.0], num_examples
