"""The outcome of a membership attack: its figures, in JSON and in words."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fedpriv.attacks.figures import (
    AttackScores,
    Figure,
    allowed_share,
    auc,
    exact_interval,
    true_positives_at,
    with_interval,
)
from fedpriv.privacy.epsilon import Epsilon

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
        num_runs: Runs whose scores are pooled.
    """

    name: str
    epsilon: Epsilon
    members: str
    nonmembers: str
    reference: str
    scores: AttackScores = field(repr=False)
    control: AttackScores | None = field(repr=False)
    examples: tuple[float, ...]
    num_runs: int = 1

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
            "runs": self.num_runs,
            "epsilon": self.epsilon.to_json() | {"mode": "simulation"},
            "members": {"number": len(self.scores.members), "who": self.members},
            "nonmembers": {"number": len(self.scores.nonmembers), "who": self.nonmembers},
            "median_examples": list(self.examples),
            "reference": self.reference,
            "confidence": 0.95,
            **self.figures(),
        }


def said_of(found: Membership) -> list[tuple[str, str]]:
    """Return the outcome as names and texts, one for each line."""
    ours, theirs = found.examples
    several = f"; {found.num_runs} runs pooled" if found.num_runs > 1 else ""
    lines = [
        ("privacy", f"simulated {found.epsilon}{several}"),
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
