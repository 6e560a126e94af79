"""The outcome of a membership attack: its figures, in JSON and in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.audit.bounds import Scores, highest_share, lowest_share
from fedpriv.privacy.epsilon import Epsilon, format_delta, rounded_up
from fedpriv.report import theme

FALSE_POSITIVES = (0.05, 0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Outcome of a membership attack.

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
    scores: UserScores = field(repr=False)
    control: UserScores | None = field(repr=False)
    examples: tuple[float, ...]
    num_runs: int = 1

    def at(self, false_positives: float) -> tuple[Figure, Figure]:
        """Return true positives at a share of false ones: bootstrap's interval, and the exact one.

        The bootstrap resamples users, and so the threshold too.
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
            "members": {"number": len(self.scores.inside), "who": self.members},
            "nonmembers": {"number": len(self.scores.outside), "who": self.nonmembers},
            "median_examples": list(self.examples),
            "reference": self.reference,
            "confidence": 0.95,
            **self.figures(),
        }


def describe_membership(found: Membership) -> list[tuple[str, str]]:
    """Return the outcome as names and texts, one for each line."""
    ours, theirs = found.examples
    several = f"; {found.num_runs} runs pooled" if found.num_runs > 1 else ""
    lines = [
        ("privacy", f"simulated {found.epsilon}{several}"),
        (
            "members",
            f"{len(found.scores.inside):,}: {found.members} (median {ours:g} examples)",
        ),
        (
            "non-members",
            f"{len(found.scores.outside):,}: {found.nonmembers} (median {theirs:g} examples)",
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
    """Return a warning where a model that saw neither distinguishes the groups."""
    if control.low <= 0.5 <= control.high:
        return "; the groups do not differ by it"
    return "; the groups DIFFER without training: part of the figures above may be that"


def _most(share: float) -> str:
    return f"{math.ceil(1000 * share) / 1000:.3f}"


REPLICATES = 2_000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure with its 95 % interval.

    Attributes:
        value: As measured.
        low: Lower end.
        high: Upper end.
    """

    value: float
    low: float
    high: float

    def __repr__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"

    def to_json(self) -> dict[str, float]:
        """Return plain JSON values."""
        return {"value": self.value, "low": self.low, "high": self.high}


class UserScores(Scores):
    """Scores of users by an attack: of members ("in"), and of non-members."""

    __slots__ = ()
    least = 20  # of fewer, five in a hundred say nothing


def allowed_share(false_positives: float, epsilon: float, delta: float) -> float:
    """Return the largest share of true positives that (ε, δ)-DP allows.

    >>> round(allowed_share(0.05, 1.0, 0.0), 4), allowed_share(0.05, math.inf, 1e-5)
    (0.1359, 1.0)
    """
    if math.isinf(epsilon):
        return 1.0
    upward = math.exp(min(epsilon, 700.0)) * false_positives + delta
    downward = 1.0 - math.exp(-epsilon) * max(1.0 - delta - false_positives, 0.0)
    return min(upward, downward, 1.0)


def auc(scores: UserScores) -> float:
    """Return the probability that a member scores above a non-member, ties counted half."""
    ordered = np.sort(scores.outside)
    below = np.searchsorted(ordered, scores.inside, side="left")
    level = np.searchsorted(ordered, scores.inside, side="right") - below
    return float((below + 0.5 * level).mean() / len(ordered))


def true_positives_at(scores: UserScores, false_positives: float) -> float:
    """Return the share of members above all but so many of the non-members.

    The threshold is the smallest score with at most that share of non-members above it.
    """
    allowed = math.floor(false_positives * len(scores.outside) + 1e-9)
    threshold = np.sort(scores.outside)[::-1][allowed]
    return float((scores.inside > threshold).mean())


def with_interval(
    scores: UserScores, figure: Callable[[UserScores], float], *, seed: int = 0
) -> Figure:
    """Return a figure with its interval: members and non-members resampled, users each."""
    generator = np.random.default_rng(seed)
    draws = np.empty(REPLICATES)
    for number in range(REPLICATES):
        members = generator.choice(scores.inside, len(scores.inside))
        others = generator.choice(scores.outside, len(scores.outside))
        draws[number] = figure(UserScores(inside=members, outside=others))
    edge = (1.0 - CONFIDENCE) / 2
    low, high = np.quantile(draws, [edge, 1.0 - edge])
    return Figure(value=figure(scores), low=float(low), high=float(high))


def exact_interval(scores: UserScores, false_positives: float) -> Figure:
    """Return the true positives with Clopper and Pearson's interval, the threshold taken as given.

    It leaves out that few non-members place the threshold, which `with_interval` has.
    """
    value, number = true_positives_at(scores, false_positives), len(scores.inside)
    count, edge = round(value * number), (1.0 - CONFIDENCE) / 2
    low, high = lowest_share(count, number, edge), highest_share(count, number, edge)
    return Figure(value=value, low=low, high=high)


def matched(members: np.ndarray, nonmembers: np.ndarray, *, seed: int = 0) -> tuple[Any, Any]:
    """Return places of members and of non-members with like amounts of text, as many of each.

    Amounts are put into classes, each half as large again as the one before, and of the larger side
    of a class a random part is left out.

    Args:
        members: int (n,), examples of each.
        nonmembers: int (m,), likewise.
        seed: Of what is left out.

    Returns:
        Two int64 arrays of one length, sorted.
    """
    generator = np.random.default_rng(seed)
    classes = [np.floor(np.log(np.maximum(a, 1)) / math.log(1.5)) for a in (members, nonmembers)]
    kept: tuple[list[np.ndarray], list[np.ndarray]] = [], []
    for one in np.intersect1d(classes[0], classes[1]):
        places = [np.flatnonzero(found == one) for found in classes]
        number = min(map(len, places))
        for side, own in zip(kept, places, strict=True):
            side.append(generator.permutation(own)[:number])
    empty = np.empty(0, np.int64)
    first, second = (np.sort(np.concatenate([empty, *side])) for side in kept)
    return first, second


def write_membership_plot(found: Membership, path: Path) -> None:
    """Write the plot; the same attack gives the same file.

    Raises:
        ValueError: As `fedpriv.report.theme.check_plot_file`.
    """
    theme.check_plot_file(path)
    path.write_bytes(theme.as_svg(_drawn(found, theme.LIGHT), "membership"))


def _drawn(found: Membership, colours: Mapping[str, str]) -> Any:
    figure = theme.new_figure(6.6, 6.2)
    from matplotlib.ticker import PercentFormatter  # once it is known to be installed

    axes = theme.plain_axes(figure, (0.11, 0.1, 0.84, 0.74))
    grid = np.linspace(0.0, 1.0, 401)
    epsilon = found.epsilon
    if math.isfinite(epsilon.value):
        most = [allowed_share(float(share), epsilon.value, epsilon.delta) for share in grid]
        axes.fill_between(grid, most, 1.0, color=colours["s8"], alpha=0.13, linewidth=0)
        axes.plot(grid, most, color=colours["s8"], linewidth=1.2, label="the most that ε allows")
    axes.plot([0, 1], [0, 1], color=colours["rule"], linewidth=1.2)
    if found.control is not None:
        said = f"the reference alone, AUC {auc(found.control):.3f}"
        axes.plot(
            *_curve(found.control), color=colours["s2"], linewidth=1.5, linestyle=(0, (5, 3)),
            label=said,
        )  # fmt: skip
    said = f"the released model, AUC {auc(found.scores):.3f}"
    axes.plot(*_curve(found.scores), color=colours["s1"], linewidth=2.0, label=said)
    for share in FALSE_POSITIVES:
        drawn, _ = found.at(share)
        axes.plot([share, share], [drawn.low, drawn.high], color=colours["s1"], linewidth=1.2)
        axes.plot([share], [drawn.value], marker="o", markersize=5, color=colours["s1"])
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.005)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(color=colours["grid"], linewidth=1)
    axes.set_xlabel("non-members called members", fontsize=9.5, color=colours["muted"])
    axes.set_ylabel("members called members", fontsize=9.5, color=colours["muted"])
    axes.legend(frameon=False, fontsize=9, labelcolor=colours["muted"], loc="lower right")
    figure.text(
        0.03, 0.945, f"Membership attack on {found.name}", fontsize=13, weight="bold",
        color=colours["ink"],
    )  # fmt: skip
    stated = f"no guarantee: {epsilon.reason}"
    if math.isfinite(epsilon.value):
        stated = (
            f"simulated ε = {rounded_up(epsilon.value, 2):.2f} at "
            f"δ = {format_delta(epsilon.delta)}, {epsilon.relation.value}, per {epsilon.unit}, "
            f"by {epsilon.accountant}"
        )
    figure.text(
        0.03, 0.87,
        f"{len(found.scores.inside):,} members, {len(found.scores.outside):,} non-members\n"
        f"{stated}",
        fontsize=8.5, color=colours["muted"],
    )  # fmt: skip
    return figure


def _curve(scores: UserScores) -> tuple[np.ndarray, np.ndarray]:
    """Return false and true positives at every threshold, both rising from 0 to 1."""
    thresholds = np.unique(np.concatenate([scores.inside, scores.outside]))[::-1]
    shares = []
    for values in (scores.outside, scores.inside):
        ordered = np.sort(values)
        above = len(values) - np.searchsorted(ordered, thresholds, side="left")
        shares.append(np.concatenate([[0.0], above / len(values)]))
    return shares[0], shares[1]
