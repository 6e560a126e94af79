"""The running sum of a round, which trusts no node that adds to it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from flwr.app import RecordDict

from fedpriv import tree
from fedpriv.flower.messages import StaleAnswerError, read_answer
from fedpriv.flower.records import MalformedRecordError
from fedpriv.mechanisms.bound import Clip
from fedpriv.training.round import PartialSum
from fedpriv.tree import Params


@dataclass(slots=True, kw_only=True)
class BoundedSum:
    """Adds nodes' partial sums, each held to what its users may contribute at most.

    Guarantees:
        * A node asked for k users moves the sum by at most k · l2_bound (l2), whatever it sends;
          a node that hosts one user is thus bounded again as if it had never bounded anything.
        * An answer that is malformed, stale or not finite adds exactly zero, raises nothing, and
          leaves what others added bit for bit as it was.
        * Memory is one dense float64 tree, however many answers are added.

    Attributes:
        params: The template.
        l2_bound: Of one user's update; infinite only in a run without privacy.
        round_num: The open round.
        attempt: The open attempt.
        dropped: How many answers were "malformed", "stale", "not-finite", or "rebounded" (which
            were added after scaling).
        num_added: Users whose contribution is in the sum, as far as their nodes tell.
    """

    params: Params = field(repr=False)
    l2_bound: float
    round_num: int
    attempt: int
    dropped: Counter[str] = field(default_factory=Counter)
    num_added: int = 0
    _total: dict = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._total = tree.zeros(self.params)

    def add(self, content: RecordDict, *, num_users: int) -> None:
        """Add what a node that was asked for `num_users` users answered."""
        try:
            found = read_answer(
                content,
                params=self.params,
                num_users=num_users,
                round_num=self.round_num,
                attempt=self.attempt,
            )
        except StaleAnswerError:
            self.dropped["stale"] += 1
            return
        except MalformedRecordError:
            self.dropped["malformed"] += 1
            return
        norm, limit = tree.l2_norm(found.total), num_users * self.l2_bound
        if not math.isfinite(norm):
            self.dropped["not-finite"] += 1
            return
        total = found.total
        if norm > limit:
            self.dropped["rebounded"] += 1
            total = Clip(l2_clip_norm=limit).apply(total)
        tree.add_into(self._total, total)
        self.num_added += num_users - found.num_failed

    def result(self, num_users: int) -> PartialSum:
        """Return the sum over a cohort of `num_users`; nothing may be added afterwards."""
        return PartialSum(
            total=self._total, num_users=num_users, num_failed=num_users - self.num_added
        )
