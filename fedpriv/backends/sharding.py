"""Sharding users over workers: longest first, each to whoever has the least to do.

>>> shards_of({"a": 5, "b": 1, "c": 4, "d": 3}, 2)
[('a', 'b'), ('c', 'd')]
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from fedpriv.training.stopping import end_if_interrupted
from fedpriv.training.work import UserData


def work_of(data: UserData, user_id: str, max_examples: int) -> int:
    """Return how many examples a user will train on; it only decides who trains it."""
    try:
        return min(data.num_examples(user_id), max_examples)
    except Exception as error:  # where training fails too, the user contributes zero
        end_if_interrupted(error)
        return 1


def shards_of(sizes: Mapping[str, int], num_workers: int) -> list[tuple[str, ...]]:
    """Return each worker's users, longest first.

    The longest worker has at most 4/3 of the work of the best assignment (Graham 1969). Ties
    go to the earlier user and the earlier worker, so the same sizes always give the same shards.

    Args:
        sizes: How much work each user is, in any unit; a user without any still costs one.
        num_workers: How many share it.

    Returns:
        `num_workers` tuples, some of them empty when there are fewer users.
    """
    shards: list[list[str]] = [[] for _ in range(num_workers)]
    loads = [(0, worker) for worker in range(num_workers)]
    for user_id in sorted(sizes, key=lambda user: -sizes[user]):
        load, worker = loads[0]
        shards[worker].append(user_id)
        heapq.heapreplace(loads, (load + max(sizes[user_id], 1), worker))
    return [tuple(shard) for shard in shards]
