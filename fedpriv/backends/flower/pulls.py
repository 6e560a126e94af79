"""Threads that pull replies off the grid, so that one that never ends delays no other.

`Grid.pull_messages` waits until a reply's upload is complete: for minutes after a node stopped
sending, for hours where it sends a little now and then. Python cannot end a thread, so a pull that
takes too long is left to itself, and nothing that it brings afterwards reaches anybody.

It also takes whatever a node sent into memory before it looks at it, and neither Flower's transport
nor its store knows a limit. So what one pull reads off the network is counted as it comes: a reply
of more bytes than any honest one is dropped, here and in the SuperLink's store.
"""

from __future__ import annotations

import concurrent.futures.thread as pools
import copy
import queue
import threading
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

import httpx
from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.serverapp import Grid
from flwr.superlink.grid.http_grid import HttpGrid

PullMessages = Callable[[list[str]], "list[Message]"]

_alive: set[Pull] = set()
_SMALL = 1 << 16  # what the transport may add to a reply, and as much of an error as is read


class TooLargeError(Exception):
    """A reply has more bytes than any honest one; its sender contributes zero."""


class TooLateError(Exception):
    """The deadline of this reply has passed."""


@dataclass(slots=True, kw_only=True)
class _Counted:
    """Sends one pull's requests and counts what comes back; Flower calls that an interceptor.

    Attributes:
        client: Of the grid's connection.
        left: Bytes that this pull may still read.
        open: Whether anybody waits for it.
        found: Ids of the replies that are on their way.
    """

    client: httpx.Client
    left: int
    open: Callable[[], bool]
    found: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        """Answer a request by reading no more than is left.

        Raises:
            TooLargeError: Once there is more; the rest stays on the network.
            TooLateError: If the wait is over: an unfinished upload is abandoned.
        """
        if not self.open():
            raise TooLateError
        answer = self.client.send(context.request, stream=True)
        content = bytearray()
        try:
            for part in answer.iter_bytes(_SMALL):
                if answer.is_error and len(content) >= _SMALL:
                    break
                content += part
                with self._lock:
                    self.left -= len(part)
                    if self.left < 0:
                        raise TooLargeError
        except httpx.TransportError:  # Flower asks for it again
            with self._lock:
                self.left += len(content)
            raise
        finally:
            answer.close()
        if answer.is_success and context.request.url.path.endswith("/pull-messages"):
            listed = PullAppMessagesResponse.FromString(bytes(content)).messages_list
            self.found = [each.metadata.message_id for each in listed]
        headers = {"content-type": answer.headers.get("content-type", "")}
        return httpx.Response(
            answer.status_code, headers=headers, content=bytes(content), request=context.request
        )


def first_wait(grid: Grid) -> float:
    """Return the seconds after which the answer to a message is looked for first.

    Over a network a look costs several milliseconds at both ends, and an answer takes longer than
    that; what is within this process may have it at once.
    """
    return 0.05 if isinstance(grid, HttpGrid) else 0.0


def counted(grid: Grid, most_bytes: int | None, open: Callable[[], bool]) -> PullMessages:
    """Return the grid's `pull_messages`, held to so many bytes a call.

    What is too large, or not complete when the wait is over, is taken off the SuperLink's
    store too, which then refuses what the node still sends of it. A grid within this process has no
    network, and what is on it is in memory already: it is pulled as it is.

    Args:
        grid: The way to the nodes.
        most_bytes: Of a reply, with all that belongs to it; None for any number.
        open: Whether anybody waits for replies; asked before each request.
    """
    if not isinstance(grid, HttpGrid) or most_bytes is None:
        return lambda ids: list(grid.pull_messages(ids))

    def pull(ids: list[str]) -> list[Message]:
        client = grid._runtime_client
        counts = _Counted(client=client._client, left=most_bytes + _SMALL, open=open)
        # The same connection, and this pull's own counter as the last of its interceptors.
        view, view_client = copy.copy(grid), copy.copy(client)
        view_client._interceptors = (*client._interceptors, counts)
        view._client = view_client
        try:
            return list(view.pull_messages(ids))
        except (TooLargeError, TooLateError):
            for found in counts.found:
                client.ConfirmMessageReceived(
                    ConfirmMessageReceivedRequest(
                        node=grid.node, run_id=grid.run.run_id, message_object_id=found
                    )
                )
            raise

    return pull


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
