"""A grid whose nodes answer in threads of their own, fail, hang, or upload without an end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import Error, Message

from fedpriv import tree
from fedpriv.backends import SerialBackend
from fedpriv.backends.flower.registry import QUERY
from fedpriv.backends.flower.strategy import GridSettings, UserLevelStrategy
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.rng import Key
from fedpriv.training.local.schedule import Schedule
from tests.backends.flower.stub_grid import StubGrid, TinyTags, shards

BOUND, SCHEDULE = Rounded(bound=Clip(l2_clip_norm=0.3)), Schedule(learning_rate=2.0)


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
            replies = [Message(Error(3, "crashed"), reply_to=request)]
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


class Hundred:
    """A hundred users, each on a node of its own, and what their sum would be in this process.

    A round is played first in which everybody answers, however long it takes; the deadline is the
    one that is asked for, or ten times as long as that took: no machine is too busy for that.
    """

    def __init__(
        self, *, deadline: float, num_users: int = 100, num_nodes: int = 0, **grid: object
    ) -> None:
        self.task = TinyTags(num_users)
        hosts = shards(self.task, num_nodes or num_users)
        self.grid = ThreadedGrid(hosts, **grid)  # type: ignore[arg-type]
        self.strategy = UserLevelStrategy(
            roster=self.task.roster, settings=GridSettings(round_deadline=600.0)
        )
        self.oracle = SerialBackend(trainer=self.task.trainer(SCHEDULE, {}), data=self.task.data)
        patient = self.strategy.start(self.grid, lambda backend: backend)
        self.params = self.task.params()
        began = time.monotonic()
        self.sum(round_num=10**6, backend=patient)
        self.deadline = max(deadline, 10.0 * (time.monotonic() - began))
        settings = replace(patient.settings, round_deadline=self.deadline)
        self.backend = replace(patient, settings=settings)
        self.strategy.counts.clear()

    @property
    def nodes(self) -> list[int]:
        return list(self.grid.hosts)

    def sum(self, *, round_num: int = 1, backend: object = None, cohort: object = None):
        return (backend or self.backend).partial_sum(
            params=self.params, bound=BOUND, cohort=cohort or self.task.roster,
            key=Key.simulation(1), round_num=round_num, attempt=1,
        )  # fmt: skip

    def is_sum_without(self, found, *gone: int) -> bool:
        """Whether a sum is, to the bit, that of all users but those of some nodes."""
        lost = {self.task.roster[node_id - 101] for node_id in gone}
        others = [user for user in self.task.roster if user not in lost]
        expected = tree.to_dense(self.sum(backend=self.oracle, cohort=others).total)
        total = tree.to_dense(found.total)
        return found.num_failed == len(lost) and all(
            np.array_equal(total[name], expected[name]) for name in expected
        )
