"""Which node hosts which users: asked once, before the first round is charged.

Nodes answer a `query` with the opaque ids of the users they host. The roster is frozen in the plan
and decides who may be drawn; the registry only says where a drawn user lives. A person's whole
contribution must pass one bound, so an id that two nodes claim contributes zero rather than twice:
nobody can tell which of them is right. With an operator's file of nodes' public keys only the node
that an id is bound to is believed, and a claim of anybody else's is nothing but a number in a log.

Node ids are dealt out by the SuperLink, anew to whoever comes back; a key pair is a node's own, and
with it every message to the SuperLink is signed. So users are bound to keys, in a file of TOML, or
of JSON in the same shape; a key is what `ssh-keygen` wrote into the `.pub` file, or PEM:

    "ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQ... ward 7" = ["user-17", "user-31"]

A roster is frozen in the plan, so people who are not on it, and nodes that come after users were
asked for, take no part in the run: the server logs that, and notifies their nodes.
"""

from __future__ import annotations

import json
import logging
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedpriv.backends.flower.exchange import Exchange
from fedpriv.untrusted_text import plain

_LOG = logging.getLogger(__name__)
QUERY = f"{MessageType.QUERY}.users"
_RECORD, _IDS = "registration", "user-ids"
_QUESTION, _PROMISE = "question", "promise"
_MAX_ID_CHARS = 256
_MAX_EXAMPLES = 5
_MOST_BYTES = 1 << 26  # of a registration, besides those of the roster's own ids at their longest
_GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Where every reachable user of the roster lives.

    Attributes:
        node_of: Node id by user id.
        contested: Users that two nodes claim; they live nowhere.
        nodes: All that were there, whether they host anybody or not.
    """

    node_of: Mapping[str, int] = field(repr=False)
    contested: frozenset[str] = field(default=frozenset(), repr=False)
    nodes: frozenset[int] = frozenset()

    def hosts(self, cohort: Sequence[str]) -> dict[int, tuple[str, ...]]:
        """Return the drawn users of each node, nodes and users in cohort order.

        A drawn user that no node hosts is left out: it contributes zero.
        """
        found: dict[int, list[str]] = {}
        for user_id in cohort:
            node_id = self.node_of.get(user_id)
            if node_id is not None:
                found.setdefault(node_id, []).append(user_id)
        return {node_id: tuple(user_ids) for node_id, user_ids in found.items()}


def registration(user_ids: Iterable[str]) -> RecordDict:
    """Return what a node says of itself."""
    return RecordDict({_RECORD: ConfigRecord({_IDS: list(user_ids)})})


def asked_promise(content: RecordDict) -> str:
    """Return the digest of the promise that users are registered for; "" if none is said."""
    record = content.get(_QUESTION)
    found = record.get(_PROMISE, "") if isinstance(record, ConfigRecord) else ""
    return found if isinstance(found, str) else ""


def read_registration(content: RecordDict) -> tuple[str, ...]:
    """Return the ids a node claims, each once: who lists a user again hosts nobody more.

    Raises:
        ValueError: If they are not a list of short strings.
    """
    record = content.get(_RECORD)
    ids = record.get(_IDS) if isinstance(record, ConfigRecord) else None
    if not isinstance(ids, list) or not all(
        isinstance(item, str) and 0 < len(item) <= _MAX_ID_CHARS for item in ids
    ):
        raise ValueError(f"a registration is a list of ids of 1 to {_MAX_ID_CHARS} characters")
    return tuple(dict.fromkeys(str(item) for item in ids))


def register(
    exchange: Exchange,
    roster: Sequence[str],
    *,
    seconds: float,
    poll_seconds: float = 1.0,
    allow_missing: bool = False,
    keys: NodeKeys | None = None,
    promise: str = "",
) -> Registry:
    """Ask every node that appears for its users until the whole roster is found.

    Args:
        exchange: The way to the nodes.
        roster: The frozen user ids.
        seconds: How long to wait for nodes.
        poll_seconds: Pause between looks for new nodes.
        allow_missing: Start without rostered users that no node hosts; they are still
            drawn like everybody, and contribute zero.
        keys: Which node may host whom; nodes whose key is not among them are not even asked. None
            believes every node, and counts an id that two of them claim as contested.
        promise: Digest of what users will be asked under, told to every node: one that trains under
            others only says so now, before anything is charged.

    Nodes that have not answered a few seconds after everybody was found are not waited for: with
    fewer shards than nodes, most host no user.

    Returns:
        The registry. Users that are hosted but not on the roster are ignored: they wait for a new
        plan, and their nodes are told so.

    Raises:
        ValueError: If rostered users are missing at the end, or all are contested.
    """
    wanted = frozenset(roster)
    deadline = exchange.clock() + seconds
    most_bytes = _MOST_BYTES + 4 * _MAX_ID_CHARS * len(wanted)
    node_of: dict[str, int] = {}
    contested: set[str] = set()
    asked: set[int] = set()
    failures: list[str] = []
    num_unbound, unlisted = 0, Counter[int]()
    may_host: dict[int, frozenset[str]] = {}
    complete_since: float | None = None

    def enough() -> bool:
        nonlocal complete_since
        if complete_since is None and len(node_of) + len(contested) == len(wanted):
            complete_since = exchange.clock()
        return complete_since is not None and exchange.clock() >= complete_since + _GRACE_SECONDS

    def note(reply: Message) -> None:
        failures.append(" ".join(plain(reply.error.reason or "no reason given").split()))

    while True:
        new = []
        for node in exchange.grid.get_nodes():
            if node.node_id not in asked:
                asked.add(node.node_id)
                may_host[node.node_id] = wanted if keys is None else keys.of(node.public_key)
                new += [node.node_id] * bool(may_host[node.node_id])
        questions = (_question(node_id, seconds, promise) for node_id in new)
        left = max(0.0, deadline - exchange.clock())
        replies = exchange.answers(
            questions, seconds=left, most_bytes=most_bytes, on_error=note, enough=enough
        )
        for reply in replies:
            node_id = reply.metadata.src_node_id
            try:
                claimed = read_registration(reply.content)
            except ValueError as error:
                _LOG.warning("node %d is left out: %s", node_id, error)
                continue
            listed = [user_id for user_id in claimed if user_id in wanted]
            own = [user_id for user_id in listed if user_id in may_host[node_id]]
            unlisted[node_id] += len(claimed) - len(listed)
            num_unbound += len(listed) - len(own)
            _claim(node_of, contested, node_id, own)
        if len(node_of) + len(contested) == len(wanted):
            break
        if failures:  # a node that failed is not asked again, so wait only a little for others
            deadline = min(deadline, exchange.clock() + _GRACE_SECONDS)
        if exchange.clock() >= deadline:
            missing = sorted(wanted - set(node_of) - contested)
            _refuse_missing(missing, len(wanted), len(asked), failures, allow_missing)
            break
        exchange.sleep(min(poll_seconds, max(0.0, deadline - exchange.clock())))
    say_unlisted(exchange.grid, +unlisted)
    say_unknown(exchange.grid, [node_id for node_id in asked if not may_host[node_id]])
    if num_unbound:
        _LOG.warning("%d claims on users of other nodes' keys do not count", num_unbound)
    if contested:
        exchange.dropped["contested"] += len(contested)
        _say_contested(sorted(contested), len(wanted))
    return Registry(node_of=node_of, contested=frozenset(contested), nodes=frozenset(asked))


def _question(node_id: int, seconds: float, promise: str) -> Message:
    question = RecordDict()
    if promise:
        question[_QUESTION] = ConfigRecord({_PROMISE: promise})
    return Message(question, node_id, QUERY, ttl=max(60.0, 2 * seconds), group_id="users")


def _claim(
    node_of: dict[str, int], contested: set[str], node_id: int, user_ids: Sequence[str]
) -> None:
    for user_id in user_ids:
        if user_id in contested or node_of.setdefault(user_id, node_id) != node_id:
            node_of.pop(user_id, None)
            contested.add(user_id)


def _say_contested(contested: Sequence[str], num_users: int) -> None:
    text = (
        f"{len(contested)} of {num_users} rostered users are claimed by two nodes or more (such as "
        f"{', '.join(contested[:_MAX_EXAMPLES])}) and contribute zero: one person's contribution "
        "must pass one bound. Bind users to nodes' keys (node-users), let a single node host each, "
        "or give two accounts different ids if they are different people"
    )
    if len(contested) == num_users:
        raise ValueError(text)
    _LOG.warning("%s", text)


def _refuse_missing(
    missing: Sequence[str],
    num_users: int,
    num_nodes: int,
    failures: Sequence[str],
    allow_missing: bool,
) -> None:
    text = (
        f"{len(missing)} of {num_users} rostered users are hosted by none of the {num_nodes} "
        f"nodes that appeared (such as {', '.join(missing[:_MAX_EXAMPLES])})"
    )
    if failures:
        text += f"; {len(failures)} nodes failed, the first with: {failures[0]:.400}"
    if not allow_missing or len(missing) == num_users:
        raise ValueError(
            f"{text}; start their nodes, check corpus and roster there, or raise "
            "register-seconds (allow-missing-users=true starts without them)"
        )
    _LOG.warning("%s; they will contribute zero", text)


_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKeys:
    """The users that each key's node hosts; nobody else's claim on one of them counts.

    Attributes:
        users: Ids by public key, as DER bytes.
    """

    users: Mapping[bytes, frozenset[str]] = field(repr=False)

    def of(self, public_key: bytes) -> frozenset[str]:
        """Return the users of a node by the key that the SuperLink knows it by; unknown: none."""
        try:
            return self.users.get(_der(public_key), _NONE)
        except ValueError:
            return _NONE


def read_node_keys(path: Path) -> NodeKeys:
    """Return what an operator wrote down.

    Raises:
        ValueError: If it cannot be read, a key is none, or a user is bound to two keys.
    """
    try:
        text = path.read_text("utf-8")
        found: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ValueError(f"node-users {str(path)!r} cannot be read: {error}") from error
    if not isinstance(found, dict) or not found:
        raise ValueError(f"node-users {str(path)!r} names no key; see docs/flower-apps.md")
    users: dict[bytes, frozenset[str]] = {}
    bound: set[str] = set()
    for text, ids in found.items():
        key = _key_in(path, text)
        if not isinstance(ids, list) or not all(isinstance(item, str) and item for item in ids):
            raise ValueError(f"node-users {str(path)!r}: {ids!r:.80} is not a list of ids")
        twice = bound.intersection(ids) or (len(set(ids)) < len(ids) and set(ids))
        if twice or key in users:
            what = f"user {min(twice)!r}" if twice else f"key {text!r:.60}"
            raise ValueError(f"node-users {str(path)!r} names {what} twice; bind it once")
        users[key] = frozenset(ids)
        bound.update(ids)
    return NodeKeys(users=users)


def _key_in(path: Path, text: str) -> bytes:
    try:
        return _der(text.encode())
    except ValueError as error:
        raise ValueError(
            f"node-users {str(path)!r}: {text!r:.60} is no public key; take the line of a .pub file"
        ) from error


def _der(key: bytes) -> bytes:
    """Return the one form of a public key; raise `ValueError` if it is none."""
    try:
        found = (
            serialization.load_pem_public_key(key)
            if key.lstrip().startswith(b"-----")
            else serialization.load_ssh_public_key(key.strip())
        )
    except (UnsupportedAlgorithm, TypeError) as error:
        raise ValueError(str(error)) from error
    return found.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


WAITING = f"{MessageType.QUERY}.waiting"
_WAITING_RECORD, _WHY, _USERS = "waiting", "why", "users"
_WAITING_SECONDS = 300.0
#: What a node says for a reason; no text of a server's is ever written into its log.
_REASONS = {
    "roster": "%d of this node's users are not on the roster of the run under way, which is "
    "frozen: they wait for a new plan",
    "late": "this node came after the run under way had asked who lives where (%d nodes did): its "
    "rostered users take part from the server's next start on, others wait for a new plan",
    "key": "the run under way asks nothing of this node: its key is not in the server's "
    "node-users (%d nodes); its users wait for a file, or a plan, that names them",
}


def _notify(grid: Grid, why: str, numbers: Mapping[int, int]) -> None:
    """Tell nodes what they wait for; what they answer is not looked at.

    Args:
        grid: The way to the nodes.
        why: "roster", "late" or "key".
        numbers: How many are meant, by node id.
    """
    for node_id, number in numbers.items():
        record = ConfigRecord({_WHY: why, _USERS: number})
        content = RecordDict({_WAITING_RECORD: record})
        grid.push_messages(
            [Message(content, node_id, WAITING, ttl=_WAITING_SECONDS, group_id="waiting")]
        )


def note_waiting(message: Message) -> Message:
    """Write what a server told this node into its log, in words of ours."""
    record = message.content.get(_WAITING_RECORD)
    if isinstance(record, ConfigRecord):
        said, number = _REASONS.get(str(record.get(_WHY))), record.get(_USERS)
        if said is not None and type(number) is int:
            _LOG.warning(said, number)
    return Message(RecordDict(), reply_to=message)


def say_unlisted(grid: Grid, numbers: Mapping[int, int]) -> None:
    """Say, here and to the nodes, that they host users who are not on the roster.

    Args:
        grid: The way to the nodes.
        numbers: Of users, by node id.
    """
    if not numbers:
        return
    _LOG.info(
        "%d hosted users are not on this plan's roster, which is frozen: they wait for a new plan, "
        "and their %d nodes are notified",
        sum(numbers.values()),
        len(numbers),
    )
    _notify(grid, "roster", numbers)


def say_unknown(grid: Grid, node_ids: Sequence[int]) -> None:
    """Say, here and to the nodes, that nobody is bound to their keys."""
    if not node_ids:
        return
    _LOG.warning(
        "%d nodes have keys that node-users does not name: they are asked nothing, and notified",
        len(node_ids),
    )
    _notify(grid, "key", dict.fromkeys(node_ids, len(node_ids)))


class Latecomers:
    """Nodes that came after users were asked for."""

    def __init__(self, grid: Grid, known: Sequence[int]) -> None:
        """Take those that came in time."""
        self._grid, self._known = grid, set(known)

    def look(self) -> None:
        """Say, here and to them, that nodes have come too late; each is told once."""
        new = [node.node_id for node in self._grid.get_nodes() if node.node_id not in self._known]
        if not new:
            return
        self._known.update(new)
        _LOG.warning(
            "%d nodes came after users were asked for, and are notified: rostered users on them "
            "take part from the server's next start on (resume), others wait for a new plan",
            len(new),
        )
        _notify(self._grid, "late", dict.fromkeys(new, len(new)))
