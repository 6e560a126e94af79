"""Reports of waits, and names of nodes in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_FIRST, _EVERY = 8.0, 60.0


@dataclass(slots=True, kw_only=True)
class Every:
    """Times within a wait: the first, and then at equal distances.

    >>> notices = Every()
    >>> [seconds for seconds in range(0, 140, 2) if notices.due(seconds)]
    [8, 68, 128]
    """

    first: float = _FIRST
    every: float = _EVERY

    def due(self, seconds: float) -> bool:
        """Return whether a time has come since this was last asked."""
        if seconds < self.first:
            return False
        self.first += self.every * (1 + (seconds - self.first) // self.every)
        return True


def some(phrases: Iterable[str], most: int = 5) -> str:
    """Return the first few phrases, and how many more there are.

    >>> some(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    found = list(phrases)
    more = len(found) - most
    return ", ".join(found[:most]) + (f" and {more} more" if more > 0 else "")


def some_nodes(node_ids: Iterable[int], names: Mapping[int, str]) -> str:
    """Return the names of the first few nodes, and how many more there are."""
    return some(names.get(node_id, f"node {node_id}") for node_id in sorted(node_ids))
