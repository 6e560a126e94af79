"""Who waits for a new plan, or for the server's next start: said on both sides, in a line each.

A roster is frozen in the plan, and where its users live is asked once, when the server starts. So
people who are not on it, and nodes that come later, take no part in the run. The server says so,
and tells their nodes, which say it in their own log. Nothing is waited for: a node that does not
listen is told nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

_LOG = logging.getLogger(__name__)
WAITING = f"{MessageType.QUERY}.waiting"
_RECORD, _WHY, _USERS = "waiting", "why", "users"
_SECONDS = 300.0
#: What a node says for a reason; no text of a server's is ever written into its log.
_SAID = {
    "roster": "%d of this node's users are not on the roster of the run under way, which is "
    "frozen: they wait for a new plan",
    "late": "this node came after the run under way had asked who lives where (%d nodes did): its "
    "rostered users take part from the server's next start on, others wait for a new plan",
    "key": "the run under way asks nothing of this node: its key is not in the server's "
    "node-users (%d nodes); its users wait for a file, or a plan, that names them",
}


def tell(grid: Grid, why: str, numbers: Mapping[int, int]) -> None:
    """Tell nodes what they wait for; what they answer is not looked at.

    Args:
        grid: The way to the nodes.
        why: "roster", "late" or "key".
        numbers: How many are meant, by node id.
    """
    for node_id, number in numbers.items():
        record = ConfigRecord({_WHY: why, _USERS: number})
        content = RecordDict({_RECORD: record})
        grid.push_messages([Message(content, node_id, WAITING, ttl=_SECONDS, group_id="waiting")])


def note_waiting(message: Message) -> Message:
    """Write what a server told this node into its log, in words of ours."""
    record = message.content.get(_RECORD)
    if isinstance(record, ConfigRecord):
        said, number = _SAID.get(str(record.get(_WHY))), record.get(_USERS)
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
    tell(grid, "roster", numbers)


def say_unknown(grid: Grid, node_ids: Sequence[int]) -> None:
    """Say, here and to the nodes, that nobody is bound to their keys."""
    if not node_ids:
        return
    _LOG.warning(
        "%d nodes have keys that node-users does not name: they are asked nothing, and notified",
        len(node_ids),
    )
    tell(grid, "key", dict.fromkeys(node_ids, len(node_ids)))


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
        tell(self._grid, "late", dict.fromkeys(new, len(new)))
