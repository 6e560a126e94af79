"""Requests to many nodes at once, each answer handed on as it arrives.

Flower's own `send_and_receive` returns when everybody has answered, holding every answer until
then. Here all requests are on their way at once (what they share the grid stores once), a few
answers are pulled at a time, and each is dropped as soon as the caller has added it, so memory does
not grow with the cohort. Messages are pulled one by one: a payload that breaks Flower's own
decoding, or never comes to an end, takes no one else's answer with it.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from fedpriv.backends.flower.pulls import (
    Pull,
    Pulls,
    first_wait,
    num_alive,
)
from fedpriv.training.failures import log_of_users
from fedpriv.training.stopping import end_if_interrupted, stop_if_asked

_LOG = logging.getLogger(__name__)
_MIN_WAIT, _MAX_WAIT = 0.01, 0.5
_SECONDS_A_LOOK = 0.004  # what looking for one answer may cost, on average
_OVERDUE_SECONDS = 600.0
# A pull that takes longer than this share of the time leaves its place in the window to another.
_STALLED = 1.0 / 60.0
#: Codes of errors by which a SuperLink says that no answer will come: message, reply or node is
#: unavailable. They are on the wire, so releases of Flower agree on them.
_AWAY = frozenset((3, 4, 5))
_MOST_WINDOWS = 64  # of pulls in this process that have not ended, stalled ones among them


class SuperLinkGoneError(ConnectionError):
    """A SuperLink does not answer, or does not know the run any more."""


@contextmanager
def naming_superlink(then: str) -> Generator[None]:
    """Say in a line that the SuperLink is gone; Flower's client raises its own kinds of errors.

    Args:
        then: What is to be done.

    Raises:
        SuperLinkGoneError: In the place of such an error.
    """
    try:
        yield
    except httpx.HTTPError as error:
        cause = " ".join(str(error).split()) or type(error).__name__
        raise SuperLinkGoneError(
            f"the SuperLink is not reached, or was started again and knows nothing of this run "
            f"({cause:.200}); {then}"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A request that is on its way.

    Attributes:
        node_id: To whom.
        wait: How long to wait before the next look for its answer.
        overdue: Whether its exchange is over, so that an answer is only taken off the grid.
        expiry: When it is no longer looked for; only where it is overdue.
    """

    node_id: int
    wait: float = 0.0
    overdue: bool = False
    expiry: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Asked:
    """Requests of one exchange, and when to look for their answers.

    Attributes:
        pending: Requests without an answer, by id.
        answered: Ids of the others.
        due: A heap of when to look next, and for what; an id once at most.
    """

    pending: dict[str, _Request] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    due: list[tuple[float, int, str, _Request]] = field(default_factory=list)
    _count: int = 0

    def add(self, message_id: str, request: _Request, now: float) -> None:
        """Look for an answer from then on; for one that is overdue, once."""
        if not request.overdue:
            self.pending[message_id] = request
        self._count += 1
        heapq.heappush(self.due, (now, self._count, message_id, request))

    def next(self) -> tuple[str, _Request]:
        """Take what is due first."""
        _, _, message_id, request = heapq.heappop(self.due)
        return message_id, request

    def later(self, message_id: str, request: _Request, now: float) -> None:
        """Look again, the later the longer it takes and the more others there are."""
        longest = max(_MAX_WAIT, _SECONDS_A_LOOK * len(self.pending))
        wait = min(max(1.2 * request.wait, _MIN_WAIT), longest)
        self.add(message_id, replace(request, wait=wait), now + wait)


@dataclass(slots=True, kw_only=True)
class Exchange:
    """Sends requests and yields answers, for as long as one server process lives.

    Every message that is not the one valid answer to an outstanding request is dropped and
    counted in `dropped`: "missing" (no answer in time, never delivered, or gone), "late"
    (answered an earlier exchange), "duplicate", "foreign" (not an answer to what was asked, or not
    by whom), "error" (the node failed) and "unreadable" (Flower could not decode it). No answer of
    a node raises. A SuperLink that cannot be reached does: rounds without anybody would be charged
    for nothing.

    Guarantees:
        * Silent nodes cost no other node's answer, however many they are. Nor do answers
          whose upload never ends, while they are fewer than 60 windows of them at once.
        * An answer is in memory when it is looked at, however large: neither Flower's transport nor
          its store has a limit. One of other shapes than the round's adds zero (`read_answer`).
        * An exchange ends at its deadline, whatever pulls are still waiting for; what those bring
          later is dropped, and counted by the next exchange.

    Attributes:
        grid: Flower's way to the nodes.
        max_in_flight: Answers that are pulled at any time, at least 1. A pull that takes longer
            than a sixtieth of the exchange no longer counts among them.
        clock: Seconds, monotonic.
        sleep: Waits for seconds.
    """

    grid: Grid
    max_in_flight: int = 16
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    dropped: Counter[str] = field(default_factory=Counter)
    _overdue: dict[str, _Request] = field(default_factory=dict, init=False, repr=False)
    _abandoned: list[Pull] = field(default_factory=list, init=False, repr=False)

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
        on_wait: Callable[[float, Collection[int]], None] | None = None,
    ) -> Iterator[Message]:
        """Yield the first valid answer to each request, in order of arrival.

        Args:
            requests: Built lazily, one after another.
            seconds: From now on; who has not answered by then is missing.
            on_error: Given the replies by which nodes report that they failed. Their text is the
                node's: do not log it where ids of users may not be seen.
            enough: Asked while there is something to wait for; True ends it as the deadline does.
            on_wait: Called meanwhile, about twice a second, with the seconds since the beginning
                and the nodes that have not answered.
        """
        began = self.clock()
        deadline, patience = began + seconds, seconds * _STALLED
        waiting, exhausted = iter(requests), False
        asked = _Asked()
        for message_id in self._late():
            asked.add(message_id, self._overdue[message_id], self.clock())
        pulls = Pulls(lambda ids: list(self.grid.pull_messages(ids)))
        try:
            while True:
                stop_if_asked()
                exhausted = exhausted or self._push(waiting, asked, deadline)
                if exhausted and not asked.pending and not self._looks(pulls, asked, patience):
                    return
                now = self.clock()
                if now >= deadline or (enough is not None and enough()):
                    break
                if on_wait is not None:
                    on_wait(now - began, {one.node_id for one in asked.pending.values()})
                due = min(self._look(pulls, asked, patience), deadline)
                if not pulls.running:
                    self.sleep(max(0.0, due - now) if exhausted else 0.0)
                    continue
                wait = min(due - now, max(patience, _MIN_WAIT), _MAX_WAIT) if exhausted else 0.0
                look = pulls.ended(max(wait, 1e-3))
                while look is not None:
                    for message in self._taken(look, asked):
                        if message.has_content():
                            yield message
                        elif on_error is not None:
                            on_error(message)
                        del message
                    look = pulls.ended(0.0)
            self.dropped["missing"] += len(asked.pending) + sum(1 for _ in waiting)
        finally:
            self._abandoned += pulls.close()
            expiry = self.clock() + _OVERDUE_SECONDS
            for message_id, request in asked.pending.items():
                self._overdue[message_id] = replace(request, overdue=True, expiry=expiry)

    def _push(self, waiting: Iterator[Message], asked: _Asked, deadline: float) -> bool:
        """Send some of the requests; return whether there is nothing left to send."""
        wait = first_wait(self.grid)
        for _ in range(self.max_in_flight):
            message = next(waiting, None)
            if message is None:
                return True
            # One by one: an id that comes back is then certainly this request's.
            node_id = message.metadata.dst_node_id
            ids = [item for item in self.grid.push_messages([message]) if item]
            if len(ids) == 1:
                asked.add(ids[0], _Request(node_id=node_id, wait=wait), self.clock() + wait)
            else:
                self.dropped["missing"] += 1
            if self.clock() >= deadline:
                break
        return False

    def _looks(self, pulls: Pulls, asked: _Asked, patience: float) -> bool:
        """Return whether answers to earlier exchanges are still looked for; none is awaited."""
        return self._in_window(pulls, patience) > 0 or (bool(asked.due) and self._spare() > 0)

    def _spare(self) -> int:
        """Return how many pulls this process may start besides those that have not ended."""
        return _MOST_WINDOWS * self.max_in_flight - num_alive()

    def _in_window(self, pulls: Pulls, patience: float) -> int:
        """Return how many pulls have not stalled."""
        since = self.clock() - max(patience, _MIN_WAIT)
        return sum(1 for look in pulls.running.values() if look.since >= since)

    def _look(self, pulls: Pulls, asked: _Asked, patience: float) -> float:
        """Start pulling what it is time to look for; return when to come back."""
        now = self.clock()
        room = self.max_in_flight - self._in_window(pulls, patience)
        room = min(room, self._spare())
        stuck = {look.node_id for look in self._abandoned if not look.done}
        while room > 0 and asked.due and asked.due[0][0] <= now:
            message_id, request = asked.next()
            if request.node_id in stuck and not request.overdue:
                asked.later(message_id, request, now)  # one pull a node, or they would pile up
            elif request.node_id not in stuck:
                pulls.start(Pull(message_id=message_id, node_id=request.node_id, since=now))
                room -= 1
        return max(asked.due[0][0], now + _MIN_WAIT) if asked.due else now + _MAX_WAIT

    def _taken(self, look: Pull, asked: _Asked) -> list[Message]:
        """Return what is to be handed on of a pull that has ended, and count the rest."""
        found, look.found = look.found, []
        message_id, error = look.message_id, look.error
        if error is not None:
            end_if_interrupted(error)
            if isinstance(error, httpx.HTTPError) or not isinstance(error, Exception):
                raise error
            # What a node wrote broke Flower's decoder: its own loss.
            dropped = "dropped an answer that cannot be read: %s"
            log_of_users(_LOG, logging.WARNING, dropped, type(error).__name__)
            self.dropped["unreadable"] += 1
            asked.pending.pop(message_id, None)
            self._overdue.pop(message_id, None)
            return []
        if message_id in self._overdue:
            if found:
                self.dropped["late"] += any(message.has_content() for message in found)
                del self._overdue[message_id]
            return []
        taken = [message for message in found if self._accept(message, message_id, asked)]
        if message_id in asked.pending:
            asked.later(message_id, asked.pending[message_id], self.clock())
        return taken

    def _accept(self, message: Message, message_id: str, asked: _Asked) -> bool:
        """Return whether this is the first answer to its request, or count why it is not."""
        reply_to = message.metadata.reply_to_message_id
        if reply_to in asked.answered:
            self.dropped["duplicate"] += 1
            return False
        if reply_to != message_id or message_id not in asked.pending:
            self.dropped["foreign"] += 1
            return False
        node_id = asked.pending[message_id].node_id
        if message.has_content() and message.metadata.src_node_id != node_id:
            self.dropped["foreign"] += 1
            return False
        asked.answered.add(message_id)
        del asked.pending[message_id]
        if message.has_content():
            return True
        # The SuperLink answers for a node that is gone, which is no failure of its users.
        away = message.error.code in _AWAY
        self.dropped["missing" if away else "error"] += 1
        return not away

    def _late(self) -> list[str]:
        """Count what abandoned pulls brought, and return whose answers to look for once more."""
        now = self.clock()
        for look in [look for look in self._abandoned if look.done]:
            self._abandoned.remove(look)
            if look.was_late:
                self.dropped["late"] += 1
                self._overdue.pop(look.message_id, None)
        for message_id in [key for key, item in self._overdue.items() if item.expiry <= now]:
            del self._overdue[message_id]
        return list(self._overdue)[: 4 * self.max_in_flight]
