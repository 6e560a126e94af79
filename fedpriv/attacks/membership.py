"""User-level membership inference on the model that a run released.

Somebody has a person's posts and a released model, and asks whether the person was trained on. The
score is how much better the model does on the person's text than a model that saw no rostered user:
the loss of the public start, or of the best model of public examples, less that of the released
one, averaged over the person's examples.

*Members* are rostered users with text for training. *Non-members* are users who might have been:
where a run was of the first `users` of its roster, the others of that roster, who are in nothing,
neither in training nor among public users. Where it was of a whole roster, public users, matched
with members by amount of text. Those may differ from members in what they write, so the same attack
is made with the reference model alone, which saw neither: what that reaches is difference, not
membership.

It reads users' data: simulations only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.attacks.outcome import Membership, UserScores, matched
from fedpriv.checkpoints.tensor_files import START_FILE, read_sealed_model
from fedpriv.experiments.build import make_task
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.start import public_only
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.report.export import released_params
from fedpriv.report.run_record import RunRecord, read_run, spent
from fedpriv.rng import Key
from fedpriv.runs.backends import open_corpus, recorded_place
from fedpriv.runs.document import restore_experiment
from fedpriv.tasks.task import Task
from fedpriv.tree import Params


def attack_runs(paths: Sequence[Path], experiment: Experiment | str | None = None) -> Membership:
    """Attack several runs of one experiment and pool what is found.

    Where two runs are of the two halves of a roster, every user is once a member and once not, so
    that what the halves differ in cancels. Intervals treat a user's two scores as two users'.

    Raises:
        ValueError: As `attack_membership`; or if the runs differ in experiment, ε or reference.
    """
    found = [attack_membership(path, experiment) for path in paths]
    if not found:
        raise ValueError("there is no run to attack; give a folder")
    first = found[0]
    for one, path in zip(found, paths, strict=True):
        for name in ("name", "epsilon", "nonmembers", "reference"):
            if getattr(one, name) != getattr(first, name):
                raise ValueError(
                    f"{path} differs from {paths[0]} in {name}: {getattr(one, name)} instead of "
                    f"{getattr(first, name)}; attack it alone"
                )
    return replace(
        first,
        scores=_joined([one.scores for one in found]),
        control=None
        if first.control is None
        else _joined([one.control for one in found if one.control is not None]),
        examples=tuple(
            float(np.mean(side)) for side in zip(*(one.examples for one in found), strict=True)
        ),
        num_runs=len(found),
    )


def _joined(scores: Sequence[UserScores]) -> UserScores:
    return UserScores(
        inside=np.concatenate([one.inside for one in scores]),
        outside=np.concatenate([one.outside for one in scores]),
    )


def attack_membership(path: Path, experiment: Experiment | str | None = None) -> Membership:
    """Attack the released model of a finished simulation.

    Args:
        path: Its run folder.
        experiment: What was run, or its name, where that is user-defined code or there is none.

    Raises:
        ValueError: If the folder does not verify, is no finished simulation whose unit is a user,
            names code that was not given, its task does not give users' losses, or there are too
            few users of either kind.
    """
    # The seal on experiment.json first; what it names is imported as `restore_experiment` says.
    checked = verify_run(path)
    if not checked.ok:
        raise ValueError(f"{path} does not verify, so nothing that it names is run: fedpriv verify")
    record = read_run(path)
    document = record.description
    if document["mode"] == "secure":
        raise ValueError(
            f"{path} is a secure run, where no command reads users' data; the attack needs them, "
            "and is made on simulations"
        )
    if not record.summary:
        raise ValueError(f"{path} is not finished; fedpriv run --resume {path} goes on with it")
    made = restore_experiment(document, path, experiment)
    if made.unit != "user":
        raise ValueError(f"{made.name} is of single examples; the attack is on users")
    corpus = open_corpus(recorded_place(document))
    task = make_task(made, corpus)
    if type(task).user_losses is Task.user_losses:
        raise ValueError(
            f"the task of {made.name} does not give users' losses; let it have user_losses "
            "and public_users (fedpriv.tasks.task.Task)"
        )
    params = released_params(record)[1]
    reference, calibrated_by = _reference(record, made, task)
    (other, others), nonmembers = _nonmembers(made, task, corpus)
    ours = _attacked(task, task.roster, params, reference)
    theirs = _attacked(other, others, params, reference)
    members = "rostered users with training text"
    if other is task:  # public users: of a whole roster no user is left
        first, second = matched(ours[2], theirs[2])
        ours, theirs = ours[:, first], theirs[:, second]
        members += ", matched with the others by its amount"
    control = UserScores(inside=ours[1], outside=theirs[1]) if reference is not None else None
    return Membership(
        name=record.name,
        epsilon=spent(record),
        members=members,
        nonmembers=nonmembers,
        reference=calibrated_by,
        scores=UserScores(inside=ours[0], outside=theirs[0]),
        control=control,
        examples=(float(np.median(ours[2])), float(np.median(theirs[2]))),
    )


def _attacked(
    task: Task, users: Sequence[str], params: Params, reference: Params | None
) -> np.ndarray:
    """Return what is known of users with training text.

    Returns:
        float64 (3, n): the score of each, that of the reference alone, and how many examples.
    """
    losses, numbers = task.user_losses(params, users)
    base = np.zeros(len(users)) if reference is None else task.user_losses(reference, users)[0]
    return np.stack([base - losses, -base, numbers])[:, numbers > 0]


def _reference(record: RunRecord, experiment: Experiment, task: Any) -> tuple[Params | None, str]:
    """Return a model that saw no rostered user, and what it is."""
    facts = record.description.get("start", {"kind": "fresh"})
    if facts["kind"] == "public":
        return read_sealed_model(record.folder / START_FILE, facts["sha256"]), "the public start"
    found = public_only(task, Key.simulation(experiment.seed).fold("init"))
    if found is None:
        return None, "nothing: there are no public examples, and scores are losses as they are"
    return dict(found.model), "the best model of public examples"


def _nonmembers(
    experiment: Experiment, task: Task, corpus: Any
) -> tuple[tuple[Task, tuple[str, ...]], str]:
    """Return who was not trained on, the task that has their text, and what they are."""
    if experiment.options().get("task.users") is not None:
        whole = make_task(experiment.with_options({"users": None}), corpus)
        left = whole.roster[len(task.roster) :]
        if left and whole.roster[: len(task.roster)] == task.roster:
            said = "users of the same roster beyond its first `users`, in no training or public set"
            return (whole, left), said
    said = (
        "public users with text for training, who are in no private training but gave words and "
        "what was learnt in public; matched by amount of text"
    )
    return (task, task.public_users), said
