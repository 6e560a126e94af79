"""Registry of users by node: asked for once, before the first round is charged.

Nodes answer a `query` with the opaque ids of the users they host. The roster is frozen in the plan
and decides who may be drawn; the registry only says where a drawn user lives. A person's whole
contribution must pass one bound, so an id that two nodes claim contributes zero rather than twice:
it is not known which of them is right. With an operator's file of nodes' public keys only the node
that an id is bound to is believed; claims of other nodes are only counted in a log.

Node ids are dealt out by the SuperLink, anew to whoever comes back; a key pair stays with a node,
and with it every message to the SuperLink is signed. So users are bound to keys, in a file of TOML,
or of JSON in the same shape; a key is what `ssh-keygen` wrote into the `.pub` file, or PEM:

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
from fedpriv.backends.flower.messages import naming_plan, reason_of
from fedpriv.untrusted_text import MOST_ID_CHARS, check_ids

_LOG = logging.getLogger(__name__)
QUERY = f"{MessageType.QUERY}.users"
_NO_QUERY = "No query function registered with name 'users'"  # Flower's, of any other ClientApp
_RECORD, _IDS = "registration", "user-ids"
_MAX_EXAMPLES = 5
_MOST_BYTES = 1 << 26  # of a registration, besides those of the roster's own ids at their longest
_GRACE_SECONDS = 5.0

NodeKeys = Mapping[bytes, frozenset[str]]
"""The users that each key's node hosts, by public key as DER bytes; no other claim counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Registry of the node that each reachable user of the roster lives on.

    Attributes:
        node_of: Node id by user id.
        contested: Users that two nodes claim; they live nowhere.
        nodes: All that were there, whether they host anybody or not.
    """

    node_of: Mapping[str, int] = field(repr=False)
    contested: frozenset[str] = field(default=frozenset(), repr=False)
    nodes: frozenset[int] = frozenset()

    def hosts(self, cohort: Sequence[str]) -> dict[int, list[str]]:
        """Return the drawn users of each node, nodes and users in cohort order.

        A drawn user that no node hosts is left out: it contributes zero.
        """
        found: dict[int, list[str]] = {}
        for user_id in cohort:
            if user_id in self.node_of:
                found.setdefault(self.node_of[user_id], []).append(user_id)
        return found


def registration(user_ids: Iterable[str]) -> RecordDict:
    """Return a node's answer to the query: the ids of its users."""
    return RecordDict({_RECORD: ConfigRecord({_IDS: list(user_ids)})})


def read_registration(content: RecordDict) -> tuple[str, ...]:
    """Return the ids a node claims, each once: a user listed twice is one user.

    Raises:
        ValueError: If they are not a list of short strings.
    """
    record = content.get(_RECORD)
    ids = record.get(_IDS) if isinstance(record, ConfigRecord) else None
    if not isinstance(ids, list):
        raise ValueError("a registration is a list of ids")
    check_ids(ids, "a registration")
    return tuple(dict.fromkeys(str(item) for item in ids))


def register(
    exchange: Exchange,
    roster: Sequence[str],
    *,
    seconds: float,
    poll_seconds: float = 1.0,
    allow_missing: bool = False,
    keys: NodeKeys | None = None,
    plan: str = "",
) -> Registry:
    """Ask every node that appears for its users until the whole roster is found.

    Args:
        exchange: The way to the nodes.
        roster: The frozen user ids.
        seconds: Time to wait for nodes.
        poll_seconds: Pause between looks for new nodes.
        allow_missing: Start without rostered users that no node hosts; they are still
            drawn like everybody, and contribute zero.
        keys: Which node may host whom; nodes whose key is not among them are not even asked. None
            believes every node, and counts an id that two of them claim as contested.
        plan: Digest of the plan that users will be asked under, named to every node: one that
            trains under others only refuses now, before anything is charged.

    Nodes that have not answered a few seconds after everybody was found are not waited for: with
    fewer shards than nodes, most host no user. A node that fails is logged at once, and others are
    waited for as long as one of them could host who is missing. Users of a node that Flower lists
    no longer are free to be claimed again, as by that node under another id.

    Returns:
        The registry. Users that are hosted but not on the roster are ignored: they wait for a new
        plan, and their nodes are notified.

    Raises:
        ValueError: If the roster's ids are no strings, rostered users are missing at the end, or
            all are contested.
    """
    check_ids(roster, "the roster")
    wanted, clock = frozenset(roster), exchange.clock
    deadline = clock() + seconds
    node_of: dict[str, int] = {}
    contested: set[str] = set()
    failures: list[str] = []
    failed: set[int] = set()
    num_unbound, unlisted, num_hosted = 0, Counter[int](), Counter[int]()
    may_host: dict[int, frozenset[str]] = {}  # of every node that appeared
    claims: dict[int, list[str]] = {}  # of each node that answered
    complete_since: float | None = None

    def note_failed(reason: str, node_id: int) -> None:
        failures.append(reason)
        failed.add(node_id)
        _LOG.warning("node %d failed and hosts no user: %s", node_id, reason)

    def claim(node_id: int) -> None:
        for user_id in claims[node_id]:
            if user_id in contested or node_of.setdefault(user_id, node_id) != node_id:
                node_of.pop(user_id, None)
                contested.add(user_id)

    def hopeless() -> bool:
        """Whether only failed nodes, which are not asked again, could host who is missing.

        Where every node may host everybody, all who appeared must have failed: one that is hostile
        would else end it for those that come later.
        """
        missing = wanted - node_of.keys() - contested
        lost = frozenset[str]().union(*(may_host.get(node_id, ()) for node_id in failed))
        others = may_host.keys() - failed
        return bool(failed) and missing <= lost and not (keys is None and others)

    def complete() -> bool:
        return len(node_of) + len(contested) == len(wanted)

    def enough() -> bool:
        nonlocal complete_since
        if complete_since is None and complete():
            complete_since = clock()
        return complete_since is not None and clock() >= complete_since + _GRACE_SECONDS

    while True:
        nodes = list(exchange.grid.get_nodes())
        online = {node.node_id for node in nodes}
        new = [node for node in nodes if node.node_id not in may_host]
        # Of those who are there now: a node may be gone, or come back under another id.
        node_of.clear()
        contested.clear()
        for node_id in claims.keys() & online:
            claim(node_id)
        for node in new:
            may_host[node.node_id] = wanted if keys is None else _bound_to(node.public_key, keys)
        ttl = max(60.0, 2 * seconds)
        replies = exchange.answers(
            (
                Message(naming_plan(plan), node.node_id, QUERY, ttl=ttl, group_id="users")
                for node in new
                if may_host[node.node_id]
            ),
            seconds=max(0.0, deadline - clock()),
            most_bytes=_MOST_BYTES + 4 * MOST_ID_CHARS * len(wanted),
            on_error=lambda reply: note_failed(reason_of(reply), reply.metadata.src_node_id),
            enough=enough,
        )
        for reply in replies:
            node_id = reply.metadata.src_node_id
            try:
                claimed = read_registration(reply.content)
            except ValueError as error:
                note_failed(str(error), node_id)
                continue
            listed = [user_id for user_id in claimed if user_id in wanted]
            believed = [user_id for user_id in listed if user_id in may_host[node_id]]
            unlisted[node_id] += len(claimed) - len(listed)
            num_hosted[node_id] += len(listed)
            num_unbound += len(listed) - len(believed)
            claims[node_id] = believed
            claim(node_id)
        if complete():
            break
        if hopeless():  # a wrong set-up is not waited out
            deadline = min(deadline, clock() + _GRACE_SECONDS)
        if clock() >= deadline:
            missing = sorted(wanted - set(node_of) - contested)
            strangers = [node_id for node_id in +unlisted if not num_hosted[node_id]]
            _check_missing(
                missing, len(wanted), len(may_host), num_hosted, strangers, failures, allow_missing
            )
            break
        exchange.sleep(min(poll_seconds, max(0.0, deadline - clock())))
    unknown = [node_id for node_id, users in may_host.items() if not users]
    notify(exchange.grid, "roster", +unlisted)
    notify(exchange.grid, "key", dict.fromkeys(unknown, len(unknown)))
    if num_unbound:
        _LOG.warning("%d claims on users of other nodes' keys do not count", num_unbound)
    if contested:
        exchange.dropped["contested"] += len(contested)
        _check_contested(sorted(contested), len(wanted))
    return Registry(node_of=node_of, contested=frozenset(contested), nodes=frozenset(may_host))


def _check_contested(contested: Sequence[str], num_users: int) -> None:
    """Warn of users that two nodes claim; refuse to start if all are."""
    text = (
        f"{len(contested)} of {num_users} rostered users are claimed by two nodes or more (such as "
        f"{', '.join(contested[:_MAX_EXAMPLES])}) and contribute zero: one person's contribution "
        "must pass one bound. Bind users to nodes' keys (node-users), let a single node host each, "
        "or give two accounts different ids if they are different people"
    )
    if len(contested) == num_users:
        raise ValueError(text)
    _LOG.warning("%s", text)


def _check_missing(
    missing: Sequence[str],
    num_users: int,
    num_nodes: int,
    num_hosted: Mapping[int, int],
    strangers: Sequence[int],
    failures: Sequence[str],
    allow_missing: bool,
) -> None:
    """Refuse to start without rostered users, or warn of them where that is allowed.

    How many a node hosts says nothing of who is drawn. Strangers are nodes of which all users are
    on no roster.
    """
    text = (
        f"{len(missing)} of {num_users} rostered users are hosted by none of the {num_nodes} "
        f"nodes that appeared (such as {', '.join(missing[:_MAX_EXAMPLES])})"
    )
    if 0 < len(num_hosted) <= _MAX_EXAMPLES:
        hosted = ", ".join(map(str, sorted(num_hosted.values(), reverse=True)))
        text += f"; those that answered host {hosted} rostered users"
    if strangers:
        text += (
            f"; of {len(strangers)} nodes (such as node {strangers[0]}) no user is on the roster: "
            "ids by another key (people.key), other names or another corpus"
        )
    if failures:
        text += f"; {len(failures)} nodes failed, the first with: {failures[0]}"
    if not allow_missing or len(missing) == num_users:
        if any(_NO_QUERY in failure for failure in failures):
            raise ValueError(
                "the ClientApp on the nodes is no UserLevelClientApp, nor has it a function of "
                "fedpriv.flower.bounded: it does not answer who lives there"
            )
        raise ValueError(
            f"{text}; start their nodes, check whom they list (of a ready app: corpus and roster "
            "there), or raise register-seconds (allow-missing-users=true starts without them)"
        )
    _LOG.warning("%s; they will contribute zero", text)


def _bound_to(public_key: bytes, keys: NodeKeys) -> frozenset[str]:
    """Return the users of a node by the key that the SuperLink knows it by; unknown: none."""
    try:
        return keys.get(_der(public_key), frozenset())
    except ValueError:
        return frozenset()


def read_node_keys(path: Path) -> NodeKeys:
    """Return the users of each public key from an operator's file.

    Raises:
        ValueError: If it cannot be read, a key is none, or a user is bound to two keys.
    """
    what = f"node-users {str(path)!r}"
    try:
        text = path.read_text("utf-8")
        found: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ValueError(f"{what} cannot be read: {error}") from error
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{what} names no key; see docs/flower-apps.md")
    keys: dict[bytes, frozenset[str]] = {}
    bound: set[str] = set()
    for text, ids in found.items():
        try:
            key = _der(text.encode())
        except ValueError as error:
            raise ValueError(
                f"{what}: {text!r:.60} is no public key; take the line of a .pub file"
            ) from error
        if not isinstance(ids, list) or not all(isinstance(item, str) and item for item in ids):
            raise ValueError(f"{what}: {ids!r:.80} is not a list of ids")
        if key in keys:
            raise ValueError(f"{what} names key {text!r:.60} twice; bind it once")
        for user_id in ids:
            if user_id in bound:
                raise ValueError(f"{what} names user {user_id!r} twice; bind it once")
            bound.add(user_id)
        keys[key] = frozenset(ids)
    return keys


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


@dataclass(frozen=True, slots=True)
class _Notice:
    """Log lines of the server and of a node; no text of a server's is written into a node's log."""

    level: int
    on_server: str
    on_node: str


_NOTICES = {
    "roster": _Notice(
        logging.INFO,
        "%(users)d hosted users are not on this plan's roster, which is frozen: they wait for a "
        "new plan, and their %(nodes)d nodes are notified",
        "%d of this node's users are not on the roster of the run under way, which is frozen: they "
        "wait for a new plan",
    ),
    "late": _Notice(
        logging.WARNING,
        "%(nodes)d nodes came after users were asked for, and are notified: rostered users on them "
        "take part from the server's next start on (resume), others wait for a new plan",
        "this node came after the run under way had asked who lives where (%d nodes did): its "
        "rostered users take part from the server's next start on, others wait for a new plan",
    ),
    "key": _Notice(
        logging.WARNING,
        "%(nodes)d nodes have keys that node-users does not name: they are asked nothing, and "
        "notified",
        "the run under way asks nothing of this node: its key is not in the server's node-users "
        "(%d nodes); its users wait for a file, or a plan, that names them",
    ),
}


def notify(grid: Grid, why: str, numbers: Mapping[int, int]) -> None:
    """Log, here and on nodes, what nodes wait for; their answers are not looked at.

    Args:
        grid: The way to the nodes.
        why: "roster", "late" or "key".
        numbers: The number that each node's line has, by node id; nothing is logged of none.
    """
    if not numbers:
        return
    notice = _NOTICES[why]
    _LOG.log(
        notice.level, notice.on_server, {"users": sum(numbers.values()), "nodes": len(numbers)}
    )
    for node_id, number in numbers.items():
        content = RecordDict({_WAITING_RECORD: ConfigRecord({_WHY: why, _USERS: number})})
        grid.push_messages(
            [Message(content, node_id, WAITING, ttl=_WAITING_SECONDS, group_id="waiting")]
        )


def note_waiting(message: Message) -> Message:
    """Log a server's notice on this node, and answer it."""
    record = message.content.get(_WAITING_RECORD)
    if isinstance(record, ConfigRecord):
        notice, number = _NOTICES.get(str(record.get(_WHY))), record.get(_USERS)
        if notice is not None and type(number) is int:
            _LOG.warning(notice.on_node, number)
    return Message(RecordDict(), reply_to=message)
