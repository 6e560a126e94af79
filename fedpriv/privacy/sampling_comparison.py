"""Whether to draw users or single examples: noise per unit of signal at the same ε of a user.

Both ways release a noisy sum of gradients each round, for the same number of gradients computed.

=========  =======================  ======================  ==========================
           drawn                    bounded                 one user moves the sum by
=========  =======================  ======================  ==========================
by user    users, probability q     the mean of a user's    its bound, or not at all
by example slots, probability p,    each gradient           k bounds, k binomial of
           G of each user                                   G and p
=========  =======================  ======================  ==========================

With μ the mean gradient, C the length of one example's gradient, m the number of a user's examples
and n users, the sum's signal is q n P(m > 0) μ by user and p n E min(m, G) μ by example, and its
noise is σ times the bound. By example the bound is C. By user it is the length of a mean of m
gradients, C √(a + (1 - a)/m), where a is the correlation of two gradients of one user: 0 where a
user's examples are as unlike as those of strangers, 1 where they are all alike. **Noise per unit of
signal** is the standard deviation of the noise on a coordinate over the length of the signal, in
units of C/|μ|, which is the same in both ways.

σ is calibrated for each: by user it is that of a Poisson cohort, by example that of a mixture of
Gaussians (Charles et al. 2024, arXiv:2407.07737; `fedpriv.privacy.gaussian_loss`).

>>> found = compare_sampling([1, 1, 1], num_users=400, examples_a_round=20, rounds=50,
...     target_epsilon=8.0, delta=1e-3, bounds=(1,), source="three users")
>>> by_user, by_example = found.rows
>>> by_user.noise_per_signal == by_example.noise_per_signal
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fedpriv.privacy.accounting import NoNoiseFitsError, calibrate
from fedpriv.privacy.epsilon import format_delta
from fedpriv.privacy.event import Relation, cohort_event
from fedpriv.ranges import positive_int

_LARGEST_DEFAULT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRow:
    """One way to draw.

    Attributes:
        examples_per_user: G, the bound on examples of one user; None where users are drawn.
        sampling_prob: That a user (q), or a slot (p), is drawn in a round.
        examples: Expected number of gradients a round.
        kept: Share of all examples that can be drawn.
        noise_multiplier: σ, calibrated to the target; None where none fits.
        noise_per_signal: See the module; of users at a = 0, the least there is. None likewise.
        noise_per_signal_alike: The same at a = 1, the most there is; of examples it is the same.
    """

    examples_per_user: int | None
    sampling_prob: float
    examples: float
    kept: float
    noise_multiplier: float | None = None
    noise_per_signal: float | None = None
    noise_per_signal_alike: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingComparison:
    """Comparison of drawing users with drawing examples, for bounds on examples of one user.

    Attributes:
        rows: By user, then by example with G increasing.
        target_epsilon: The ε of a user that no row exceeds.
        delta: Its δ.
        num_users: n.
        rounds: Each charged once.
        source: Whose numbers of examples were taken.
        spread: E(1/m | m > 0), what means of users' gradients shrink by at a = 0, squared.
        correlation: a, as it was measured on users outside the roster; None where it is not known.
    """

    rows: tuple[SamplingRow, ...]
    target_epsilon: float
    delta: float
    num_users: int
    rounds: int
    source: str
    spread: float
    correlation: float | None = None

    @property
    def best(self) -> SamplingRow | None:
        """The bound on examples with the least noise per unit of signal; None where none fits."""
        feasible = [row for row in self.rows[1:] if row.noise_per_signal is not None]
        return min(feasible, key=lambda row: row.noise_per_signal or 0.0, default=None)

    @property
    def break_even(self) -> float | None:
        """The correlation a at which both ways have the same noise; None where one always wins."""
        users, best = self.rows[0], self.best
        if best is None or best.noise_per_signal is None or users.noise_per_signal_alike is None:
            return None
        share = (best.noise_per_signal / users.noise_per_signal_alike) ** 2
        if not self.spread < share < 1.0:
            return None
        return (share - self.spread) / (1.0 - self.spread)

    @property
    def noise_by_user(self) -> float | None:
        """Noise per unit of signal by user at the measured a; None where it is not known."""
        alike, measured = self.rows[0].noise_per_signal_alike, self.correlation
        if alike is None or measured is None:
            return None
        share = min(max(measured, 0.0), 1.0)
        return alike * math.sqrt(share + (1.0 - share) * self.spread)

    @property
    def verdict(self) -> str:
        """Which has less noise per unit of signal, in a sentence."""
        users, best = self.rows[0], self.best
        low, high = users.noise_per_signal, users.noise_per_signal_alike
        if low is None or high is None:
            return "Not known: no noise keeps to this ε by user; lower the rounds or raise ε."
        if best is None or best.noise_per_signal is None:
            return "Draw users: no bound on examples has noise that keeps to this ε."
        noise, bound = best.noise_per_signal, f"at most {best.examples_per_user:,} of each user"
        measured = self.noise_by_user
        if self.break_even is not None and measured is not None:
            which = (
                f"Draw users: single examples ({bound}) have {noise / measured:.2f} times the noise"
                if noise >= measured
                else f"Draw single examples, {bound}: users have {measured / noise:.2f} times the "
                "noise"
            )
            return (
                f"{which} per unit of signal, where gradients of one user's examples correlate by "
                f"{self.correlation:.2f}, as measured at the start on users outside the roster; "
                f"both are equal at {self.break_even:.2f}."
            )
        if self.break_even is not None:
            return (
                f"Draw users, unless gradients of one user's examples correlate by more than "
                f"{self.break_even:.2f} (0 as strangers', 1 all alike): beyond, single examples "
                f"({bound}) have less noise per unit of signal."
            )
        if math.isclose(noise, high, rel_tol=1e-3) and math.isclose(noise, low, rel_tol=1e-3):
            return "Either: users with one example each are drawn as examples are."
        if noise >= high:
            return (
                f"Draw users: single examples have at least {noise / high:.2f} times the noise per "
                "unit of signal, whatever the bound and however alike a user's examples are."
            )
        return (
            f"Draw single examples, {bound}: users have at least {low / noise:.2f} times the noise "
            "per unit of signal, however unlike a user's examples are."
        )

    def __repr__(self) -> str:
        head = ("drawn", "probability", "examples a round", "kept", "σ", "noise per unit of signal")
        table = [head, *(_cells(row) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join([
            f"by example or by user: each within ε = {self.target_epsilon:g} at δ = "
            f"{format_delta(self.delta)} (add-remove, per user, by PLD), {self.num_users:,} users, "
            f"{self.rounds:,} rounds; examples a user: {self.source}",
            *("  ".join(t.rjust(w) for t, w in zip(r, widths, strict=True)) for r in table),
            "noise per unit of signal: stddev of the noise on a coordinate of the sum over the "
            "length of what the sum is expected to say, in thousandths of an example's gradient "
            "over the mean gradient; by user from examples of a user that are as unlike as "
            "strangers' to examples that are all alike, one gradient step a user",
            self.verdict,
        ])  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            **asdict(self),
            "rows": [asdict(row) for row in self.rows],
            "unit": "user",
            "relation": Relation.ADD_REMOVE.value,
            "accountant": "PLD",
            "break_even": self.break_even,
            "noise_by_user": self.noise_by_user,
            "verdict": self.verdict,
        }


def _cells(row: SamplingRow) -> tuple[str, ...]:
    drawn = "users" if row.examples_per_user is None else f"examples, G = {row.examples_per_user:,}"
    sigma = "–" if row.noise_multiplier is None else f"{row.noise_multiplier:.4g}"
    ends = dict.fromkeys(
        "–" if noise is None else f"{1e3 * noise:#.3g}".rstrip(".")
        for noise in (row.noise_per_signal, row.noise_per_signal_alike)
    )
    return (
        drawn, f"{row.sampling_prob:.4g}", f"{row.examples:,.0f}", f"{row.kept:.0%}", sigma,
        " to ".join(ends),
    )  # fmt: skip


def default_bounds(counts: Sequence[int]) -> tuple[int, ...]:
    """Return powers of two up to the first that is not below the largest count, at most 64.

    >>> default_bounds([1, 2, 9])
    (1, 2, 4, 8, 16)
    """
    largest = min(max(counts, default=1), _LARGEST_DEFAULT)
    return tuple(2**power for power in range(math.ceil(math.log2(max(largest, 1))) + 1))


def compare_sampling(
    counts: Sequence[int],
    *,
    num_users: int,
    examples_a_round: float,
    rounds: int,
    target_epsilon: float,
    delta: float,
    most_examples: int | None = None,
    bounds: Sequence[int] | None = None,
    source: str,
    correlation: float | None = None,
) -> SamplingComparison:
    """Compare drawing users with drawing examples at the same ε of a user and gradients a round.

    Args:
        counts: How many examples users have, of as many as are known, without an ε: of users
            outside the roster, or given by the caller; never of rostered users. With their zeros.
        num_users: Users on the roster, n.
        examples_a_round: Expected number of gradients a round; each way draws so many, or all.
        rounds: Each charged once.
        target_epsilon: The ε not to be exceeded.
        delta: Its δ.
        most_examples: Of one user in its mean, where users are drawn; None for all.
        bounds: G to look at; None for `default_bounds`.
        source: Whose counts they are, for people.
        correlation: a, where it is known without an ε; None leaves it open.

    Raises:
        ValueError: If a number is out of range, or no user has an example.
    """
    known = np.asarray(list(counts), dtype=np.int64)
    if not known.size or known.min() < 0 or not known.any():
        raise ValueError(f"examples a user {list(counts)[:8]}: give counts of at least one example")
    chosen = default_bounds(known.tolist()) if bounds is None else bounds
    chosen = sorted({positive_int("examples_per_user", bound) for bound in chosen})

    def noise_of(prob: float, devices: int) -> float | None:
        event = partial(
            cohort_event,
            num_users=num_users * devices,
            expected_cohort_size=prob * num_users * devices,
            devices=devices,
        )
        try:
            return calibrate(
                lambda sigma: event(noise_multiplier=sigma), rounds, delta=delta,
                target_epsilon=target_epsilon, relation=Relation.ADD_REMOVE,
            )  # fmt: skip
        except NoNoiseFitsError:
            return None

    def row(most: int | None) -> SamplingRow:
        taken = np.minimum(known, most or known.max())
        mean = float(taken.mean())
        prob = min(1.0, examples_a_round / (num_users * mean))
        return SamplingRow(
            examples_per_user=most,
            sampling_prob=prob,
            examples=prob * num_users * mean,
            kept=float(taken.sum() / known.sum()),
        )

    there = np.minimum(known[known > 0], most_examples or known.max())
    spread, share = float((1.0 / there).mean()), there.size / known.size
    users = replace(row(most_examples), examples_per_user=None)
    sigma = noise_of(users.sampling_prob, 1)
    if sigma is not None:
        alike = sigma / (users.sampling_prob * num_users * share)
        users = replace(
            users, noise_multiplier=sigma, noise_per_signal_alike=alike,
            noise_per_signal=alike * math.sqrt(spread),
        )  # fmt: skip
    rows = [users]
    for bound in chosen:
        one = row(bound)
        sigma = noise_of(one.sampling_prob, bound)
        noise = None if sigma is None else sigma / one.examples
        rows.append(
            replace(
                one, noise_multiplier=sigma, noise_per_signal=noise, noise_per_signal_alike=noise
            )
        )
    return SamplingComparison(
        rows=tuple(rows),
        target_epsilon=target_epsilon,
        delta=delta,
        num_users=num_users,
        rounds=rounds,
        source=source,
        spread=spread,
        correlation=correlation,
    )
