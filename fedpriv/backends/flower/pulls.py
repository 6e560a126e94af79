"""Threads that pull replies off the grid, so that one that never ends delays no other.

`Grid.pull_messages` waits until a reply's upload is complete: for minutes after a node stopped
sending, for hours where it sends a little now and then. Python cannot end a thread, so a pull that
takes too long is left to itself, and nothing that it brings afterwards reaches anybody.
"""

from __future__ import annotations

import concurrent.futures.thread as pools
import queue
import threading
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.superlink.grid.http_grid import HttpGrid

PullMessages = Callable[[list[str]], "list[Message]"]

_alive: set[Pull] = set()


def first_wait(grid: Grid) -> float:
    """Return the seconds after which the answer to a message is looked for first.

    Over a network a look costs several milliseconds at both ends, and an answer takes longer than
    that; what is within this process may have it at once.
    """
    return 0.05 if isinstance(grid, HttpGrid) else 0.0


@dataclass(slots=True, eq=False, kw_only=True)
class Pull:
    """One look for the reply to one message.

    Attributes:
        message_id: Of the request.
        node_id: Whom it went to.
        since: When it was asked for.
        found: What was there; empty once it was taken, or where the wait was over.
        error: What pulling raised.
        done: Whether it has come to an end.
        was_late: Whether it brought something after the wait was over.
    """

    message_id: str
    node_id: int
    since: float
    found: list[Message] = field(default_factory=list, repr=False)
    error: BaseException | None = None
    done: bool = False
    was_late: bool = False


class Pulls:
    """Threads that pull for one exchange, as many as there are pulls that have not ended.

    Guarantees:
        * After `close` no reply is handed on, whenever it comes, and none is kept in memory.
        * No thread keeps the process from ending, nor do those that Flower starts in it.

    Args:
        pull: The grid's `pull_messages`, safe to be called by several threads.
    """

    def __init__(self, pull: PullMessages) -> None:
        self._pull_messages = pull
        self._asked: queue.SimpleQueue[Pull | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[Pull] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open = True
        self._num_threads = 0
        self.running: dict[str, Pull] = {}

    def start(self, look: Pull) -> None:
        """Look for a reply, in a thread that is free or in a new one."""
        self.running[look.message_id] = look
        _alive.add(look)
        if self._num_threads < len(self.running):
            self._num_threads += 1
            # What may be logged of users is known by the context, which threads do not inherit.
            threading.Thread(
                target=copy_context().run, args=(self._work,), name="fedpriv-pull", daemon=True
            ).start()
        self._asked.put(look)

    def ended(self, timeout: float) -> Pull | None:
        """Return a pull that has ended, waiting so long for one, or None."""
        try:
            look = self._ended.get(timeout=timeout) if timeout > 0 else self._ended.get_nowait()
        except queue.Empty:
            return None
        del self.running[look.message_id]
        return look

    def close(self) -> list[Pull]:
        """End the wait; return the pulls whose answers were not taken."""
        with self._lock:
            self._open = False
        left = list(self.running.values())
        while (look := self.ended(0.0)) is not None:
            look.was_late, look.found, look.error = _has_content(look.found), [], None
        for _ in range(self._num_threads):
            self._asked.put(None)
        return left

    def _work(self) -> None:
        while (look := self._asked.get()) is not None:
            try:
                look.found = list(self._pull_messages([look.message_id]))
            except BaseException as error:  # its waiter judges it
                look.error = error
            with self._lock:
                if self._open:
                    self._ended.put(look)
                else:
                    look.was_late, look.found, look.error = _has_content(look.found), [], None
                look.done = True
            _alive.discard(look)
            del look


def num_alive() -> int:
    """Return how many pulls of this process have not ended."""
    return len(_alive)


def _has_content(found: list[Message]) -> bool:
    return any(message.has_content() for message in found)


def _release_threads() -> None:
    """Keep Python from joining, at its end, threads of pools that unfinished pulls have started."""
    if _alive:
        joined = getattr(pools, "_threads_queues", {})
        for thread in list(joined):
            if thread.daemon:  # as their parents are; a pool of the main thread has no such
                joined.pop(thread, None)


# Flower pulls the parts of a message in pools of its own. Last registered is first called; where
# Python has no such hook, a process with an unfinished pull ends when Flower gives up on it.
getattr(threading, "_register_atexit", lambda hook: None)(_release_threads)
