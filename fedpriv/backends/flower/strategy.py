"""Flower backend: finds the node of each user and sums their bounded updates each round.

Flower's own strategies average what nodes send, weighted by what nodes claim, once everybody has
answered. Here a node is asked for one unweighted sum over named users. The sum is checked against
its users' limit on arrival, dropped if it is longer, and added at once; it never becomes a record,
a metric or a log line: it leaves only as the return value of `GridBackend.sum`, to which the
round adds noise.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from flwr.app import ConfigRecord, Message, MessageType
from flwr.serverapp import Grid

from fedpriv.backends.backend import Backend, Measure
from fedpriv.backends.flower.bounded_sum import BoundedSum
from fedpriv.backends.flower.exchange import Exchange
from fedpriv.backends.flower.messages import SharedRecords, reason_of
from fedpriv.backends.flower.registry import NodeKeys, Registry, notify, register
from fedpriv.backends.flower.waiting import Every, some, some_nodes
from fedpriv.ranges import positive_float, positive_int
from fedpriv.sums import PartialSum
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.evaluate import Metrics
from fedpriv.training.failures import log_of_users, users_not_logged
from fedpriv.training.work import Attempt
from fedpriv.tree import Params

_LOG = logging.getLogger(__name__)
_TTL_SLACK = 60.0
_LOOKS = 10.0  # seconds between two looks for nodes that are gone, in a round that waits


@dataclass(frozen=True, slots=True, kw_only=True)
class GridSettings:
    """Settings of the server: deadlines, windows, and which nodes are believed.

    Attributes:
        max_in_flight: Answers that are pulled at a time; what bounds the server's memory.
        round_deadline: Seconds after which a round goes on without those who have not answered.
        register_seconds: How long to wait for nodes before the first round.
        allow_missing_users: Start although some rostered users are hosted by no node.
        node_users: Which node may host whom, by its public key; None believes every node.
        allow_unauthenticated_nodes: Let secure runs go to nodes that no key identifies: then
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
                "SuperNodes; or allow-unauthenticated-nodes=true, on a machine that only you reach"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GridBackend(Backend):
    """Brings the private work to Flower nodes.

    Guarantees:
        * The sum equals the in-process backend's to rounding when every node answers.
        * A node that is gone, late, wrong or hostile changes only what its own users contribute,
          by at most their number times the bound, and never stops the round. Which users are its
          own, `node_users` says. Without it a node may claim any user: who is claimed by two nodes
          contributes zero, and a run all of whose users are claimed twice does not start.

    Attributes:
        exchange: The way to the nodes; counts in `dropped` what was dropped.
        registry: Where users live.
        settings: Deadlines, and who may be a node.
        measure: How the server measures a model, as `Task.evaluate`; None measures nothing.
        plan: Digest of the plan that users are asked under; "" where none is named.
        known: Nodes that came in time or were notified that they are late.
        away: Nodes that host users and were not online when they were last looked for.
        on_online: Called with how many of the nodes that host users are online, when that changes.
        config: What a server tells the users' training function, the same for all of them.
    """

    trains_again: ClassVar[bool] = False
    exchange: Exchange
    registry: Registry
    settings: GridSettings
    measure: Measure | None = None
    plan: str = ""
    known: set[int] = field(default_factory=set, repr=False)
    away: set[int] = field(default_factory=set, repr=False)
    on_online: Callable[[int], None] = field(default=lambda number: None, repr=False)
    config: ConfigRecord | None = None

    def sum(self, request: SumRequest, attempt: Attempt, cohort: Sequence[str]) -> PartialSum:
        """Return the sum of the cohort's bounded contributions, added as they arrive.

        Raises:
            ValueError: If the key is of a secure run, and the nodes may be anybody.
        """
        mode = attempt.key.mode
        self.check_mode(mode)
        self.look_at_nodes()
        counts = self.exchange.dropped
        hosts, before = self.registry.hosts(cohort), Counter(counts)
        nonce = secrets.token_hex(16)
        shared = SharedRecords.of(request, attempt, nonce=nonce, plan=self.plan, config=self.config)
        total = BoundedSum(request=request, attempt=attempt, nonce=nonce, dropped=counts)
        requests = self._requests(shared, hosts, f"{attempt.round_num}.{attempt.number}")

        def note_failed(reply: Message) -> None:
            failed = f"a node failed: {reason_of(reply)}"
            log_of_users(_LOG, logging.WARNING, "%s", failed)
            total.first_error = total.first_error or failed

        with users_not_logged(attempt.key):
            for reply in self.exchange.answers(
                requests,
                seconds=self.settings.round_deadline,
                on_error=note_failed,
                on_wait=self._waiting(attempt, hosts),
            ):
                asked = hosts[reply.metadata.src_node_id]
                total.add(reply.content, num_users=len(asked))
                del reply  # before the next one is pulled
            if dropped := counts - before:
                counted = ", ".join(f"{number} {kind}" for kind, number in dropped.items())
                numbers = attempt.round_num, attempt.number, counted
                log_of_users(_LOG, logging.WARNING, "round %d, attempt %d: answers %s", *numbers)
        # Nodes that are away may come back: a round without them is no failure of all users.
        none_arrived = total.num_added == 0 and (dropped["missing"] or dropped["late"])
        if mode == "secure" or none_arrived:
            total.first_error = None
        found = total.result(len(cohort))
        if mode == "secure":
            return found
        unhosted = len(cohort) - sum(map(len, hosts.values()))
        reasons = [f"{unhosted} users are hosted by no node"] if unhosted else []
        reasons += [f"{dropped[name]} answers were {name}" for name in sorted(dropped)]
        return replace(found, absent="; ".join(reasons) or None)

    def _waiting(
        self, attempt: Attempt, hosts: Mapping[int, Sequence[str]]
    ) -> Callable[[float, Collection[int]], None]:
        """Return what says that a round waits, and which nodes are gone meanwhile.

        Of a secure run it says for how long alone: who has not answered was asked, and so drawn.
        """
        notices, looks, names = Every(), Every(first=_LOOKS, every=_LOOKS), self.registry.names
        most = self.settings.round_deadline

        def users(node_id: int) -> str:
            return f"{names.get(node_id, node_id)} ({some(hosts[node_id], most=3)})"

        def look(age: float, pending: Collection[int]) -> None:
            if notices.due(age):
                if attempt.key.mode == "secure":
                    text = "round %d has taken %d s, at most %g"
                    _LOG.info(text, attempt.round_num, age, most)
                else:
                    text = "round %d has waited %d s, at most %g, for %s"
                    _LOG.info(text, attempt.round_num, age, most, some(map(users, sorted(pending))))
            if looks.due(age):
                self.look_at_nodes()

        return look

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

    def look_at_nodes(self) -> int:
        """Return how many of the nodes that host users are online, and log it where that changed.

        Nodes that came after users were asked for are notified, each once.

        Guarantees:
            * It is Flower's list, kept by heartbeats of SuperNodes, which send them whether or not
              a user of theirs was drawn, and train no one: it counts no round's users. A
              SuperNode of `fedpriv supernode` is on it as long as a client app asks it for work.
        """
        online = {node.node_id for node in self.exchange.grid.get_nodes()}
        late, hosts = sorted(online - self.known), set(self.registry.node_of.values())
        self.known.update(late)
        notify(self.exchange.grid, "late", dict.fromkeys(late, len(late)))
        away = hosts - online
        number = len(hosts) - len(away)
        if away != self.away:
            missed = f"; not {some_nodes(away, self.registry.names)}: their users contribute zero"
            _LOG.log(
                logging.WARNING if away - self.away else logging.INFO,
                "%d of %d registered nodes are online%s",
                number,
                len(hosts),
                f"{missed} until they are back" if away else "",
            )
            self.away.clear()
            self.away.update(away)
            self.on_online(number)
        return number

    def under(self, plan: str) -> GridBackend:
        """Return the backend that names the plan to nodes."""
        return replace(self, plan=plan)

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


def connect(
    grid: Grid,
    roster: Sequence[str],
    settings: GridSettings | None = None,
    *,
    plan: str = "",
    counts: Counter[str] | None = None,
) -> GridBackend:
    """Wait for the roster's users, and return a backend to them, for `averaging` or a loop.

    Args:
        grid: Flower's.
        roster: The frozen user ids.
        settings: Deadlines and windows; None for their defaults.
        plan: `fedpriv.privacy.plan.plan_digest` of what will be asked, for nodes that train under
            some plans only: they refuse others before anything is charged. "" leaves that to the
            first round.
        counts: Where it is counted, over all rounds, how many answers were dropped, by reason.

    Raises:
        ValueError: If rostered users are missing, or all are claimed by two nodes.
    """
    settings = GridSettings() if settings is None else settings
    exchange = Exchange(
        grid=grid,
        max_in_flight=settings.max_in_flight,
        dropped=Counter() if counts is None else counts,
    )
    registry = register(
        exchange,
        roster,
        seconds=settings.register_seconds,
        allow_missing=settings.allow_missing_users,
        keys=settings.node_users,
        plan=plan,
    )
    _LOG.info(
        "%d rostered users; at most %d answers pulled at a time, %g s a round",
        len(roster),
        settings.max_in_flight,
        settings.round_deadline,
    )
    return GridBackend(
        exchange=exchange, registry=registry, settings=settings, known=set(registry.names)
    )
