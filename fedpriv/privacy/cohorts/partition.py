"""Disjoint batches: everybody once a pass, in an order that is drawn without looking at anybody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.mechanisms.privatizer import Cost
from fedpriv.privacy.event import NONPRIVATE, Event
from fedpriv.privacy.sampling import Memory
from fedpriv.ranges import positive_int
from fedpriv.rng import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The roster in random order, cut into batches; each pass is in an order of its own.

    Attributes:
        num_users: Users on the roster, n.
        size: b, users a batch; those who do not fill a last batch sit out, others in each pass.
        passes: How often everybody may take part.

    Guarantees:
        * Nobody is in more than `passes` batches, and in one batch a pass at most. The order
          hangs on the key and the roster's size alone, so that one user who is there or not (or
          is replaced) changes the batches of its own place only. Answers of disjoint batches cost
          what one of them does (McSherry 2009, Theorem 4, parallel composition).
        * Nothing is earned by the randomness of the order.
    """

    num_users: int
    size: int
    passes: int = 1

    def __post_init__(self) -> None:
        for name in ("num_users", "size", "passes"):
            object.__setattr__(self, name, positive_int(name, getattr(self, name)))
        if self.size > self.num_users:
            raise ValueError(
                f"batches of {self.size} cannot be cut from {self.num_users} users; lower it"
            )

    @property
    def num_batches(self) -> int:
        """Of all passes."""
        return self.passes * (self.num_users // self.size)

    @property
    def expected_cohort_size(self) -> float:
        """The size."""
        return float(self.size)

    def event(self, cost: Cost) -> Event:
        """Return the event of a whole run of pure answers, or of none that is protected.

        Raises:
            ValueError: If the cost is another's: of a single answer, or of fewer participations.
        """
        if cost.kind == "nonprivate":
            return NONPRIVATE
        counted = cost.participation
        if not cost.whole_run or cost.kind != "pure" or counted is None:
            raise ValueError(
                "disjoint batches are accounted for pure answers that are charged once for the "
                "whole run; use SphereRows"
            )
        if counted.most < self.passes:
            raise ValueError(
                f"noise is calibrated for {counted.most} participations and everybody takes part "
                f"{self.passes} times; give both the same passes"
            )
        return Event(kind="pure", epsilon=cost.value)

    def init(self) -> Memory:
        """Return that no batch was drawn."""
        return {"order": np.zeros(0, np.int64), "drawn": np.zeros(1, np.int64)}

    def next(
        self, memory: Memory, key: Key, roster: Sequence[str]
    ) -> tuple[tuple[str, ...], Memory]:
        """Return the next batch's ids, in roster order.

        Raises:
            ValueError: If the roster is of another size, or every pass is over.
        """
        if len(roster) != self.num_users:
            raise ValueError(
                f"the roster has {len(roster)} users, the batches are of {self.num_users}; make a "
                "new plan"
            )
        drawn = int(memory["drawn"][0])
        if drawn >= self.num_batches:
            raise ValueError(
                f"all {self.num_batches} batches are used up: everybody took part {self.passes} "
                "times; make a new plan"
            )
        place = drawn % (self.num_users // self.size) * self.size
        order = memory["order"] if place else self._order(key)
        batch = np.sort(order[place : place + self.size])
        following = {"order": order, "drawn": np.array([drawn + 1], np.int64)}
        return tuple(roster[int(index)] for index in batch), following

    def _order(self, key: Key) -> np.ndarray:
        if key.mode == "secure":
            return np.argsort(key.words(self.num_users), kind="stable").astype(np.int64)
        return key.generator().permutation(self.num_users)
