"""A Flower grid within the test's process: the real handlers, the real serialisation, no network.

Every message and every reply goes through Flower's own object encoding. A node may be given a
function that turns its honest reply into whatever a hostile one would send.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedpriv import tree
from fedpriv.backends import SerialBackend
from fedpriv.backends.flower.client import Host
from fedpriv.backends.flower.exchange import Exchange
from fedpriv.backends.flower.registry import QUERY
from fedpriv.backends.flower.strategy import GridBackend, connect
from fedpriv.checkpoints.vocabulary import WordFeatures
from fedpriv.datasets.stackexchange.tag_view import TagExamples
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.softmax import CompiledSoftmaxTrainer
from fedpriv.training.work import Attempt
from tests.harness.waiting import Clock

Tamper = Callable[[Message, Message], list[Message]]


def through_the_wire(message: Message) -> Message:
    """Return the message as Flower's transport would deliver it."""
    message.metadata.__dict__["_message_id"] = message.metadata.message_id or str(uuid4())
    contents = {key: item.deflate() for key, item in get_all_nested_objects(message).items()}
    copy = inflate_object_from_contents(message.object_id, contents)
    assert isinstance(copy, Message)
    copy.metadata.__dict__["_message_id"] = message.metadata.message_id
    return copy


def timed(grid: Grid, clock: Clock | None = None) -> Exchange:
    """Return an exchange on a grid, whose time passes only when it sleeps."""
    clock = clock or Clock()
    return Exchange(grid=grid, clock=clock, sleep=clock.sleep)


@dataclass
class StubGrid(Grid):
    """Nodes by id; each answers when it is asked for its reply.

    Attributes:
        hosts: Who lives where.
        tamper: By node id, from (request, honest reply) to the replies that arrive.
        silent: Nodes that never answer.
        slow: By node id, how many pulls a train request takes.
        requests: Every message that was pushed.
        keys: Nodes' public keys, by node id.
        live: Highest number of train replies that were in memory at once.
        on_wire: Whether messages go through Flower's encoding, or are handed over as they are.
    """

    hosts: Mapping[int, Host | AppNode]
    tamper: dict[int, Tamper] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    slow: dict[int, int] = field(default_factory=dict)
    requests: list[Message] = field(default_factory=list)
    keys: dict[int, bytes] = field(default_factory=dict)
    live: int = 0
    on_wire: bool = True
    _run: Run | None = None
    _waiting: dict[str, Message] = field(default_factory=dict)
    _patience: dict[str, int] = field(default_factory=dict)
    _payloads: list[weakref.ref] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        # A message wants to know who sends it; Flower's own processes set this at their start.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        if self._run is None:
            raise ValueError("no run is set; call set_run first")
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("holds every reply until the last: never to be used")

    def get_node_ids(self) -> Iterable[int]:
        return list(self.hosts)

    def get_nodes(self) -> Iterable[NodeInfo]:
        for node_id in self.get_node_ids():
            yield NodeInfo(node_id=node_id, public_key=self.keys.get(node_id, b""))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        with self._lock:
            return self._pushed(messages)

    def _pushed(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message_id = str(uuid4())
            message.metadata.__dict__["_message_id"] = message_id
            delivered = through_the_wire(message) if self.on_wire else message
            delivered.metadata.__dict__["_message_id"] = message_id
            self._waiting[message_id] = delivered
            node_id = message.metadata.dst_node_id
            if message.metadata.message_type == "train":
                self._patience[message_id] = self.slow.get(node_id, 0)
                self.requests.append(message)
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        with self._lock:  # several threads pull; nodes compute one after another
            return self._pulled(message_ids)

    def _pulled(self, message_ids: Iterable[str]) -> list[Message]:
        replies: list[Message] = []
        for message_id in message_ids:
            request = self._waiting.get(message_id)
            if request is None or request.metadata.dst_node_id in self.silent:
                continue
            if self._patience.get(message_id, 0) > 0:
                self._patience[message_id] -= 1
                continue
            del self._waiting[message_id]
            replies += self._answer(request)
        return replies

    def _answer(self, request: Message) -> list[Message]:
        node_id = request.metadata.dst_node_id
        host = self.hosts[node_id]
        query = request.metadata.message_type == QUERY
        try:
            reply = host.query(request) if query else host.train(request)
        except Exception as error:
            reply = Message(Error(2, str(error)), reply_to=request)
        replies = [reply]
        if node_id in self.tamper and not query:
            replies = self.tamper[node_id](request, reply)
        if self.on_wire:
            replies = [through_the_wire(item) for item in replies]
        if not query:
            self._payloads += [weakref.ref(item.content) for item in replies if item.has_content()]
            self._payloads = [item for item in self._payloads if item() is not None]
            self.live = max(self.live, len(self._payloads))
        return replies


def context(
    node_config: dict[str, Any] | None = None, run_config: dict[str, Any] | None = None
) -> Context:
    """Return what Flower tells an app of its place."""
    return Context(1, 1, node_config or {}, RecordDict(), run_config or {})


class AppNode:
    """A ClientApp where a `Host` is expected: what arrives is answered by the app itself."""

    def __init__(
        self,
        app: ClientApp,
        partition: int,
        num_partitions: int,
        run_config: dict | None = None,
        **node_config: str,
    ) -> None:
        self.app = app
        place = {"partition-id": partition, "num-partitions": num_partitions, **node_config}
        self.context = context(place, run_config)

    def query(self, message: Message) -> Message:
        return self.app(message, self.context)

    train = query


class _Users:
    def __init__(self, users: dict[str, TagExamples]) -> None:
        self.users = users

    def examples(self, user_id: str) -> TagExamples:
        if user_id not in self.users:
            raise ValueError(f"user {user_id!r} is unknown")
        return self.users[user_id]

    def num_examples(self, user_id: str) -> int:
        return len(self.examples(user_id))


class TinyTags:
    """Tag prediction on a few synthetic users: 30 words, 4 tags; with features, more rows."""

    def __init__(
        self,
        num_users: int = 12,
        num_words: int = 30,
        num_tags: int = 4,
        word_features: WordFeatures | None = None,
    ) -> None:
        self.word_features = word_features
        rng = np.random.default_rng(3)
        self.num_words, self.num_tags = num_words, num_tags
        self.roster = tuple(f"user-{number:02d}" for number in range(num_users))
        self.data = _Users({user: self._examples(rng) for user in self.roster})

    def _examples(self, rng: np.random.Generator) -> TagExamples:
        n = int(rng.integers(1, 9))
        sizes = rng.integers(1, 5, n)
        indices = [np.sort(rng.choice(self.num_words, k, replace=False)) for k in sizes]
        labels = rng.integers(0, self.num_tags, n)
        return TagExamples(
            indptr=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            indices=np.concatenate(indices).astype(np.int32),
            counts=rng.integers(1, 3, int(sizes.sum())).astype(np.float32),
            num_tokens=(sizes * 2).astype(np.int32),
            labels=labels.astype(np.int32),
            tag_indptr=np.arange(n + 1, dtype=np.int64),
            tag_indices=labels.astype(np.int32),
            num_words=self.num_words,
            num_tags=self.num_tags,
        )

    def trainer(self, schedule: Any, multiplier: Any) -> CompiledSoftmaxTrainer:
        rows = multiplier.get("kernel")
        return CompiledSoftmaxTrainer(
            schedule=schedule,
            inputs="tff" if self.word_features is None else "unit-norm",
            multiplier=None if rows is None else rows.reshape(-1),
            word_features=self.word_features,
        )

    def params(self, seed: int = 5) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        return {
            "bias": rng.normal(size=self.num_tags).astype(np.float32),
            "kernel": rng.normal(size=(self._num_rows(), self.num_tags)).astype(np.float32),
        }

    def _num_rows(self) -> int:
        made = self.word_features
        return self.num_words if made is None else made.num_rows


SCHEDULE = LocalSgd(learning_rate=2.0)


def nodes(
    task: Any, trainer: Any, num_nodes: int, num_shards: int, first: int = 101
) -> dict[int, Host]:
    """Return the nodes of a simulation whose run-config asks for shards."""
    from fedpriv.backends.flower.settings import Node, read_host

    node = Node(task=task, trainer=trainer)

    return {
        first + number: read_host(
            node, {"shards": num_shards}, {"partition-id": number, "num-partitions": num_nodes}
        )
        for number in range(num_nodes)
    }


def shards(task: Any, num_nodes: int, first: int = 101, trainer: Any = None) -> dict[int, Host]:
    """Return nodes that share the task's roster out among them."""
    if trainer is None:
        trainer = task.trainer(SCHEDULE, {})
    return {
        first + number: Host.of(task, trainer, partition=number, num_partitions=num_nodes)
        for number in range(num_nodes)
    }


def started(
    task: Any,
    hosts: Mapping[int, Any] | int,
    *,
    settings: Any = None,
    trainer: Any = None,
    kind: Any = StubGrid,
    **grid: Any,
) -> GridBackend:
    """Return a connected backend, on these nodes or so many shards of the task.

    Its `exchange` has the grid, and in `dropped` the counts.
    """  # fmt: skip
    nodes = shards(task, hosts, trainer=trainer) if isinstance(hosts, int) else hosts
    return connect(kind(nodes, **grid), task.roster, settings)


BOUND = Rounded(bound=Clip(l2_clip_norm=0.3))


class Federation:
    """Nodes of synthetic users, one each unless said, and their sums' oracle in this process."""

    def __init__(self, num_users: int = 12, num_nodes: int = 0, **options: Any) -> None:
        self.task = TinyTags(num_users)
        self.backend = started(self.task, num_nodes or num_users, **options)
        self.grid: Any = self.backend.exchange.grid
        self.counts = self.backend.exchange.dropped
        self.oracle = SerialBackend(trainer=self.task.trainer(SCHEDULE, {}), data=self.task.data)

    def sum(self, cohort=None, *, round_num=1, attempt=1, backend=None, key=None) -> PartialSum:
        attempted = Attempt(
            bound=BOUND, key=key or Key.simulation(1), round_num=round_num, number=attempt
        )
        request = SumRequest(params=self.task.params())
        return (backend or self.backend).sum(request, attempted, cohort or self.task.roster)

    def is_sum_without(self, found: PartialSum, *gone: int, users=(), cohort=None) -> bool:
        """Whether a sum is, to the bit, that of the cohort but for some users and some nodes'."""
        cohort = cohort or self.task.roster
        lost = {*users, *(user for node in gone for user in self.grid.hosts[node].user_ids)}
        others = [user for user in cohort if user not in lost]
        expected = tree.to_dense(self.sum(others, backend=self.oracle).total)
        total = tree.to_dense(found.total)
        return found.num_failed == len(cohort) - len(others) and all(
            np.array_equal(total[name], expected[name]) for name in expected
        )
