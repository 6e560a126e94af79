"""A window of messages in flight, each answer handed on as it arrives.

Flower's own `send_and_receive` returns when everybody has answered, holding every answer until
then. Here at most `max_in_flight` requests are outstanding, and an answer is dropped as soon as the
caller has added it, so memory does not grow with the cohort. Messages are pulled one at a time: a
payload that breaks Flower's own decoding takes no one else's answer with it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from fedpriv.training.failures import say_of_users
from fedpriv.training.stopping import end_if_interrupted, stop_if_asked

_LOG = logging.getLogger(__name__)
_MIN_WAIT, _MAX_WAIT = 0.01, 0.5
_OVERDUE_SECONDS = 600.0


@dataclass(slots=True, kw_only=True)
class Exchange:
    """Sends requests and yields answers, for as long as one server process lives.

    Every message that is not the one valid answer to an outstanding request is dropped and
    counted in `dropped`: "missing" (no answer before the deadline, or never delivered), "late"
    (answered an earlier exchange), "duplicate", "foreign" (not an answer to what was asked, or not
    by whom), "error" (the node failed) and "unreadable" (Flower could not decode it). Nothing a
    node sends raises; a SuperLink that cannot be reached does, because rounds without anybody
    would be charged for nothing.

    Attributes:
        grid: Flower's way to the nodes.
        max_in_flight: Requests outstanding at any time, at least 1.
        clock: Seconds, monotonic.
        sleep: Waits for seconds.
    """

    grid: Grid
    max_in_flight: int = 16
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    dropped: Counter[str] = field(default_factory=Counter)
    _overdue: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.max_in_flight < 1:
            raise ValueError(f"max-in-flight {self.max_in_flight} must be at least 1, such as 16")

    def answers(
        self,
        requests: Iterable[Message],
        *,
        seconds: float,
        on_error: Callable[[Message], None] | None = None,
        enough: Callable[[], bool] | None = None,
    ) -> Iterator[Message]:
        """Yield the first valid answer to each request, in order of arrival.

        Args:
            requests: Built lazily, a window at a time.
            seconds: From now on; who has not answered by then is missing.
            on_error: Shown the replies by which nodes say that they failed. What a node writes
                there is its own words: do not log them where ids of users may not be seen.
            enough: Asked while there is something to wait for; True ends it as the deadline does.
        """
        deadline = self.clock() + seconds
        waiting = iter(requests)
        pending: dict[str, int] = {}
        answered: set[str] = set()
        exhausted, wait = False, _MIN_WAIT
        self._drop_late()
        while True:
            stop_if_asked()
            exhausted = exhausted or self._push(waiting, pending)
            if not pending and exhausted:
                return
            if self.clock() >= deadline or (enough is not None and enough()):
                break
            arrived = False
            for message_id in list(pending):
                for message in self._pull(message_id, pending):
                    if self._accept(message, message_id, pending, answered):
                        arrived = True
                        if message.has_content():
                            yield message
                        elif on_error is not None:
                            on_error(message)
                    del message
            wait = _MIN_WAIT if arrived else min(1.2 * wait, _MAX_WAIT)
            if not arrived:
                self.sleep(max(0.0, min(wait, deadline - self.clock())))
        self._overdue.update(dict.fromkeys(pending, self.clock() + _OVERDUE_SECONDS))
        self.dropped["missing"] += len(pending) + sum(1 for _ in waiting)

    def _push(self, waiting: Iterator[Message], pending: dict[str, int]) -> bool:
        """Fill the window; return whether there is nothing left to send."""
        while len(pending) < self.max_in_flight:
            message = next(waiting, None)
            if message is None:
                return True
            # One by one: an id that comes back is then certainly this request's.
            node_id = message.metadata.dst_node_id
            ids = [item for item in self.grid.push_messages([message]) if item]
            if len(ids) == 1:
                pending[ids[0]] = node_id
            else:
                self.dropped["missing"] += 1
        return False

    def _pull(self, message_id: str, pending: dict[str, int]) -> list[Message]:
        try:
            return list(self.grid.pull_messages([message_id]))
        except httpx.HTTPError:
            raise
        except Exception as error:  # what a node wrote broke Flower's decoder: its own loss
            end_if_interrupted(error)
            said = "dropped an answer that cannot be read: %s"
            say_of_users(_LOG, logging.WARNING, said, type(error).__name__)
            self.dropped["unreadable"] += 1
            pending.pop(message_id, None)
            return []

    def _accept(
        self, message: Message, message_id: str, pending: dict[str, int], answered: set[str]
    ) -> bool:
        """Return whether this is the first answer to its request, or count why it is not."""
        reply_to = message.metadata.reply_to_message_id
        if reply_to in answered:
            self.dropped["duplicate"] += 1
            return False
        if reply_to != message_id or message_id not in pending:
            self.dropped["foreign"] += 1
            return False
        # Flower itself answers for a node that is gone, and not under that node's id.
        if message.has_content() and message.metadata.src_node_id != pending[message_id]:
            self.dropped["foreign"] += 1
            return False
        answered.add(message_id)
        del pending[message_id]
        if not message.has_content():
            self.dropped["error"] += 1
        return True

    def _drop_late(self) -> None:
        """Take overdue answers of earlier exchanges off the grid, count them and forget them."""
        now = self.clock()
        for message_id, expiry in list(self._overdue.items()):
            if expiry <= now:
                del self._overdue[message_id]
            elif found := self._pull(message_id, {}):
                if any(message.has_content() for message in found):
                    self.dropped["late"] += 1
                del self._overdue[message_id]
