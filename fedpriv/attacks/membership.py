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

import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.attacks.figures import (
    AttackScores,
    Figure,
    allowed_share,
    auc,
    exact_interval,
    matched,
    true_positives_at,
    with_interval,
)
from fedpriv.checkpoints.start_file import read_start
from fedpriv.experiments.catalogue import load_experiment
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.parts.start import public_only
from fedpriv.experiments.task_factory import make_task
from fedpriv.privacy.epsilon import Epsilon
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.report.export.model_folder import released_params
from fedpriv.report.promise import spent
from fedpriv.report.series import RunRecord, read_run
from fedpriv.rng import Key
from fedpriv.running.engines.factories import open_corpus
from fedpriv.tasks.task import KnowsUserLosses
from fedpriv.tree import Params

FALSE_POSITIVES = (0.05, 0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What the attack reached.

    Attributes:
        name: The experiment's.
        epsilon: Of the run.
        members: Who they are, in words.
        nonmembers: Likewise.
        reference: What scores were calibrated by, in words.
        scores: Of the attack.
        control: Of the reference model alone; None without one.
        examples: Median number of examples, of members and of non-members.
    """

    name: str
    epsilon: Epsilon
    members: str
    nonmembers: str
    reference: str
    scores: AttackScores = field(repr=False)
    control: AttackScores | None = field(repr=False)
    examples: tuple[float, float]

    def at(self, false_positives: float) -> tuple[Figure, Figure]:
        """Return true positives at a share of false ones: bootstrap's interval, and the exact one.

        The bootstrap draws users anew, and so the threshold too.
        """
        figure = partial(true_positives_at, false_positives=false_positives)
        drawn = with_interval(self.scores, figure)
        return drawn, exact_interval(self.scores, false_positives)

    def allowed(self, false_positives: float) -> float:
        """Return the most that the run's ε allows."""
        return allowed_share(false_positives, self.epsilon.value, self.epsilon.delta)

    def figures(self) -> dict[str, Any]:
        """Return every figure, as plain JSON values."""
        return {
            "auc": with_interval(self.scores, auc).to_json(),
            "true_positives": [
                {
                    "false_positives": share,
                    **self.at(share)[0].to_json(),
                    "exact_at_this_threshold": self.at(share)[1].to_json(),
                    "allowed_by_epsilon": self.allowed(share),
                }
                for share in FALSE_POSITIVES
            ],
            "control_auc": None
            if self.control is None
            else with_interval(self.control, auc).to_json(),
        }

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "attack": "membership",
            "experiment": self.name,
            "epsilon": self.epsilon.to_json() | {"mode": "simulation"},
            "members": {"number": len(self.scores.members), "who": self.members},
            "nonmembers": {"number": len(self.scores.nonmembers), "who": self.nonmembers},
            "median_examples": list(self.examples),
            "reference": self.reference,
            "confidence": 0.95,
            **self.figures(),
        }


def attack_membership(path: Path) -> Membership:
    """Attack the released model of a finished simulation.

    Raises:
        ValueError: If the folder does not verify, is no finished simulation whose unit is a user,
            its task does not give users' losses, or there are too few users of either kind.
    """
    # The seal on experiment.json first: what that names is imported afterwards.
    checked = verify_run(path)
    if not checked.ok:
        raise ValueError(f"{path} does not verify, so nothing that it names is run: fedpriv verify")
    record = read_run(path)
    document = record.description
    if document["mode"] == "secure":
        raise ValueError(
            f"{path} is a secure run, whose users' data nobody reads; the attack needs them, and "
            "is made on simulations"
        )
    if not record.summary:
        raise ValueError(f"{path} is not finished; fedpriv run --resume {path} goes on with it")
    if document["reference"] is None:
        raise ValueError(f"{path} was started from Python without a name to find its users by")
    experiment = load_experiment(document["reference"]).restored(document["experiment"])
    if experiment.unit != "user":
        raise ValueError(f"{experiment.name} is of single examples; the attack is on users")
    corpus = open_corpus(document["corpus"]["path"])
    task = make_task(experiment, corpus)
    if not isinstance(task, KnowsUserLosses):
        raise ValueError(
            f"the task of {experiment.name} does not give users' losses; let it have user_losses "
            "and public_users (fedpriv.tasks.task.KnowsUserLosses)"
        )
    params = released_params(record)[1]
    reference, said = _reference(record, experiment, task)
    outside, whose = _nonmembers(experiment, task, corpus)
    return _attacked(record, task, params, reference, said, outside, whose)


def _attacked(
    record: RunRecord,
    task: KnowsUserLosses,
    params: Params,
    reference: Params | None,
    said: str,
    outside: tuple[KnowsUserLosses, tuple[str, ...]],
    whose: str,
) -> Membership:
    other, others = outside
    groups = []
    for holder, users in ((task, task.roster), (other, others)):
        losses, numbers = holder.user_losses(params, users)
        base = (
            np.zeros(len(users)) if reference is None else holder.user_losses(reference, users)[0]
        )
        has = numbers > 0
        groups.append((base[has] - losses[has], -base[has], numbers[has]))
    (ours, our_control, our_numbers), (theirs, their_control, their_numbers) = groups
    if other is task:  # public users: of a whole roster nobody is left
        first, second = matched(our_numbers, their_numbers)
        ours, our_control, our_numbers = ours[first], our_control[first], our_numbers[first]
        theirs, their_control = theirs[second], their_control[second]
        their_numbers = their_numbers[second]
        said_members = "rostered users with training text, matched with the others by its amount"
    else:
        said_members = "rostered users with training text"
    scores = AttackScores(members=ours, nonmembers=theirs)
    return Membership(
        name=record.name,
        epsilon=spent(record),
        members=said_members,
        nonmembers=whose,
        reference=said,
        scores=scores,
        control=None
        if reference is None
        else AttackScores(members=our_control, nonmembers=their_control),
        examples=(float(np.median(our_numbers)), float(np.median(their_numbers))),
    )


def _reference(record: RunRecord, experiment: Experiment, task: Any) -> tuple[Params | None, str]:
    """Return a model that saw no rostered user, and what it is."""
    facts = record.description.get("start", {"kind": "fresh"})
    if facts["kind"] == "public":
        return read_start(record.directory, facts["sha256"]), "the public start"
    found = public_only(task, Key.simulation(experiment.seed).fold("init"))
    if found is None:
        return None, "nothing: there are no public examples, and scores are losses as they are"
    return dict(found.model.params), "the best model of public examples"


def _nonmembers(
    experiment: Experiment, task: KnowsUserLosses, corpus: Any
) -> tuple[tuple[KnowsUserLosses, tuple[str, ...]], str]:
    """Return who was not trained on, the task that has their text, and what they are."""
    if experiment.options().get("users") is not None:
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


def said_of(found: Membership) -> list[tuple[str, str]]:
    """Return the outcome as names and texts, one for each line."""
    ours, theirs = found.examples
    lines = [
        ("privacy", f"simulated {found.epsilon}"),
        (
            "members",
            f"{len(found.scores.members):,}: {found.members} (median {ours:g} examples)",
        ),
        (
            "non-members",
            f"{len(found.scores.nonmembers):,}: {found.nonmembers} (median {theirs:g} examples)",
        ),
        ("score", f"loss of a reference less that of the model; reference: {found.reference}"),
        ("AUC", f"{with_interval(found.scores, auc)}"),
    ]
    for share in FALSE_POSITIVES:
        drawn, _ = found.at(share)
        lines.append(
            (
                f"true positives at {100 * share:g} %",
                f"{drawn}; ε allows {_most(found.allowed(share))}",
            )
        )
    if found.control is not None:
        control = with_interval(found.control, auc)
        lines.append(("AUC of the reference alone", f"{control}{differs(control)}"))
    lines.append(
        ("note", "95 % intervals by user; it reads users' data, so it is for simulations only")
    )
    return lines


def differs(control: Figure) -> str:
    """Return a warning where the groups are told apart by a model that saw neither."""
    if control.low <= 0.5 <= control.high:
        return "; the groups do not differ by it"
    return "; the groups DIFFER without training: part of the figures above may be that"


def _most(share: float) -> str:
    return f"{math.ceil(1000 * share) / 1000:.3f}"
