"""A promise's digest: what an operator allows a node to train under."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.hashes import document_sha256
from fedpriv.privacy.plans.adaptive import AnyPlan


def promise_digest(plan: AnyPlan, roster: Sequence[str]) -> str:
    """Return the SHA-256 of a plan and of whom it is for, 64 hex digits.

    Two promises have one digest only where ε, δ, relation, bound, noise, sampling, number of rounds
    and roster are the same, whatever is learned under them.

    Args:
        plan: What is guaranteed.
        roster: The frozen ids; their order is part of the promise.
    """
    return document_sha256({"plan": plan.to_json(), "roster": list(roster)})
