"""A grid whose nodes answer in threads of their own, fail, hang, or upload without an end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from flwr.app import Error, Message

from fedpriv.backends.flower.registry import QUERY
from fedpriv.backends.flower.strategy import GridSettings
from tests.backends.flower.stub_grid import Federation, StubGrid


@dataclass
class ThreadedGrid(StubGrid):
    """Nodes that compute when they are asked, each in a thread.

    Attributes:
        crashed: Nodes that answer a training request with an error.
        endless: Nodes whose upload is not complete before `released` is set: a pull waits.
    """

    crashed: set[int] = field(default_factory=set)
    endless: set[int] = field(default_factory=set)
    released: threading.Event = field(default_factory=threading.Event)
    blocked: int = 0
    on_wire: bool = False
    _ready: dict[str, list[Message]] = field(default_factory=dict)

    def _pushed(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        ids = super()._pushed(messages)
        for message in messages:
            if message.metadata.dst_node_id not in self.silent:
                threading.Thread(target=self._compute, args=(message,), daemon=True).start()
        return ids

    def _compute(self, request: Message) -> None:
        if self._asks(request) and request.metadata.dst_node_id in self.crashed:
            replies = [Message(Error(2, "crashed"), reply_to=request)]
        else:
            replies = self._answer(request)
        with self._lock:
            self._ready[request.metadata.message_id] = replies

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        (message_id,) = message_ids
        with self._lock:
            request = self._waiting.get(message_id)
            replies = self._ready.pop(message_id, None)
            if request is None or replies is None:
                return []
            del self._waiting[message_id]
            waits = self._asks(request) and request.metadata.dst_node_id in self.endless
            self.blocked += waits
        if waits:
            self.released.wait()
        return replies

    @staticmethod
    def _asks(request: Message) -> bool:
        return request.metadata.message_type != QUERY


class Hundred(Federation):
    """A hundred users, each on a node of its own, and what their sum would be in this process.

    A round is played first in which everybody answers, however long it takes; the deadline is the
    one that is asked for, or ten times as long as that took: no machine is too busy for that.
    """

    def __init__(
        self, *, deadline: float, num_users: int = 100, num_nodes: int = 0, **grid: object
    ) -> None:
        patient = GridSettings(round_deadline=600.0)
        super().__init__(num_users, num_nodes, settings=patient, kind=ThreadedGrid, **grid)
        began = time.monotonic()
        self.sum(round_num=10**6)
        self.deadline = max(deadline, 10.0 * (time.monotonic() - began))
        self.backend = replace(
            self.backend, settings=replace(patient, round_deadline=self.deadline)
        )
        self.counts.clear()

    @property
    def nodes(self) -> list[int]:
        return list(self.grid.hosts)
