"""Accounting of correlated noise (tree, banded, BLT) without a run: ε, and the error it leaves.

>>> price = account_stream(noise="tree", steps_per_tree=20, trees=50, noise_multiplier=4.0,
...                        delta=1 / 400)
>>> print(price.epsilon)
ε = 18.1574 at δ = 0.0025 (zero-out, per user, by PLD; RDP 20.0062)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

from fedpriv.mechanisms.correlated.binary_tree import BinaryTree, Estimate
from fedpriv.mechanisms.correlated.noise import Correlated, Strategy
from fedpriv.mechanisms.correlated.optimise import (
    optimised_bands,
    optimised_buffers,
    square_root_bands,
)
from fedpriv.mechanisms.event import Event, Relation
from fedpriv.mechanisms.privatizer import Participation
from fedpriv.privacy.accounting import calibrate, epsilon_bs16
from fedpriv.privacy.accounting import epsilon as priced
from fedpriv.privacy.epsilon import Epsilon
from fedpriv.ranges import positive_int, probability

STREAMS = ("tree", "banded", "blt")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAccount:
    """Cost of all rows of correlated noise of a run, and the error of their noise.

    Attributes:
        epsilon: Of the Gaussian mechanism that they are, as a run of it states; RDP's in `.rdp`.
        epsilon_bs16: By Bun and Steinke's conversion of its ρ, as papers on DP-FTRL state it.
        noise: The privatizer, with its strategy and the limit of who takes part.
    """

    epsilon: Epsilon
    epsilon_bs16: float
    noise: Correlated

    def __repr__(self) -> str:
        noise = self.noise
        return "\n".join(
            [
                str(self.epsilon),
                f"noise multiplier {noise.noise_multiplier:.6g} of {noise.strategy.description}",
                f"a user takes part {noise.participation}: sensitivity {noise.sensitivity:.6g} "
                "over that of one row",
                f"root mean square noise over one row's bound: {noise.row_rmse():.4g} in a "
                f"row, {noise.prefix_rmse():.4g} in the sum of the rows so far",
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, as `fedpriv account --noise ... --json` prints them."""
        limit = self.noise.participation
        return {
            **self.epsilon.to_json(),
            "epsilon_bs16": self.epsilon_bs16,
            "noise": self.noise.name,
            "strategy": self.noise.strategy.description,
            "noise_multiplier": self.noise.noise_multiplier,
            "sensitivity": self.noise.sensitivity,
            "rounds": self.noise.strategy.num_rows,
            "min_separation": limit.min_separation,
            "max_participations": limit.count,
            "row_rmse": self.noise.row_rmse(),
            "prefix_rmse": self.noise.prefix_rmse(),
        }


def account_stream(
    *, noise: str, noise_multiplier: float, delta: float, relation: str = "zero-out", **pattern: Any
) -> StreamAccount:
    """Return the cost of correlated noise for a whole run.

    Args:
        noise: "tree", "banded" or "blt".
        noise_multiplier: Standard deviation of what is combined (of a tree's nodes), over the bound
            of one user's part of one row.
        delta: δ.
        relation: "zero-out" (one user contributes zero in all of its rows, or not) or
            "replace-one".
        **pattern: As of `stream`.

    Guarantees:
        * ε is that of the Gaussian mechanism which all rows together are, for users who take part
          as the pattern says; that it is kept to is for a sampler to see to.

    Raises:
        ValueError: If a number is out of range, or a strategy knows no sensitivity for the pattern.
    """
    made = stream(noise, **pattern)
    return _account(replace(made, noise_multiplier=noise_multiplier), delta, relation)


def calibrate_stream(
    *, noise: str, target_epsilon: float, delta: float, relation: str = "zero-out", **pattern: Any
) -> StreamAccount:
    """Return the least correlated noise that keeps ε within a target.

    Args:
        noise: As this and the others of `account_stream`.
        target_epsilon: The ε not to be exceeded.
        delta: δ.
        relation: The neighbouring relation.
        **pattern: As of `stream`.

    Raises:
        ValueError: If a number is out of range.
    """
    related, made = _relation(relation), stream(noise, **pattern)
    sigma = calibrate(_event, 1, target_epsilon=target_epsilon, delta=delta, relation=related)
    return _account(made.scaled(sigma), delta, relation)


def stream(
    noise: str,
    *,
    rounds: int | None = None,
    min_separation: int | None = None,
    max_participations: int | None = None,
    steps_per_tree: int | None = None,
    trees: int | None = None,
    bands: int | None = None,
    buffers: int | None = None,
    coefficients: str | None = None,
    estimate: str | None = None,
    completion: bool | None = None,
    momentum: float | None = None,
) -> Correlated:
    """Return correlated noise of multiplier 1.

    Args:
        noise: "tree", "banded" or "blt".
        rounds: T, at most `MOST_ROWS` (`fedpriv.mechanisms.correlated.noise`); of trees None
            takes all of theirs.
        min_separation: b, two rows of one user are at least b apart; None for a tree's rows,
            or the bands.
        max_participations: Rows that one user is in at most; None for as many as fit.
        steps_per_tree: Rows of a tree, after which one restarts; None for one tree.
        trees: How many trees; None for as many as the rounds take.
        bands: Of banded noise; None for `min_separation`.
        buffers: Of blt; None for 3.
        coefficients: Of banded noise, "optimised" or "square-root"; None for the first.
        estimate: Of trees, "efficient" or "vanilla"; None for the first.
        completion: Of trees, whether one that ends is completed; None for no.
        momentum: Of the server, for optimised coefficients, of whose error it is part; None for 0.

    Raises:
        ValueError: If a number is out of range, missing, or of other noise.
    """
    if noise not in STREAMS:
        raise ValueError(f"noise {noise!r} has no memory that is known; give {', '.join(STREAMS)}")
    own = {
        "tree": ("steps-per-tree", "trees", "estimate", "completion"),
        "banded": ("bands", "coefficients", "momentum"),
        "blt": ("buffers", "momentum"),
    }
    given = {
        "steps-per-tree": steps_per_tree, "trees": trees, "bands": bands, "buffers": buffers,
        "coefficients": coefficients, "estimate": estimate, "completion": completion,
        "momentum": momentum,
    }  # fmt: skip
    for name, value in given.items():
        if value is not None and name not in own[noise]:
            raise ValueError(f"{name} {value!r} says nothing of {noise} noise; leave it out")
    total = _total(noise, rounds, steps_per_tree, trees)
    apart = min_separation
    if apart is None:
        apart = steps_per_tree if noise == "tree" else bands
    if apart is None:
        raise ValueError(
            "min-separation is missing: how many rounds apart one user's are; 1 for every round"
        )
    apart = positive_int("min-separation", apart)
    room = -(-total // apart)
    limit = Participation(
        most=room if max_participations is None else max_participations,
        min_separation=apart,
        num_rows=total,
    )
    strategy: Strategy
    beta = 0.0 if momentum is None else momentum
    if noise == "tree":
        strategy = BinaryTree(
            num_rows=total,
            restart=steps_per_tree,
            estimate=cast("Estimate", "efficient" if estimate is None else estimate),
            completion=bool(completion),
        )
    elif noise == "blt":
        strategy = optimised_buffers(3 if buffers is None else buffers, limit, momentum=beta)
    elif coefficients == "square-root":
        strategy = square_root_bands(min(apart, total) if bands is None else bands, total)
    elif coefficients in (None, "optimised"):
        wanted = min(apart, total) if bands is None else bands
        strategy = optimised_bands(wanted, limit, momentum=beta)
    else:
        raise ValueError(f"coefficients {coefficients!r}: give 'optimised' or 'square-root'")
    return Correlated(noise_multiplier=1.0, strategy=strategy, participation=limit)


def _total(noise: str, rounds: int | None, steps: int | None, trees: int | None) -> int:
    if noise == "tree" and rounds is None:
        if steps is None:
            raise ValueError("rounds is missing; or give steps-per-tree, and trees")
        given = positive_int("steps-per-tree", steps)
        return given * (1 if trees is None else positive_int("trees", trees))
    if rounds is None:
        raise ValueError("rounds is missing: for how many the coefficients are made")
    total = positive_int("rounds", rounds)
    if trees is not None and (steps is None or -(-total // steps) != trees):
        raise ValueError(f"trees {trees} do not fit {total:,} rounds; leave it or rounds out")
    return total


def _relation(relation: str) -> Relation:
    found = Relation.of(relation)
    if found is Relation.ADD_REMOVE:
        raise ValueError(
            "correlated noise is accounted for a user who contributes zero in all of its rows, "
            "or not; use relation 'zero-out'"
        )
    return found


def _account(noise: Correlated, delta: float, relation: str) -> StreamAccount:
    related, stated = _relation(relation), probability("delta", delta)
    sigma = noise.event.sigma / related.moved
    return StreamAccount(
        epsilon=priced(_event(noise.event.sigma), 1, delta=stated, relation=related),
        epsilon_bs16=epsilon_bs16(0.5 / sigma**2, stated),
        noise=noise,
    )


def _event(sigma: float) -> Event:
    return Event(kind="gaussian", noise_multiplier=sigma)
