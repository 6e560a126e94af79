"""What a ServerApp starts in the place of a strategy of Flower's, and the backend that it starts.

Flower's own strategies own the loop and average what nodes send, weighted by what nodes claim, once
everybody has answered. Here the loop is the caller's, a node is asked for one unweighted sum over
named users, the sum is bounded again on arrival and added at once, and it never becomes a record, a
metric or a log line: it leaves only as the return value of `GridBackend.partial_sum`, to which the
round adds noise.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedpriv.backends.backend import Measure
from fedpriv.backends.flower.bounded_sum import BoundedSum
from fedpriv.backends.flower.exchange import Exchange
from fedpriv.backends.flower.messages import SharedRecords, most_bytes
from fedpriv.backends.flower.registry import Latecomers, NodeKeys, Registry, register
from fedpriv.mechanisms.bounds import Bound
from fedpriv.ranges import positive_float, positive_int
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.evaluate import Metrics
from fedpriv.training.failures import say_of_users, users_unsaid
from fedpriv.training.work import TRAIN
from fedpriv.tree import Params
from fedpriv.untrusted_text import plain

_LOG = logging.getLogger(__name__)
_TTL_SLACK = 60.0
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class GridSettings:
    """How the server deals with its nodes.

    Attributes:
        max_in_flight: Answers that are pulled at a time; what bounds the server's memory.
        round_deadline: Seconds after which a round goes on without those who have not answered.
        register_seconds: How long to wait for nodes before the first round.
        allow_missing_users: Start although some rostered users are hosted by no node.
        node_users: Which node may host whom, by its public key; None believes every node.
        allow_unauthenticated_nodes: Let secure runs go to nodes that no key stands for: then
            anybody who reaches the SuperLink may claim users, and learns that they take part.
    """

    max_in_flight: int = 16
    round_deadline: float = 600.0
    register_seconds: float = 300.0
    allow_missing_users: bool = False
    node_users: NodeKeys | None = field(default=None, repr=False)
    allow_unauthenticated_nodes: bool = False

    def __post_init__(self) -> None:
        for name in ("round_deadline", "register_seconds"):
            positive_float(name.replace("_", "-"), getattr(self, name))
        positive_int("max-in-flight", self.max_in_flight)

    def check_mode(self, mode: str) -> None:
        """Refuse a secure run on nodes that anybody may be.

        Raises:
            ValueError: With what to do.
        """
        known = self.node_users is not None or self.allow_unauthenticated_nodes
        if mode == "secure" and not known:
            raise ValueError(
                "a secure run needs nodes that are known by their public keys: give node-users, a "
                "file from keys to users' ids, and a SuperLink with TLS that authenticates "
                "SuperNodes; or allow-unauthenticated-nodes=true, on a machine of your own"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GridBackend:
    """Brings the private work to Flower nodes. A `fedpriv.backends.Backend`.

    Guarantees:
        * The sum equals the in-process backend's to rounding when every node answers.
        * A node that is gone, late, wrong or hostile changes only what its own users contribute,
          by at most their number times the bound, and never stops the round.

    Attributes:
        exchange: The way to the nodes; counts in `dropped` what was dropped or bounded again.
        registry: Where users live.
        settings: Deadlines, and who may be a node.
        measure: How the server measures a model, as `Task.evaluate`; None measures nothing.
        promise: Digest of the promise that users are asked under; "" where nobody said so.
        late: Looks each round for nodes that came after users were asked for; None does not.
    """

    exchange: Exchange
    registry: Registry
    settings: GridSettings
    measure: Measure | None = None
    promise: str = ""
    late: Latecomers | None = field(default=None, repr=False)

    def partial_sum(
        self,
        *,
        params: Params,
        bound: Bound,
        cohort: Sequence[str],
        key: Key,
        round_num: int,
        attempt: int,
        work: str = TRAIN,
        template: Params | None = None,
    ) -> PartialSum:
        """Return the sum of the cohort's bounded contributions, added as they arrive.

        Raises:
            ValueError: If the key is of a secure run, and the nodes may be anybody.
        """
        self.check_mode(key.mode)
        if self.late is not None:
            self.late.look()
        counts = self.exchange.dropped
        hosts, before = self.registry.hosts(cohort), Counter(counts)
        nonce = secrets.token_hex(16)
        shared = SharedRecords.of(
            params=params,
            bound=bound,
            key=key,
            round_num=round_num,
            attempt=attempt,
            nonce=nonce,
            work=work,
            promise=self.promise,
        )
        total = BoundedSum(
            params=params if template is None else template,
            limit=bound.sum_limit,
            granularity=bound.granularity,
            round_num=round_num,
            attempt=attempt,
            nonce=nonce,
            dropped=counts,
        )
        requests = self._requests(shared, hosts, f"{round_num}.{attempt}")

        def note_failed(reply: Message) -> None:
            total.first_error = total.first_error or _say_failed(reply)

        with users_unsaid(key):
            for reply in self.exchange.answers(
                requests,
                seconds=self.settings.round_deadline,
                most_bytes=most_bytes(total.params),
                on_error=note_failed,
            ):
                asked = hosts[reply.metadata.src_node_id]
                total.add(reply.content, num_users=len(asked))
                del reply  # before the next one is pulled
            if odd := counts - before:
                said = "round %d, attempt %d: %s"
                say_of_users(_LOG, logging.WARNING, said, round_num, attempt, dict(odd))
        away = total.num_added == 0 and (odd["missing"] or odd["late"])
        if key.mode == "secure" or away:  # who is away may come back: that is no failure of all
            total.first_error = None
        return total.result(len(cohort))

    def _requests(
        self, shared: SharedRecords, hosts: Mapping[int, Sequence[str]], group: str
    ) -> Iterator[Message]:
        """Yield one request for each node that hosts a drawn user, built when it is asked for."""
        clock = self.exchange.clock
        deadline = clock() + self.settings.round_deadline
        for node_id, user_ids in hosts.items():
            yield Message(
                shared.request(user_ids, max(0.0, deadline - clock())),
                node_id,
                MessageType.TRAIN,
                ttl=self.settings.round_deadline + _TTL_SLACK,
                group_id=group,
            )

    def under(self, promise: str) -> GridBackend:
        """Return the backend that tells nodes under what promise they are asked."""
        return replace(self, promise=promise)

    def check_mode(self, mode: str) -> None:
        """Refuse a secure run on nodes that anybody may be, as `GridSettings.check_mode`."""
        self.settings.check_mode(mode)

    def evaluate(self, params: Params, *, public: bool) -> Metrics | None:
        """Return the server's own metrics: users' would leave their nodes without noise."""
        return None if self.measure is None else self.measure(params, public=public)

    def describe(self) -> dict[str, Any]:
        """Return how many nodes host users; what they compute on is their own affair."""
        nodes = set(self.registry.node_of.values())
        return {"name": "flower", "workers": len(nodes), "devices": []}

    def close(self) -> None:
        """Nothing is held: nodes stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLevelStrategy:
    """Finds the roster's users on a grid, and runs the caller's loop with a backend to them.

    It is started where a strategy of Flower's is, and is no subclass of theirs: their hooks answer
    for averages that leave a round, where here nothing may leave that was not charged and noised.

    Attributes:
        roster: The frozen user ids.
        settings: Deadlines and windows.
        promise: `fedpriv.privacy.plan.plan_digest` of what will be asked, for nodes
            that train under some promises only: they refuse others before anything is charged. ""
            leaves that to the first round.
        counts: Over all rounds, how many answers were dropped or bounded again, by reason.
    """

    roster: Sequence[str] = field(repr=False)
    settings: GridSettings = field(default_factory=GridSettings)
    promise: str = ""
    counts: Counter[str] = field(default_factory=Counter, init=False, repr=False)

    def start(self, grid: Grid, loop: Callable[[GridBackend], Outcome]) -> Outcome:
        """Wait for the roster's users, then run the caller's loop with a backend to them.

        Flower's own `start` owns the loop, has no round to resume at and charges nothing; so the
        loop is the caller's, the same visible one that drives every other backend.

        Raises:
            ValueError: If rostered users are missing, or all are claimed by two nodes.
        """
        settings = self.settings
        exchange = Exchange(grid=grid, max_in_flight=settings.max_in_flight, dropped=self.counts)
        registry = register(
            exchange,
            self.roster,
            seconds=settings.register_seconds,
            allow_missing=settings.allow_missing_users,
            keys=settings.node_users,
            promise=self.promise,
        )
        _LOG.info(
            "%d rostered users; at most %d answers pulled at a time, %g s a round",
            len(self.roster),
            settings.max_in_flight,
            settings.round_deadline,
        )
        backend = GridBackend(
            exchange=exchange,
            registry=registry,
            settings=settings,
            late=Latecomers(grid, sorted(registry.nodes)),
        )
        try:
            return loop(backend)
        finally:
            backend.close()


def _say_failed(reply: Message) -> str:
    """Log why a node failed, in one line, but in a secure run: its words are its own; return it."""
    reason = " ".join(plain(reply.error.reason or "no reason given").split())
    say_of_users(_LOG, logging.WARNING, "a node failed: %.400s", reason)
    return f"a node failed: {reason:.400}"
