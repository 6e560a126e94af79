"""Flower's strategy of user-level privacy, and the backend that drives it.

Flower's own strategies average what nodes send, weighted by what nodes claim, once everybody has
answered. Here a node is asked for one unweighted sum over named users, the sum is bounded again on
arrival and added at once, and it never becomes a record, a metric or a log line: it leaves only as
the return value of `GridBackend.partial_sum`, to which the round adds noise.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedpriv.backends.backend import Measure
from fedpriv.backends.flower.bounded_sum import BoundedSum
from fedpriv.backends.flower.exchange import Exchange
from fedpriv.backends.flower.messages import SharedRecords
from fedpriv.backends.flower.registry import Registry, register
from fedpriv.mechanisms.bound import Bound
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.evaluate import Metrics
from fedpriv.training.work import TRAIN
from fedpriv.tree import Params

_LOG = logging.getLogger(__name__)
_TTL_SLACK = 60.0
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class GridSettings:
    """How the server deals with its nodes.

    Attributes:
        max_in_flight: Requests outstanding at a time; what bounds the server's memory.
        round_deadline: Seconds after which a round goes on without those who have not answered.
        register_seconds: How long to wait for nodes before the first round.
        allow_missing_users: Start although some rostered users are hosted by no node.
    """

    max_in_flight: int = 16
    round_deadline: float = 600.0
    register_seconds: float = 300.0
    allow_missing_users: bool = False

    def __post_init__(self) -> None:
        for name in ("round_deadline", "register_seconds"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                label = name.replace("_", "-")
                raise ValueError(f"{label} {value!r} must be a positive number of seconds")
        if self.max_in_flight < 1:
            raise ValueError(f"max-in-flight {self.max_in_flight} must be at least 1, such as 16")


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenRound:
    """What one attempt of one round needs between its first request and its last answer."""

    shared: SharedRecords
    hosts: Mapping[int, Sequence[str]] = field(repr=False)
    sum: BoundedSum


class UserLevelStrategy(Strategy):
    """Asks nodes for bounded sums over their drawn users and adds the answers as they come.

    `start` registers users and hands a backend to the caller's own round loop; `configure_train`
    and `aggregate_train` are the two halves of a round that the backend has opened.

    Args:
        roster: The frozen user ids.
        settings: Deadlines and windows; None takes the defaults.

    Attributes:
        counts: Over all rounds, how many answers were dropped or bounded again, by reason.
    """

    def __init__(
        self,
        *,
        roster: Sequence[str],
        settings: GridSettings | None = None,
    ) -> None:
        self._roster = roster
        self._settings = GridSettings() if settings is None else settings
        self._open: _OpenRound | None = None
        self.counts: Counter[str] = Counter()

    def start(  # type: ignore[override]
        self, grid: Grid, loop: Callable[[GridBackend], Outcome]
    ) -> Outcome:
        """Wait for the roster's users, then run the caller's loop with a backend to them.

        Flower's own `start` owns the loop, has no round to resume at and charges nothing; so the
        loop is the caller's, the same visible one that drives every other backend.

        Raises:
            ValueError: If two nodes claim one user or rostered users are missing.
        """
        settings = self._settings
        exchange = Exchange(grid=grid, max_in_flight=settings.max_in_flight, dropped=self.counts)
        registry = register(
            exchange,
            self._roster,
            seconds=settings.register_seconds,
            allow_missing=settings.allow_missing_users,
        )
        self.summary()
        backend = GridBackend(strategy=self, exchange=exchange, registry=registry)
        try:
            return loop(backend)
        finally:
            backend.close()

    def partial_sum(
        self,
        exchange: Exchange,
        registry: Registry,
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
        """Return the sum of the cohort's bounded updates; see `fedpriv.backends.Backend`."""
        opened = _OpenRound(
            shared=SharedRecords.of(
                params=params,
                bound=bound,
                key=key,
                round_num=round_num,
                attempt=attempt,
                work=work,
            ),
            hosts=registry.hosts(cohort),
            sum=BoundedSum(
                params=params if template is None else template,
                limit=bound.sum_limit,
                granularity=bound.granularity,
                round_num=round_num,
                attempt=attempt,
                dropped=self.counts,
            ),
        )
        before = Counter(self.counts)
        self._open = opened
        try:
            requests = self.configure_train(round_num, ArrayRecord(), ConfigRecord(), exchange.grid)
            seconds = self._settings.round_deadline
            self.aggregate_train(round_num, exchange.answers(requests, seconds=seconds))
        finally:
            self._open = None
        if odd := self.counts - before:
            _LOG.warning("round %d, attempt %d: %s", round_num, attempt, dict(odd))
        return opened.sum.result(len(cohort))

    def _opened(self) -> _OpenRound:
        if self._open is None:
            raise ValueError("no round is open; drive rounds with start(grid, loop)")
        return self._open

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterator[Message]:
        """Yield one request for each node that hosts a drawn user, built when it is asked for.

        The open round says what to send: `arrays` and `config` are not looked at, since what may
        go to a node depends on the users it hosts.
        """
        opened = self._opened()
        for node_id, user_ids in opened.hosts.items():
            yield Message(
                opened.shared.request(user_ids),
                node_id,
                MessageType.TRAIN,
                ttl=self._settings.round_deadline + _TTL_SLACK,
                group_id=f"{server_round}.{opened.sum.attempt}",
            )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add answers to the open round's sum as they arrive; the sum itself is not returned."""
        opened = self._opened()
        for reply in replies:
            asked = opened.hosts[reply.metadata.src_node_id]
            opened.sum.add(reply.content, num_users=len(asked))
            del reply
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no messages: users' metrics would leave their nodes without noise."""
        return ()

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return nothing; see `configure_evaluate`."""
        return None

    def summary(self) -> None:
        """Log what this strategy will do."""
        settings = self._settings
        _LOG.info(
            "%d rostered users; at most %d requests in flight, %g s a round",
            len(self._roster),
            settings.max_in_flight,
            settings.round_deadline,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GridBackend:
    """Brings the private work to Flower nodes. A `fedpriv.backends.Backend`.

    Guarantees:
        * The sum equals the in-process backend's to rounding when every node answers.
        * A node that is gone, late, wrong or hostile changes only what its own users contribute,
          by at most their number times the bound, and never stops the round.

    Attributes:
        strategy: What is asked and how answers are added.
        exchange: The way to the nodes.
        registry: Where users live.
        measure: How the server measures a model, as `Task.evaluate`; None measures nothing.
    """

    strategy: UserLevelStrategy
    exchange: Exchange
    registry: Registry
    measure: Measure | None = None

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
        """Return the sum of the cohort's bounded updates."""
        return self.strategy.partial_sum(
            self.exchange,
            self.registry,
            params=params,
            bound=bound,
            cohort=cohort,
            key=key,
            round_num=round_num,
            attempt=attempt,
            work=work,
            template=template,
        )

    def evaluate(self, params: Params, *, public: bool) -> Metrics | None:
        """Return the server's own metrics: users' would leave their nodes without noise."""
        return None if self.measure is None else self.measure(params, public=public)

    def describe(self) -> dict[str, Any]:
        """Return how many nodes host users; what they compute on is their own affair."""
        nodes = set(self.registry.node_of.values())
        return {"name": "flower", "workers": len(nodes), "devices": []}

    def close(self) -> None:
        """Nothing is held: nodes stay as they are."""
