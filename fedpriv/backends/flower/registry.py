"""Registry of users by node: asked for once, before the first round is charged.

Nodes answer a `query` with the opaque ids of the users they host. The roster is frozen in the plan
and decides who may be drawn; the registry only says where a drawn user lives. A person's whole
contribution must pass one bound, so an id that two nodes claim contributes zero rather than twice:
it is not known which of them is right. With an operator's file of nodes' public keys only the node
that an id is bound to is believed; claims of other nodes are only counted in a log.

The SuperLink deals out node ids, new ones to nodes that come back; a key pair stays with a node,
and signs every message to the SuperLink. So users are bound to keys, in a file of TOML, or
of JSON in the same shape; a key is what `ssh-keygen` wrote into the `.pub` file, or PEM:

    "ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQ... ward 7" = ["user-17", "user-31"]

A roster is frozen in the plan, so people who are not on it, and nodes that come after users were
asked for, take no part in the run: the server logs that, and notifies their nodes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedpriv.backends.flower.exchange import Exchange
from fedpriv.backends.flower.messages import naming_plan, reason_of
from fedpriv.backends.flower.waiting import Every, some, some_nodes
from fedpriv.untrusted_text import check_ids, plain

_LOG = logging.getLogger(__name__)
QUERY = f"{MessageType.QUERY}.users"
_NO_QUERY = "No query function registered with name 'users'"  # Flower's, of any other ClientApp
_RECORD, _IDS = "registration", "user-ids"
_MAX_EXAMPLES = 5
_GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyHolder:
    """The node of a public key.

    Attributes:
        name: What the operator wrote behind the key, or else the key's fingerprint, as
            `ssh-keygen -l` prints it.
        user_ids: The users that it alone hosts.
    """

    name: str
    user_ids: frozenset[str] = field(repr=False)


NodeKeys = Mapping[bytes, KeyHolder]
"""Nodes by public key, as DER bytes; no claim of another node counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Registry of the node that each reachable user of the roster lives on.

    Attributes:
        node_of: Node id by user id.
        contested: Users that two nodes claim; they live nowhere.
        names: Of all nodes that were there, whether they host anybody or not, by node id.
    """

    node_of: Mapping[str, int] = field(repr=False)
    contested: frozenset[str] = field(default=frozenset(), repr=False)
    names: Mapping[int, str] = field(default_factory=dict)

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


_PAUSE_SECONDS = 1.0  # between two looks for new nodes


def register(
    exchange: Exchange,
    roster: Sequence[str],
    *,
    seconds: float,
    allow_missing: bool = False,
    keys: NodeKeys | None = None,
    plan: str = "",
) -> Registry:
    """Ask every node that appears for its users until the whole roster is found.

    Args:
        exchange: The way to the nodes.
        roster: The frozen user ids.
        seconds: Time to wait for nodes.
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
    failed: set[int] = set()
    may_host: dict[int, frozenset[str]] = {}  # of every node that appeared
    seen, notices, began = _Seen(keys=keys), Every(), clock()
    complete_since: float | None = None

    def note_failed(reason: str, node_id: int) -> None:
        seen.failures.append(f"{seen.names[node_id]}: {reason}")
        failed.add(node_id)
        _LOG.warning("%s failed and hosts no user: %s", seen.names[node_id], reason)

    def claim(node_id: int) -> None:
        for user_id in seen.claims[node_id]:
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

    def waiting() -> None:
        """Say that users are waited for, and nothing of how many were found."""
        if notices.due(clock() - began):
            _LOG.info(
                "waiting for the roster's users for %d s, at most %g (register-seconds)%s",
                clock() - began,
                seconds,
                seen.described(),
            )

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
        for node_id in seen.claims.keys() & online:
            claim(node_id)
        for node in new:
            holder = None if keys is None else _holder_of(node.public_key, keys)
            named = "" if holder is None else f"{holder.name}, "
            seen.names[node.node_id] = f"{named}node {node.node_id}"
            bound = frozenset[str]() if holder is None else holder.user_ids
            may_host[node.node_id] = wanted if keys is None else bound
        ttl = max(60.0, 2 * seconds)
        replies = exchange.answers(
            (
                Message(naming_plan(plan), node.node_id, QUERY, ttl=ttl, group_id="users")
                for node in new
                if may_host[node.node_id]
            ),
            seconds=max(0.0, deadline - clock()),
            on_error=lambda reply: note_failed(reason_of(reply), reply.metadata.src_node_id),
            enough=enough,
            on_wait=lambda age, pending: waiting(),
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
            seen.unlisted[node_id] += len(claimed) - len(listed)
            seen.hosted[node_id] += len(listed)
            seen.note_foreign(node_id, set(listed).difference(believed))
            seen.claims[node_id] = believed
            claim(node_id)
        if complete():
            break
        if hopeless():  # a wrong set-up is not waited out
            deadline = min(deadline, clock() + _GRACE_SECONDS)
        if clock() >= deadline:
            missing = wanted - node_of.keys() - contested
            _check_missing(seen, missing, contested, len(wanted), allow_missing)
            break
        waiting()
        exchange.sleep(min(_PAUSE_SECONDS, max(0.0, deadline - clock())))
    unknown = [node_id for node_id, users in may_host.items() if not users]
    notify(exchange.grid, "roster", +seen.unlisted)
    notify(exchange.grid, "key", dict.fromkeys(unknown, len(unknown)))
    for claims in seen.foreign_claims():
        _LOG.warning("%s; these claims do not count", claims)
    if contested:
        exchange.dropped["contested"] += len(contested)
        _check_contested(seen, contested, len(wanted))
    return Registry(node_of=node_of, contested=frozenset(contested), names=seen.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The nodes that appeared and what they answered.

    Attributes:
        keys: As of `register`.
        names: By node id, as all else.
        claims: Users of each node that answered.
        hosted: How many rostered users each lists, its own or others'.
        unlisted: How many others.
        foreign: How many rostered users each lists of which other holder's.
        failures: What nodes that failed said, with their names.
    """

    keys: NodeKeys | None
    names: dict[int, str] = field(default_factory=dict)
    claims: dict[int, list[str]] = field(default_factory=dict)
    hosted: Counter[int] = field(default_factory=Counter)
    unlisted: Counter[int] = field(default_factory=Counter)
    foreign: Counter[tuple[int, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def by_holder(self, user_ids: Iterable[str]) -> Counter[str]:
        """Return how many of some users are bound to each holder's key."""
        held = {u: one.name for one in (self.keys or {}).values() for u in one.user_ids}
        return Counter(held.get(user_id, "no key") for user_id in user_ids)

    def note_foreign(self, node_id: int, user_ids: Iterable[str]) -> None:
        """Note users that a node lists and that are bound to others' keys."""
        for name, number in self.by_holder(user_ids).items():
            self.foreign[node_id, name] = number

    def foreign_claims(self) -> list[str]:
        """Return a phrase for each node and each holder whose users it lists."""
        return [
            f"{self.names[node_id]} lists {number} users whom node-users binds to {name}"
            for (node_id, name), number in self.foreign.items()
        ]

    def described(self) -> str:
        """Return which nodes there are, and what of them is still to come."""
        asked = self.names.keys() - self.claims.keys()
        parts = [f"{len(self.claims)} of {len(self.names)} nodes that appeared have answered"]
        if asked:
            parts.append(f"not {some_nodes(asked, self.names)}")
        if self.keys is not None:
            there = {name.rpartition(", ")[0] for name in self.names.values()}
            away = sorted({one.name for one in self.keys.values()} - there)
            if away:
                parts.append(f"of node-users {some(away)} did not appear")
        return "".join(f"; {part}" for part in parts)

    def twice(self, contested: Iterable[str]) -> str:
        """Return which nodes claim the same users, and how many."""
        claims = {node_id: frozenset(users) for node_id, users in self.claims.items()}
        by_nodes = Counter(
            tuple(node_id for node_id, users in claims.items() if user_id in users)
            for user_id in contested
        )
        return some(
            f"{number} by {' and by '.join(self.names[node_id] for node_id in nodes)}"
            for nodes, number in by_nodes.most_common()
        )


def _check_contested(seen: _Seen, contested: Collection[str], num_users: int) -> None:
    """Warn of users that two nodes claim; refuse to start if all are."""
    text = (
        f"{len(contested)} of {num_users} rostered users are claimed by two nodes or more "
        f"({seen.twice(contested)}) and contribute zero: one person's contribution must pass one "
        "bound. Bind users to nodes' keys (node-users), let a single node host each (give each its "
        "own partition-id), or give two accounts different ids if they are different people"
    )
    if len(contested) == num_users:
        raise ValueError(text)
    _LOG.warning("%s", text)


def _check_missing(
    seen: _Seen,
    missing: Collection[str],
    contested: Collection[str],
    num_users: int,
    allow_missing: bool,
) -> None:
    """Refuse to start without rostered users, or warn of them where that is allowed.

    Nodes are named, and no user is. How many a node hosts says nothing of who is drawn.
    """
    text = (
        f"{len(missing)} of {num_users} rostered users are hosted by none of the "
        f"{len(seen.names)} nodes that appeared"
    )
    if seen.keys is not None:
        bound = seen.by_holder(missing).most_common()
        text += f": {some(f'{number} of {name}' for name, number in bound)} by node-users"
    if 0 < len(seen.hosted) <= _MAX_EXAMPLES:
        hosted = ", ".join(map(str, sorted(seen.hosted.values(), reverse=True)))
        text += f"; those that answered host {hosted} rostered users"
    if contested:
        text += f"; {len(contested)} others are claimed by two nodes ({seen.twice(contested)})"
    if foreign := seen.foreign_claims():
        text += f"; {some(foreign)}"
    strangers = [node_id for node_id in +seen.unlisted if not seen.hosted[node_id]]
    if strangers:
        text += (
            f"; no user of {some(seen.names[node_id] for node_id in strangers)} is on the roster: "
            "ids by another key (people.key), other names or another corpus"
        )
    failures = seen.failures
    if failures:
        text += f"; {len(failures)} nodes failed, the first with: {failures[0]}"
    if not allow_missing or len(missing) == num_users:
        if any(_NO_QUERY in failure for failure in failures):
            raise ValueError(
                "the ClientApp on the nodes is no UserLevelClientApp, nor has it a function of "
                "fedpriv.flower.bounded: it does not answer who lives there"
            )
        raise ValueError(
            f"{text}; start their nodes, check whom they list (of a ready app: corpus, roster "
            "and partition-id there), or raise register-seconds (allow-missing-users=true starts "
            "without them)"
        )
    _LOG.warning("%s; they will contribute zero", text)


def _holder_of(public_key: bytes, keys: NodeKeys) -> KeyHolder | None:
    """Return who holds the key that the SuperLink knows a node by; None of an unknown one."""
    try:
        return keys.get(_der(public_key))
    except ValueError:
        return None


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
    keys: dict[bytes, KeyHolder] = {}
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
        keys[key] = KeyHolder(name=_name_of(text, key), user_ids=frozenset(ids))
    return keys


def _name_of(text: str, key: bytes) -> str:
    """Return the comment behind an OpenSSH key in its line, or else the key's fingerprint."""
    words = [] if text.lstrip().startswith("-----") else plain(text).split()[2:]
    public = serialization.load_der_public_key(key)
    line = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return " ".join(words) or f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


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
