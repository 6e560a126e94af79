"""The running sum of a round, which trusts no node that adds to it."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
from flwr.app import RecordDict

from fedpriv import tree
from fedpriv.backends.backend import shapes_of
from fedpriv.backends.flower.messages import (
    MalformedRecordError,
    OtherGridError,
    StaleAnswerError,
    read_answer,
)
from fedpriv.sums import BITS, PartialSum, add_sum, check_users_fit
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.failures import log_of_users
from fedpriv.training.work import Attempt
from fedpriv.tree import RowSparse, Tensor

_LOG = logging.getLogger(__name__)
# Float64's own rounding of norms and products, with room to spare.
_ROUNDING = 2.0**-40
_BELOW = 1.0 - _ROUNDING
# A single user's update travels in float32, which may have lengthened it by a part in 2^24.
_ONE_USERS = 2.0**-20
# How far the float64 sum of n squares may be off, over the sum: n parts in 2^53, n below 2^31.
_UNSURE = 2.0**-20
_BLOCK, _DIGIT = 1 << 16, (1 << 21) - 1


@dataclass(slots=True, kw_only=True)
class BoundedSum:
    """Adds nodes' partial sums, each held to what its users may contribute at most.

    Guarantees:
        * A node asked for k users moves the sum by at most the bound's `sum_limit(k)` (l2), that is
          k · l2_bound, whatever it sends. What is longer by more than the rounding on its way (a
          part in 2^20 of one user's float32, in 2^40 of a float64 sum) adds zero: no honest node
          sends it. What is longer by rounding alone is shortened to the limit.
        * Sums of whole numbers are compared with the limit in integers, without tolerance.
        * An answer that is malformed, stale, not finite, too long or on another grid adds exactly
          zero, raises nothing, and leaves what others added bit for bit as it was.
        * Memory is one dense tree of 64-bit numbers, however many answers are added.
        * On a grid the sum is of whole numbers: the same for any order of the answers.

    Attributes:
        request: What was asked.
        attempt: The open one. The l2 norm that its bound's `sum_limit` allows some users is
            infinite only in a run without privacy.
        nonce: Of this attempt's requests, which answers repeat.
        dropped: How many answers were "malformed", "stale", "not-finite", on an "other-grid", or
            "rebounded" (which were added after scaling).
        num_added: Users whose contribution is in the sum, as far as their nodes report.
        first_error: The first user's error that a node reports.
    """

    request: SumRequest
    attempt: Attempt
    nonce: str = ""
    dropped: Counter[str] = field(default_factory=Counter)
    num_added: int = 0
    first_error: str | None = field(default=None, repr=False)
    _room: int = field(default=0, init=False, repr=False)
    _total: dict = field(init=False, repr=False)

    def __post_init__(self) -> None:
        kind = np.float64 if self.attempt.bound.granularity is None else np.int64
        self._total = tree.zeros(shapes_of(self.request, self.attempt), kind)

    def add(self, content: RecordDict, *, num_users: int) -> None:
        """Add what a node that was asked for `num_users` users answered.

        Raises:
            ValueError: If the integers cannot hold so many users, whatever nodes send.
        """
        bound = self.attempt.bound
        limit, granularity = bound.sum_limit(num_users), bound.granularity
        if granularity is not None:
            # In users' worth of the grid: no coordinate is ever above the limit of its node.
            self._room += math.ceil(limit / (granularity * 2.0**BITS))
            check_users_fit(self._room)
        try:
            found = read_answer(
                content, self.request, self.attempt, num_users=num_users, nonce=self.nonce
            )
        except StaleAnswerError:
            self.dropped["stale"] += 1
            return
        except OtherGridError as error:  # its text holds two numbers and nothing of the node's
            log_of_users(_LOG, logging.WARNING, "an answer is not added: %s", error)
            self.dropped["other-grid"] += 1
            return
        except MalformedRecordError:
            self.dropped["malformed"] += 1
            return
        total = found.total
        if granularity is not None:
            if longer_than(total, _longest(limit, granularity, num_users)):
                self.dropped["too-long"] += 1
                return
        else:
            norm = tree.l2_norm(total)
            if not math.isfinite(norm):
                self.dropped["not-finite"] += 1
                return
            if norm > limit:
                if norm > limit * (1.0 + (_ONE_USERS if num_users == 1 else _ROUNDING)):
                    self.dropped["too-long"] += 1
                    return
                self.dropped["rebounded"] += 1
                total = _shortened(total, limit / norm)
        # Nothing overflows here: every coordinate is within the limit by now.
        add_sum(self._total, total)
        self.num_added += num_users - found.num_failed
        self.first_error = self.first_error or found.first_error

    def result(self, num_users: int) -> PartialSum:
        """Return the sum over a cohort of `num_users`; nothing may be added afterwards."""
        return PartialSum(
            total=self._total,
            num_users=num_users,
            num_failed=num_users - self.num_added,
            granularity=self.attempt.bound.granularity,
            first_error=self.first_error,
        )


def _shortened(total: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """Return a tree a little shorter than `share` of it, in float64."""
    out: dict[str, Tensor] = {}
    for name, tensor in total.items():
        sparse = isinstance(tensor, RowSparse)
        values = (tensor.values if sparse else tensor).astype(np.float64) * (share * _BELOW)
        out[name] = replace(tensor, values=values) if sparse else values
    return out


def _longest(limit: float, granularity: float, num_users: int) -> int:
    """Return the largest whole length, in granularities, that is within a limit."""
    if limit == num_users * (granularity * 2.0**BITS):  # as floats; rounding took nothing away
        return num_users << BITS
    return math.floor(Fraction(limit) / Fraction(granularity))


def longer_than(total: Mapping[str, Tensor], longest: int) -> bool:
    """Return whether a tree of whole numbers is longer than so many, to the last one.

    Float64 decides where it is certain; else all squares are summed as integers.
    """
    arrays = [item.values if isinstance(item, RowSparse) else item for item in total.values()]
    arrays = [array.reshape(-1) for array in arrays if array.size]
    if any(int(array.max()) > longest or int(array.min()) < -longest for array in arrays):
        return True
    about = 0.0
    for array in arrays:
        real = array.astype(np.float64)
        about += float(real @ real)
    if abs(about - float(longest) ** 2) > _UNSURE * float(longest) ** 2:
        return about > float(longest) ** 2
    return sum(_squares(array) for array in arrays) > longest * longest


def _squares(values: np.ndarray) -> int:
    """Return the sum of squares of whole numbers, exactly."""
    total = 0
    for start in range(0, len(values), _BLOCK):
        block = np.abs(values[start : start + _BLOCK].astype(np.int64))
        # Three digits of 21 bits: products have 42, and their sums over a block 58.
        digits = [block & _DIGIT, (block >> 21) & _DIGIT, block >> 42]
        for place, left in enumerate(digits):
            for other, right in enumerate(digits):
                total += int(left @ right) << (21 * (place + other))
    return total
