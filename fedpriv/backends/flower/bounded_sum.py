"""The running sum of a round, which trusts no node that adds to it."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import RecordDict

from fedpriv import tree
from fedpriv.backends.flower.messages import OtherGridError, StaleAnswerError, read_answer
from fedpriv.backends.flower.records import MalformedRecordError
from fedpriv.sums import BITS, PartialSum, add_sum, check_users_fit
from fedpriv.training.failures import say_of_users
from fedpriv.tree import Params, RowSparse, Tensor

_LOG = logging.getLogger(__name__)
# Float64's own rounding of norms and products, with room to spare.
_BELOW = 1.0 - 2.0**-40


@dataclass(slots=True, kw_only=True)
class BoundedSum:
    """Adds nodes' partial sums, each held to what its users may contribute at most.

    Guarantees:
        * A node asked for k users moves the sum by at most `limit(k)` (l2), that is k · l2_bound,
          whatever it sends; a node that hosts one user is thus bounded again as if it had never
          bounded anything.
        * An answer that is malformed, stale, not finite or on another grid adds exactly zero,
          raises nothing, and leaves what others added bit for bit as it was.
        * Memory is one dense tree of 64-bit numbers, however many answers are added.
        * On a grid the sum is of whole numbers: the same for any order of the answers.

    Attributes:
        params: Names and shapes of the sum.
        limit: From a number of users to the l2 norm that their sum cannot exceed, as
            `Bound.sum_limit`; infinite only in a run without privacy.
        granularity: The round's grid; None for sums of floats.
        round_num: The open round.
        attempt: The open attempt.
        nonce: Of this attempt's requests, which answers repeat.
        dropped: How many answers were "malformed", "stale", "not-finite", on an "other-grid", or
            "rebounded" (which were added after scaling).
        num_added: Users whose contribution is in the sum, as far as their nodes tell.
    """

    params: Params = field(repr=False)
    limit: Callable[[int], float]
    granularity: float | None = None
    round_num: int
    attempt: int
    nonce: str = ""
    dropped: Counter[str] = field(default_factory=Counter)
    num_added: int = 0
    _room: int = field(default=0, init=False, repr=False)
    _total: dict = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._total = tree.zeros(self.params, np.float64 if self.granularity is None else np.int64)

    def add(self, content: RecordDict, *, num_users: int) -> None:
        """Add what a node that was asked for `num_users` users answered.

        Raises:
            ValueError: If the integers cannot hold so many users, whatever nodes send.
        """
        limit = self.limit(num_users)
        if self.granularity is not None:
            # In users' worth of the grid: no coordinate is ever above the limit of its node.
            self._room += math.ceil(limit / (self.granularity * 2.0**BITS))
            check_users_fit(self._room)
        try:
            found = read_answer(
                content,
                params=self.params,
                granularity=self.granularity,
                num_users=num_users,
                round_num=self.round_num,
                attempt=self.attempt,
                nonce=self.nonce,
            )
        except StaleAnswerError:
            self.dropped["stale"] += 1
            return
        except OtherGridError as error:  # its text holds two numbers and nothing of the node's
            say_of_users(_LOG, logging.WARNING, "an answer is not added: %s", error)
            self.dropped["other-grid"] += 1
            return
        except MalformedRecordError:
            self.dropped["malformed"] += 1
            return
        norm = tree.l2_norm(found.total) * (1.0 if self.granularity is None else self.granularity)
        if not math.isfinite(norm):
            self.dropped["not-finite"] += 1
            return
        total = found.total
        if norm > limit:
            self.dropped["rebounded"] += 1
            total = _shortened(total, limit / norm, whole=self.granularity is not None)
        # Nothing overflows here: every coordinate is within the limit by now.
        add_sum(self._total, total)
        self.num_added += num_users - found.num_failed

    def result(self, num_users: int) -> PartialSum:
        """Return the sum over a cohort of `num_users`; nothing may be added afterwards."""
        return PartialSum(
            total=self._total,
            num_users=num_users,
            num_failed=num_users - self.num_added,
            granularity=self.granularity,
        )


def _shortened(total: Mapping[str, Tensor], share: float, *, whole: bool) -> dict[str, Tensor]:
    """Return a tree a little shorter than `share` of it, in float64 or in whole numbers."""
    out: dict[str, Tensor] = {}
    for name, tensor in total.items():
        sparse = isinstance(tensor, RowSparse)
        values = (tensor.values if sparse else tensor).astype(np.float64) * (share * _BELOW)
        if whole:
            values = np.trunc(values).astype(np.int64)  # towards zero, so never longer
        out[name] = replace(tensor, values=values) if sparse else values
    return out
