"""Runs the ServerApp and the ClientApp of this project within one process, without a network.

    python on_flower.py NODES '{"corpus": "...", "out": "...", ...}'

Both apps are called as Flower calls them: nodes get their context, messages go through Flower's own
object encoding. The run-config is the bundle's, from `pyproject.toml`, with the given keys over it.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

import fedpriv

TREE = Path(fedpriv.__file__).resolve().parents[1]


def over_the_wire(message: Message) -> Message:
    """Return the message as Flower's transport would deliver it."""
    message.metadata.__dict__["_message_id"] = message.metadata.message_id or str(uuid4())
    contents = {key: item.deflate() for key, item in get_all_nested_objects(message).items()}
    copy = cast(Message, inflate_object_from_contents(message.object_id, contents))
    copy.metadata.__dict__["_message_id"] = message.metadata.message_id
    return copy


@dataclass
class Nodes(Grid):
    """Nodes by id, each with a context of its own; a node answers when its reply is asked for."""

    app: Any
    contexts: dict[int, Context]
    _run: Run | None = None
    _waiting: dict[str, Message] = field(default_factory=dict)

    def set_run(self, run: Run) -> None:
        """Take the run, which nothing here asks for."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that was set."""
        assert self._run is not None
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return every node's id."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver messages and return their ids."""
        ids = []
        for message in messages:
            message_id = str(uuid4())
            message.metadata.__dict__["_message_id"] = message_id
            delivered = over_the_wire(message)
            delivered.metadata.__dict__["_message_id"] = message_id
            self._waiting[message_id] = delivered
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Let the nodes answer, and return their replies."""
        return [self._answer(self._waiting.pop(i)) for i in message_ids if i in self._waiting]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Deliver messages and return the replies."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, request: Message) -> Message:
        try:
            reply = self.app(request, self.contexts[request.metadata.dst_node_id])
        except Exception as error:
            reply = Message(Error(3, repr(error)), reply_to=request)
        return over_the_wire(reply)


def main() -> None:
    num_nodes, changes = int(sys.argv[1]), json.loads(sys.argv[2])
    bundle = tomllib.loads((TREE / "pyproject.toml").read_text("utf-8"))["tool"]["flwr"]["app"]
    run_config = {**bundle["config"], **changes}
    # A message wants to know who sends it; Flower's own processes set this at their start.
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    from client.app import app as client
    from server.app import app as server

    def context(node_id: int, **node_config: int) -> Context:
        return Context(
            run_id=1,
            node_id=node_id,
            node_config=dict(node_config),
            state=RecordDict(),
            run_config=run_config,
        )

    contexts = {
        101 + i: context(101 + i, **{"partition-id": i, "num-partitions": num_nodes})
        for i in range(num_nodes)
    }
    server(Nodes(client, contexts), context(1))


if __name__ == "__main__":
    main()
